"""What is measured of the samples of a client's model: the functions of METRICS.

A metric is a function of `Drawn` that returns records (`formats.metric_records`), none where there is nothing for it to
measure. One of another package is named `module:name` and returns a number, or several by name (`vendi/NAME`). Its
attribute `lower_is_better` says which way is up, `bounds` (least, greatest) and `unit` may say more.

Shapes: n samples, N records, K label columns; column 0 is the class.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from raydiff import lookup, seeding
from raydiff.data.datasets import Dataset
from raydiff.data.records import Records, codes_of, half_counts
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.metrics import ALL, BY_FEATURES, METRICS, RESERVED
from raydiff.evaluation.quality import distances, downstream, features, table_fidelity as tables
from raydiff.evaluation.quality.neighbours import FED_BACK, coverage, memorized_fraction
from raydiff.federated.method import Deployed
from raydiff.formats.metric_records import FRACTION, UNBOUNDED, Metric
from raydiff.tree import Params

Groups = Mapping[str, tuple[int, ...]]  # classes by the name of their group
LABEL_ACCURACY = Metric(name="label_accuracy", lower_is_better=False, bounds=FRACTION)
OWN_CLASSES = Metric(name="own_classes", lower_is_better=False, bounds=FRACTION)
MEMORIZED = Metric(name="memorized_fraction", bounds=FRACTION)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples of a client's model, and what they are measured beside. Metrics change nothing of it."""

    images: Tensor
    """(n, C, H, W) on [-1, 1], or codes of a table's rows (n, 1, 1, columns); n is 0 where nothing needs samples."""
    labels: Tensor  # (n, K), what the samples were made for
    reference: Records  # real records of the client's classes that nobody trained on, of the split
    client_records: Records  # the records that the client trained on
    groups: Groups  # all, major, minor: classes that the client has, those it has many of, and the others
    deployed: Deployed
    dataset: Dataset
    split: str  # test at the end; validation where something is chosen by the numbers
    config: Evaluation
    cnn: Params  # the network that tells classes (`quality.features`)
    rng: torch.Generator

    @property
    def large_groups(self) -> Groups:
        """The groups with enough records for a distance."""
        halves = half_counts(self.reference.labels[:, 0])
        sizes = {name: sum(halves.get(c, 0) for c in group) for name, group in self.groups.items()}
        return {name: group for name, group in self.groups.items() if group and sizes[name] >= self.config.least}

    @functools.cached_property
    def features(self) -> tuple[Tensor, Tensor]:
        """(n, dim) of the samples and (N, dim) of the reference. Raises ValueError without the network's weights."""
        weights = self.cnn if self.config.features == "cnn" else self.config.weights
        network = features.FEATURES.resolve(self.config.features)
        return network(self.images, weights), network(self.reference.images, weights)


def accuracy(drawn: Drawn) -> list[Metric]:
    """Accuracy of a classifier on the whole split."""
    if drawn.deployed.classify is None:
        return []
    records = drawn.dataset.splits[drawn.split]
    right = distances.label_accuracy(drawn.deployed.classify(records.images), records.labels[:, 0])
    return [tables.ACCURACY.with_value(right), tables.UTILITY_LOSS.with_value(1 - right)]


def measure_frechet(drawn: Drawn) -> list[Metric]:
    """Frechet distances of the large groups, with floors."""
    return distances.frechet_distances(_compare(drawn, _half_rng()), features=drawn.config.features)


def measure_kernel(drawn: Drawn) -> list[Metric]:
    """Kernel distances of the large groups, with floors."""
    rng = _half_rng()
    return distances.kernel_distances(_compare(drawn, rng), features=drawn.config.features, rng=rng)


