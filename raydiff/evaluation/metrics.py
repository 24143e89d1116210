"""METRICS: what is measured of the samples of a client's model.

A metric is a function of `Drawn` that returns numbers by name, or {} where there is nothing for it to measure. One of
another package is named `module:name`: its numbers have its name, or begin with it (`vendi`, `vendi/minor`), and its
attribute `lower_is_better` says which way is up.

Shapes: n samples, N records, K label columns; column 0 is the class.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from raydiff import lookup, seeding
from raydiff.data.datasets import Dataset
from raydiff.data.modality import Modality
from raydiff.data.records import Records, half_counts
from raydiff.evaluation.quality import distances, downstream, features
from raydiff.evaluation.quality import table_fidelity as tables
from raydiff.evaluation.quality.neighbours import FED_BACK, coverage, memorized_fraction
from raydiff.federated.method import Deployed, Metrics
from raydiff.formats.metric_names import FAMILIES, SAMPLERS, Metric
from raydiff.models.d3pm import codes_of
from raydiff.tree import Params

if TYPE_CHECKING:
    from raydiff.evaluation.suite import Evaluation

Groups = Mapping[str, tuple[int, ...]]  # classes by the name of their group


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


def accuracy(drawn: Drawn) -> Metrics:
    """Of a classifier, on the whole split: `accuracy` and, lower for better, `utility_loss`."""
    if drawn.deployed.classify is None:
        return {}
    records = drawn.dataset.splits[drawn.split]
    right = distances.label_accuracy(drawn.deployed.classify(records.images), records.labels[:, 0])
    return {"accuracy": right, "utility_loss": 1 - right}


def frechet_distances(drawn: Drawn) -> Metrics:
    """Frechet distances of the large groups, with floors."""
    if not len(drawn.images):
        return {}
    return distances.frechet_distances(**_compared(drawn), features=drawn.config.features)


def kernel_distances(drawn: Drawn) -> Metrics:
    """Kernel distances of the large groups, with floors."""
    if not len(drawn.images):
        return {}
    return distances.kernel_distances(**_compared(drawn), features=drawn.config.features)


def sample_coverage(drawn: Drawn) -> Metrics:
    """Precision, recall, density and coverage at equal counts: the mean over both halves of the reference; `_real` is
    that of one half beside the other. A group with too few records for the neighbours is left out."""
    if not len(drawn.images):
        return {}
    neighbours, metrics = drawn.config.neighbours, Metrics()
    for name, samples, a, b in distances.beside_halves(**_compared(drawn)):
        if len(a) <= neighbours:
            continue
        one, other, real = (coverage(x, y, neighbours=neighbours) for x, y in ((samples, a), (samples, b), (a, b)))
        metrics |= {f"{k}/{name}": (one[k] + other[k]) / 2 for k in one}
        metrics |= {f"{k}/{name}_real": value for k, value in real.items()}
    return metrics


def _compared(drawn: Drawn) -> dict[str, Any]:
    """Arguments of `distances.beside_halves`, with the same halves of the reference in every trial."""
    samples, real = drawn.features
    return {
        "samples": samples,
        "sample_classes": drawn.labels[:, 0],
        "reference": real,
        "reference_classes": drawn.reference.labels[:, 0],
        "groups": drawn.large_groups,
        "rng": seeding.generator(0, "reference halves"),
    }


def label_accuracy(drawn: Drawn) -> Metrics:
    """The network's accuracy on samples, `label_accuracy/<group>`, and on real records, `label_accuracy/real`, its
    ceiling; `own_classes`: the fraction of samples of a class that the client has."""
    if not len(drawn.images):
        return {}
    classes, of_real = drawn.labels[:, 0], drawn.reference.labels[:, 0]
    logits, logits_real = (features.cnn_logits(drawn.cnn, x) for x in (drawn.images, drawn.reference.images))
    metrics = {"own_classes": float(torch.isin(logits.argmax(1), of_real.unique()).double().mean())}
    if not drawn.deployed.conditional:
        return metrics
    metrics["label_accuracy/real"] = distances.label_accuracy(logits_real, of_real)
    for name, members in drawn.large_groups.items():
        mask = torch.isin(classes, torch.tensor(members))
        if mask.any():
            metrics[f"label_accuracy/{name}"] = distances.label_accuracy(logits[mask], classes[mask])
    return metrics


def memorized(drawn: Drawn) -> Metrics:
    """`memorized_fraction` of the final samples, with `/sanity`: of the client's own records, fed back."""
    if not len(drawn.images) or drawn.split != "test":
        return {}
    training = drawn.client_records.images
    return {
        "memorized_fraction": memorized_fraction(drawn.images, training),
        "memorized_fraction/sanity": memorized_fraction(training[:FED_BACK], training),
    }


def downstream_accuracy(drawn: Drawn) -> Metrics:
    """`downstream.readings` of the final samples, or of as many of each class as `per_class` asks for."""
    config, local, real = drawn.config, drawn.client_records, drawn.reference
    if not (len(drawn.images) and drawn.split == "test" and config.downstream and drawn.deployed.conditional):
        return {}
    images, labels = drawn.images, drawn.labels
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


