"""Before a table's synthetic rows are released: how much could they reveal of each record? Nothing is trained.

    raydiff audit adult.csv --label income --bins 5 --steps 10 --epsilon 1 --release 1000 --out DIR
    raydiff audit adult --schedule sigmoid --rate 2.5 --out DIR          # a table that is known

For each record the per-instance bound (pDP, Wei et al., Theorem 1) on delta for releasing that many rows of a discrete
diffusion model; the records that are most exposed, by row of the file; and what removing some of them would change.
Files in DIR: report.txt, records.parquet (a row per record), removals.json, audit.png. All of them are confidential.

A table with a label is audited for a model that is conditional on it, as those made here are: each record is bounded
among the rows of its label.

    --unconditional       for a model that is conditional on nothing: each record among all rows
    --release 1000        as many rows, each of whatever label; or rows of each label: --release yes=100 no=900
    --exclude id name     leaves columns out
    --keep-bins           leaves bins at quantiles as they are also where one record is alone in one (else: merged)

    --log                 its summary to MLflow: no rows and no records one by one, yet it depends on the records
    --log-confidential    all of these files to MLflow, for a server that only the curator can read
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from raydiff.cli.parser import Parser
from raydiff.data.tables.encode import Column
from raydiff.data.tables.read import Encoded, Table, read
from raydiff.evaluation.row_audit import Condition
from raydiff.formats.plots import panels
from raydiff.models.d3pm_kernel import schedule_named
from raydiff.papers.discrete import audit_log, audit_table
from raydiff.papers.discrete.bound import Audit, ReleasedRows, audit, caveats
from raydiff.papers.discrete.histograms import OnProgress
from raydiff.papers.discrete.kernel import Ints, Kernel
from raydiff.papers.discrete.summary import QUANTILES, REMOVED, Removal, Summary, most_exposed, removals, summarize

SHARES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
FILES = ("report.txt", "records.parquet", "removals.json", "audit.png")
QUIET = 3.0  # seconds before a bar is shown


def main(argv: Sequence[str]) -> int:
    """Read, audit, print, save."""
    given = _options().parse_args(argv)
    config = Table(
        source=given.table,
        label=given.label,
        bins=given.bins,
        columns=tuple(given.columns),
        exclude=tuple(given.exclude),
    )
    encoded = read(config)
    labels = None if given.unconditional or encoded.labels is None else encoded.labels.numpy()
    encoded = audit_table.with_notes(encoded, config, labels, keep=given.keep_bins)
    schedule = schedule_named(given.schedule, given.rate)
    samples, by_label = audit_table.rows(given.release, None if labels is None else encoded.mapping.label)
    release = ReleasedRows(
        kernel=Kernel(alpha=schedule.alpha(given.steps).tolist(), categories=encoded.k),
        epsilon=given.epsilon,
        samples=samples,
        by_label=by_label,
        step=given.release_step,
        condition=given.condition,
    )
    codes = encoded.codes.numpy()
    found = audit(codes, release, labels=labels, progress=_bar("audit"))
    after = removals(codes, release, found, given.remove, labels=labels, progress=_bar("removals"))
    how = f"{given.schedule} schedule, rate {given.rate:g}, T = {given.steps}, rows of step {given.release_step}"
    text = report(encoded, release, found, after, how=how, exposed=given.exposed, labels=labels)
    print(text)
    _save(given.out, text, after, found)
    records(encoded, release, found).to_parquet(given.out / "records.parquet")
    print(f"\nfiles in {given.out}: {', '.join(FILES)}")
    if given.log or given.log_confidential:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "audit"
            if given.log_confidential:  # these files alone, whatever else is in the folder
                folder.mkdir()
                for name in FILES:
                    shutil.copy(given.out / name, folder)
            else:
                summary = report(encoded, release, found, after, how=how, exposed=0, labels=labels)
                _save(folder, summary, after, None)
            of_all = summarize(found.of_records(found.delta))
            print(audit_log.log(folder, given, encoded, release, of_all, after, conditional=labels is not None))
    return 0


def _save(out: Path, text: str, after: Sequence[Removal], found: Audit | None) -> None:
    """report.txt, removals.json and audit.png; without `found` the picture shows no records."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.txt").write_text(text + "\n")
    (out / "removals.json").write_text(json.dumps([dataclasses.asdict(r) for r in after], indent=1))
    _draw(found, after, out / "audit.png")


def report(
    encoded: Encoded,
    release: ReleasedRows,
    found: Audit,
    after: Sequence[Removal],
    *,
    how: str,
    exposed: int,
    labels: Ints | None,
) -> str:
    """The whole text, with what must stand beside these numbers; with exposed = 0 nothing is a record's or a label's
    own. `labels` are those by which it was audited."""
    delta, label = found.of_records(found.delta), None if labels is None else encoded.mapping.label
    rows = encoded.rows.numpy()
    lines = [
        f"{encoded.says}: {len(delta)} records, {len(encoded.columns)} columns, k = {encoded.k}",
        *encoded.notes,
        f"per-instance bound (pDP) on delta at pDP epsilon {release.epsilon:g}, "
        f"for {audit_table.released(release, label)}",
        f"{how}; condition {release.condition}",
        "",
        *_summary_lines(summarize(delta)),
    ]
    if exposed and label is not None and labels is not None:
        lines += ["", f"by {label.name}:"]
        for code, name in enumerate(label.categories):
            own = summarize(delta[labels == code])
            lines.append(f"  {name}: {own.records} records, median {own.median:.3g}, largest {own.largest:.3g}")
    if exposed:
        lines += ["", "most exposed (row of the file, 0 below the header):"]
    for record in most_exposed(delta)[:exposed]:
        lines.append(f"  row {rows[record]}: {delta[record]:.3g}{_why(encoded, found, int(record), label)}")
    if after:
        lines += ["", f"after removing the most exposed ({REMOVED}):"]
        for removal in after:
            left = removal.left
            lines.append(
                f"  {removal.share:.1%}: largest {left.largest:.3g}, mean {left.mean:.3g}, vacuous {left.vacuous}"
            )
    return "\n".join([*lines, "", *caveats(release, conditional=label is not None)])


