"""An audit as an MLflow run: summary numbers, and what must be said with them. To leave what is confidential out of the
folder is the caller's part."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from raydiff.data.tables.read import Encoded
from raydiff.papers.discrete.bound import ReleasedRows, caveats
from raydiff.papers.discrete.summary import QUANTILES, REMOVED, Removal, Summary
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_store

EXPERIMENT = "raydiff-audit"
SUMMARY = "holds summary numbers, which depend on the records"
RECORDS = "holds the bound of every record, and its row of the file"


SETTINGS = ("label", "unconditional", "steps", "schedule", "rate", "release_step", "condition")
"""Options that are logged as they were given."""


def log(
    folder: Path,
    given: argparse.Namespace,
    encoded: Encoded,
    release: ReleasedRows,
    found: Summary,
    after: Sequence[Removal],
    *,
    conditional: bool,
) -> str:
    """Log the folder and the summaries as a finished run called like --out, with the caveats. Gives where it is.

    Metrics are `pdp/...`, and `pdp/after_removal/...` with the number of removed records as step. A bound that is not
    finite is the tag `raydiff.audit.NAME` in place of a metric. Raises ValueError, in one sentence, if MLflow cannot be
    written.
    """
    given.storage.mkdir(parents=True, exist_ok=True)
    uri, artifacts = sweep_folder.tracking_store(given.storage)
    values, says = _values(found), caveats(release, conditional=conditional)
    metrics = [(f"pdp/{k}", 0, v) for k, v in values.items()]
    for removal in after:
        gone = found.records - removal.left.records
        metrics += [(f"pdp/after_removal/{k}", gone, v) for k, v in _values(removal.left).items()]
        metrics.append(("pdp/after_removal/share", gone, removal.share))
    confidentiality = RECORDS if given.log_confidential else SUMMARY
    notes = [f"This run {confidentiality}.", *says, *([f"after removal: {REMOVED}"] if after else [])]
    tags = {
        "raydiff.kind": "audit",
        "raydiff.privacy": "none",
        "raydiff.confidential": confidentiality,
        "raydiff.audit": "; ".join(says),
        "mlflow.note.content": "\n\n".join(notes),
        **{f"raydiff.audit.{k}": str(v) for k, v in values.items() if not math.isfinite(v)},
        **{f"raydiff.made_by.{k}": v for k, v in sweep_folder.version().items()},
    }
    table = {"table": Path(given.table).name, "columns": " ".join(encoded.columns), "k": encoded.k}
    released = {"m": " ".join(given.release), "pdp_epsilon": release.epsilon}
    params = {**table, **released, **{name: getattr(given, name) for name in SETTINGS}}
    run = mlflow_store.log_folder(
        uri,
        folder,
        experiment=EXPERIMENT,
        name=given.out.absolute().name,
        tags=tags,
        artifacts=artifacts,
        params=params,
        metrics=metrics,
    )
    return f"logged to {mlflow_store.redacted(uri)}: run {run}, artifact {folder.name}; {confidentiality}"


def _values(found: Summary) -> dict[str, float]:
    quantiles = {f"delta_q{q * 100:02.0f}": x for q, x in zip(QUANTILES, found.quantiles, strict=True)}
    return {
        "records": found.records,
        "delta_largest": found.largest,
        "delta_mean": found.mean,
        **quantiles,
        "vacuous": found.vacuous,
        "infinite": found.infinite,
    }
