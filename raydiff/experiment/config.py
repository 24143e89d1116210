"""Experiment: the dataclass tree of one trial, and its digest. Experiments are Python (`presets`)."""

import dataclasses
import hashlib
import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Unit

from raydiff import seeding
from raydiff.data import datasets
from raydiff.data.datasets import Data, Dataset
from raydiff.data.partition import PARTITIONS, MajorityMinority, Partition, UnseenClients
from raydiff.data.records import public_mean
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.experiment import overrides
from raydiff.federated.method import Method
from raydiff.formats.json_files import KEYED, dumps, read_json
from raydiff.lookup import check_value
from raydiff.methods import METHODS
from raydiff.methods.fedavg import FedAvg
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.privacy.accountants import check_budget
from raydiff.privacy.filters import Budget
from raydiff.settings import Count, Fraction, Natural, check_tree, settings
from raydiff.storage.object_store import ObjectStore, is_bucket

AnyMethod = Annotated[Method, METHODS]


@settings(frozen=True, kw_only=True)
class Runtime:
    """Where a trial runs, which changes no number: no field is part of the digest.

    Raises:
        ValueError: If `storage` is no folder or bucket, or does not suit another field.

    Examples:
        >>> here = rd.Experiment(runtime=rd.Runtime(pool="local"))
        >>> here.digest == rd.Experiment().digest
        True
    """

    pool: Literal["ray", "local"] = "ray"
    """ray: clients in actors; local: all in this process, one trial after the other."""
    workers: Count | None = None
    """Worker actors of a trial; default: as many as fit, at most one per client."""
    gpu_per_worker: Fraction = 0.0
    """GPU fraction of each worker, also its memory cap."""
    gpu_server: Fraction = 0.0
    """GPU fraction of the coordinator, which trains the server's models."""
    storage: str = "~/raydiff"
    """Folder, which all nodes see, for sweeps and the default MLflow store; or a bucket: s3://NAME/PREFIX, gs://NAME."""
    revive_s: Annotated[float, Ge(0.1), Unit("s")] = 120.0
    """How long a dead worker may take to come back before the trial restarts from its last commit, and how long a trial
    waits for nodes before it continues with fewer workers."""
    budget: Budget | None = None
    """Privacy budget of all trials on the same data set in this storage; a trial that would overspend is refused."""
    client_timeout_s: Annotated[float, Ge(5), Le(1e9), Unit("s")] = 1800.0
    """Kill a worker without a heartbeat (upload, training or sampling step) for so long, and ask its clients again;
    the trial fails after four times in a row. Must exceed the time of a step and of reading the data."""
    failures: Natural = 2
    """How often Tune retries a trial whose coordinator or node died, without a round between them."""
    noise_secret: str | None = None
    """Hex key of the privacy noise, from RAYDIFF_NOISE_SECRET alone. Default: random, kept beside the sweep."""

    def __post_init__(self) -> None:
        if is_bucket(self.storage):
            self._check_bucket()
        if self.noise_secret is not None and not re.fullmatch("(?:[0-9a-fA-F]{2}){16,}", self.noise_secret):
            raise ValueError("noise_secret must be at least 32 hexadecimal digits")

    def _check_bucket(self) -> None:
        try:
            ObjectStore(self.storage)
        except ValueError as e:
            raise ValueError(f"storage must be a folder, which all nodes see at one path, or a bucket: {e}") from None
        if self.budget is not None:
            raise ValueError(f"budget needs storage in a folder that all nodes share, got {self.storage!r}")
        if self.client_timeout_s < 4 * ObjectStore.pause_s:
            raise ValueError(
                f"client_timeout_s must be at least {4 * ObjectStore.pause_s:g} where storage is a bucket, with a "
                f"heartbeat every {ObjectStore.pause_s:g} s: got {self.client_timeout_s:g}"
            )


@settings(frozen=True, kw_only=True)
class Numerics:
    """How a trial computes, which changes its numbers to rounding: every field is part of the digest.

    Examples:
        >>> one, two = (rd.Experiment(numerics=rd.Numerics(threads=threads)) for threads in (1, 2))
        >>> one.digest == two.digest
        False
    """

    threads: Count = 1
    """CPU threads of each process."""
    vectorize: bool = False
    """Train the clients of one process in lock-step: several times faster where networks or batches are small. The
    numbers then also depend on `runtime.workers`, to rounding."""
    server_workers: Count = 1
    """Processes, each with `runtime.gpu_server`, that train the server's models data-parallel."""


