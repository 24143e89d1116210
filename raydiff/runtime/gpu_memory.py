"""What a worker takes of a GPU's memory: measured before a sweep (`runtime.gpu_per_worker` auto), and told in one
sentence where its slice was too small.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from raydiff import seeding, tree
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.federated.client import COHORT, run_clients
from raydiff.federated.method import SERVER_ONLY, Round
from raydiff.federated.sums import UploadValidator
from raydiff.models.training import Training
from raydiff.runtime.slots import CONTEXT, allowed, called, slot
from raydiff.seeding import NoiseStream
from raydiff.storage.checkpoint import INITIAL

SPARE = 1.2  # The peak of one step is measured; a fifth is added for safety.
GB = 2**30


class Meter:
    """Tells what this process has taken, in bytes, of the one GPU that it sees."""

    def start(self) -> None:
        """Forget the peak so far."""
        torch.cuda.init()  # CUDA refuses the first call on the device before it is initialised.
        torch.cuda.reset_peak_memory_stats(0)

    def peak(self) -> int:
        """The most that tensors held at once since then."""
        return torch.cuda.max_memory_allocated(0)

    def total(self) -> int:
        """What the GPU has."""
        return torch.cuda.get_device_properties(0).total_memory


@dataclasses.dataclass(eq=False)
class OutOfMemory(RuntimeError):
    """A process needed more of the GPU's memory than its slice has."""

    who: str
    number: int
    """Of the round."""
    field: str
    """Of `Runtime`, that gave it its share."""
    share: float
    peak: int
    total: int

    def __str__(self) -> str:
        when = "before round 0" if self.number == INITIAL else f"in round {self.number}"
        flag = f"--runtime.{self.field.replace('_', '-')}"
        slice_ = f"slice is {allowed(self.share, self.total) / GB:.3g} GB ({self.share:g} of a GPU)"
        advice = f"give {flag} {doubled(self.share):g}" if self.share < 1 else "no slice is larger: lower the batch"
        return f"{self.who}, {when}: needed more than {self.peak / GB:.3g} GB, {slice_}: {advice}"


def doubled(share: float) -> float:
    """The next larger slice."""
    return min(1.0, 2 * share)


def here() -> Meter | None:
    """The meter of this process; None: it computes on the CPU."""
    return Meter() if torch.cuda.is_available() else None


def exceeded(who: str, number: int, field: str, share: float) -> OutOfMemory:
    """The error of this process, which torch has just refused memory. `field` of `Runtime` is what gave it its
    share."""
    meter = here()
    return OutOfMemory(who, number, field, share, meter.peak() if meter else 0, meter.total() if meter else 0)


# --- measuring it ---


def share_of(peak: int, total: int) -> float:
    """The share of a GPU of `total` bytes for a worker whose peak was so many, with a fifth to spare, in Ray's unit of
    1e-4.

    Raises ValueError where a whole GPU is not enough.
    """
    share = math.ceil(1e4 * (SPARE * peak + CONTEXT) / total) / 1e4
    if share > 1:
        raise ValueError(
            f"a worker needs {SPARE * peak / GB:.3g} GB (its peak in one step, and a fifth), but a GPU has "
            f"{allowed(1.0, total) / GB:.3g} GB for it: lower the batch"
        )
    return max(share, 1e-4)


def probe(experiment: Experiment, meter: Meter | None = None, *, cohort: int = 1) -> tuple[int, int]:
    """(peak, the GPU's memory) in bytes of a worker of this trial: one training step of the client with the most
    records, or of so many such clients in lock-step, then the evaluation of one as at the end of a trial. In a folder
    that is then deleted.

    What the server does in between is not counted. Raises ValueError where the whole GPU is not enough.
    """
    meter = meter or Meter()
    with tempfile.TemporaryDirectory(prefix="raydiff-probe-") as folder:
        this = trial.open_trial(one_step(experiment), Path(folder) / "sweep")
        trial.compute(experiment)
        try:
            return _peak(this, meter, cohort), meter.total()
        except torch.OutOfMemoryError:
            raise ValueError(f"a worker needs more than a whole GPU, {meter.total() / GB:.3g} GB") from None


