"""METRICS, the metrics by name: what `Evaluation.metrics` takes."""

from collections.abc import Callable
from typing import Any

from raydiff import lookup
from raydiff.formats.metric_records import COMPARED, DETAILED, UNBOUNDED
from raydiff.lookup import Door

METRICS: Door[Callable[..., Any]] = Door(
    "metric",
    {
        "accuracy": "raydiff.evaluation.sample_metrics:accuracy",
        "frechet": "raydiff.evaluation.sample_metrics:measure_frechet",
        "kernel": "raydiff.evaluation.sample_metrics:measure_kernel",
        "coverage": "raydiff.evaluation.sample_metrics:sample_coverage",
        "labels": "raydiff.evaluation.sample_metrics:measure_label_accuracy",
        "memorization": "raydiff.evaluation.sample_metrics:memorized",
        "downstream": "raydiff.evaluation.sample_metrics:measure_downstream",
        "table": "raydiff.evaluation.sample_metrics:table_quality",
        "blackbox": "raydiff.papers.discrete.blackbox:of_rows",
    },
)  # in the order in which they are measured
ALL = "all"  # in `Evaluation.metrics`: every metric of the data's modality
BY_FEATURES = ("frechet", "kernel", "coverage")  # read in the space of the feature network
RESERVED = (
    *("fd_cnn", "kd_cnn", "fid", "kid", "precision", "recall", "density", "coverage", "own_classes", "label_accuracy"),
    *("memorized_fraction", "downstream", "blackbox", "tv_columns", "tv_pairs", "accuracy", "utility_loss"),
    *COMPARED,
    *DETAILED,
)
"""Names that no metric of another package may have."""


def check_metrics(names: tuple[str, ...]) -> None:
    """Raise ValueError unless each is a metric, and those of other packages have a direction and a free name."""
    found = lookup.entries("metrics", METRICS, [name for name in names if name != ALL])
    for name in (lookup.bare_name(text) for text in names if lookup.is_outside(text)):
        metric = found[name]
        if name in RESERVED:
            raise ValueError(f"the metric {name} is called like numbers of raydiff's own: give it another name")
        if not isinstance(getattr(metric, "lower_is_better", None), bool):
            raise ValueError(f"the metric {name} must have an attribute lower_is_better, True or False")
        bounds = getattr(metric, "bounds", UNBOUNDED)
        if not (isinstance(bounds, tuple) and len(bounds) == 2 and bounds[0] < bounds[1]):
            raise ValueError(f"the metric {name} must have bounds (least, greatest), or none, not {bounds!r}")
