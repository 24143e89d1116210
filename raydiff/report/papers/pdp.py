"""Per-instance privacy (pDP) of tables: what a sweep over tables says, or what the bound does on random tables.

    raydiff pdp SWEEP [--out DIR]       of a sweep over tables: what it has of the paper's Figures 6 and 7
    raydiff pdp FOLDER [--out DIR]      of `raydiff theory pdp --out FOLDER`: Figures 3, 4, 5, 8 and 11

Prints tables with the paper's numbers beside ours and writes pdp.md, pdp-removal and pdp-attack as CSV and pictures, or
pdp-bound.png. The paper: Wei et al., TMLR 2024 (arXiv 2310.15524). Intervals are Student's at 95 % over seeds and
splits. These bounds are no differential privacy: none stands beside an epsilon of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from raydiff.report import load
from raydiff.report.papers import pdp_plot
from raydiff.report.papers.pdp_table import attacks, attacks_text, removal, removal_text

BOUND = "pdp-bound.csv"
CAVEAT = (
    "pDP bounds are valid for a perfectly trained model, training error not included; they depend on the data, are "
    "confidential to the curator, and are no replacement for DP. After removal: conditional on the removed set, not "
    "the pipeline's guarantee."
)


def main(argv: Sequence[str]) -> None:
    """Print the tables, write the files and say where."""
    folder, out = load.arguments(__doc__, argv)
    if (folder / BOUND).is_file():
        out = out if "--out" in argv else folder
        out.mkdir(parents=True, exist_ok=True)
        pdp_plot.bound(pd.read_csv(folder / BOUND, keep_default_na=False, dtype={"figure": str}), out / "pdp-bound.png")
        print(out / "pdp-bound.png")
        return
    print(sweep(load.runs(folder), out, what=str(folder)))


def sweep(runs: pd.DataFrame, out: Path, *, what: str) -> str:
    """Write what the runs of a sweep have of Figures 6 and 7, and give it as text. Raises ValueError for neither."""
    found = {"removal": removal(runs), "attack": attacks(runs)}
    if all(table.empty for table in found.values()):
        raise ValueError(f"{what} has no finished trial on a table that was audited or attacked")
    out.mkdir(parents=True, exist_ok=True)
    texts = [removal_text(found["removal"]), attacks_text(found["attack"])]
    for (name, table), draw in zip(found.items(), (pdp_plot.removal, pdp_plot.attack), strict=True):
        if len(table):
            table.to_csv(out / f"pdp-{name}.csv", index=False)
            draw(table, out / f"pdp-{name}.png")
    says = "\n\n".join([*(text for text in texts if text), CAVEAT])
    (out / "pdp.md").write_text(says + "\n")
    return f"{says}\n\n{out}"
