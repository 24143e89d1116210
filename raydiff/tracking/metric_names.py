"""What MLflow is told of a trial's files, and how a run is called there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raydiff.formats.json_files import flatten

PERIOD_S = 2.0  # between looks at the files
QUALIFIES = re.compile(
    r"_(low|high|spread|real)$|(?<!all)(?<!minor)_floor$|/kd_\w+/\w+_floor$|/(ddim|ancestral|dpmsolver|class|client)/(?!best/)|/sanity$"
    r"|/(major|cluster_[ab])$|/attack/[^/]+/(?!best/)|/(precision|recall|density|coverage)/(?!all)"
    r"|/(threshold|timestep_index|n_members|n_nonmembers|tpr_calibrated|balanced_accuracy|fpr_reached\S*|tpr_at_0\S*|tpr_ceiling\S*)$"
)
"""Numbers that qualify others: the final ones are in the run's table `final.json`, and no metrics, of which a page
shows few. Nor are what single clients report of a round, which `raydiff tables` has."""


def telling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a place in a chart."""
    return {k: v for k, v in values.items() if not QUALIFIES.search(k)}


def of_round(line: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a line of metrics.jsonl."""
    return telling({k: v for k, v in line.items() if k not in ("step", "time") and not k.startswith("client/")})


def final(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The final numbers of an outcome, as they are called beside those of rounds."""
    return {f"final/{k}": v for k, v in outcome.get("final", {}).items()}


def run_name(tree: Mapping[str, Any], spent: str | None = None) -> str:
    """`spent` is the epsilon of the ledger; while there is none, what was asked for is named as such."""
    method = tree["method"]
    model = method["model"]
    parts = [method["kind"], f"{tree['clients']} clients", flatten(model).get("schedule", model["kind"])]
    if spent is not None:
        parts.insert(1, f"epsilon {spent}")
    elif "epsilon" in method:
        parts.insert(1, "no noise" if method["epsilon"] is None else f"target epsilon {method['epsilon']:g}")
    return ", ".join([*parts, f"seed {tree['seed']}"])
