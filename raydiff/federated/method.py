"""The seam: what a federated method is. Read this file first, `federation.py` second.

A method is a frozen dataclass of hyper-parameters with six pure functions in plain torch: no Ray, no logging, no
global randomness, no clock; inputs are never mutated. The same object runs in a unit test, in one process and on a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.models.training import Model, Training
from raydiff.privacy.release import UNSEEN, Event, Release
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

HELD = "held"
"""Leaves of the server's state below this prefix stay on the server: clients and `deploy` never see them. Below it in
a client's state is what its own next rounds need, and no sampler."""

Metrics = dict[str, float]
Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x_t (N, C, H, W), t (N,) in 1..T, labels (N, K)) -> predicted noise (N, C, H, W)."""
Sampler = Callable[[Tensor, torch.Generator], Tensor]
"""(labels (N, K), rng) -> images (N, C, H, W), on the data's scale."""
Classify = Callable[[Tensor], Tensor]
"""images (N, C, H, W) -> logits (N, classes) of label column 0."""


@dataclass(frozen=True)
class Round:
    """One communication round, as one participant sees it."""

    number: int
    """0, 1, ..., rounds - 1."""
    rng: torch.Generator
    """This participant's stream for this round: batches, timesteps, training noise."""
    noise: NoiseStream | None = None
    """Privacy noise of a client's upload in this round, or of what the server publishes (central trust)."""
    clients: int = 1
    """Clients of the federation, those that sit this round out included."""


@dataclass(frozen=True)
class LocalResult:
    """What a client's round gives."""

    state: Params
    """The client's next private state; it is never sent to the server."""
    release: Release
    """The protocol message: the only thing that reaches `aggregate`."""
    metrics: Metrics = field(default_factory=dict)
    """Instruments for the experimenter, outside the protocol; never seen by `aggregate`."""


@dataclass(frozen=True)
class Upload:
    """A release as the server sees it."""

    client: int
    examples: int
    release: Release


@dataclass(frozen=True)
class Deployed:
    """A personalised model, ready to be sampled and attacked, or a classifier."""

    samplers: Mapping[str, Sampler] = field(default_factory=dict)
    """Ways to draw from it by name (ddim, ancestral); the first is the one that was configured. Empty: it makes no
    pictures."""
    denoisers: Mapping[str, Denoiser] = field(default_factory=dict)
    """The models behind it by name ("client", "global"): what a membership attack may query."""
    timesteps: int = 0
    """T of these denoisers."""
    alphas_bar: Tensor = field(default_factory=lambda: torch.ones(1, dtype=torch.float64))
    """abar_0 = 1, abar_1, ..., abar_T: (T + 1,) float64."""
    classify: Classify | None = None
    """Tells label column 0."""
    privacy: str = "none"
    """What is guaranteed for this client's own records when its samples are published."""
    conditional: bool = True
    """Whether it samples what the labels ask for; else it samples the client's distribution."""
    upload: Callable[[Records, NoiseStream | None], Records] | None = None
    """Where uploads are records: these as a client sends them; without noise, their expectation."""
    sent: Records | None = None
    """What the client itself sends of its records, row by row: filled in by its evaluation, for the experimenter."""
    prompted: Sequence[Denoiser] = ()
    """Denoisers of latents (N, c, h, w), whose labels each stands for by a prompt of its own: an attack asks them all,
    and takes the one that knows a record best."""
    encode: Callable[[Tensor], Tensor] | None = None
    """Images (N, C, H, W) to the latents that `prompted` sees."""

    @property
    def sample(self) -> Sampler:
        """The way that was configured. Raises ValueError where there is none."""
        if not self.samplers:
            raise ValueError("a classifier makes no pictures")
        return next(iter(self.samplers.values()))


class Method(Protocol):
    """Six pure functions. `S` (server state) and `C` (client state) are both `Params`."""

    @property
    def rounds(self) -> int:
        """How many rounds the protocol takes."""

    @property
    def participating_rounds(self) -> int:
        """Clients take part in rounds 0 .. participating_rounds - 1; later rounds are the server's alone."""

    @property
    def init_parts(self) -> int:
        """Pieces into which `init_client` is cut; each is kept, so that a crash loses one at most."""

    @property
    def init_key(self) -> Hashable:
        """All of the configuration that `init_client` depends on.

        Client states with equal (init_key, data, public data, seed, client) are equal, so a sweep trains them once.
        None: not worth keeping.
        """

    @property
    def delta(self) -> float:
        """The delta at which this method's epsilon is stated."""

    @property
    def accountant(self) -> str:
        """The accountant by which this method's epsilon is stated (`privacy.accountants.ACCOUNTANTS`)."""

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The server's state before round 0; `public` are the records declared public, which everybody has."""

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """Piece `rnd.number` of 0 .. init_parts - 1 of what a client does before its first round, from its own data.

        `state` is the piece before's, {} at first; the last one's is the client's private state.
        """

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """The client's part of a round ("client executes")."""

    def upload_event(self, records: int, number: int) -> Event:
        """What a client with this many records reveals by its upload of round `number`, known before it is sent: what
        a client that is late is charged. Never an event that reveals less than the upload's own."""
        return UNSEEN

    def objection(self, server: Params, upload: Upload, number: int) -> str | None:
        """Why `aggregate` cannot use an upload of round `number`, in words; None: it can.

        Its release holds the leaves that this method sends, and no others, of these shapes and types (`tree.unlike`);
        that they are finite is looked at for every method.
        """

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """The server's part ("server executes"): uploads come as a stream in client order, folded as they come.

        The events are those of what the server publishes beyond the uploads' own (central trust); usually none.
        """

    def deploy(self, server: Params, state: Params, data: Records, rng: torch.Generator) -> Deployed:
        """Personalise for one client, then be ready to sample."""


@runtime_checkable
class Personalizing(Protocol):
    """A method whose shared model a client that joins later can make its own: from its own records, without any other
    client, and without sending anything."""

    @property
    def trained_model(self) -> Model:
        """The model whose parameters the server's and the personal ones are."""

    @property
    def joining(self) -> Training:
        """How the personal part is trained unless something else is asked for."""

    def join(self, server: Params, rng: torch.Generator) -> tuple[Params, Params]:
        """(the personal part before it is trained, the other parameters of the model, which stay as the server sent
        them). Trained, the personal part is the client's private state, which `deploy` takes."""


@runtime_checkable
class Demanding(Protocol):
    """A method that not every client can take part in, such as one with too few records: refused before anything is
    trained."""

    def check_records(self, records: Records) -> None:
        """Raises ValueError unless a client with these records can take part."""


@runtime_checkable
class Tabling(Protocol):
    """A method whose server's state says something as tables."""

    def tables(self, server: Params) -> dict[str, tuple[list[str], list[list[str]]]]:
        """{name: (columns, rows of text)}: kept with the trial, for the experimenter."""


@dataclass(frozen=True)
class Shared:
    """The server's model by itself, ready to be sampled: no client's private state is in it."""

    sample: Callable[[Tensor, torch.Generator], Tensor]
    """(labels (N, K), rng) -> images (N, C, H, W) on [-1, 1]."""
    about: str
    """What these images are, in words."""


@runtime_checkable
class Sharing(Protocol):
    """A method whose server ends with a model that can be sampled alone: its samples carry the run's guarantee."""

    def shared(self, server: Params) -> Shared:
        """The server's model."""