def _peak(this: trial.Trial, meter: Meter, cohort: int) -> int:
    method, rng = this.experiment.method, seeding.generator(this.experiment.seed, "probe")
    instruments = trial.make_instruments(this)
    clients = sorted(trial.make_clients(this, range(this.experiment.clients)), key=lambda c: -len(c.data))[:cohort]
    client = clients[0]
    server = method.init_server(client.public, rng)
    meter.start()
    uploads = [upload for upload, _ in run_clients(clients, server, 0)] if method.participating_rounds else []
    trained = meter.peak()
    noise = NoiseStream(this.keys.secret, ("probe",))
    validator = UploadValidator(method, server, 0, this.experiment.clients)
    received: Any = uploads if validator.mean_spec is None else validator.mean(uploads)
    server, _, _ = method.aggregate(server, received, Round(0, rng, noise, this.experiment.clients))
    meter.start()
    if instruments is not None:
        client.evaluate(tree.without(SERVER_ONLY, server), 0, instruments.of_client(instruments.config.split))
    return max(trained, meter.peak())


def one_step(experiment: Experiment) -> Experiment:
    """The same trial, with each of its trainings cut to one step in each round at its own batch size."""
    rounds = experiment.method.rounds  # A training of fewer steps than rounds has no step in the first round.
    steps: dict[str, int | None] = {}
    for path, training in trainings(experiment.method):
        none = training.of(1).steps == 0
        steps |= {f"method.{path}.steps": 0 if none else rounds, f"method.{path}.epochs": None}
    bare: dict[str, Any] = {"newcomers": None, "runtime.noise_secret": None}
    privacy = getattr(getattr(experiment.method, "averaging", None), "privacy", None)
    if privacy is not None and privacy.trust == "aggregate":  # The probe has fewer uploads than `shares`.
        bare["method.averaging.privacy"] = None
    cut: Experiment = override(experiment, {**steps, **bare})
    return cut


def cohort_of(experiment: Experiment, workers: int) -> int:
    """How many clients a worker of this trial trains at once, at most, where the slot has so many workers."""
    if not experiment.runtime.vectorize:
        return 1
    return min(COHORT, math.ceil(experiment.clients / workers), experiment.in_a_round)


def largest(trials: Sequence[Experiment], workers: int = 1) -> list[Experiment]:
    """Of each method the trial whose workers will take most: by parameters times the records of a step, of all clients
    that train at once; then by fewer clients."""

    def size(experiment: Experiment) -> tuple[int, int]:
        model = experiment.method.model
        # A latent model is frozen and the same one in all trials, so it tells nothing apart.
        fresh = {} if hasattr(model, "folder") else model.init(torch.Generator())
        weights = max(1, sum(v.numel() for v in fresh.values()))
        batch = max((t.batch for _, t in trainings(experiment.method)), default=1)
        return weights * batch * cohort_of(experiment, workers), -experiment.clients

    of: dict[str, list[Experiment]] = {}
    for experiment in trials:
        of.setdefault(type(experiment.method).__name__, []).append(experiment)
    return [max(group, key=size) for group in of.values()]


def trainings(obj: Any, prefix: str = "") -> Iterator[tuple[str, Training]]:
    """(path, training) of each that a method has."""
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        if isinstance(value, Training):
            yield prefix + field.name, value
        elif dataclasses.is_dataclass(value):
            yield from trainings(value, f"{prefix}{field.name}.")


def measure(trials: Sequence[Experiment], nodes: Sequence[Mapping[str, float]]) -> tuple[float, str]:
    """(the share of a GPU that a worker of these trials needs, what was measured in words), by tasks on the cluster
    that has been joined; where there is none, in this process.

    Raises ValueError where the cluster has no GPU, or a GPU is not enough.
    """
    threads = max(e.runtime.threads for e in trials)
    if not any(n.get("GPU", 0.0) >= 1 and n.get("CPU", 0.0) >= threads for n in nodes):
        raise ValueError("runtime.gpu_per_worker auto is measured on a GPU, and there is none: give a number")
    share, asked = 1e-4, _asked(trials, 1e-4, nodes)
    while True:  # A larger slice leaves room for fewer workers, so each then has more clients.
        found = [called(partial(probe, e, cohort=cohort), threads=threads, gpu=1) for e, cohort in asked]
        peak, total = max(found, key=lambda f: f[0] / f[1])
        share = max(share, share_of(peak, total))
        measured, asked = asked, _asked(trials, share, nodes)
        if asked == measured:
            break
    return share, f"a worker's peak is {peak / GB:.3g} GB: its slice is {share:g} of a GPU of {total / GB:.3g} GB"


def _asked(
    trials: Sequence[Experiment], share: float, nodes: Sequence[Mapping[str, float]]
) -> list[tuple[Experiment, int]]:
    """What is to be measured where a worker has this share: of each method a trial, and its cohort's size."""
    runtime = dataclasses.replace(trials[0].runtime, gpu_per_worker=share)
    workers = slot(runtime, clients=max(e.clients for e in trials), nodes=nodes).workers
    return [(e, cohort_of(e, workers)) for e in largest(trials, workers)]
