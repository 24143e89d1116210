"""Canaries in a method's own upload: what the adversary sees of them, and what the ledger says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.exact_sum import ExactSum, Grid
from raydiff.federated.method import SCRATCH, Mean, Round
from raydiff.methods import DPMERF, DPSGD, PFDM, Evolution, FedDistr, Marginals, Method, Sketch
from raydiff.methods._averaging import Averaging
from raydiff.methods._noised_sums import COUNTS
from raydiff.privacy.canaries import STRETCH, Send, one_by_one
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.one_run import Pulls
from raydiff.privacy.release import Event, Release
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params, Tensors

Summed = Sketch | DPMERF | Evolution
Transcript = Callable[[Tensor, NoiseStream], tuple[Tensor, Ledger]]
"""(canaries, noise) -> (what the adversary sees of them, what the ledger says of one)."""

WIDTH = 16  # entries of an update: clip and noise know no shapes


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method whose Gaussian releases can be audited."""

    transcript: Transcript
    """Of canaries (n, m, d)."""
    clip: float
    """Norm to which a vector is clipped."""
    shape: tuple[int, int]
    """(m, d): vectors of a canary, and their entries."""

    @property
    def send(self) -> Send:
        """What the adversary sees."""
        return lambda canaries, noise: self.transcript(canaries, noise)[0]

    @property
    def ledger(self) -> Ledger:
        """What the adversary's view says of one canary."""
        return self.transcript(torch.zeros(1, *self.shape), NoiseStream(b"of an empty upload", ()))[1]


def subject(method: Method, public: Records | None) -> Subject:
    """The canaries' way through this method's own code. Raises ValueError where it adds no noise to its uploads."""
    if isinstance(method, PFDM) and method.epsilon is not None and method.start != "noise":
        return _pfdm(method, public)
    if isinstance(method, FedDistr) and method.epsilon not in (None, math.inf):
        return _feddistr(method)
    if isinstance(method, Summed) and method.epsilon not in (None, math.inf):
        return _summed(method, public)
    if isinstance(method, Marginals):
        raise ValueError("there is no audit of Marginals: canaries are pictures, and it counts the values of columns")
    averaging = getattr(method, "averaging", None)
    if isinstance(averaging, Averaging) and averaging.secure_aggregation:
        raise ValueError("there is no audit of averaging.privacy.trust = aggregate: local and central trust have one")
    if isinstance(averaging, Averaging) and averaging.privacy and averaging.privacy.epsilon < math.inf:
        averaged = _averaged(averaging, averaging.privacy, method.rounds)
        return Subject(transcript=averaged, clip=averaging.privacy.clip, shape=(1, WIDTH))
    raise _silent(method)


def _silent(method: Method) -> ValueError:
    fields: dict[type, str] = dict.fromkeys((PFDM, DPSGD, Sketch, DPMERF, Evolution), "method.epsilon")
    fields[FedDistr] = "method.epsilon and method.clip"
    field = fields.get(type(method), "method.averaging.privacy, where the method has it")
    says = f"{type(method).__name__} adds no noise to what its clients send as it is set up here"
    return ValueError(f"{says}: there is nothing to audit without {field}")


