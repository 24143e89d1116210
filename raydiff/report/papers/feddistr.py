"""What does one round of prompts cost? The axes of FedDistr's Figures 4, 5, 7 and 8 and of its Table 2, from a sweep.

    raydiff feddistr SWEEP [--out DIR]

Prints the tables and writes feddistr.md, three tables as CSV (feddistr-losses, -paired, -convergence) and a picture per
question (feddistr-rounds, -bytes, -epsilon, -clients), those that the sweep has an answer to. The paper: arXiv
2410.12530. Utility loss is 1 - accuracy on real test records; epsilon is the ledger's, against the server. Paired
differences are FedDistr's without noise minus another arm's, seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from raydiff.report import load
from raydiff.report.papers.feddistr_plot import plot
from raydiff.report.papers.feddistr_table import convergence, curves, differences, readings, summary
from raydiff.report.papers.feddistr_text import text


def main(argv: Sequence[str]) -> None:
    """Print the tables, write the files and say where."""
    sweep, out = load.arguments(__doc__, argv)
    runs = load.runs(sweep)
    try:
        found = readings(runs)
    except ValueError as e:
        raise ValueError(f"{sweep} cannot be read as a sweep of FedDistr: {e}") from None
    rows, curve = summary(found), curves(load.rounds(sweep))
    tables = {"losses": rows, "paired": differences(found), "convergence": convergence(found, curve)}
    says = text(found, rows, tables["paired"], tables["convergence"])
    if left := len(runs) - found["digest"].nunique():
        says += f"\n\nLeft out: {left} of {len(runs)} trials, not finished, without an accuracy or without an xi."
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"feddistr-{name}.csv", index=False)
    (out / "feddistr.md").write_text(says + "\n")
    plot(rows, found, curve, out)
    print(f"{says}\n\n{out}")
