"""The one-run audit of DP-SGD: its theorem against randomised response, and the real code path, right and broken."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cases import slow_but
from reference import any_mechanism
from scipy.optimize import linprog
from scipy.stats import binom
from torch import Tensor

from raydiff import tree
from raydiff.privacy import (
    accountants,
    canaries,
    ghost_clipping as layers,
    one_run,
    private_gradient,
    tradeoff as losses,
)
from raydiff.privacy.ghost_clipping import Outer
from raydiff.privacy.one_run import OneRunAudit, Pulls
from raydiff.privacy.private_gradient import Mechanism, PrivateGradient, StepBudget, noise_multiplier_for
from raydiff.privacy.release import Event, Gaussian
from raydiff.seeding import generator

EPSILON, DELTA, CLIP, CANARIES = 2.0, 1e-5, 1.5, 1000


# --- the theorem of trade-off curves -----------------------------------------------------------------------


def gaussian(mu: float) -> list[Any]:
    return [Gaussian(1 / mu, "example", "zero_out", "local")]


def curve(epsilon: float, delta: float) -> Callable[[float], float]:
    """The inverse trade-off of (epsilon, delta)-DP."""
    return lambda y: max(0.0, (y - delta) * math.exp(-epsilon), 1 - delta - (1 - y) * math.exp(epsilon))


def largest(m: int, r: int, v: int, least_fpr: Callable[[float], float]) -> float:
    """The largest probability of v right guesses or more that is not refuted."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        over = one_run.refuted(m, r, v, least_fpr, confidence=1 - middle)
        low, high = (low, middle) if over else (middle, high)
    return high


def test_of_a_gaussian_it_says_more_than_of_any_mechanism() -> None:
    """m = 1000, r = 100, delta 1e-5; the other bound is that of its paper's appendix D."""
    assert any_mechanism.epsilon_low(1000, 100, 75, delta=1e-4) == pytest.approx(0.673, abs=5e-4)
    audit = OneRunAudit(canaries=1000, guesses=100, right=100, delta=DELTA, confidence=0.95)
    for mu in (0.3, 30.0):  # the noise that the search starts from
        assert audit.epsilon_of_noise(gaussian(mu)) == pytest.approx(5.549, rel=2e-3)
    for right in (70, 80, 95):
        some = replace(audit, right=right)
        low = some.epsilon_of_noise(gaussian(1.0))
        assert low > 1.2 * any_mechanism.epsilon_low(1000, 100, right, delta=DELTA)
        mu = accountants.mu_for(low, DELTA)
        assert some.flags(gaussian(0.99 * mu)) and not some.flags(gaussian(1.01 * mu))
    assert replace(audit, right=50).epsilon_of_noise(gaussian(1.0)) == 0.0


