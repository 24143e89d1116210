"""How much could a table's synthetic rows reveal of each record? Nothing is trained.

    raydiff audit adult.csv --label income --bins 5 --steps 10 --epsilon 1 --release 1000 --out DIR
    raydiff audit adult --schedule sigmoid --rate 2.5 --out DIR          # a table that raydiff knows
    raydiff audit adult.csv --label income --release yes=100 no=900 --out DIR

For each record the per-instance bound (pDP, Wei et al., Theorem 1) on delta for releasing that many rows of a discrete
diffusion model; the most exposed records, by row of the file; and what removing some of them would change. A table with
a label is audited for a conditional model: each record is bounded among the rows of its label. DIR gets report.txt,
records.parquet, removals.json and audit.png. All of them are confidential.
"""

import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Lt

from raydiff.cli.options import StorageOptions, parse_command, positional
from raydiff.data.tables.encode import Column
from raydiff.data.tables.read import Encoded, RawTable, read_table
from raydiff.experiment import overrides
from raydiff.experiment.overrides import format_value
from raydiff.models.d3pm_kernel import CATEGORY_SCHEDULES, checked_alpha, schedule_named
from raydiff.papers.discrete.audit_results import FILES, AuditResults
from raydiff.papers.discrete.bound import Audit, ReleasedRows, audit_rows
from raydiff.papers.discrete.kernel import Kernel
from raydiff.papers.discrete.summary import QUANTILES, REMOVED, Summary, removals
from raydiff.runtime import sweep_folder
from raydiff.settings import Count, Positive
from raydiff.storage import staging
from raydiff.tracking import mlflow_store

BATCH = 0.01  # fraction of the records removed before the rest is audited again, as `audit.batch`
CONFIDENTIALITY = {
    False: "holds summary numbers, which depend on the records",
    True: "holds the bound of every record, and its row of the file",
}
"""--log-confidential -> what the MLflow run holds."""
SETTINGS = ("unconditional", "steps", "schedule", "rate", "epsilon", "release", "release_step")
"""Options that are logged as parameters."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(StorageOptions):
    table: str = positional()
    """CSV or parquet file, or adult, german, loan."""
    out: Path
    """Folder for the files; its name is the MLflow run's."""
    unconditional: bool = False
    """For a model that is conditional on nothing: each record is bounded among all rows."""
    steps: Count = 10
    """T."""
    schedule: Annotated[str, CATEGORY_SCHEDULES] = "linear"
    """The noise schedule: linear, sigmoid or cosine, or module:name from anywhere."""
    rate: float = 1.0
    """Of the linear or sigmoid schedule."""
    epsilon: Positive = 1.0
    """pDP's epsilon at which delta is stated."""
    release: tuple[str, ...] = ("1",)
    """Rows that are released, of whatever label, or LABEL=ROWS for each label."""
    release_step: int = 0
    """Step at which the rows are taken."""
    remove: tuple[Annotated[float, Gt(0), Lt(1)], ...] = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
    """Fractions of the records to remove (none given: skip)."""
    log: bool = False
    """Log a summary to MLflow, without rows and records; it depends on the records."""
    log_confidential: bool = False
    """Log all files to MLflow, with every record's bound, for a server that only the curator can read."""


def main(argv: Sequence[str]) -> int:
    """Read, audit, print, save."""
    options, table = parse_arguments(argv)
    results = audit_table(options, table)
    print(results.save(options.out, with_records=True))
    print(f"\nfiles in {options.out}: {', '.join(FILES)}")
    if options.log or options.log_confidential:
        with tempfile.TemporaryDirectory() as temporary:  # --out may hold other files
            folder = Path(temporary) / "audit"
            results.save(folder, with_records=options.log_confidential)
            print(_log(folder, options, table, results))
    return 0


def parse_arguments(argv: Sequence[str]) -> tuple[AuditOptions, RawTable]:
    """The options, and the table: --exclude and the like, or --data.exclude as a trial names it."""
    words = [re.sub(r"^--data\.(labels(?=$|=))?", lambda m: "--label" if m[1] else "--", word) for word in argv]
    options, fields = parse_command(AuditOptions, words, __doc__, RawTable())
    table: RawTable = overrides.override(RawTable(source=options.table), overrides.parse_fields(RawTable(), fields))
    return options, table


def audit_table(options: AuditOptions, config: RawTable) -> AuditResults:
    """Read the table and bound every record, before and after removals."""
    encoded = read_table(config)
    labels = None if options.unconditional or encoded.labels is None else encoded.labels.numpy()
    label = None if labels is None else encoded.mapping.label
    alpha = checked_alpha(schedule_named(options.schedule, options.rate), options.steps)
    kernel = Kernel(alpha=alpha.tolist(), categories=encoded.k)
    counts = _rows(options.release, label)
    release = ReleasedRows(kernel=kernel, epsilon=options.epsilon, step=options.release_step, **counts)
    codes = encoded.codes.numpy()
    result = audit_rows(codes, release, labels=labels)
    setting = (
        f"{encoded.says}: {len(codes)} records, {len(encoded.columns)} columns, k = {encoded.k}",
        *encoded.notes,
        *_lone_bins(encoded, config, result),
        f"per-instance bound (pDP) on delta at pDP epsilon {release.epsilon:g}, for {_released(release, label)}",
        f"{options.schedule} schedule, rate {options.rate:g}, T = {options.steps}, rows of step {options.release_step}",
    )
    after = removals(codes, release, options.remove, batch=BATCH, labels=labels)
    return AuditResults(encoded=encoded, labels=labels, release=release, setting=setting, audit=result, removals=after)


