"""Personalisation of a finished run's model for an unseen client.

The client takes the server's model, trains what the method personalises on its own records, and sends nothing.
`save_personal` keeps the trained part alone.

    personal-0.001.safetensors     the personal part trained at learning rate 0.001
    personal-0.001.json            its card: of which run, on what, how
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raydiff import seeding, tree
from raydiff.data.unseen_client import UnseenClient
from raydiff.evaluation import suite
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.suite import Instruments
from raydiff.experiment import overrides
from raydiff.federated.method import Deployed, WithKinds, WithNewClients
from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import columns
from raydiff.models.classifier import Classifier
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training, fit_personal
from raydiff.results.finished import Finished
from raydiff.storage.atomic_files import write_bytes, write_text
from raydiff.storage.checksums import dump_tensors
from raydiff.tree import Params

Row = dict[str, float]  # a line of a table, by column
HELD_OUT = "held out"  # the name of the client's evaluation split
METRICS = ("frechet", "kernel", "labels")  # without the first where records are too few for it
READINGS = ("kd_cnn", "kd_cnn_spread", "kd_cnn_floor", "fd_cnn", "fd_cnn_floor", "own_classes", "label_accuracy")
"""Metrics over all of the client's classes."""


@dataclass(frozen=True)
class Stage:
    """The personal part during training."""

    epoch: int  # 0: as it is before training
    steps: int  # since the start
    state: Params
    loss: float  # mean over the steps since the stage before; NaN at epoch 0
    seconds: float  # of training, since the start


