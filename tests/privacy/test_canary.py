"""The audit by canaries: right noise passes, whatever is broken is flagged, for every Gaussian release."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from cases import slow_but
from scipy.stats import beta, norm
from torch import Tensor

from raydiff import tree
from raydiff.privacy import accountants, canaries, gaussian
from raydiff.privacy.canaries import Send, release_one_by_one
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.release import Event, Gaussian, gaussian_records, gaussian_rows, gaussian_sum, gaussian_update
from raydiff.seeding import NoiseStream, generator

pytestmark = pytest.mark.usefixtures("fine_grid")

CLIP, SEEDS, MU, COUNT = 1.5, 20, 2.0, 240


@dataclass(frozen=True)
class Kind:
    """A Gaussian release: how it is made, and the canaries' shape."""

    send: Callable[[Tensor, NoiseStream], tuple[Tensor, Event]]
    shape: tuple[int, int] = (1, 6)

    @property
    def mu(self) -> float:
        """Of one canary's event."""
        event = self.send(torch.zeros(1, *self.shape), NoiseStream(b"k", ()))[1]
        return accountants.gaussian_dp_mu([event])

    def audit(self, seed: int, send: Send | None = None, **options: Any) -> canaries.CanaryAudit:
        view: Send = send or (lambda x, noise: self.send(x, noise)[0])
        options = {"asks": 1, "count": COUNT, **options}
        return canaries.audit_canaries(view, clip=CLIP, shape=self.shape, rng=generator(seed, "canaries"), **options)


def records(x: Tensor, noise: NoiseStream, *, clip: float = CLIP) -> tuple[Tensor, Event]:
    std = 2 * CLIP * 0.4 / MU
    sent = gaussian_records(x, clip=clip, scale=0.4, std=std, noise=noise, records=range(len(x)), public={})
    return sent.value["x"], sent.event


def each(one: Callable[[Tensor, NoiseStream], tuple[Tensor, Event]]) -> Callable[..., tuple[Tensor, Event]]:
    def every(x: Tensor, noise: NoiseStream) -> tuple[Tensor, Event]:
        return release_one_by_one(lambda a, z: one(a, z)[0])(x, noise), one(x[0], noise)[1]

    return every


@each
def update(x: Tensor, noise: NoiseStream) -> tuple[Tensor, Event]:
    sent = gaussian_update({"a": x[0, :2], "b": x[0, 2:]}, clip=CLIP, std=2 * CLIP / MU, noise=noise)
    return torch.cat([sent.value["a"], sent.value["b"]])[None], sent.event


@each
def rows(x: Tensor, noise: NoiseStream) -> tuple[Tensor, Event]:
    sent = gaussian_rows(x, clip=CLIP, std=2 * CLIP * math.sqrt(3) / MU, noise=noise, public={})
    return sent.value["x"], sent.event


@each
def summed(x: Tensor, noise: NoiseStream) -> tuple[Tensor, Event]:
    value = {"a": tree.clip_records(x, CLIP)[0]}
    event = Gaussian(1 / MU, "example", "replace_one", "local")
    sent = gaussian_sum(value, sensitivity=2 * CLIP, event=event, noise=noise, public={})
    return sent.value["a"][None], sent.event


@each
def published(x: Tensor, noise: NoiseStream) -> tuple[Tensor, Event]:
    """Central trust: the mean of this client's update and of one that is 0."""
    privacy = ClientPrivacy(epsilon=gaussian.gaussian_epsilon(MU, 1e-5), clip=CLIP, trust="central")
    update = privacy.release({"a": x[0]}, rounds=1, noise=noise).value["a"]
    mean, event = privacy.publish({"a": update / 2}, count=2, rounds=1, noise=noise)
    return mean["a"][None], event


KINDS = {
    "records": Kind(records),
    "update": Kind(update),
    "rows": Kind(rows, shape=(3, 2)),
    "sum": Kind(summed),
    "published": Kind(published),
}


