"""What the tests of federated methods share: a model to be followed by hand, records, runs in this process."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.datasets import Records
from raydiff.federated.client import Client, Keys
from raydiff.federated.method import SERVER_ONLY, Deployed, Mean, Method, Metrics, Round, Upload, WithNewClients
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.federated.upload_validator import UploadValidator
from raydiff.models.training import Training, fit_personal
from raydiff.privacy.release import Event
from raydiff.seeding import generator
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params

KEYS = Keys(3, b"0123456789abcdef", "digest")
PASSES = Training(
    epochs=4, batch=5, replacement=False, optimizer="sgd", momentum=0.9, learning_rate=0.02, weight_decay=0.01
)
"""Over records by passes, with momentum: clients of 12 and of 9 records take 12 and 8 steps, with last batches of 2 and
4."""


@dataclass(frozen=True)
class Quadratic:
    """One weight w, from 0: the mean of a / 2 (w - x)^2 over records x with label a. It has no features."""

    compile: bool = False

    def init(self, rng: torch.Generator) -> Params:
        return {"w": torch.zeros(1)}

    def draws(self, count: int, rng: torch.Generator) -> Params:
        return {"t": torch.zeros(count)}

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        x, a = batch
        return (a / 2 * (params["w"] - x) ** 2).mean()


QUADRATIC: Any = Quadratic()


def values(x: float, a: float = 1.0) -> Records:
    """A client of `Quadratic` whose records are all x, of curvature a: every batch has the same gradient."""
    return Records(torch.full((4, 1), x), torch.full((4, 1), a), torch.arange(4))


def records(client: int, n: int = 12) -> Records:
    """n images (1, 8, 8) in [-1, 1] and their labels."""
    rng = generator(client, "records")
    images = torch.rand(n, 1, 8, 8, generator=rng) * 2 - 1
    return Records(images, torch.randint(10, (n, 1), generator=rng), torch.arange(n))


def run(
    method: Method,
    data: Sequence[Records] | None = None,
    *,
    keys: Keys = KEYS,
    store: Checkpoint | None = None,
) -> list[Progress]:
    """The protocol on one client for each of `data`, by default on two with 12 records each."""
    data = [records(0), records(1)] if data is None else data
    pool = LocalExecutor([Client(i, method, part, keys=keys, store=store) for i, part in enumerate(data)])
    return list(run_rounds(method, pool, keys=keys, store=store))


def joined(method: Method, server: Params, data: Records) -> tuple[Params, Deployed]:
    """A client that joins later, trained as the method says: its state, and its model."""
    assert isinstance(method, WithNewClients)
    personal, fixed = method.join(server, generator(0))
    leaves, more = (data.images, data.labels), {"training": method.joining, "rng": generator(1)}
    state, _, _ = fit_personal(method.trained_model, personal, fixed, leaves, **more)  # type: ignore[arg-type]
    return state, method.deploy(server, state)


def deployed_of(method: Method, server: Params, data: Records, seed: int = 1, state: Params | None = None) -> Deployed:
    """The model of a client with this state ({}) after it has personalised what the server sent."""
    return method.deploy(server, method.personalize(server, state or {}, data, generator(seed)))


def asked(deployed: Deployed, name: str) -> Tensor:
    """What one of its denoisers makes of the same noise."""
    x = torch.randn(4, 1, 8, 8, generator=generator(5))
    return deployed.targets[name].denoisers[0](x, torch.tensor([1, 5, 9, 20]), torch.arange(4)[:, None])


def aggregated(
    method: Method, server: Params, uploads: Sequence[Upload], rnd: Round
) -> tuple[Params, Metrics, list[Event]]:
    """`aggregate` as the round loop calls it."""
    validator = UploadValidator(method, tree.without(SERVER_ONLY, server), rnd.number, max(rnd.clients, len(uploads)))
    assert all(validator.check(upload, {})[1].rejected is None for upload in uploads)
    return method.aggregate(
        server, iter(uploads) if validator.mean_spec is None else mean_upload(validator, uploads), rnd
    )


def mean_upload(validator: UploadValidator, uploads: Iterable[Upload]) -> Mean:
    """The weighted mean of all these uploads."""
    partial = validator.partial()
    for upload in uploads:
        validator.add(partial, upload, {})
    return partial.mean
