"""Evaluation of a trial: the experimenter's instruments, outside the protocol.

A client's part (`Instruments.of_client`) runs where its data are, the summary over clients at the coordinator. The
validation split is used during training and for trials by which settings are chosen, else the test split.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raydiff import lookup, tree
from raydiff.data.datasets import Dataset
from raydiff.data.partition import class_groups, clusters
from raydiff.data.records import Records, half_counts
from raydiff.evaluation import sample_metrics
from raydiff.evaluation.attacks import targets
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.metrics import BY_FEATURES
from raydiff.evaluation.quality import downstream, features, inception
from raydiff.evaluation.quality.features import FEATURES
from raydiff.evaluation.sample_metrics import BY_SAMPLER, Drawn
from raydiff.federated.method import Deployed
from raydiff.formats.metric_records import Metric, columns, mean_metrics
from raydiff.tree import Params

GRID_COLUMNS = 2  # pictures of each class in a sample grid
PICTURES = 10  # pictures in a sample grid of an unconditional model


@dataclass(frozen=True)
class ClientReport:
    """One client's metrics, attack scores and sample pictures."""

    metrics: Sequence[Metric]
    scores: targets.Scores  # of the membership attacks
    pictures: Tensor  # (n, C, H, W), samples of each class, or of an unconditional model; n is 0 for a classifier
    of_server: bool  # `Deployed.of_server`

    def of_outsider(self) -> ClientReport:
        """Return the report of a client that sent nothing: its records are no members of the server's models."""
        return replace(self, scores={k: v for k, v in self.scores.items() if k not in targets.OF_SENDERS})


@dataclass(frozen=True)
class Instruments:
    """The feature network, and the splits that no client has."""

    config: Evaluation
    dataset: Dataset
    cnn: Params

    def of_client(self, split: str) -> Callable[[Deployed, Records, torch.Generator], ClientReport]:
        """Return the client's part, a function of (deployed, own records, rng), for the clients of one server."""
        cache: targets.Scores = {}

        def evaluate(deployed: Deployed, records: Records, rng: torch.Generator) -> ClientReport:
            drawn, by_sampler, shown = self._drawn(deployed, split, records, rng)
            by_name = sample_metrics.measure(drawn)
            measured = list(itertools.chain.from_iterable(by_name.values()))
            if len(by_sampler) > 1:
                for sampler, images in by_sampler.items():
                    again = replace(drawn, images=images)
                    each = by_name if images is drawn.images else sample_metrics.measure(again, by_sampler=True)
                    of_sampler = itertools.chain.from_iterable(each.get(name, ()) for name in BY_SAMPLER)
                    beside = [metric for metric in of_sampler if metric.role not in ("floor", "real")]
                    measured += [replace(metric, sampler=sampler, shown="", rank=0) for metric in beside]
            columns(measured)  # refuses a metric that is measured twice
            return ClientReport(measured, self._attacked(deployed, split, records, cache), shown, deployed.of_server)

        return evaluate

    def _drawn(
        self, deployed: Deployed, split: str, records: Records, rng: torch.Generator
    ) -> tuple[Drawn, dict[str, Tensor], Tensor]:
        """(what is measured, the samples of each sampler, the pictures to show)."""
        major, minor = class_groups(records)
        classes = {"all": (*major, *minor), "major": major, "minor": minor}
        if self.config.clusters:
            classes["cluster_a"], classes["cluster_b"] = clusters(sorted(classes["all"]))
        reference = self.dataset.splits[split].of_classes(classes["all"])
        images = records.images[:0]
        labels = records.labels[:0]
        shown = records.images[:0]
        by_sampler: dict[str, Tensor] = {}
        if deployed.samplers:
            wanted = self.dataset.modality.labels_to_sample(records, reference)
            to_show = first_of_each(wanted[:, 0]) if deployed.conditional else torch.arange(min(PICTURES, len(wanted)))
            to_show = to_show if self.dataset.modality.is_shown else to_show[:0]
            if _needs_samples(self.config, self.dataset):
                chains = [*deployed.samplers.items()][: None if self.config.samplers else 1]
                by_sampler = {name: sample(wanted, rng) for name, sample in chains}
                labels = wanted
                images = next(iter(by_sampler.values()))
                shown = images[to_show]
            elif len(to_show):
                shown = deployed.sample(wanted[to_show], rng)
        drawn = Drawn(
            images=images,
            labels=labels,
            reference=reference,
            client_records=records,
            groups=classes if deployed.conditional else {"all": classes["all"]},
            deployed=deployed,
            dataset=self.dataset,
            split=split,
            config=self.config,
            cnn=self.cnn,
            rng=rng,
        )
        return drawn, by_sampler, shown

    def _attacked(self, deployed: Deployed, split: str, records: Records, cache: targets.Scores) -> targets.Scores:
        if split != "test" or self.config.attacks is None or "denoisers" not in self.dataset.modality.attacks:
            return {}
        return targets.score_deployed(
            deployed,
            records,
            names=self.config.attacks,
            members=self.config.members,
            calibration=self.dataset.splits["calibration"],
            test=self.dataset.splits["test"],
            cache=cache,
        )