def table_quality(drawn: Drawn) -> Metrics:
    """`tables.quality` of rows."""
    if not len(drawn.images):
        return {}
    samples = codes_of(drawn.images), drawn.labels[:, 0]
    local, real = ((codes_of(r.images), r.labels[:, 0]) for r in (drawn.client_records, drawn.reference))
    return tables.quality(samples, local, real, classes=drawn.dataset.cardinalities[0])


METRICS: lookup.Door[Callable[[Drawn], Metrics]] = lookup.Door(
    "metric",
    {
        "accuracy": accuracy,
        "frechet": frechet_distances,
        "kernel": kernel_distances,
        "coverage": sample_coverage,
        "labels": label_accuracy,
        "memorization": memorized,
        "downstream": downstream_accuracy,
        "table": table_quality,
        "blackbox": "raydiff.papers.discrete.blackbox:of_rows",
    },
)  # in the order in which they are measured
ALL = "all"  # in `Evaluation.metrics`: every metric of the data's modality
BY_FEATURES = ("frechet", "kernel", "coverage")  # read in the space of the feature network
BY_SAMPLER = (*BY_FEATURES, "labels")  # also measured of each of the model's samplers by itself
TAKEN = (*FAMILIES, *SAMPLERS, "class", "client")  # first words of numbers that no outside metric may take
GROUPS = ("all", "major", "minor")
RANKED = {
    "accuracy": ("utility_loss", "accuracy"),
    "frechet": tuple(f"{distance}/{group}" for distance in ("fd_cnn", "fid") for group in GROUPS),
    "kernel": tuple(f"{distance}/{group}" for distance in ("kd_cnn", "kid") for group in GROUPS),
    "labels": tuple(f"label_accuracy/{group}" for group in GROUPS),
    "table": ("tv_pairs", "tv_columns", "utility_loss", "accuracy"),
}
"""Metric -> the numbers of it that trials may be ranked by."""


def lower_is_better(metric: str, config: Evaluation, *, newcomers: bool = False) -> bool:
    """Whether lower is better of a number to rank trials by: `eval/...`, and `new/...` where unseen clients join.
    Raises ValueError where the evaluation has none of this name."""
    names = METRICS if ALL in config.metrics else config.metrics
    numbers = (number for name in names for number in RANKED.get(name, ()))
    lower = {f"eval/{number}": bool(Metric.parse(number).lower_is_better) for number in numbers}
    for name in filter(lookup.is_outside, config.metrics):
        prefix = f"eval/{lookup.bare_name(name)}"
        lower |= {
            k: lookup.imported(name).lower_is_better for k in (prefix, metric) if f"{k}/".startswith(f"{prefix}/")
        }
    if newcomers:
        lower |= {f"new/{name.removeprefix('eval/')}": is_lower for name, is_lower in lower.items()}
    if metric not in lower:
        raise ValueError(f"unknown metric {metric!r}{lookup.nearest(metric, lower)}")
    return lower[metric]


def check(names: tuple[str, ...]) -> None:
    """Raise ValueError unless each is a metric, and those of other packages have a direction and a free name."""
    for name, metric in lookup.entries("metrics", METRICS, [name for name in names if name != ALL]).items():
        if name in METRICS:
            continue
        if name in TAKEN or Metric.parse(name).family in TAKEN:
            raise ValueError(f"the metric {name} is called like numbers of raydiff's own: give it another name")
        if not isinstance(getattr(metric, "lower_is_better", None), bool):
            raise ValueError(f"the metric {name} must have an attribute lower_is_better, True or False")


def names_of(config: Evaluation, modality: Modality) -> tuple[str, ...]:
    """Return the metrics that the evaluation measures of records of this modality, in the order of measuring. Raises
    ValueError for one that the modality has not."""
    unknown = [name for name in config.metrics if name in METRICS and name not in modality.measures]
    if unknown:
        wanted = ", ".join(modality.measures)
        raise ValueError(f"evaluation.metrics must be of {modality.name} ({wanted}), got {unknown[0]}")
    named = (modality.measures if name == ALL else (name,) for name in config.metrics)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))


def measured(drawn: Drawn, *, by_sampler: bool = False) -> Metrics:
    """Return the numbers of all configured metrics, or of those in BY_SAMPLER. Raises ValueError for a number that is
    not named after its metric."""
    out: Metrics = {}
    every = names_of(drawn.config, drawn.dataset.modality)
    names = [name for name in every if name in BY_SAMPLER or not by_sampler]
    for name, metric in lookup.entries("metrics", METRICS, names).items():
        numbers = metric(drawn)
        out |= numbers if name in METRICS else _checked(name, numbers)
    return out


def _checked(name: str, numbers: Any) -> Metrics:
    """The numbers of an outside metric as floats. Raises ValueError unless they are finite, and named after it."""
    out: Metrics = {}
    for k, v in numbers.items() if isinstance(numbers, Mapping) else [(name, numbers)]:
        if not f"{k}/".startswith(f"{name}/"):
            raise ValueError(f"the metric {name} must call its numbers {name} or {name}/..., not {k!r}")
        value = v.item() if getattr(v, "ndim", None) == 0 else v  # a scalar of numpy or torch
        if not (isinstance(value, Real) and math.isfinite(value)):
            raise ValueError(f"the metric {name} must return finite numbers by name, or {{}}: {k} is {repr(v)[:80]}")
        out[k] = float(value)
    return out