def _pfdm(method: PFDM, public: Records | None) -> Subject:
    center = method.init_server(public, generator(0)).get("center")
    shape, start = method.model.shape, {} if center is None else {"center": center}
    origin = torch.zeros(shape) if center is None else center
    scale = math.sqrt(float(method.model.abar[method.depth]))

    def transcript(canaries: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        n = len(canaries)
        data = Records(canaries.view(n, *shape) + origin, torch.zeros(n, 1, dtype=torch.int64), torch.arange(n))
        release = method.local_update(start, {}, data, Round(0, generator(0), noise)).release
        seen = release.value["x"] - scale * origin
        return seen.view(n, 1, -1), Ledger().with_upload(0, 0, release.event, release.nbytes)

    return Subject(transcript=transcript, clip=method.clip, shape=(1, math.prod(shape)))


def _feddistr(method: FedDistr) -> Subject:
    assert method.clip is not None  # it is given with an epsilon
    start = method.model.load().start.cpu()

    def transcript(canaries: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        ledgers = []

        def one(canary: Tensor, noise: NoiseStream) -> Tensor:
            m = len(canary)
            vectors = {"v": start + canary, "label": torch.zeros(m, dtype=torch.int64), "count": torch.ones(m)}
            state = tree.prefixed(SCRATCH, {**vectors, "loss": torch.zeros(())})
            nobody = Records(torch.zeros(0, 1, 1, 1), torch.zeros(0, 1, dtype=torch.int64), torch.arange(0))
            release = method.local_update({}, state, nobody, Round(0, generator(0), noise)).release
            ledgers.append(Ledger().with_upload(0, 0, release.event, release.nbytes))
            return release.value["x"]

        return one_by_one(one)(canaries, noise), ledgers[0]

    return Subject(transcript=transcript, clip=method.clip, shape=(method.clusters, len(start)))


def _summed(method: Summed, public: Records | None) -> Subject:
    """A client's one record is u or v, two that the sum tells apart well; of each whole upload the adversary sees how
    far it lies from the middle of the two expected ones, along the line between them, and adds that up over rounds.

    A canary of direction e makes u of e and v of -e, so that its antipode is minus it. The server stays as it was
    before round 0: what is asked of an upload is the same whatever the server has made of those before it.
    """
    one_row: Any = method.model.for_data(method.model.shape, ())  # Other rows would be noise alone.
    method = replace(method, model=one_row)
    nobody = None if public is None else replace(public, labels=public.labels[:, :0])
    server, shape = method.init_server(nobody, generator(0)), method.model.shape
    cosine = -1.0
    if isinstance(method, Sketch):
        cosine, norm = max(-1.0, -1 / (2 * method.moment**2)), STRETCH * method.clip  # The worst pair.
    elif isinstance(method, DPMERF):
        norm = STRETCH * float(server["kernel/length"])  # Their features have nothing in common.
    else:
        norm = STRETCH * math.sqrt(math.prod(shape))  # Beyond all candidates: they vote for its two ends along e.
    origin = server["center"] if isinstance(method, Sketch) and method.center else torch.zeros(shape)
    bare = replace(method, epsilon=None)

    def sent(by: Summed, e: Tensor, noise: NoiseStream | None, number: int) -> Release:
        picture = norm * _beside(e, cosine).view(1, *shape) + origin
        one = Records(picture, torch.zeros(1, 0, dtype=torch.int64), torch.arange(1))
        own = noise and replace(noise, path=(*noise.path, number))
        return by.local_update(server, {}, one, Round(number, generator(0), own)).release

    def transcript(canaries: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        ledgers = []

        def one(canary: Tensor, noise: NoiseStream) -> Tensor:
            e = canary[0] / canary.norm() if canary.any() else torch.eye(canary.shape[1])[0]
            u, v = (_entries(sent(bare, sign * e, None, 0)) for sign in (1, -1))
            ledger, along = Ledger(), 0.0
            for r in range(method.participating_rounds):
                release = sent(method, e, noise, r)
                ledger = ledger.with_upload(r, 0, release.event, release.nbytes)
                along += float((_entries(release) - (u + v) / 2) @ (u - v) / (u - v).norm())
            ledgers.append(ledger)
            return along * e[None]

        return one_by_one(one)(canaries, noise), ledgers[0]

    return Subject(transcript=transcript, clip=1.0, shape=(1, math.prod(shape)))


def _beside(e: Tensor, cosine: float) -> Tensor:
    """The unit vector at half the angle of this cosine from one at right angles to e (d,), towards e: for e and -e two
    vectors with that cosine between them."""
    aside = torch.zeros_like(e)
    aside[e.abs().argmin()] = 1.0
    aside -= (aside @ e) * e
    half = math.acos(cosine) / 2
    out: Tensor = math.cos(half) * aside / aside.norm() + math.sin(half) * e
    return out


def _entries(release: Release) -> Tensor:
    return torch.cat([v.double().flatten() for k, v in sorted(release.value.items()) if k != COUNTS])


def _averaged(averaging: Averaging, privacy: ClientPrivacy, rounds: int) -> Transcript:
    """A client sends the canary in every round; under central trust its mean with another's 0 is seen."""
    central = privacy.trust == "central"

    def transcript(canaries: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        ledgers = []

        def one(canary: Tensor, noise: NoiseStream) -> Tensor:
            ledger, seen = Ledger(), torch.zeros_like(canary, dtype=torch.float64)
            for r in range(rounds):
                sent = _release(0, canary, noise, r)
                value, events = sent.value, list[Event]()
                if central:
                    both = [value, _release(1, torch.zeros_like(canary), noise, r).value]
                    rnd = Round(r, generator(0), replace(noise, path=(*noise.path, r, "server")))
                    value, events = averaging.publish(_mean(both), rnd, rounds=rounds)
                seen += torch.cat([value["a"], value["b"]]).double()
                ledger = ledger.with_upload(r, 0, sent.event, 0).with_published(r, events)
            ledgers.append(ledger.outsiders if central else ledger.server)
            return seen

        return one_by_one(one)(canaries, noise), ledgers[0]

    def _mean(updates: Sequence[Tensors]) -> Mean:
        total = ExactSum(Grid.of(averaging.summand(updates[0], rounds=rounds).largest, len(updates)))
        for update in updates:
            total.add(update)
        return Mean(total.over(len(updates)), len(updates))

    def _release(client: int, canary: Tensor, noise: NoiseStream, r: int) -> Release:
        value = {"a": canary[0, : WIDTH // 3], "b": canary[0, WIDTH // 3 :]}
        rnd = Round(r, generator(0), replace(noise, path=(*noise.path, r, client)))
        return averaging.release(value, rnd, rounds=rounds)

    return transcript


def check_noise(method: DPSGD) -> None:
    """Raises ValueError where it adds no noise."""
    if not (method.noise_multiplier or (method.epsilon is not None and method.epsilon < math.inf)):
        raise _silent(method)


def one_run(method: DPSGD, included: Tensor, rng: torch.Generator, noise: NoiseStream) -> tuple[Tensor, Ledger]:
    """(scores of the canaries (m,), the client's ledger) of all rounds of one client whose records are canaries.

    Its optimiser is plain SGD, so that the final model shows the sum of the noised gradients: what it makes of them is
    post-processing. Raises ValueError where the method's batch is larger than the number of canaries.
    """
    pulls, ledger = Pulls(len(included)), Ledger()
    sgd = replace(method.local, optimizer="sgd", decay="constant", weight_decay=0.0, momentum=0.0, learning_rate=1.0)
    audited = replace(method, model=cast(Any, pulls), local=sgd)
    opposite = method.relation == "replace_one"
    images, labels = pulls.records(included, clip=method.max_grad_norm, opposite=opposite)
    data = Records(images, labels, torch.arange(len(included)))
    server: Params = pulls.init(rng)
    for r in range(method.rounds):
        release = audited.local_update(server, {}, data, Round(r, rng, replace(noise, path=(*noise.path, r)))).release
        server = tree.add(server, release.value) if release.value else server
        ledger = ledger.with_upload(r, 0, release.event, release.nbytes)
    return server["w"], ledger.server
