"""The seam: what a federated method is. Read this file first, `rounds.py` second.

A method is a frozen dataclass of hyper-parameters with nine pure functions in plain torch: no Ray, no logging, no
global randomness, no clock; inputs are never mutated. The same object runs in a unit test, in one process and on a
cluster. What only some methods can do is at the end of this file.
"""

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.federated.upload_spec import UploadSpec
from raydiff.models.ddpm import Denoiser
from raydiff.models.training import Model, Training
from raydiff.privacy.release import Event, NonPrivate, Release
from raydiff.seeding import NoiseStream
from raydiff.tree import Params, finite

SERVER_ONLY = "server_only"
"""Prefix of the leaves of the server's state that stay on the server: neither clients nor `deploy` see them."""
SCRATCH = "scratch"
"""Prefix of the leaves of a client's state for its own next rounds only: no saved sampler has them."""

Metrics = dict[str, float]
Sampler = Callable[[Tensor, torch.Generator], Tensor]
"""(labels (N, K), rng) -> images (N, C, H, W), on the data's scale."""


@dataclass(frozen=True)
class Round:
    """One communication round, as one participant sees it."""

    number: int  # 0, 1, ..., rounds - 1
    rng: torch.Generator
    """This participant's stream for this round: batches, timesteps, training noise."""
    noise: NoiseStream | None = None
    """Privacy noise of a client's upload in this round, or of what the server publishes (central trust)."""
    clients: int = 1
    """Clients of the federation, those that sit this round out included."""


@dataclass(frozen=True)
class LocalResult:
    """The result of a client's part of a round."""

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


Weights = Literal["examples", "uniform"]


@dataclass(frozen=True)
class MeanSpec:
    """How uploads are averaged by a method whose server needs only their weighted mean."""

    weights: Weights
    """Of the clients in the mean: examples, by their number of records; uniform, all the same."""
    largest: float
    """Limit of an upload's entries times its weight; beyond it the upload is rejected. The same public number in every
    worker; the smaller it is, the finer is the sum's rounding (`exact_sum.Grid`)."""

    def weight(self, examples: int) -> float:
        """The weight of a client with so many records."""
        return float(examples) if self.weights == "examples" else 1.0


@dataclass(frozen=True)
class Mean:
    """The weighted mean of a round's uploads, each rounded once to the grid of `ExactSum`, then summed exactly."""

    value: Params
    count: int  # uploads in it


@dataclass(frozen=True)
class Target:
    """A model that a membership attack may query."""

    denoisers: tuple[Denoiser, ...]
    """Usually one. An attack queries all, and takes the one that knows a record best."""
    alphas_bar: Tensor  # abar_0 = 1, abar_1, ..., abar_T of these denoisers, (T + 1,) float64
    encode: Callable[[Tensor], Tensor] | None = None
    """Images (N, C, H, W) to the latents that the denoisers see; None: they see images."""

    @property
    def timesteps(self) -> int:
        """T."""
        return len(self.alphas_bar) - 1


@dataclass(frozen=True)
class Uploads:
    """What an attack on uploads needs, for a method whose uploads are records."""

    make: Callable[[Records, NoiseStream | None], Records]
    """Records to what a client sends of them; without noise, its expectation."""
    sent: Records | None = None
    """What the client itself has sent, row by row; filled in by its evaluation, for the experimenter."""


@dataclass(frozen=True)
class Deployed:
    """A model that is ready to be sampled, to classify, and to be attacked."""

    samplers: Mapping[str, Sampler] = field(default_factory=dict)
    """Samplers by name (ddim, ancestral), the configured one first. Empty: a classifier. Each raises `NotFinite`."""
    classify: Callable[[Tensor], Tensor] | None = None
    """Predicts label column 0: images (N, C, H, W) -> logits (N, classes)."""
    conditional: bool = True
    """Whether it samples what the labels ask for; else it samples the client's distribution."""
    about: str = ""
    """A description of its samples."""
    of_server: bool = False
    """Whether samples are made of the server's model alone: then they have its guarantee, else none."""
    targets: Mapping[str, Target] = field(default_factory=dict)
    """What membership attacks may query, by name: client, global, pool."""
    uploads: Uploads | None = None
    """For an attack on the uploads; None: uploads are not records."""

    def __post_init__(self) -> None:
        samplers = {name: functools.partial(_finite_samples, sample) for name, sample in self.samplers.items()}
        object.__setattr__(self, "samplers", samplers)

    @property
    def sample(self) -> Sampler:
        """The configured sampler. Raises ValueError for a classifier."""
        if not self.samplers:
            raise ValueError("a classifier makes no pictures")
        return next(iter(self.samplers.values()))


