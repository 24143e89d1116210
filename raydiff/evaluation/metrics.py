"""METRICS: what is measured of what a client's model has made. A metric is a function of `Drawn` that gives numbers by
name, and {} where there is nothing for it to measure. One of another package is called by `module:name`: its numbers
have its own name, or begin with it (`vendi`, `vendi/minor`), and its attribute `lower_is_better` says which way is up.

Shapes: n samples, N records, K label columns; column 0 is the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from raydiff import lookup, seeding
from raydiff.data.datasets import Dataset, Records
from raydiff.evaluation.quality import distances, downstream, features, inception, memorization
from raydiff.evaluation.quality import table_fidelity as tables
from raydiff.evaluation.quality.coverage import coverage
from raydiff.federated.method import Deployed, Metrics
from raydiff.formats.metric_names import FAMILIES, SAMPLERS, Metric
from raydiff.models.d3pm import codes_of
from raydiff.tree import Params

if TYPE_CHECKING:
    from raydiff.evaluation.suite import Evaluation

Groups = Mapping[str, tuple[int, ...]]
"""Classes by the name of their group."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a client's model has made, and what it is measured beside. A metric changes nothing of it."""

    images: Tensor
    """(n, C, H, W) on [-1, 1], of a table the codes of its rows (n, 1, 1, columns); n is 0 of a classifier, and where
    the evaluation's distance is none and no classifier is trained on them."""
    labels: Tensor
    """(n, K): what the samples were made for."""
    reference: Records
    """Real records of the client's classes that nobody trained on: of the test split, or of the validation split where
    something is chosen by the numbers."""
    own: Records
    """The records that the client trained on."""
    groups: Groups
    """all, major, minor: classes that the client has, those it has many of, and the others."""
    deployed: Deployed
    """The model itself."""
    dataset: Dataset
    """All splits."""
    split: str
    """test at the end; validation during training, and at the end of a trial by which settings are chosen."""
    config: Evaluation
    """What was asked for."""
    cnn: Params
    """The network that tells classes (`quality.features`)."""
    rng: torch.Generator
    """For a metric that draws."""

    @property
    def pictures(self) -> bool:
        """Whether there are pictures whose features are to be measured."""
        return len(self.images) > 0 and self.dataset.mapping is None and self.config.distance != "none"

    @property
    def is_final(self) -> bool:
        """Whether these numbers are a trial's last word, by which nothing is chosen."""
        return self.split == "test"

    @property
    def large_groups(self) -> Groups:
        """The groups with enough records for a distance."""
        halves = distances.half_counts(self.reference.labels[:, 0])
        sizes = {name: sum(halves.get(c, 0) for c in group) for name, group in self.groups.items()}
        return {name: group for name, group in self.groups.items() if group and sizes[name] >= self.config.least}

    @cached_property
    def features(self) -> tuple[Tensor, Tensor]:
        """(n, dim) of the samples and (N, dim) of the reference. Raises ValueError where the network's weights are
        missing."""
        network = features.cnn_features
        if self.config.features == "inception":
            inside = inception.load(self.config.weights)
            return inside(self.images), inside(self.reference.images)
        return network(self.cnn, self.images), network(self.cnn, self.reference.images)


def accuracy(drawn: Drawn) -> Metrics:
    """Of a classifier, on the whole split: `accuracy` and, lower for better, `utility_loss`."""
    if drawn.deployed.classify is None:
        return {}
    records = drawn.dataset.splits[drawn.split]
    right = distances.label_accuracy(drawn.deployed.classify(records.images), records.labels[:, 0])
    return {"accuracy": right, "utility_loss": 1 - right}


def feature_distances(drawn: Drawn) -> Metrics:
    """`distances.class_distances` of the large groups, with floors."""
    if not drawn.pictures:
        return {}
    made, real = drawn.features
    return distances.class_distances(
        made,
        drawn.labels[:, 0],
        real,
        drawn.reference.labels[:, 0],
        groups=drawn.large_groups,
        features=drawn.config.features,
        gaussian=drawn.config.distance == "frechet",
        rng=_halves_rng(),
    )


def sample_coverage(drawn: Drawn) -> Metrics:
    """Precision, recall, density and coverage: the mean over both halves of the reference, so at equal counts; `_real`
    is what one half has beside the other. A group with too few records for the neighbours is left out."""
    if not drawn.pictures:
        return {}
    (made, real), neighbours = drawn.features, drawn.config.neighbours
    every = (made, drawn.labels[:, 0], real, drawn.reference.labels[:, 0])
    metrics: Metrics = {}
    for name, own, a, b in distances.beside_halves(*every, groups=drawn.large_groups, rng=_halves_rng()):
        if len(a) <= neighbours:
            continue
        found = [coverage(own, half, neighbours=neighbours).metrics(name) for half in (a, b)]
        metrics |= {k: (found[0][k] + found[1][k]) / 2 for k in found[0]}
        metrics |= coverage(a, b, neighbours=neighbours).metrics(f"{name}_real")
    return metrics


def label_accuracy(drawn: Drawn) -> Metrics:
    """Whether the network that tells classes finds in the samples what was asked for: `label_accuracy/<group>`, for
    real records `label_accuracy/real`, its ceiling; `own_classes`: how many are of a class that the client has."""
    if not drawn.pictures:
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
    if not drawn.pictures or not drawn.is_final:
        return {}
    fraction = memorization.memorized_fraction(drawn.images, drawn.own.images)
    return {"memorized_fraction": fraction, "memorized_fraction/sanity": memorization.sanity(drawn.own.images)}