def check_evaluation(config: Evaluation, dataset: Dataset, clients: Sequence[Records]) -> None:
    """Raise ValueError, before training, where the data do not suffice for the evaluation."""
    names = config.metrics_of(dataset.modality)
    if config.downstream and "downstream" not in names:
        raise ValueError(f"evaluation.downstream must be empty where {dataset.modality.name} are not judged by it")
    attack = config.attacks is not None and config.split == "test"
    denoisers = attack and "denoisers" in dataset.modality.attacks
    needed = {"public": _needs_cnn(config, dataset), config.split: True, "calibration": denoisers}
    for split in (name for name, wanted in needed.items() if wanted):
        if len(dataset.splits[split]) == 0:
            raise ValueError(f"the evaluation needs records in the split {split}: data.{split} is 0")
    if {*names} & {*BY_FEATURES}:
        _check_features(config, dataset)
    downstream.check_shape(config.downstream, dataset.shape)
    halves = half_counts(dataset.splits[config.split].labels[:, 0])
    attacked_splits = ("calibration", "test") if denoisers else ()
    for client_id, records in enumerate(clients):
        for split in attacked_splits:
            count = len(targets.in_proportion(dataset.splits[split], records.labels[:, 0]))
            if len(records) < 4 or count < 2:
                raise ValueError(
                    f"client {client_id} has {len(records)} records and the {split} split {count} in its mix of "
                    "classes, and evaluation.attacks need 4 and 2: lower clients, raise data.train (partition.least 4 "
                    f"of a Dirichlet partition) or data.{split}, or set evaluation.attacks to none"
                )
        if attack and "blackbox" in names and len(records.labels[:, 0].unique()) < 2:
            raise ValueError(f"client {client_id} has rows of one label only: evaluation.attacks must be none")
        compared = sum(halves.get(c, 0) for c in itertools.chain(*class_groups(records)))
        cnn = "frechet" in names and config.features == "cnn"
        if compared < (least := features.ROWS_PER_FEATURE if cnn else 1):
            raise ValueError(
                f"the {config.split} split has {compared} of {least} pairs of records that the classes of client "
                f"{client_id} need: raise data.{config.split}"
            )
        most = compared // features.ROWS_PER_FEATURE
        wanted = f"at most n/5 = {most} for the smallest group that is compared, n = {compared} records"
        lookup.check_value("evaluation.dim", config.dim, not cnn or config.dim <= most, wanted)


def _check_features(config: Evaluation, dataset: Dataset) -> None:
    if config.features == "inception":
        inception.check_weights(config.weights)
    elif config.features != "cnn":
        found = FEATURES.resolve(config.features)(dataset.splits["public"].images[:2], config.weights)
        if found.dim() != 2 or len(found) != 2 or not found.isfinite().all():
            raise ValueError(f"evaluation.features: {config.features} must give finite features (N, dim)")


def prepare_instruments(
    dataset: Dataset, config: Evaluation, cached: Callable[[str, Callable[[], Params]], Params]
) -> Instruments:
    """Train the feature network on the public split, or take it from `cached` (`Checkpoint.cached`), if needed."""
    if not _needs_cnn(config, dataset):
        return Instruments(config, dataset, {})
    classes = dataset.cardinalities[0]
    public = dataset.splits["public"]
    key = f"cnn-{tree.digest(public.leaves)[:24]}-{classes}-{config.dim}-{torch.get_num_threads()}"
    return Instruments(
        config, dataset, cached(key, lambda: features.train_cnn(public, classes=classes, dim=config.dim))
    )


def summarise(reports: Sequence[ClientReport]) -> list[Metric]:
    """Return means over clients, and the attacks' `targets.summary`."""
    means = [replace(metric, split="eval") for metric in mean_metrics([report.metrics for report in reports])]
    return means + targets.summary([report.scores for report in reports])


def _needs_samples(config: Evaluation, dataset: Dataset) -> bool:
    """Whether one of the metrics is read off samples."""
    names = {*config.metrics_of(dataset.modality)} - {"accuracy"}
    return bool(names if config.downstream else names - {"downstream"})


def _needs_cnn(config: Evaluation, dataset: Dataset) -> bool:
    """Whether one of the metrics needs the small classifier."""
    names = {*config.metrics_of(dataset.modality)}
    return "labels" in names or (config.features == "cnn" and bool(names & {*BY_FEATURES}))


def first_of_each(classes: Tensor) -> Tensor:
    """Return positions of the first GRID_COLUMNS rows of each class."""
    return torch.cat([torch.nonzero(classes == c)[:GRID_COLUMNS, 0] for c in classes.unique()])