def _finite_samples(sample: Sampler, labels: Tensor, rng: torch.Generator) -> Tensor:
    return finite(sample(labels, rng), "the samples")


class Method(Protocol):
    """Nine pure functions, and the numbers by which they are called. Methods may inherit the defaults written here."""

    @property
    def model(self) -> Any:
        """What is trained: a denoiser (`models.ddpm`), a classifier, or of tables a `models.d3pm.DiscreteDiffusion`."""

    @property
    def rounds(self) -> int:
        """How many rounds the protocol takes."""

    @property
    def participating_rounds(self) -> int:
        """Clients take part in rounds 0 .. participating_rounds - 1; in later ones only the server works."""
        return self.rounds

    @property
    def init_parts(self) -> int:
        """Pieces into which `init_client` is cut; each is stored, so that a crash loses one at most."""
        return 1

    @property
    def init_key(self) -> Hashable:
        """All of the configuration that `init_client` depends on; None: its result is not worth storing.

        Client states with equal (init_key, data, public data, seed, client) are equal, so a sweep trains them once.
        """
        return None

    @property
    def delta(self) -> float:
        """The delta at which this method's epsilon is stated."""
        return 1e-5

    @property
    def accountant(self) -> str:
        """The accountant by which this method's epsilon is stated (`privacy.accountants.ACCOUNTANTS`)."""
        return "exact"

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The server's state before round 0; `public` are the records declared public, which everybody has."""

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """Piece `rnd.number` of 0 .. init_parts - 1 of what a client does before its first round, from its own data.

        `state` is the piece before's, {} at first; the last one's is the client's private state.
        """
        return {}

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """The client's part of a round ("client executes")."""

    def upload_event(self, records: int, round_number: int) -> Event:
        """The event of an upload of a round, not made yet: a budget is charged this, no less than its own."""
        return NonPrivate("uploads whose event the method does not state beforehand")

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        """What the upload of a client with this many examples looks like in a round; any other is rejected."""

    def mean_spec(self, server: Params) -> MeanSpec | None:
        """How uploads are averaged, if `aggregate` needs only their weighted mean.

        Then each worker sends one sum a round. None: `aggregate` gets the uploads one by one. `server` is the state
        that clients see.
        """
        return None

    def aggregate(self, server: Params, uploads: Any, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """The server's part ("server executes"): (next state, metrics, events).

        `uploads` is their `Mean` if there is a `mean_spec`; else an Iterable[Upload], a stream in client order. The
        events are those of what the server publishes (central trust); usually none.
        """

    def personalize(self, server: Params, state: Params, data: Records, rng: torch.Generator) -> Params:
        """A client's own adaptation of the server's model after a round: the private state that `deploy` takes."""
        return state

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """A client's model from its personalised state; without a state the server's model.

        The server's depends on a client only through its uploads. Raises ValueError if the server has no model.
        """


# --- what only some methods can do: ask by `isinstance` ---


@runtime_checkable
class WithNewClients(Protocol):
    """A method whose shared model an unseen client can personalise from its own records, without sending anything."""

    @property
    def trained_model(self) -> Model:
        """The model whose parameters are the server's and the personal ones."""

    @property
    def joining(self) -> Training:
        """How the personal part is trained by default."""

    def join(self, server: Params, rng: torch.Generator) -> tuple[Params, Params]:
        """(the personal part before training, the model's other parameters, which stay fixed).

        Trained, the personal part is a personalised state, which `deploy` takes.
        """


@runtime_checkable
class WithKinds(WithNewClients, Protocol):
    """One whose unseen client clusters its own records into kinds before it trains."""

    def kinds(self, data: Records, rng: torch.Generator) -> tuple[Records, Params]:
        """(records with their kind as one more label column, for `trained_model`; leaves about kinds for the state)."""


@runtime_checkable
class WithRequirements(Protocol):
    """A method that not every client can take part in; checked before anything is trained."""

    def check_records(self, records: Records) -> None:
        """Raises ValueError if a client with these records cannot take part."""


@runtime_checkable
class WithTables(Protocol):
    """A method whose server's state can be shown as tables."""

    def tables(self, server: Params) -> dict[str, tuple[list[str], list[list[str]]]]:
        """{name: (columns, rows of text)}, stored with the trial for the experimenter."""
