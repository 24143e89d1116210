"""An audit as an MLflow run: the summary as metrics, the caveats as tags, a folder of files as its artifact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydiff.experiment.overrides import short
from raydiff.papers.discrete.summary import QUANTILES, REMOVED, Removal, Summary
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_store

if TYPE_CHECKING:
    from raydiff.papers.discrete.audit_command import Options

EXPERIMENT = "raydiff-audit"
CONFIDENTIALITY = {
    False: "holds summary numbers, which depend on the records",
    True: "holds the bound of every record, and its row of the file",
}
"""--log-confidential -> what the run holds."""
SETTINGS = ("label", "unconditional", "steps", "schedule", "rate", "epsilon", "release", "release_step")
"""Options that are logged as parameters."""


def log(
    folder: Path,
    options: Options,
    about: dict[str, Any],
    summary: Summary,
    after: Sequence[Removal],
    caveats: Sequence[str],
) -> str:
    """Log the folder and the summaries as a finished run named after --out. Returns where it is.

    Metrics are `pdp/...`, and `pdp/after_removal/...` with the number of removed records as step. A bound that is not
    finite becomes the tag `raydiff.audit.NAME`. Raises ValueError where MLflow cannot be written.
    """
    options.storage.mkdir(parents=True, exist_ok=True)
    uri, artifacts = sweep_folder.tracking_store(options.storage)
    values, confidentiality = _values(summary), CONFIDENTIALITY[options.log_confidential]
    metrics = [(f"pdp/{name}", 0, value) for name, value in values.items()]
    for removal in after:
        step = summary.records - removal.left.records
        numbers = {**_values(removal.left), "share": removal.share}
        metrics += [(f"pdp/after_removal/{name}", step, value) for name, value in numbers.items()]
    notes = [f"This run {confidentiality}.", *caveats, *([f"after removal: {REMOVED}"] if after else [])]
    tags = {
        "raydiff.kind": "audit",
        "raydiff.privacy": "none",
        "raydiff.confidential": confidentiality,
        "raydiff.audit": "; ".join(caveats),
        "mlflow.note.content": "\n\n".join(notes),
        **{f"raydiff.audit.{name}": str(value) for name, value in values.items() if not math.isfinite(value)},
        **{f"raydiff.made_by.{name}": value for name, value in sweep_folder.version().items()},
    }
    run = mlflow_store.log_folder(
        uri,
        folder,
        experiment=EXPERIMENT,
        name=options.out.name,
        tags=tags,
        artifacts=artifacts,
        params={**about, **{name: short(getattr(options, name)) for name in SETTINGS}},
        metrics=metrics,
    )
    return f"logged to {mlflow_store.redacted(uri)}: run {run}, artifact {folder.name}; {confidentiality}"


def _values(summary: Summary) -> dict[str, float]:
    quantiles = {f"delta_q{q * 100:02.0f}": x for q, x in zip(QUANTILES, summary.quantiles, strict=True)}
    values = {k: v for k, v in asdict(summary).items() if k not in ("largest", "mean", "quantiles")}
    return {**values, "delta_largest": summary.largest, "delta_mean": summary.mean, **quantiles}