@pytest.mark.parametrize("name", slow_but(["records"], KINDS))
def test_halved_noise_is_flagged_in_19_of_20_seeds_and_right_noise_in_at_most_2(name: str) -> None:
    kind = KINDS[name]
    mu, right = kind.mu, [kind.audit(s, count=COUNT // 2) for s in range(SEEDS)]
    assert sum(audit.flags(mu) for audit in right) <= 2
    assert sum(kind.audit(s, factor=0.5).flags(mu) for s in range(SEEDS)) >= 19
    assert sum(audit.mu_low for audit in right) / SEEDS > mu / 8  # it sees something


@pytest.mark.usefixtures("real_gaussians")
def test_the_ledger_has_the_mu_that_was_meant() -> None:
    for name, kind in KINDS.items():
        assert kind.mu == pytest.approx(MU, rel=1e-6), name


# --- broken in other ways ----------------------------------------------------------------------------------


class Fresh(NoiseStream):
    """Every call draws other noise: a resent record is noised a second time."""

    calls = 0

    def normal(self, records: Sequence[int], shape: Sequence[int]) -> Tensor:
        Fresh.calls += 1
        return replace(NoiseStream(self.secret, self.path), path=(*self.path, Fresh.calls)).normal(records, shape)


def with_fresh_draws(x: Tensor, noise: NoiseStream) -> Tensor:
    return records(x, Fresh(noise.secret, noise.path))[0]


def without_clip(x: Tensor, noise: NoiseStream) -> Tensor:
    return records(x, noise, clip=1e9)[0]


def clipped_each_entry(x: Tensor, noise: NoiseStream) -> Tensor:
    return without_clip(x.clamp(-CLIP, CLIP), noise)


BROKEN: dict[str, tuple[Send | None, dict[str, Any]]] = {
    "forgotten clip": (without_clip, {}),
    "clip of each entry": (clipped_each_entry, {}),
    "second draw": (with_fresh_draws, {"asks": 2, "count": 3000}),
    "two thirds of the noise": (None, {"factor": 2 / 3, "count": 3000}),
    "no noise": (None, {"factor": 0.0}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mechanism_is_flagged(name: str) -> None:
    send, options = BROKEN[name]
    assert KINDS["records"].audit(0, send, **options).flags(MU)


def test_a_right_mechanism_that_is_asked_twice_is_not() -> None:
    assert 1.4 < KINDS["records"].audit(0, asks=2, count=3000).mu_low < MU


# --- the bound ---------------------------------------------------------------------------------------------


def test_the_bound_covers_the_true_mu_and_comes_close_to_it() -> None:
    """Scores of a known mu: it is missed in at most 5 % of the audits, and the bound tends to it."""
    rng = generator(1)

    def mu_low(count: int) -> float:
        return canaries.bound_errors(*(torch.randn(count, generator=rng) + mean for mean in (0.65, -0.65))).mu_low

    assert sum(mu_low(100) > 1.3 for _ in range(200)) / 200 <= 0.05
    assert 1.27 < mu_low(200_000) < 1.3


def test_the_limits_are_clopper_and_pearsons() -> None:
    """By hand: at threshold 0 one of 10 is missed and 2 of 10 are taken. Any other threshold would do better."""
    inside, outside = torch.tensor([3.0] * 9 + [-2.0]), torch.tensor([-3.0] * 8 + [2.0] * 2)
    audit = canaries.bound_errors(inside, outside, confidence=0.9)
    assert audit.rates == (0.1, 0.2)
    limits = beta.ppf(0.95, 2, 9), beta.ppf(0.95, 3, 8)
    by_hand = norm.ppf(1 - limits[1]) - norm.ppf(limits[0])
    assert by_hand > 0.2 and audit.mu_low == pytest.approx(by_hand, rel=1e-9)


def test_no_canary_is_spent_on_the_threshold() -> None:
    """No error of 200: the upper limit is 1 - 0.025^(1/200)."""
    most = KINDS["records"].audit(0, count=400).most
    assert most.mu_low == pytest.approx(-2 * norm.ppf(1 - 0.025 ** (1 / 200)), rel=1e-9)


def test_weakened_noise_is_the_real_one_times_its_factor() -> None:
    real, weak = NoiseStream(b"k", ("a",)), canaries.Weakened(b"k", ("a",), 0.25)
    assert torch.equal(weak.normal([3, 4], (5,)), 0.25 * real.normal([3, 4], (5,)))
    assert torch.equal(weak.many_normal(9, "noise", 1), 0.25 * real.many_normal(9, "noise", 1))
    samples = [s.generator("sample", 1).random(9) for s in (real, weak)]
    assert np.array_equal(*samples)


@pytest.mark.parametrize(("scores", "says"), [([1.0] * 3, "at least 8 canaries"), ([math.nan] * 9, "finite")])
def test_bad_scores_are_refused(scores: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        canaries.bound_errors(torch.tensor(scores), torch.zeros(9))