def _why(encoded: Encoded, found: Audit, record: int, label: Column | None) -> str:
    """Why its bound is infinite, or nothing."""
    alone, name = found.of_records(found.alone)[record], None if label is None else label.name
    if alone < 0:
        return ""
    if alone == len(encoded.columns):
        return f"  no other record has its {name}"
    return f"  no other record{f' of its {name}' if name else ''} has its {encoded.columns[alone]}"


def records(encoded: Encoded, release: ReleasedRows, found: Audit) -> pd.DataFrame:
    """One row per record: delta, and psi_t, radius, similarity for each step."""
    label = encoded.mapping.label
    names = np.array([*encoded.columns, None if label is None else label.name, None], dtype=object)
    frame = {
        "row": encoded.rows.numpy(),
        "delta": found.of_records(found.delta),
        "overlap": found.of_records(found.overlap),
        "alone_in": names[found.of_records(found.alone)],
    }
    for name in ("psi", "radius", "similarity"):
        values = found.of_records(getattr(found, name))
        frame |= {f"{name}_{t}": values[:, i] for i, t in enumerate(release.steps)}
    return pd.DataFrame(frame)


def _summary_lines(found: Summary) -> list[str]:
    shown = ", ".join(f"{q:.0%} {value:.3g}" for q, value in zip(QUANTILES, found.quantiles, strict=True))
    return [
        f"delta: largest {found.largest:.3g}, mean {found.mean:.3g}" + (" of the finite" if found.infinite else ""),
        f"quantiles: {shown}",
        f"vacuous (1 or more): {found.vacuous} of {found.records}, {found.infinite} of them infinite",
    ]


def _draw(found: Audit | None, after: Sequence[Removal], path: Path) -> None:
    """Figure 6 without its accuracy: delta over the share removed, and of each record of `found` against overlap."""
    count = 1 if found is None else 2
    figure, ((left, *others),) = panels(1, count, size=(5 * count, 4))
    shares = [r.share for r in after]
    left.plot(shares, [r.left.mean for r in after], "o-", label="mean (finite)")
    left.plot(shares, [r.left.largest for r in after], "s-", label="largest")
    left.set(xlabel="share of records removed", ylabel="bound on delta (pDP) of the rest", yscale="log")
    left.set_title(REMOVED, fontsize=8)
    left.legend()
    if found is not None:
        (right,) = others
        finite = np.isfinite(found.delta) & (found.delta > 0)
        right.scatter(found.overlap[finite], found.delta[finite], s=4, alpha=0.4)
        right.axhline(1, color="gray", lw=0.8)
        right.set(xlabel="mean overlap with the other records", ylabel="bound on delta (pDP)", yscale="log")
        right.set_title("confidential to the curator", fontsize=8)
    figure.savefig(path, dpi=120)


def _bar(what: str) -> OnProgress:
    """A line on stderr that is shown once something takes a few seconds."""
    start = time.monotonic()

    def show(share: float) -> None:
        if sys.stderr.isatty() and time.monotonic() - start > QUIET:
            print(f"\r{what} {share:4.0%}", end="\n" if share >= 1 else "", file=sys.stderr, flush=True)

    return show


def _options() -> Parser:
    p = Parser("audit", __doc__).with_storage()
    p.add_argument("table", help="CSV or parquet file, or adult, german, loan")
    p.add_argument("--label", default=None, help="label column: the model is conditional on it")
    p.add_argument("--unconditional", action="store_true", help="of a model that is conditional on nothing")
    p.add_argument("--columns", nargs="+", default=[], help="columns (default: all but the label)")
    p.add_argument("--exclude", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    p.add_argument("--bins", type=int, default=None, help="k: the most categories of a column")
    p.add_argument("--keep-bins", action="store_true", help="do not merge quantile bins that hold a single record")
    p.add_argument("--steps", type=int, default=10, help="T")
    p.add_argument("--schedule", default="linear", help="linear, sigmoid or cosine")
    p.add_argument("--rate", type=float, default=1.0, help="of the linear or sigmoid schedule")
    p.add_argument("--epsilon", type=float, default=1.0, help="pDP's epsilon at which delta is stated")
    p.add_argument(
        "--release", nargs="+", default=["1"], metavar="M", help="rows that are released, or LABEL=M for each"
    )
    p.add_argument("--release-step", type=int, default=0, metavar="T_RL", help="step at which they are taken")
    p.add_argument("--condition", default="relaxed", help=f"of the radius: {', '.join(get_args(Condition))}")
    p.add_argument("--exposed", type=int, default=10, help="how many of the most exposed records are printed")
    p.add_argument("--remove", type=float, nargs="*", default=list(SHARES), help="shares to remove (none: skip)")
    p.add_argument("--out", type=Path, required=True, help="folder for the files; its name is the MLflow run's")
    p.add_argument("--log", action="store_true", help="log a summary to MLflow, without rows and records")
    p.add_argument("--log-confidential", action="store_true", help="log all files to MLflow, with every record's bound")
    return p
