"""How much could a table's synthetic rows reveal of each record? Nothing is trained.

    raydiff audit adult.csv --label income --bins 5 --steps 10 --epsilon 1 --release 1000 --out DIR
    raydiff audit adult --schedule sigmoid --rate 2.5 --out DIR          # a table that raydiff knows
    raydiff audit adult.csv --label income --release yes=100 no=900 --out DIR

For each record the per-instance bound (pDP, Wei et al., Theorem 1) on delta for releasing that many rows of a discrete
diffusion model; the most exposed records, by row of the file; and what removing some of them would change. A table with
a label is audited for a conditional model: each record is bounded among the rows of its label. DIR gets report.txt,
records.parquet, removals.json and audit.png. All of them are confidential.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from raydiff.cli.options import StorageOptions, parse, positional
from raydiff.data.tables.encode import Column
from raydiff.data.tables.read import Encoded, Table, read
from raydiff.formats.plots import panels
from raydiff.models.d3pm_kernel import schedule_named
from raydiff.papers.discrete import audit_log, audit_table
from raydiff.papers.discrete.bound import Audit, ReleasedRows, audit, caveats
from raydiff.papers.discrete.kernel import Ints, Kernel
from raydiff.papers.discrete.summary import QUANTILES, REMOVED, Removal, most_exposed, removals, summarize

FILES = ("report.txt", "records.parquet", "removals.json", "audit.png")
EXPOSED = 10
"""So many of the most exposed records are printed."""


@dataclass(frozen=True, kw_only=True)
class Options(StorageOptions):
    table: str = positional()
    """CSV or parquet file, or adult, german, loan."""
    out: Path
    """Folder for the files; its name is the MLflow run's."""
    label: str | None = None
    """Label column, on which the model is conditional."""
    unconditional: bool = False
    """For a model that is conditional on nothing: each record is bounded among all rows."""
    exclude: tuple[str, ...] = ()
    """Columns to leave out."""
    bins: int | None = None
    """k: the most categories of a column."""
    keep_bins: bool = False
    """Do not merge quantile bins that hold a single record."""
    steps: int = 10
    """T."""
    schedule: Literal["linear", "sigmoid", "cosine"] = "linear"
    """The noise schedule."""
    rate: float = 1.0
    """Of the linear or sigmoid schedule."""
    epsilon: float = 1.0
    """pDP's epsilon at which delta is stated."""
    release: tuple[str, ...] = ("1",)
    """Rows that are released, of whatever label, or LABEL=ROWS for each label."""
    release_step: int = 0
    """Step at which the rows are taken."""
    remove: tuple[float, ...] = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
    """Fractions of the records to remove (none given: skip)."""
    log: bool = False
    """Log a summary to MLflow, without rows and records; it depends on the records."""
    log_confidential: bool = False
    """Log all files to MLflow, with every record's bound, for a server that only the curator can read."""


def main(argv: Sequence[str]) -> int:
    """Read, audit, print, save."""
    options = parse(Options, argv, __doc__)
    config = Table(source=options.table, label=options.label, bins=options.bins, exclude=options.exclude)
    encoded = read(config)
    labels = None if options.unconditional or encoded.labels is None else encoded.labels.numpy()
    label = None if labels is None else encoded.mapping.label
    encoded = audit_table.with_notes(encoded, config, labels, keep=options.keep_bins)
    samples, by_label = audit_table.rows(options.release, label)
    alpha = schedule_named(options.schedule, options.rate).alpha(options.steps).tolist()
    release = ReleasedRows(
        kernel=Kernel(alpha=alpha, categories=encoded.k),
        epsilon=options.epsilon,
        samples=samples,
        by_label=by_label,
        step=options.release_step,
    )
    codes = encoded.codes.numpy()
    result = audit(codes, release, labels=labels)
    after = removals(codes, release, result, options.remove, labels=labels)
    head = (
        f"{encoded.says}: {len(codes)} records, {len(encoded.columns)} columns, k = {encoded.k}",
        *encoded.notes,
        f"per-instance bound (pDP) on delta at pDP epsilon {release.epsilon:g}, "
        f"for {audit_table.released(release, label)}",
        f"{options.schedule} schedule, rate {options.rate:g}, T = {options.steps}, rows of step {options.release_step}",
    )
    public = "\n".join([*head, "", *_summary(result, after), "", *caveats(release, conditional=label is not None)])
    text = f"{public}\n\n" + "\n".join(_of_records(encoded, result, labels))
    print(text)
    _save(options.out, text, after, result)
    records(encoded, release, result).to_parquet(options.out / "records.parquet")
    print(f"\nfiles in {options.out}: {', '.join(FILES)}")
    if options.log or options.log_confidential:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "audit"
            if options.log_confidential:
                folder.mkdir()
                for name in FILES:  # and no other file of the folder
                    shutil.copy(options.out / name, folder)
            else:
                _save(folder, public, after, None)
            about = {"table": Path(options.table).name, "columns": " ".join(encoded.columns), "k": encoded.k}
            summary, notes = summarize(result.of_records(result.delta)), caveats(release, conditional=label is not None)
            print(audit_log.log(folder, options, about, summary, after, notes))
    return 0