def sample_coverage(drawn: Drawn) -> list[Metric]:
    """Precision, recall, density and coverage at equal counts, means over both halves of the reference.

    Role real is that of one half beside the other. A group with too few records for the neighbours is left out.
    """
    neighbours = drawn.config.neighbours
    metrics: list[Metric] = []
    for group, samples, a, b in _compare(drawn, _half_rng()):
        if len(a) <= neighbours:
            continue
        one, other, real = (coverage(x, y, neighbours=neighbours) for x, y in ((samples, a), (samples, b), (a, b)))
        for name, value in real.items():
            metric = Metric(name=name, group=group, lower_is_better=False)
            metrics += [metric.with_value((one[name] + other[name]) / 2), metric.with_value(value, role="real")]
    return metrics


def _compare(drawn: Drawn, rng: torch.Generator) -> Iterator[distances.Beside]:
    """`distances.beside_halves` of the large groups; nothing without samples."""
    if len(drawn.images):
        samples, real = drawn.features
        classes = drawn.reference.labels[:, 0]
        groups = drawn.large_groups
        yield from distances.beside_halves(samples, drawn.labels[:, 0], real, classes, groups=groups, rng=rng)


def _half_rng() -> torch.Generator:
    """The halves of the reference are the same in every trial."""
    return seeding.generator(0, "reference halves")


def measure_label_accuracy(drawn: Drawn) -> list[Metric]:
    """The network's accuracy on samples, and on real records, its ceiling.

    OWN_CLASSES is the fraction of samples of a class that the client has.
    """
    if not len(drawn.images):
        return []
    classes = drawn.labels[:, 0]
    of_real = drawn.reference.labels[:, 0]
    logits, logits_real = (features.cnn_logits(drawn.cnn, x) for x in (drawn.images, drawn.reference.images))
    metrics = [OWN_CLASSES.with_value(torch.isin(logits.argmax(1), of_real.unique()).double().mean())]
    if not drawn.deployed.conditional:
        return metrics
    metrics.append(LABEL_ACCURACY.with_value(distances.label_accuracy(logits_real, of_real), group="real", role="real"))
    for group, members in drawn.large_groups.items():
        mask = torch.isin(classes, torch.tensor(members))
        if mask.any():
            right = distances.label_accuracy(logits[mask], classes[mask])
            metrics.append(
                LABEL_ACCURACY.with_value(right, group=group, shown="label_accuracy" if group == "all" else "")
            )
    return metrics


def memorized(drawn: Drawn) -> list[Metric]:
    """Memorised fraction of the final samples; group sanity: of the client's own records, fed back."""
    if not len(drawn.images) or drawn.split != "test":
        return []
    training = drawn.client_records.images
    return [
        MEMORIZED.with_value(memorized_fraction(drawn.images, training), shown="memorized_fraction"),
        MEMORIZED.with_value(memorized_fraction(training[:FED_BACK], training), group="sanity"),
    ]


def measure_downstream(drawn: Drawn) -> list[Metric]:
    """`downstream.readings` of the final samples, or of as many of each class as `per_class` asks for."""
    config = drawn.config
    local = drawn.client_records
    real = drawn.reference
    if not (len(drawn.images) and drawn.split == "test" and config.downstream and drawn.deployed.conditional):
        return []
    images = drawn.images
    labels = drawn.labels
    if config.per_class is not None:
        labels = downstream.labels_per_class(local.labels, config.per_class)
        images = drawn.deployed.sample(labels, drawn.rng)
    return downstream.readings(
        config.downstream,
        (images, labels[:, 0]),
        (local.images, local.labels[:, 0]) if config.ceiling else None,
        (real.images, real.labels[:, 0]),
        groups=drawn.groups,
        classes=drawn.dataset.cardinalities[0],
    )


def table_quality(drawn: Drawn) -> list[Metric]:
    """`tables.quality` of rows."""
    if not len(drawn.images):
        return []
    samples = codes_of(drawn.images), drawn.labels[:, 0]
    local, real = ((codes_of(r.images), r.labels[:, 0]) for r in (drawn.client_records, drawn.reference))
    return tables.quality(samples, local, real, classes=drawn.dataset.cardinalities[0])


