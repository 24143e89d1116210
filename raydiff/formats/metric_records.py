"""Metrics as records: what was measured, of what, and its value.

A metric is made where it is measured, written field by field, and read by its fields. The only string that is made of
one is its column in a table, `str(metric)`, such as `eval/ddim/fd_cnn/minor_floor` or `attack/global/best/auc_low`:

    [SPLIT/][SAMPLER/][class/C/ | client/N/][attack/TARGET/ATTACK/]NAME[/GROUP][_ROLE]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, SupportsFloat

from raydiff.formats.json_files import read_number

Role = Literal["value", "floor", "low", "high", "spread", "real", "count", "calibration"]
ENDINGS = ("floor", "low", "high", "spread", "real")  # roles that are part of a column's name
UNBOUNDED = (-math.inf, math.inf)
FRACTION = (0.0, 1.0)
QUALITY = ("distance_all", "distance_minority", "distance_unseen", "accuracy")
COMPARED = (
    *QUALITY,
    "epsilon",
    "attack_auc_global",
    "attack_auc_client",
    "attack_accuracy",
    "bytes_sent",
    "seconds",
)
"""Plain names that come first. Quality leads: MLflow's page for comparing runs opens on the first metric of a run."""
DETAILED = ("label_accuracy", "auc_ceiling", "memorized_fraction", "attack_auc_uploads")
"""Plain names that come after those of other packages."""
MOST_SHOWN = 12  # numbers of a trial that have a plain name


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a trial. All fields but the value say which one."""

    name: str  # the reading or statistic: fd_cnn, label_accuracy, auc, privacy/mu
    value: float = math.nan  # NaN: not measured
    group: str = ""  # the classes that were measured; real: real records in the place of samples
    part: tuple[str, int] | None = None  # ("client", 3) or ("class", 7): the only one that was measured
    sampler: str = ""  # the pictures' sampler, where it is not the configured one
    split: str = ""  # eval: at the end; unseen: of unseen clients; validation: after a round
    target: str = ""  # what was attacked
    attack: str = ""  # pia, loss, ..., or best: the one that calibrates best
    role: Role = "value"
    """floor: real records against real; low, high: ends of a 95 % interval; spread: jackknife over records; real: the
    same of real records; count: a number of records; calibration: chosen on the calibration split."""
    unit: str = ""
    lower_is_better: bool | None = None  # None: neither way is better
    bounds: tuple[float, float] = UNBOUNDED  # least and greatest possible value
    rank: int = 0  # trials are ranked by the metric of the lowest rank that they have, lower is better; 0: by none
    description: str = ""  # in words
    shown: str = ""  # plain name in MLflow and `Run.metrics`; empty: only in the files

    def __str__(self) -> str:
        """Return the metric's column in a table."""
        part = (self.part[0], str(self.part[1])) if self.part else ()
        attacked = ("attack", self.target, self.attack) if self.attack else ()
        words = filter(None, (self.split, self.sampler, *part, *attacked, self.name, self.group))
        ending = f"_{self.role}" if self.role in ENDINGS and self.group != "real" else ""
        return "/".join(words) + ending

    def with_value(self, value: SupportsFloat, **where: Any) -> Metric:
        """Return this metric with a value, and other fields that say of what it is."""
        return replace(self, value=float(value), **where)

    def beside(self, value: SupportsFloat, role: Role) -> Metric:
        """Return what stands beside this metric: its floor, its spread, an end of its interval."""
        return replace(self, value=float(value), role=role, shown="", rank=0)

    def to_json(self) -> dict[str, Any]:
        """Return the value and the fields that are not empty."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {f.name: values[f.name] for f in fields(self) if f.name == "value" or values[f.name] != f.default}


EPSILON_SERVER = Metric(name="privacy/epsilon_server", lower_is_better=True, shown="epsilon")
EPSILON_OUTSIDERS = Metric(name="privacy/epsilon_outsiders", lower_is_better=True)
AUC_CEILING = Metric(name="privacy/auc_ceiling", bounds=FRACTION, shown="auc_ceiling")
BYTES_UP = Metric(name="comm/bytes_up", unit="bytes", lower_is_better=True, shown="bytes_sent")
SECONDS = Metric(name="time/seconds", unit="s", lower_is_better=True, shown="seconds")
REJECTED = Metric(name="clients/rejected", lower_is_better=True, description="uploads that were not aggregated")
CUMULATIVE = (EPSILON_SERVER, EPSILON_OUTSIDERS, AUC_CEILING, BYTES_UP)
"""Metrics whose value in the last round is that of the whole trial."""


def read_metrics(objects: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """Return the records of a file. Raises ValueError for an object that is none."""
    metrics = []
    for read in objects:
        try:
            metric = Metric(**read)
            low, high = map(read_number, metric.bounds)
            part = metric.part and (metric.part[0], int(metric.part[1]))
            metrics.append(replace(metric, value=read_number(metric.value), part=part, bounds=(low, high)))
        except (TypeError, ValueError) as e:
            raise ValueError(f"{read!r} is no metric: {e}") from None
    return metrics


def columns(metrics: Iterable[Metric]) -> dict[str, float]:
    """Return values by column. Raises ValueError for two metrics of one column."""
    values: dict[str, float] = {}
    for metric in metrics:
        column = str(metric)
        if column in values:
            raise ValueError(f"the metric {column} was measured twice: give one of them another name")
        values[column] = metric.value
    return values


def mean_metrics(parts: Sequence[Iterable[Metric]], *, complete: bool = False) -> list[Metric]:
    """Return the mean of each metric over the parts that have it; `complete`: only of those that every part has."""
    values: dict[Metric, list[float]] = {}
    for part in parts:
        for metric in part:
            values.setdefault(replace(metric, value=0.0), []).append(metric.value)
    return [m.with_value(sum(v) / len(v)) for m, v in values.items() if len(v) == len(parts) or not complete]


def sum_over_rounds(lines: Iterable[Mapping[str, Any]], wanted: Metric) -> float:
    """Return the sum of a metric over lines of metrics.jsonl, each client's own left out."""
    total = 0.0
    for line in lines:
        total += sum(m.value for m in read_metrics(line["metrics"]) if m.name == wanted.name and m.part is None)
    return total


def metric_values(metrics: Iterable[Metric], *wanted: Metric) -> list[float]:
    """Return the values of these metrics, NaN where one is missing."""
    values = columns(metrics)
    return [values.get(str(metric), math.nan) for metric in wanted]


def select_shown(metrics: Iterable[Metric]) -> dict[str, float]:
    """Return a trial's numbers by plain name, MOST_SHOWN at most: COMPARED, other packages' metrics, then DETAILED."""
    first: dict[str, float] = {}
    for metric in metrics:
        if metric.shown:
            first.setdefault(metric.shown, metric.value)
    others = [name for name in first if name not in (*COMPARED, *DETAILED)]
    names = [name for name in (*COMPARED, *others, *DETAILED) if name in first]
    return {name: first[name] for name in names[:MOST_SHOWN]}