@pytest.mark.parametrize(("m", "r", "v"), [(12, 12, 9), (30, 10, 8), (30, 10, 10), (25, 8, 5), (12, 12, 7)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.7, 0.0), (1.5, 0.02), (0.3, 0.1)])
def test_it_is_the_linear_program_s_optimum(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    """max P(R >= v) over all laws of R that keep to the inequality at every t, which here is linear on two pieces."""
    j = np.arange(r + 1)
    rows, limits = [], []
    for t in range(1, r + 1):
        left, right = np.where(j >= t, j, 0) / m, np.where(j >= t - 1, r - j, 0) / m
        rows += [left - math.exp(epsilon) * right, left - math.exp(-epsilon) * right]
        limits += [delta, 1 - (1 - delta) * math.exp(-epsilon)]
    best = linprog(-(j >= v).astype(float), A_ub=rows, b_ub=limits, A_eq=[np.ones(r + 1)], b_eq=[1.0], bounds=(0, 1))
    assert largest(m, r, v, curve(epsilon, delta)) == pytest.approx(-best.fun, abs=1e-6)


def test_no_mechanism_exceeds_it_that_leaks_of_each_alone_or_of_all_at_once() -> None:
    for epsilon, r, v in ((0.5, 40, 30), (1.0, 100, 85), (2.0, 20, 20)):
        alone = float(binom.sf(v - 1, r, 1 / (1 + math.exp(-epsilon))))
        assert alone <= largest(r, r, v, curve(epsilon, 0.0)) + 1e-9
    for delta in (0.01, 0.2):  # every coin is told with this probability, and else none
        at_once = delta + (1 - delta) * float(binom.sf(39, 50, 0.5))
        assert at_once <= largest(50, 50, 40, curve(0.0, delta)) + 1e-9


@pytest.mark.parametrize("mu", [0.5, 1.0, 1.5])
def test_a_gaussian_is_ruled_out_in_at_most_the_stated_share_and_half_its_noise_mostly(mu: float) -> None:
    """1,000 canaries, each released with noise of its own: the guesses are of the highest scores and the lowest."""
    seeds, m, guesses = 500, CANARIES, 200
    rng = np.random.default_rng(0)

    def flagged(signal: float) -> float:
        included = rng.random((seeds, m)) < 0.5
        order = np.argsort(rng.standard_normal((seeds, m)) + signal * included, axis=1)
        lowest, highest = (
            np.take_along_axis(included, order[:, part], 1) for part in (np.s_[: guesses // 2], np.s_[-guesses // 2 :])
        )
        right = (~lowest).sum(1) + highest.sum(1)
        audit = OneRunAudit(canaries=m, guesses=guesses, right=0, delta=DELTA, confidence=0.95)
        refuted = {v: replace(audit, right=v).flags(gaussian(mu)) for v in set(right.tolist())}
        return float(np.mean([refuted[v] for v in right.tolist()]))

    assert flagged(mu) <= 0.05
    assert flagged(2 * mu) > 0.9


def test_of_sampled_steps_it_is_their_own_curve() -> None:
    """Without sampling the grid's is the closed form, from below; sampled steps differ in the two directions."""
    for mu in (0.3, 2.0):
        nearly = [Gaussian(1 / mu, "example", "zero_out", "local", 1 - 1e-12)]
        for tpr in (1e-4, 0.03, 0.5, 0.97, 0.9999):
            exact, on_grid = (losses.least_fpr(events)(tpr) for events in (gaussian(mu), nearly))
            assert exact * (1 - 1e-4) - 1e-9 < on_grid <= exact
    sampled = [Gaussian(0.7, "example", "zero_out", "local", 0.3)]
    fprs, tprs = losses._roc(*accountants.steps_of(sampled))
    for tpr in (0.01, 0.3, 0.9):
        towards = float(np.interp(tpr, tprs, fprs))
        back = 1 - np.interp(1 - tpr, fprs, tprs)
        assert losses.least_fpr(sampled)(tpr) == pytest.approx(min(towards, back), rel=1e-3)


# --- the guesses -------------------------------------------------------------------------------------------


def test_the_surest_are_guessed() -> None:
    scores, coins = torch.tensor([5.0, -4.0, 0.0, 0.1, 3.0, -9.0]), torch.tensor([1, 0, 1, 0, 0, 0]).bool()
    audit = one_run.guess(scores, coins, guesses=4, delta=0.0, rng=generator(0))
    assert (audit.canaries, audit.guesses, audit.right) == (6, 4, 3)  # +0 +4 -5 -1, and 4 was left out


def test_equal_scores_are_guessed_by_chance() -> None:
    coins = torch.arange(1000) < 500  # in the order of a stable sort all guesses would be wrong
    assert 150 < one_run.guess(torch.zeros(1000), coins, guesses=400, delta=0.0, rng=generator(0)).right < 250


@pytest.mark.parametrize("guesses", [0, 3, 1002])
def test_a_number_of_guesses_that_is_none_is_refused(guesses: int) -> None:
    with pytest.raises(ValueError, match=r"guesses must be an even number in 2\.\.1000"):
        one_run.guess(torch.zeros(1000), torch.zeros(1000).bool(), guesses=guesses, delta=0.0, rng=generator(0))


# --- DP-SGD's own code -------------------------------------------------------------------------------------


def run(
    seed: int, *, steps: int = 1, rate: float = 1.0, factor: float = 1.0, by_layers: bool = True, m: int = CANARIES
) -> tuple[OneRunAudit, list[Event]]:
    """(what was guessed, the events) of one run whose records are the canaries."""
    rng = generator(seed, "one run")
    pulls, coins = Pulls(m), one_run.coins(m, rng)
    images, labels = pulls.records(coins, clip=CLIP)
    sigma = noise_multiplier_for(StepBudget(epsilon=EPSILON, delta=DELTA), sampling_rate=rate, steps=steps)
    gradient = PrivateGradient(
        pulls.loss,
        images,
        labels,
        draws=pulls.draws,
        mechanism=Mechanism(noise_multiplier=sigma, max_grad_norm=CLIP),
        batch=int(rate * m),
        rng=rng,
        noise=canaries.stream(rng, factor),
        by_layers=by_layers,
    )
    theta = pulls.init(rng)
    scores = -torch.stack([pulls.scores(gradient(theta)[0]) for _ in range(steps)]).sum(0)
    wanted = {"guesses": 200, "delta": DELTA, "groups": pulls.groups, "middle": CLIP * steps / m / 2}
    return one_run.guess(scores, coins, rng=rng, **wanted), [gradient.event]  # type: ignore[arg-type]


@pytest.mark.parametrize("by_layers", [True, False])
@pytest.mark.parametrize(("steps", "rate"), slow_but([(4, 0.5)], [(1, 1.0), (4, 0.5)]))
def test_right_noise_is_not_flagged_and_half_of_it_is(steps: int, rate: float, by_layers: bool) -> None:
    right, events = run(0, steps=steps, rate=rate, by_layers=by_layers, m=2000)
    assert EPSILON - 0.01 < accountants.pld(events, DELTA) <= EPSILON and not right.flags(events)
    halved, events = run(0, steps=steps, rate=rate, factor=0.5, by_layers=by_layers, m=2000)
    assert halved.flags(events)
    if by_layers:
        assert right.epsilon_of_noise(events) < EPSILON < halved.epsilon_of_noise(events)
        assert halved.epsilon_of_noise(events) < halved.most.epsilon_of_noise(events)


@pytest.mark.slow
def test_noise_at_seven_tenths_is_flagged_by_the_canaries_as_separate_releases() -> None:
    """And the right one in none of 10 runs; the guesses of one run alone flag few."""
    right = [run(seed, m=4000) for seed in range(10)]
    weak = [run(seed, m=4000, factor=0.7) for seed in range(10)]
    assert sum(audit.flags(events) for audit, events in right) == 0
    assert sum(audit.flags(events) for audit, events in weak) >= 8
    assert sum(replace(audit, separate=()).flags(events) for audit, events in weak) <= 5


def fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break what production computes the gradients of an MLP by."""
    norms, weighted, clipped = Outer.norms, Outer.weighted, private_gradient.sum_clipped
    outer: dict[str, tuple[str, Any]] = {
        "half the norms": ("norms", lambda self: norms(self) / 2),
        "norms of one factor": ("norms", lambda self: tree.norms(self.right)),
        "sums doubled": ("weighted", lambda self, factors: 2 * weighted(self, factors)),
        "no factors": ("weighted", lambda self, factors: self.left.T @ self.right),
    }
    if name in outer:
        monkeypatch.setattr(Outer, *outer[name])
        return

    def unclipped(gradients: dict[str, Any], clip: float) -> dict[str, Tensor]:
        whole, out = gradients[name], clipped(gradients, clip)
        ones = torch.ones(len(whole.left if isinstance(whole, Outer) else whole))
        out[name] = whole.weighted(ones) if isinstance(whole, Outer) else whole.sum(0)
        return out

    monkeypatch.setattr(private_gradient, "sum_clipped", unclipped)


FAULTS = ["half the norms", "norms of one factor", "sums doubled", "no factors", *one_run.KINDS]


@pytest.mark.parametrize("name", slow_but(FAULTS[::3], FAULTS))
def test_a_fault_in_the_fast_gradients_is_flagged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all of them, or in the clip of one kind of parameter."""
    fault(name, monkeypatch)
    for seed in range(2):
        audit, events = run(seed, m=4000)
        assert audit.flags(events)


def test_the_canaries_gradients_are_the_same_by_layers_and_record_by_record() -> None:
    """Each at its own parameter alone, of all kinds."""
    pulls = Pulls(300)
    images, labels = pulls.records(torch.ones(300).bool(), clip=CLIP)
    batch, theta = (images, labels), {k: v.requires_grad_() for k, v in pulls.init(generator(0)).items()}
    each, _ = private_gradient.per_record(pulls.loss, theta, batch, {"none": torch.zeros(300, 1)})
    fast, _ = layers.gradient_factors(pulls.loss, theta, batch, {"none": torch.zeros(300, 1)})
    for name, slow in each.items():
        quick = fast[name]
        if isinstance(quick, Outer):
            quick = torch.einsum("bi,bj->bij", quick.left, quick.right)
        torch.testing.assert_close(quick, slow)
    pulled = torch.stack([pulls.scores({k: v[i] for k, v in each.items()}) for i in range(300)])
    assert torch.equal(pulled != 0, torch.eye(300).bool())
    assert float(pulled.diagonal().max()) <= -canaries.STRETCH * CLIP
    assert sum(torch.count_nonzero(v).item() for v in each.values() if isinstance(v, Tensor)) == 300


def test_a_forgotten_clip_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(gradients: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
        return {k: v.sum(0) for k, v in gradients.items()}

    monkeypatch.setattr(private_gradient, "sum_clipped", unclipped)
    audit, events = run(0, by_layers=False)
    assert audit.flags(events) and audit.right > 195


def test_too_few_canaries_cannot_show_it() -> None:
    few = OneRunAudit(canaries=6, guesses=6, right=6, delta=DELTA, confidence=0.95)
    events = gaussian(accountants.mu_for(5.0, DELTA))
    assert few == few.most and not few.flags(events) and 0 < few.epsilon_of_noise(events) < 5.0


def test_a_canary_that_is_left_out_does_not_change_the_sampling_rate() -> None:
    pulls = Pulls(4)
    images, labels = pulls.records(torch.tensor([True, False, True, False]), clip=2.0)
    assert images.flatten().tolist() == [20.0, 0.0, 20.0, 0.0] and labels.flatten().tolist() == [0, 1, 2, 3]