@settings(frozen=True, kw_only=True)
class Experiment:
    """One trial.

    Raises:
        ValueError: If a field has a wrong type or value (all of them at once), or fields exclude each other.

    Examples:
        >>> rd.Experiment(method=rd.FedProx(mu=0.1), clients=10, participants=3).in_a_round
        3
        >>> rd.Experiment(clients=1.5)
        Traceback (most recent call last):
        raydiff.settings.SettingsError: clients must be an integer, got 1.5
    """

    method: AnyMethod = field(default_factory=FedAvg)
    """What is trained, and what is sent: one of `methods.METHODS`, or module:Class from anywhere."""
    data: Data = Data()
    """The data set and its splits."""
    clients: Count = 2
    """Number of clients among which the training records are partitioned."""
    partition: Annotated[Partition, PARTITIONS] = MajorityMinority()
    """How the records are partitioned."""
    participants: Count | None = None
    """Number of clients drawn in each round (default: all)."""
    min_clients: Count = 1
    """Uploads that a round needs at least; with fewer, since the others were rejected, the trial fails."""
    unseen: UnseenClients | None = None
    """Unseen clients, which join after the last round; their records are set aside before the partition."""
    seed: int = 0
    """Initial weights, partition, batches and samples; not the privacy noise."""
    evaluation: Evaluation | None = Evaluation()
    """The experimenter's instruments; none runs the protocol alone (`--protocol-only`)."""
    audit: RowAudit | None = None
    """Of a table: bound what the model's rows reveal of each record; `audit.remove` leaves the most exposed out."""
    numerics: Numerics = Numerics()
    """How it computes."""
    runtime: Runtime = field(default=Runtime(), metadata={"location": "value"})
    """Where it runs."""
    data_digest: str = ""
    """Digest of all records, keyed by the sweep's secret; filled in by `trial.resolve_on_data`."""

    def __post_init__(self) -> None:
        check_tree(self)
        check_budget(1.0, self.method.delta)
        if self.participants is not None:
            check_value(
                "participants",
                self.participants,
                self.participants <= self.clients,
                f"in 1..{self.clients} (the clients)",
            )
        least = self.min_clients
        most = self.in_a_round
        check_value("min_clients", least, least <= most, f"in 1..{most} (the clients in a round)")
        privacy = getattr(getattr(self.method, "averaging", None), "privacy", None)
        if privacy is not None and privacy.trust == "aggregate":
            check_value(
                "min_clients",
                least,
                least >= privacy.shares,
                f"at least method.averaging.privacy.shares = {privacy.shares}",
            )
        if self.numerics.server_workers > 1:
            self._check_server_workers()

    def _check_server_workers(self) -> None:
        gpu = self.runtime.gpu_server
        storage = self.runtime.storage
        sole = gpu == 0 or gpu > 0.5  # Else two processes might get the same GPU.
        check_value("runtime.gpu_server", gpu, sole, "0 or above 0.5 with numerics.server_workers")
        if is_bucket(storage):
            raise ValueError(f"numerics.server_workers needs storage in a folder that all nodes share, got {storage!r}")

    @property
    def in_a_round(self) -> int:
        """Number of clients in a round."""
        return self.participants or self.clients

    @property
    def everyone(self) -> range:
        """Numbers of all clients, unseen ones last."""
        return range(self.clients + (self.unseen.clients if self.unseen else 0))

    @property
    def digest(self) -> str:
        """16 hex digits over all that can change a number: the tree without fields that declare a location."""
        tree = overrides.to_dict(self, locations=False)
        return hashlib.sha256(dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def resolve_shapes(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The experiment with image shape and number of labels from the data, and without their digest (`keyed`)."""
    model: Any = experiment.method.model
    model = dataset.modality.configure(model, dataset.shape, dataset.cardinalities)
    method: Method = overrides.override(experiment.method, {"model": model})
    if experiment.audit is not None:
        _check_audit(experiment.audit, method, dataset)
    if getattr(method, "center", None) == "public":
        public_mean(dataset.splits["public"])  # It raises where there is no public record: now, not when it is used.
    evaluation = experiment.evaluation
    if evaluation is not None and evaluation.weights is not None:
        evaluation = dataclasses.replace(evaluation, weights=datasets.absolute(evaluation.weights))
    return dataclasses.replace(
        experiment, method=method, data=datasets.anywhere(experiment.data), evaluation=evaluation, data_digest=""
    )


def keyed(dataset: Dataset, secret: bytes) -> str:
    """An experiment's `data_digest` in the sweep with this secret."""
    return KEYED + seeding.keyed_digest(secret, "data", dataset.digest)


def _check_audit(audit: RowAudit, method: Method, dataset: Dataset) -> None:
    if "audit" not in dataset.modality.attacks:
        raise ValueError(f"data set {dataset.name!r} is no table: audit must be none")
    if audit.remove and not isinstance(method.model, DiscreteDiffusion):  # The bound holds for this model only.
        raise ValueError(f"audit.remove must be 0 without a discrete diffusion model, got {audit.remove:g}")
    private = [f for f in ("epsilon", "noise_multiplier") if getattr(method, f, None) is not None]
    if audit.remove and private:  # A client's guarantee covers all it has, also what it leaves out.
        raise ValueError(
            f"audit.remove must be 0 where the method has {private[0]}, got {audit.remove:g}: its guarantee does not "
            "cover which records are left out"
        )


def read_config(path: Path) -> Experiment:
    """The experiment of a config.json. Raises ValueError if it is damaged."""
    try:
        experiment: Experiment = overrides.from_dict(read_json(path, needs="method"), Experiment)
        return experiment
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except ValueError as e:
        raise ValueError(str(e) if str(path) in str(e) else f"{path}: {e}") from None
