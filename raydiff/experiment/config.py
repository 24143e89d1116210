"""Experiment: the dataclass tree of one trial, and its digest. Experiments are Python (`presets`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raydiff import seeding
from raydiff.data import sources
from raydiff.data.datasets import Data, Dataset
from raydiff.data.partition import ByClass, Dirichlet, Entangled, Iid, MajorityMinority, Newcomers, Pooled
from raydiff.data.records import public_mean
from raydiff.evaluation.row_audit import RowAudit
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment import overrides
from raydiff.federated.heartbeat import FAR_S
from raydiff.federated.method import Method
from raydiff.formats.json_files import KEYED, read_json
from raydiff.methods.fedavg import FedAvg
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.privacy.filters import Budget
from raydiff.storage.object_store import ObjectStore, is_bucket


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where a trial runs, which changes no number: no field is part of the digest."""

    pool: Literal["ray", "local"] = "ray"
    """ray: clients in actors; local: all in this process, one trial after the other."""
    workers: int | None = None
    """Worker actors of a trial; default: as many as fit, at most one per client."""
    gpu_per_worker: float = 0.0
    """GPU share of each worker, also its memory cap."""
    gpu_server: float = 0.0
    """GPU share of the coordinator, which trains the server's models."""
    storage: str = "~/raydiff"
    """Folder for sweeps and for the default MLflow store; on a cluster, one that all nodes share, or a bucket:
    s3://NAME/PREFIX, gs://NAME/PREFIX."""
    revive_s: float = 120.0
    """How long a dead worker may take to come back before the trial restarts from its last commit, and how long a trial
    waits for nodes before it continues with fewer workers."""
    budget: Budget | None = None
    """Privacy budget of all trials on the same data set in this storage folder (`--budget 10`). Once one trial is
    charged to it, all later ones are; a trial that would overspend is refused."""
    client_timeout_s: float = 1800.0
    """Kill a worker without a heartbeat (upload, training step, sampling step) for so long, and ask its clients again;
    the trial fails after four times in a row. Must exceed the time of a step and of reading the data."""
    failures: int = 2
    """How often Tune retries a trial whose coordinator or node died, without a round between them."""
    noise_secret: str | None = None
    """Hex key of the privacy noise; jobs read it only from the environment variable RAYDIFF_NOISE_SECRET. Default:
    random, kept beside the sweep; a given one makes the run `replayable`."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if is_bucket(self.storage):
            self._check_bucket()
        for name in ("gpu_per_worker", "gpu_server"):
            if not 0 <= (share := getattr(self, name)) <= 1:  # A process computes on one GPU.
                raise ValueError(f"{name} must be a share in [0, 1], got {share}")
        if not self.revive_s > 0 or self.failures < 0:
            raise ValueError(f"revive_s must be > 0 and failures >= 0, got {self.revive_s} and {self.failures}")
        if not 5 <= self.client_timeout_s < math.inf:
            raise ValueError(f"client_timeout_s must be a number of seconds >= 5, got {self.client_timeout_s}")
        if self.noise_secret is not None and not re.fullmatch("(?:[0-9a-fA-F]{2}){16,}", self.noise_secret):
            raise ValueError("noise_secret must be at least 32 hexadecimal digits")

    def _check_bucket(self) -> None:
        try:
            ObjectStore(self.storage)
        except ValueError as e:
            raise ValueError(f"storage must be a folder, which all nodes see at one path, or a bucket: {e}") from None
        if self.budget is not None:
            raise ValueError(f"budget needs storage in a folder that all nodes share, got {self.storage!r}")
        if self.client_timeout_s < 4 * FAR_S:
            raise ValueError(
                f"client_timeout_s must be at least {4 * FAR_S:g} where storage is a bucket, to which heartbeats are "
                f"written every {FAR_S:g} s: got {self.client_timeout_s:g}"
            )


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How a trial computes, which changes its numbers to rounding: every field is part of the digest."""

    threads: int = 1
    """CPU threads of each process."""
    vectorize: bool = False
    """Train the clients of one process in lock-step: several times faster where networks or batches are small. The
    numbers then also depend on `runtime.workers`, to rounding."""
    server_workers: int = 1
    """Processes that train the server's models data-parallel, each with `runtime.gpu_server`; with `pool = local` also
    the clients' (raydiff run only)."""

    def __post_init__(self) -> None:
        for name in ("threads", "server_workers"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One trial."""

    method: Method = field(default_factory=FedAvg)
    """What is trained, and what is sent: one of `methods.METHODS`, or module:Class from anywhere."""
    data: Data = Data()
    """The data set and its splits."""
    clients: int = 2
    """Number of clients that share the training records."""
    partition: MajorityMinority | Iid | ByClass | Dirichlet | Pooled | Entangled = MajorityMinority()
    """How they share them."""
    participation: float = 1.0
    """Share of clients drawn in each round."""
    participants: int | None = None
    """Their number, in place of a share."""
    min_clients: int = 1
    """Uploads that a round needs at least; with fewer, since the others were rejected, the trial fails."""
    newcomers: Newcomers | None = None
    """Clients that join after the last round; their training records are set aside before the others are shared."""
    seed: int = 0
    """Initial weights, partition, batches and samples; not the privacy noise."""
    evaluation: Evaluation | None = Evaluation()
    """The experimenter's instruments; none runs the protocol alone, and nothing leaves a client but what the protocol
    sends, the ledger of it, what it cost and the outcome: see `--protocol-only`."""
    audit: RowAudit | None = None
    """Of a table: bound what the model's rows reveal of each record; `audit.remove` leaves the most exposed out. The
    bounds are an instrument: none are given where `evaluation` is none."""
    numerics: Numerics = Numerics()
    """How it computes."""
    runtime: Runtime = field(default=Runtime(), metadata={"location": "value"})
    """Where it runs."""
    data_digest: str = ""
    """Digest of all records, keyed by the sweep's secret: `files.KEYED`, then 64 hex digits. Filled in by
    `trial.resolve`."""

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        if self.participants is not None and not 1 <= self.participants <= self.clients:
            raise ValueError(f"participants must be in 1..{self.clients} (the clients), got {self.participants}")
        if self.participants is not None and self.participation != 1:
            raise ValueError(
                f"give participation or participants, not both ({self.participation}, {self.participants})"
            )
        drawn = self.in_a_round
        if not 1 <= self.min_clients <= drawn:
            raise ValueError(f"min_clients must be in 1..{drawn} (the clients in a round), got {self.min_clients}")
        privacy = getattr(getattr(self.method, "averaging", None), "privacy", None)
        if privacy is not None and privacy.trust == "aggregate" and privacy.shares > self.min_clients:
            raise ValueError(
                f"min_clients must be at least method.averaging.privacy.shares = {privacy.shares}, whose noise "
                f"together is enough, got {self.min_clients}"
            )
        if self.numerics.server_workers > 1:
            self._check_server_workers()

    def _check_server_workers(self) -> None:
        gpu, storage = self.runtime.gpu_server, self.runtime.storage
        if 0 < gpu <= 0.5:  # Two processes might get the same GPU.
            raise ValueError(
                f"runtime.gpu_server must be 0 or above 0.5 with numerics.server_workers, each needs its own GPU: got "
                f"{gpu}"
            )
        if is_bucket(storage):
            raise ValueError(f"numerics.server_workers needs storage in a folder that all nodes share, got {storage!r}")

    @property
    def in_a_round(self) -> int:
        """How many clients a round takes."""
        return self.participants or max(1, round(self.participation * self.clients))

    @property
    def everyone(self) -> range:
        """Numbers of all clients, those that join later last."""
        return range(self.clients + (self.newcomers.clients if self.newcomers else 0))

    @property
    def digest(self) -> str:
        """16 hex digits over all that can change a number: the tree without fields that declare a location."""
        tree = overrides.to_dict(self, locations=False)
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def resolve(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The experiment with what only the data can tell: image shape, number of labels. Without their digest, which is
    the sweep's (`keyed`)."""
    experiment = overrides.exact(experiment)
    model: Any = experiment.method.model
    if hasattr(model, "for_table") != (dataset.mapping is not None):
        of_rows = "discretediffusion (the method marginals has a model of rows by itself)"
        kind, wanted = ("a table", of_rows) if dataset.mapping else ("no table", "a model of pictures")
        raise ValueError(f"data set {dataset.name!r} is {kind}: method.model must be {wanted}")
    if experiment.numerics.vectorize and getattr(getattr(model, "network", None), "channels_last", False):
        raise ValueError(
            "method.model.network.channels_last must be false with numerics.vectorize: torch.func has one layout of "
            "pictures only"
        )
    if dataset.mapping is not None:
        counts = tuple(len(column.categories) for column in dataset.mapping.columns)
        model = model.for_table(counts, dataset.cardinalities)
    else:
        model = model.for_data(dataset.shape, dataset.cardinalities)
    method: Method = overrides.override(experiment.method, {"model": model})
    if experiment.audit is not None:
        _check_audit(experiment.audit, method, dataset)
    if getattr(method, "center", False):
        public_mean(dataset.splits["public"])  # It raises where there is no public record: now, not when it is used.
    data, evaluation = _anywhere(experiment.data), experiment.evaluation
    if evaluation is not None and evaluation.weights is not None:
        path = str(Path(evaluation.weights).expanduser().absolute())
        evaluation = dataclasses.replace(evaluation, weights=path)
    return dataclasses.replace(experiment, method=method, data=data, evaluation=evaluation, data_digest="")


def keyed(dataset: Dataset, secret: bytes) -> str:
    """An experiment's `data_digest` in the sweep with this secret."""
    return KEYED + seeding.keyed_digest(secret, "data", dataset.digest)


def is_of(experiment: Experiment, dataset: Dataset, secret: bytes) -> bool:
    """Whether these are the data that the experiment was resolved with, in the sweep with this secret."""
    return experiment.data_digest == keyed(dataset, secret)


def _check_audit(audit: RowAudit, method: Method, dataset: Dataset) -> None:
    if dataset.mapping is None:
        raise ValueError(f"data set {dataset.name!r} is no table: audit must be none")
    if audit.remove and not isinstance(method.model, DiscreteDiffusion):  # Its bounds are of no other model.
        raise ValueError(
            f"audit.remove must be 0 where the model is no discrete diffusion, got {audit.remove:g}: the bound by "
            "which records are left out is of one"
        )
    private = [f for f in ("epsilon", "noise_multiplier") if getattr(method, f, None) is not None]
    if audit.remove and private:  # A client's guarantee covers all it has, also what it leaves out.
        raise ValueError(
            f"audit.remove must be 0 where the method has {private[0]}, got {audit.remove:g}: which records are left "
            "out depends on the others, and its guarantee does not cover that"
        )


def _anywhere(data: Data) -> Data:
    """The same data set found from any working directory and environment, for actors have others than the driver."""
    root = data.root or os.environ.get("RAYDIFF_DATA")
    return dataclasses.replace(
        data,
        name=_absolute(data.name),
        public_from=None if data.public_from is None else _absolute(data.public_from),
        root=str(Path(root).expanduser().absolute()) if root else None,
    )


def _absolute(name: str) -> str:
    """A data set's name, with a path made absolute."""
    return str(Path(name).expanduser().absolute()) if sources.is_path(name) else name


def from_dict(data: Mapping[str, Any]) -> Experiment:
    """The experiment of a config.json. Raises ValueError on names that this version does not know."""
    found: Experiment = overrides.from_dict(data, Experiment)
    return found


def read(path: Path, *, edited: bool = False) -> Experiment:
    """`from_dict` of a config.json, which may have been `edited` by hand. Raises ValueError, with the path, where it is
    none that this version can read."""
    try:
        return from_dict(read_json(path, needs="method", edited=edited))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except ValueError as e:
        said = str(e)
        raise ValueError(said if str(path) in said else f"{path}: {said}") from None