def _save(out: Path, text: str, after: Sequence[Removal], result: Audit | None) -> None:
    """report.txt, removals.json and audit.png; without `result` the picture shows no records."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.txt").write_text(text + "\n")
    (out / "removals.json").write_text(json.dumps([dataclasses.asdict(r) for r in after], indent=1))
    _draw(result, after, out / "audit.png")


def _summary(result: Audit, after: Sequence[Removal]) -> list[str]:
    """Lines without a number that is a record's or a label's own."""
    whole = summarize(result.of_records(result.delta))
    quantiles = (f"{q:.0%} {value:.3g}" for q, value in zip(QUANTILES, whole.quantiles, strict=True))
    lines = [
        f"delta: largest {whole.largest:.3g}, mean {whole.mean:.3g}" + (" of the finite" if whole.infinite else ""),
        f"quantiles: {', '.join(quantiles)}",
        f"vacuous (1 or more): {whole.vacuous} of {whole.records}, {whole.infinite} of them infinite",
    ]
    lines += ["", f"after removing the most exposed ({REMOVED}):"] if after else []
    for removal in after:
        left = removal.left
        numbers = f"largest {left.largest:.3g}, mean {left.mean:.3g}, vacuous {left.vacuous}"
        lines.append(f"  {removal.share:.1%}: {numbers}")
    return lines


def _of_records(encoded: Encoded, result: Audit, labels: Ints | None) -> list[str]:
    """Lines about each label's records, and about the most exposed ones."""
    delta, rows, lines = result.of_records(result.delta), encoded.rows.numpy(), list[str]()
    label = None if labels is None else encoded.mapping.label
    if label is not None:
        lines.append(f"by {label.name}:")
        for code, name in enumerate(label.categories):
            part = summarize(delta[labels == code])
            lines.append(f"  {name}: {part.records} records, median {part.median:.3g}, largest {part.largest:.3g}")
    lines.append("most exposed (row of the file, 0 below the header):")
    for record in most_exposed(delta)[:EXPOSED]:
        lines.append(f"  row {rows[record]}: {delta[record]:.3g}{_reason(encoded, result, int(record), label)}")
    return lines


def _reason(encoded: Encoded, result: Audit, record: int, label: Column | None) -> str:
    """Why its bound is infinite, or nothing."""
    alone, name = result.of_records(result.alone)[record], None if label is None else label.name
    if alone < 0:
        return ""
    if alone == len(encoded.columns):
        return f"  no other record has its {name}"
    return f"  no other record{f' of its {name}' if name else ''} has its {encoded.columns[alone]}"


def records(encoded: Encoded, release: ReleasedRows, result: Audit) -> pd.DataFrame:
    """One row per record: delta, and psi_t, radius, similarity for each step."""
    label = encoded.mapping.label
    names = np.array([*encoded.columns, None if label is None else label.name, None], dtype=object)
    frame = {
        "row": encoded.rows.numpy(),
        "delta": result.of_records(result.delta),
        "overlap": result.of_records(result.overlap),
        "alone_in": names[result.of_records(result.alone)],
    }
    for name in ("psi", "radius", "similarity"):
        values = result.of_records(getattr(result, name))
        frame |= {f"{name}_{t}": values[:, i] for i, t in enumerate(release.steps)}
    return pd.DataFrame(frame)


def _draw(result: Audit | None, after: Sequence[Removal], path: Path) -> None:
    """Figure 6 without its accuracy: delta over the fraction removed, and each record's against overlap."""
    count = 1 if result is None else 2
    figure, ((left, *others),) = panels(1, count, size=(5 * count, 4))
    shares = [r.share for r in after]
    left.plot(shares, [r.left.mean for r in after], "o-", label="mean (finite)")
    left.plot(shares, [r.left.largest for r in after], "s-", label="largest")
    left.set(xlabel="fraction of records removed", ylabel="bound on delta (pDP) of the rest", yscale="log")
    left.set_title(REMOVED, fontsize=8)
    left.legend()
    if result is not None:
        (right,) = others
        finite = np.isfinite(result.delta) & (result.delta > 0)
        right.scatter(result.overlap[finite], result.delta[finite], s=4, alpha=0.4)
        right.axhline(1, color="gray", lw=0.8)
        right.set(xlabel="mean overlap with the other records", ylabel="bound on delta (pDP)", yscale="log")
        right.set_title("confidential to the curator", fontsize=8)
    figure.savefig(path, dpi=120)