def _lone_bins(encoded: Encoded, config: RawTable, result: Audit) -> list[str]:
    """A note on columns in which a record is alone in a quantile bin, among its label's records."""
    columns = [encoded.mapping.columns[i] for i in np.unique(result.alone) if 0 <= i < len(encoded.columns)]
    names = [c.name for c in columns if c.edges is not None and c.name not in config.given_edges]
    if not names:
        return []
    says = f"some records are alone in a quantile bin of {', '.join(names)}: their bound on clean rows is infinite"
    return [f"{says}; try fewer --bins, or --exclude"]


def _rows(words: Sequence[str], label: Column | None) -> dict[str, Any]:
    """`samples`, and `by_label` where it is given, of `ReleasedRows` from --release."""
    names = label.categories if label is not None else ()
    pairs = [word.rpartition("=") for word in words]
    try:
        counts = {name: int(count) for name, _, count in pairs}
    except ValueError:
        raise ValueError(f"--release must be a number of rows or LABEL=ROWS, got {' '.join(words)!r}") from None
    if len(words) == 1 and not pairs[0][1]:
        return {"samples": counts[""]}
    if label is None or len(counts) < len(words) or {*counts} != {*names}:
        allowed = f"once each of {', '.join(names)}" if names else "no label, for the model is conditional on none"
        raise ValueError(f"--release must name {allowed}, got {' '.join(words)!r}")
    return {"samples": max(counts.values()), "by_label": tuple(counts[name] for name in names)}


def _released(release: ReleasedRows, label: Column | None) -> str:
    if label is None:
        return f"{release.samples} released rows"
    if not release.by_label:
        return f"{release.samples} released rows, all of the record's own {label.name}"
    return ", ".join(f"{m} released rows of {n}" for n, m in zip(label.categories, release.by_label, strict=True))


def _log(folder: Path, options: AuditOptions, config: RawTable, results: AuditResults) -> str:
    """Log the folder as an artifact, and the summaries as metrics, of a finished MLflow run. Return where it is.

    Metrics are `pdp/...`, and `pdp/after_removal/...` with the number of removed records as step. A bound that is not
    finite becomes the tag `raydiff.audit.NAME`.
    """
    staging.create_storage(options.storage)
    uri, artifacts = sweep_folder.tracking_store(options.storage)
    encoded = results.encoded
    values = _values(results.summary)
    metrics = [(f"pdp/{name}", 0, value) for name, value in values.items()]
    for removal in results.removals:
        step = len(encoded.codes) - removal.left.records
        numbers = {**_values(removal.left), "share": removal.share}
        metrics += [(f"pdp/after_removal/{name}", step, value) for name, value in numbers.items()]
    confidentiality = CONFIDENTIALITY[options.log_confidential]
    after = [f"after removal: {REMOVED}"] if results.removals else []
    tags = {
        "raydiff.kind": "audit",
        "raydiff.privacy": "none",
        "raydiff.confidential": confidentiality,
        "raydiff.audit": "; ".join(results.caveats),
        "mlflow.note.content": "\n\n".join([f"This run {confidentiality}.", *results.caveats, *after]),
        **{f"raydiff.audit.{name}": str(value) for name, value in values.items() if not math.isfinite(value)},
        **{f"raydiff.made_by.{name}": value for name, value in sweep_folder.code_version().items()},
    }
    table = {"table": Path(options.table).name, "columns": " ".join(encoded.columns), "k": encoded.k}
    run = mlflow_store.log_folder(
        uri,
        folder,
        experiment="raydiff-audit",
        name=options.out.name,
        tags=tags,
        artifacts=artifacts,
        params={
            **table,
            "label": format_value(config.label),
            **{name: format_value(getattr(options, name)) for name in SETTINGS},
        },
        metrics=metrics,
    )
    return f"logged to {mlflow_store.redact_passwords(uri)}: run {run}, artifact {folder.name}; {confidentiality}"


def _values(summary: Summary) -> dict[str, float]:
    quantiles = {f"delta_q{q * 100:02.0f}": x for q, x in zip(QUANTILES, summary.quantiles, strict=True)}
    values = {k: v for k, v in asdict(summary).items() if k not in ("largest", "mean", "quantiles")}
    return {**values, "delta_largest": summary.largest, "delta_mean": summary.mean, **quantiles}