def downstream_accuracy(drawn: Drawn) -> Metrics:
    """`downstream.readings` of the final samples, or of as many of each class as `per_class` asks for."""
    names, count = drawn.config.downstream, drawn.config.per_class
    if not (len(drawn.images) and drawn.is_final and names and drawn.deployed.conditional):
        return {}
    images, labels, own, real = drawn.images, drawn.labels, drawn.own, drawn.reference
    if count is not None:
        labels = downstream.labels_per_class(own.labels, count)
        images = drawn.deployed.sample(labels, drawn.rng)
    return downstream.readings(
        names,
        (images, labels[:, 0]),
        (own.images, own.labels[:, 0]) if drawn.config.ceiling else None,
        (real.images, real.labels[:, 0]),
        groups=drawn.groups,
        classes=drawn.dataset.cardinalities[0],
    )


def table_quality(drawn: Drawn) -> Metrics:
    """`tables.quality` of rows."""
    if drawn.dataset.mapping is None:
        return {}
    return tables.quality(
        codes_of(drawn.images),
        drawn.labels[:, 0],
        own=codes_of(drawn.own.images),
        own_labels=drawn.own.labels[:, 0],
        real=codes_of(drawn.reference.images),
        real_labels=drawn.reference.labels[:, 0],
        classes=drawn.dataset.cardinalities[0],
    )


METRICS: lookup.Table[Callable[[Drawn], Metrics]] = lookup.Table(
    {
        "accuracy": accuracy,
        "distances": feature_distances,
        "coverage": sample_coverage,
        "labels": label_accuracy,
        "memorization": memorized,
        "downstream": downstream_accuracy,
        "table": table_quality,
        "blackbox": "raydiff.papers.discrete.blackbox:of_rows",
    }
)
"""By name, in the order in which they are asked."""
BY_SAMPLER = ("distances", "coverage", "labels")
"""Those that are also asked of each of the model's samplers by itself."""
TAKEN = (*FAMILIES, *SAMPLERS, "class", "client")
"""First words of numbers that no metric of another package may take."""
GROUPS = ("all", "major", "minor")
RANKED = {
    "accuracy": ("utility_loss", "accuracy"),
    "distances": tuple(f"{distance}/{group}" for distance in ("fd_cnn", "kd_cnn", "fid", "kid") for group in GROUPS),
    "labels": tuple(f"label_accuracy/{group}" for group in GROUPS),
    "table": ("tv_pairs", "tv_columns", "utility_loss", "accuracy"),
}
"""Metric -> the numbers of it that trials may be ranked by."""


def lower_is_better(metric: str, config: Evaluation, *, newcomers: bool = False) -> bool:
    """Of a number by which trials are to be ranked: `eval/...`, and `new/...` where clients join after the federation.
    Raises ValueError where the evaluation has none of this name."""
    own_numbers = (number for name in config.metrics for number in RANKED.get(name, ()))
    known = {f"eval/{number}": bool(Metric.parse(number).lower_is_better) for number in own_numbers}
    for name in filter(lookup.is_outside, config.metrics):
        own = f"eval/{lookup.own_name(name)}"
        known |= {k: lookup.imported(name).lower_is_better for k in (own, metric) if f"{k}/".startswith(f"{own}/")}
    if newcomers:
        known |= {f"new/{name.removeprefix('eval/')}": lower for name, lower in known.items()}
    if metric not in known:
        raise ValueError(f"unknown metric {metric!r}{lookup.nearest(metric, known)}")
    return known[metric]


def check(names: tuple[str, ...]) -> None:
    """Raises ValueError unless each is a metric, and each of another package says which way is up and has a name that
    none of raydiff's numbers begins with."""
    for own, metric in lookup.entries("metrics", METRICS, names).items():
        if own in METRICS:
            continue
        if own in TAKEN or Metric.parse(own).family in TAKEN:
            raise ValueError(f"the metric {own} is called like numbers of raydiff's own: give it another name")
        if not isinstance(getattr(metric, "lower_is_better", None), bool):
            raise ValueError(f"the metric {own} must have an attribute lower_is_better, True or False")


def measured(drawn: Drawn) -> Metrics:
    """All that the evaluation's metrics give. Raises ValueError where one of another package takes a name that is not
    its own."""
    out: Metrics = {}
    for own, metric in lookup.entries("metrics", METRICS, drawn.config.metrics).items():
        found = metric(drawn)
        if own not in METRICS and (stray := [k for k in found if not f"{k}/".startswith(f"{own}/")]):
            raise ValueError(f"the metric {own} must call its numbers {own} or {own}/..., not {stray[0]!r}")
        out |= found
    return out


def of_sampler(drawn: Drawn) -> Metrics:
    """What is measured of each sampler's pictures by itself."""
    found: Metrics = {}
    for name in drawn.config.metrics:
        found |= METRICS[name](drawn) if name in BY_SAMPLER else {}
    return found


def _halves_rng() -> torch.Generator:
    """The same halves of the reference in every trial."""
    return seeding.generator(0, "reference halves")