@dataclass(frozen=True)
class Joining:
    """An unseen client of a finished run. All randomness comes from `seed` and the experiment's seed."""

    finished: Finished
    client: UnseenClient
    instruments: Instruments
    seed: int = 0

    def __post_init__(self) -> None:
        method_of(self.finished)

    @property
    def classes(self) -> list[str]:
        """Names of the client's classes."""
        names = self.finished.dataset.label_names[0]
        return [names[c] for c in self.client.records.labels[:, 0].unique().tolist()]

    def training(self, rate: float, epochs: int) -> Training:
        """Return the method's training for an unseen client, at this constant learning rate."""
        wanted = replace(method_of(self.finished).joining, epochs=epochs, learning_rate=rate, decay="constant")
        return wanted.of(len(self.client.records))

    def stages(self, rate: float, epochs: Sequence[int]) -> Iterator[Stage]:
        """Train; yield the state before and after these numbers of epochs. Raises Diverged for a non-finite loss."""
        method = method_of(self.finished)
        records = self.client.records
        training = self.training(rate, max(epochs))
        rng = self._rng("join")
        part, fixed = method.join(self.finished.server, rng)
        records, kinds = method.kinds(records, rng) if isinstance(method, WithKinds) else (records, {})
        model = method.trained_model
        data = (records.images, records.labels)
        moments = Params()
        done = 0
        seconds = 0.0
        yield Stage(0, 0, {**kinds, **part}, math.nan, 0.0)
        for epoch in sorted({*epochs} - {0}):
            steps = self.training(rate, epoch).steps
            started = time.perf_counter()
            part, moments, loss = fit_personal(
                model, part, fixed, data, training=training, rng=rng, steps=range(done, steps), moments=moments
            )
            done = steps
            seconds = seconds + time.perf_counter() - started
            yield Stage(epoch, done, {**kinds, **part}, loss, seconds)

    def rows(self, rate: float, epochs: Sequence[int]) -> Iterator[tuple[Row, Stage]]:
        """Yield `stages`, each with its metrics."""
        for stage in self.stages(rate, epochs):
            counted = {"learning_rate": rate, "epoch": stage.epoch, "steps": stage.steps, "loss": stage.loss}
            yield {**counted, **self._readings(self.deploy(stage.state)), "seconds": stage.seconds}, stage

    def deploy(self, state: Params) -> Deployed:
        """Return the client's model with this personal part."""
        return self.finished.trial.experiment.method.deploy(self.finished.server, state)

    def touched(self) -> tuple[int, int]:
        """Return (parameters that the client trains, parameters of its model)."""
        personal, fixed = method_of(self.finished).join(self.finished.server, self._rng("join"))
        trained, others = (sum(v.numel() for v in part.values()) for part in (personal, fixed))
        return trained, trained + others

    def key(self, epochs: Sequence[int], rates: Sequence[float]) -> str:
        """Return 16 hex digits of the request, keyed by the sweep's secret: they cover the client's records."""
        records, held_out = (tree.digest(records.leaves) for records in (self.client.records, self.client.held_out))
        wanted = (self.finished.trial.experiment.digest, records, held_out, *epochs, *rates, self.seed)
        return seeding.keyed_digest(self.finished.secret, "newcomer", repr(wanted))[:16]

    def _readings(self, deployed: Deployed) -> dict[str, float]:
        """`READINGS` against held-out records from the same noise: the run's evaluation, by the configured sampler."""
        records = self.client.records
        reference = self.client.held_out
        classes, counts = reference.labels[:, 0].unique(return_counts=True)
        trained = torch.isin(classes, records.labels[:, 0])
        large = int((counts[trained] // 2).sum()) >= 5 * self.instruments.config.dim
        config = replace(self.instruments.config, metrics=METRICS if large else METRICS[1:], clusters=False)
        splits = {**self.instruments.dataset.splits, HELD_OUT: reference}
        instruments = Instruments(config, replace(self.instruments.dataset, splits=splits), self.instruments.cnn)
        configured = dict([next(iter(deployed.samplers.items()))])
        report = instruments.of_client(HELD_OUT)(replace(deployed, samplers=configured), records, self._rng("samples"))
        of_all = [replace(metric, group="") for metric in report.metrics if metric.group in ("", "all")]
        values = columns(of_all)
        return {name: values[name] for name in READINGS if name in values}

    def _rng(self, *path: str | int) -> torch.Generator:
        experiment = self.finished.trial.experiment
        return seeding.generator(experiment.seed, "newcomer", self.seed, *path)


def method_of(finished: Finished) -> WithNewClients:
    """Return the run's method. Raises ValueError where an unseen client has nothing to personalise."""
    method = finished.trial.experiment.method
    if isinstance(method.model, (Classifier, DiscreteDiffusion)):
        raise ValueError("a new client's model is judged by its pictures, and this method makes none")
    if not isinstance(method, WithNewClients):
        raise ValueError(f"{type(method).__name__} has no shared model that a new client could make its own")
    return method


def prepare_distances(finished: Finished) -> Instruments:
    """Return the run's instruments with the cnn, cached or trained again. Raises ValueError without public records."""
    if not len(finished.dataset.splits["public"]):
        raise ValueError("the distances need a feature network, and that public records: the run's data.public is 0")
    setup = replace(finished.trial.experiment.evaluation or Evaluation(), features="cnn", metrics=METRICS)
    return suite.prepare_instruments(finished.dataset, setup, finished.trial.store.results.cached)


def save_personal(folder: Path, joining: Joining, stage: Stage, *, rate: float, more: Mapping[str, Any]) -> Path:
    """Write the personal part, and its card with `more` in it; return the part's file."""
    finished = joining.finished
    touched, whole = joining.touched()
    card = {
        "about": "the part of a model that a client trained which joined after the last round",
        "privacy": "none",
        "trial": finished.trial.experiment.digest,
        "sweep": finished.trial.sweep.name,
        "round": finished.round,
        "server": tree.digest(finished.server),
        "part": tree.digest(stage.state),
        "method": overrides.to_dict(finished.trial.experiment.method),
        "data": joining.client.says,
        "records": len(joining.client.records),
        "classes": joining.classes,
        "seed": joining.seed,
        "epochs": stage.epoch,
        "training": overrides.to_dict(joining.training(rate, stage.epoch)),
        "parameters": {"touched": touched, "all": whole, "share": touched / whole},
        **more,
    }
    path = folder / f"personal-{rate}.safetensors"
    write_bytes(path, dump_tensors(stage.state))
    write_text(path.with_suffix(".json"), dumps(card, indent=1))
    return path
