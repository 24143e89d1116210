"""Canaries in a method's own upload: the adversary's view of them, and its ledger."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records, images_of
from raydiff.federated.client import Client, Keys
from raydiff.federated.method import LocalResult, Mean, Method, Metrics, Round
from raydiff.federated.rounds import LocalExecutor, run_rounds as run
from raydiff.lookup import Door
from raydiff.methods._averaging import Averaging
from raydiff.methods._noised_sums import COUNTS
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.evolution import Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.marginals import Marginals
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.training import Training
from raydiff.privacy import canaries, renyi
from raydiff.privacy.canaries import STRETCH
from raydiff.privacy.client_level import DELTA, ClientPrivacy
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.one_run import Pulls
from raydiff.privacy.release import Event, Gaussian, Release
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

Summed = Sketch | DPMERF | Evolution | Marginals
Send = Callable[[Tensor, NoiseStream], tuple[Tensor, Ledger]]
"""(canary (m, d), noise) -> (the adversary's view of it in all rounds together, the ledger of that view)."""

WIDTH = 16  # entries of an update: clip and noise do not depend on shapes
STEPS = 100  # of an audit of DP-SGD: 10 s on one core with 16,000 canaries


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method whose Gaussian releases can be audited."""

    one: Send  # view of one canary; with `together`, of (n, m, d) in one upload
    clip: float  # norm to which a vector is clipped
    shape: tuple[int, int]  # (m, d), vectors of a canary, and their entries
    count: int = 4000  # canaries of an audit: about a minute's, or 16,000
    together: bool = False

    @property
    def send(self) -> canaries.Send:
        """The adversary's view of canaries (n, m, d)."""

        def view(x: Tensor, noise: NoiseStream) -> Tensor:
            return self.one(x, noise)[0]

        return view if self.together else canaries.release_one_by_one(view)

    @property
    def ledger(self) -> Ledger:
        """The ledger of one canary's view."""
        zero = torch.zeros(1, *self.shape)
        return self.one(zero if self.together else zero[0], NoiseStream(b"of an empty upload", ()))[1]


OF_PAPERS: Door[Callable[[Any, Records | None], Subject | None]] = Door(
    "audit",
    {"PFDM": "raydiff.papers.pfdm.canary:pfdm_subject", "FedDistr": "raydiff.papers.feddistr.canary:feddistr_subject"},
)
"""Of the papers' methods: (method, public records) -> subject; None where nothing is noised."""
NO_NOISE = "{} adds no noise to its uploads as it is set up here: there is nothing to audit"


def build_subject(method: Method, public: Records | None) -> Subject:
    """Return the audit of a method by its own code. Raises ValueError where it adds no noise, or has no audit."""
    if (name := type(method).__name__) in OF_PAPERS and (of_paper := OF_PAPERS[name](method, public)) is not None:
        return of_paper
    if isinstance(method, Summed) and method.epsilon not in (None, math.inf):
        return _summed(method, public)
    averaging = getattr(method, "averaging", None)
    if isinstance(averaging, Averaging) and averaging.privacy and averaging.privacy.epsilon < math.inf:
        return _averaged(averaging.privacy, method.rounds)
    if name not in OF_PAPERS and not isinstance(method, Summed) and isinstance(method.upload_event(1000, 0), Gaussian):
        raise ValueError(f"there is no audit of {name}, which adds noise to its uploads: canary_subjects.py needs one")
    raise ValueError(NO_NOISE.format(name))


def _summed(method: Summed, public: Records | None) -> Subject:
    """Audit a method that sums what it makes of records.

    The client's one record is u, made from direction e, or v, from -e, far apart in the method's sum; under zero-out
    one of the two is no record. The adversary projects each round's upload on the line between the two expected ones,
    from their middle, and adds these up. Between rounds the server aggregates the upload as it would a federation's.
    """
    if isinstance(method, Marginals):  # one row of labels: other rows would be noise alone
        method = replace(method, model=method.model.for_table(method.model.counts, ()))
        shape: tuple[int, ...] = (1, 1, len(method.model.counts))
    else:
        shape = method.model.shape
        method = replace(method, model=cast(Any, method.model.for_data(method.model.shape, ())))
    unlabelled = None if public is None else replace(public, labels=public.labels[:, :0])
    first = method.init_server(unlabelled, generator(0))
    bare = replace(method, epsilon=None)

    def sent(by: Summed, server: Params, state: Params, e: Tensor, rnd: Round) -> LocalResult:
        record = Records(
            _record(method, first, e).view(1, *shape), torch.zeros(1, 0, dtype=torch.int64), torch.arange(1)
        )
        if method.relation == "zero_out" and e[0] < 0:  # half of the directions stand for no record
            record = record.select(torch.arange(0))
        return by.local_update(server, state, record, rnd)

    def one(canary: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        e = canary[0] / canary.norm() if canary.any() else torch.eye(canary.shape[1])[0]
        server = first
        state = Params()
        ledger = Ledger()
        along = 0.0
        for r in range(method.participating_rounds):
            rnd = Round(r, generator(r), replace(noise, path=(*noise.path, r)))
            u, v = (_entries(sent(bare, server, state, sign * e, rnd).release) for sign in (1, -1))
            result = sent(method, server, state, e, rnd)
            release = result.release
            state = result.state
            ledger = ledger.with_uploads(r, [(0, release.event, release.nbytes)])
            if (apart := (u - v).norm()) > 0:
                along += float((_entries(release) - (u + v) / 2) @ (u - v) / apart)
            if r + 1 < method.participating_rounds:
                server = method.aggregate(server, Mean(dict(release.value), 1), rnd)[0]
        return along * e[None], ledger

    return Subject(one=one, clip=1.0, shape=(1, math.prod(shape)))


def _record(method: Summed, server: Params, e: Tensor) -> Tensor:
    """The entries of a record of direction e (d,): those of e and -e are far apart in the method's sum."""
    if isinstance(method, Marginals):  # values that differ in every column, random ones of a random direction
        return images_of((((e.abs() * 2**20).long() + (e < 0)) % torch.tensor(method.model.counts))[None])
    cosine = -1.0
    origin = torch.zeros(math.prod(method.model.shape))
    if isinstance(method, Sketch):
        cosine = -1 / max(1.0, 2 * method.moment**2)  # the worst pair
        norm = STRETCH * method.clip
        origin = server["center"].flatten()
    elif isinstance(method, DPMERF):
        norm = STRETCH * float(server["kernel/length"])  # their features have nothing in common
    else:
        norm = STRETCH * math.sqrt(math.prod(method.model.shape))  # beyond all candidates: the two ends along e
    return norm * _beside(e, cosine) + origin


def _beside(e: Tensor, cosine: float) -> Tensor:
    """A unit vector by e (d,), such that the vectors of e and -e have this cosine between them."""
    aside = torch.zeros_like(e)
    aside[e.abs().argmin()] = 1.0
    aside -= (aside @ e) * e
    half = math.acos(cosine) / 2
    out: Tensor = math.cos(half) * aside / aside.norm() + math.sin(half) * e
    return out


def _entries(release: Release) -> Tensor:
    return torch.cat([v.double().flatten() for k, v in sorted(release.value.items()) if k != COUNTS])


@dataclass(frozen=True, kw_only=True)
class _Sender(FedAvg):
    """Each client sends a canary times its one entry in every round; the server adds up the means that it sees."""

    canary: Any
    noise: Any  # the audit's stream, in which a round's noise has the place that it has in a federation

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        return tree.scale(self.canary, 0.0)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        return LocalResult(
            state,
            self.averaging.release(tree.scale(self.canary, float(data.images)), self._audited(rnd), rounds=self.rounds),
        )

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        return super().aggregate(server, uploads, self._audited(rnd))

    def _audited(self, rnd: Round) -> Round:
        assert rnd.noise is not None
        return replace(rnd, noise=replace(self.noise, path=(*self.noise.path, *rnd.noise.path)))


def _averaged(privacy: ClientPrivacy, rounds: int) -> Subject:
    """All rounds of a smallest federation, as outsiders see them under central trust, else as the server does."""
    clients = {"local": 1, "central": 2, "aggregate": privacy.shares or 0}[privacy.trust]
    # 1 for client 0, and 0 for the others
    data = [
        Records(x, torch.zeros(1, 1, dtype=torch.int64), torch.arange(1))
        for x in torch.zeros(clients, 1, 1, 1, 1).index_fill(0, torch.tensor(0), 1.0)
    ]

    def one(canary: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        audited = privacy
        if privacy.trust == "aggregate" and isinstance(noise, canaries.Weakened):  # it scales normal draws only
            mu = 2 * privacy.clip * math.sqrt(rounds) / (noise.factor * privacy.std(rounds))
            audited = replace(privacy, epsilon=renyi.renyi_epsilon(mu, DELTA))
        keys = Keys(0, noise.secret, "")
        method = _Sender(
            rounds=rounds,
            averaging=Averaging(weights="uniform", privacy=audited),
            canary={"a": canary[0, : WIDTH // 3], "b": canary[0, WIDTH // 3 :]},
            noise=noise,
        )
        senders = [Client(c, method, record, keys=keys) for c, record in enumerate(data)]
        *_, last = run(method, LocalExecutor(senders), keys=keys)
        seen = torch.cat([last.server["a"], last.server["b"]])[None].double()
        return seen, last.ledger.outsiders if privacy.trust == "central" else last.ledger.server

    # whole numbers are drawn ten times as slowly
    return Subject(one=one, clip=privacy.clip, shape=(1, WIDTH), count=1000 if privacy.trust == "aggregate" else 4000)


@dataclass(frozen=True)
class _Canaries(Pulls, DDPM):
    """Pulls where DP-SGD looks for a network, by which it chooses how gradients are computed."""


def one_run(method: DPSGD, included: Tensor, rng: torch.Generator, noise: NoiseStream) -> tuple[Tensor, Ledger]:
    """Return (scores of the canaries (m,), the client's ledger) of all rounds of one client of canaries.

    A step draws a tenth of the canaries at least, since canaries that are rarely drawn show little. With plain SGD the
    final model is the sum of the noised gradients; other optimisers post-process them. `subject(method.first)` audits
    central images. Raises ValueError where the method adds no noise, and where its batch is larger than the number of
    canaries.
    """
    if not (method.noise_multiplier or (method.epsilon is not None and method.epsilon < math.inf)):
        raise ValueError(NO_NOISE.format(type(method).__name__))
    m = len(included)
    local = method.local
    ledger = Ledger()
    sgd = Training(
        optimizer="sgd",
        decay="constant",
        weight_decay=0.0,
        learning_rate=1.0,
        batch=max(local.batch, m // 10),
        steps=min(local.steps, STEPS),
    )
    pulls = _Canaries(m, network=method.model.network) if isinstance(method.model, DDPM) else cast(Any, Pulls(m))
    # A given sigma was checked against its own steps.
    audited = replace(
        method, model=pulls, local=sgd, epsilon=None if method.noise_multiplier else method.epsilon, central=None
    )
    images, labels = pulls.records(included, clip=method.max_grad_norm, opposite=method.relation == "replace_one")
    data = Records(images, labels, torch.arange(m))
    server: Params = pulls.init(rng)
    for r in range(method.rounds):
        release = audited.local_update(server, {}, data, Round(r, rng, replace(noise, path=(*noise.path, r)))).release
        server = tree.add(server, release.value) if release.value else server
        ledger = ledger.with_uploads(r, [(0, release.event, release.nbytes)])
    return pulls.scores(server), ledger.server