GROUPS = ("all", "major", "minor")
BY_SAMPLER = (*BY_FEATURES, "labels")  # also measured of each of the model's samplers by itself


def metric_to_rank_by(name: str, config: Evaluation, *, unseen: bool = False) -> Metric:
    """Return the metric of a column, to rank trials by: `eval/...`, and `unseen/...` where unseen clients join.

    Raises ValueError where the evaluation measures none of this name that has a direction.
    """
    splits = ("eval", "unseen") if unseen else ("eval",)
    known: dict[str, Metric] = {}
    for split in splits:
        known |= {str(metric): metric for metric in [replace(metric, split=split) for metric in _rankable(config)]}
    for outside in (metric for metric in known.values() if metric.name not in RESERVED):
        group = name.removeprefix(f"{outside}/")
        if group != name:
            known[name] = replace(outside, group=group)
            break
    if name not in known:
        raise ValueError(f"unknown metric {name!r}{lookup.nearest(name, known)}")
    return known[name]


def _rankable(config: Evaluation) -> list[Metric]:
    """The metrics, without split and value, that trials may be ranked by."""
    own = {
        "accuracy": [tables.UTILITY_LOSS, tables.ACCURACY],
        "frechet": [distances.frechet_metric(config.features, group) for group in GROUPS],
        "kernel": [distances.kernel_metric(config.features, group) for group in GROUPS],
        "labels": [replace(LABEL_ACCURACY, group=group) for group in GROUPS],
        "table": [tables.TV_PAIRS, tables.TV_COLUMNS, tables.UTILITY_LOSS, tables.ACCURACY],
    }
    names = [*METRICS] if ALL in config.metrics else config.metrics
    metrics = list(itertools.chain.from_iterable(own.get(name, ()) for name in names))
    outside = [name for name in config.metrics if lookup.is_outside(name)]
    return metrics + [_describe(lookup.bare_name(name), lookup.imported(name)) for name in outside]


def measure(drawn: Drawn, *, by_sampler: bool = False) -> dict[str, list[Metric]]:
    """Return the metrics of each configured name, or of those in BY_SAMPLER.

    Raises ValueError for what another package returns unless it is a finite number within bounds, or several by name.
    """
    out: dict[str, list[Metric]] = {}
    names = [name for name in drawn.config.metrics_of(drawn.dataset.modality) if name in BY_SAMPLER or not by_sampler]
    for name, metric in lookup.entries("metrics", METRICS, names).items():
        measured = metric(drawn)
        out[name] = measured if name in METRICS else _records(name, metric, measured)
    return out


def _describe(name: str, function: Any) -> Metric:
    """The metric of a function from another package, whose attributes say direction, bounds and unit."""
    low, high = getattr(function, "bounds", UNBOUNDED)
    unit = str(getattr(function, "unit", ""))
    return Metric(name=name, lower_is_better=function.lower_is_better, bounds=(float(low), float(high)), unit=unit)


def _records(name: str, function: Any, measured: Any) -> list[Metric]:
    """The records of what a function from another package returned: a number, or several by name."""
    described = _describe(name, function)
    numbers = measured if isinstance(measured, Mapping) else {"": measured}
    metrics: list[Metric] = []
    for group, number in numbers.items():
        value = number.item() if getattr(number, "ndim", None) == 0 else number  # a scalar of numpy or torch
        metric = replace(described, group=str(group))
        if not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise ValueError(
                f"the metric {name} must return a finite number, or several by name, or {{}}: {metric} is "
                f"{repr(value)[:80]}"
            )
        low, high = described.bounds
        if not low <= value <= high:
            raise ValueError(f"the metric {name} must be within {low:g} and {high:g}: {metric} is {value:g}")
        metrics.append(metric.with_value(float(value), shown=str(metric)))
    return metrics
