"""The loss of sampled Gaussians under every relation: against integration, simulation and other accountants."""

import math
from typing import Any

import numpy as np
import pytest
from cases import slow_but
from reference.gaussians import densities, hockey_stick, means, sampled_steps as steps

from raydiff.privacy import accountants, gaussian, pld as pairs, tradeoff as losses
from raydiff.privacy.accountants import exact, pld, rdp
from raydiff.privacy.release import NonPrivate
from raydiff.seeding import NoiseStream

pytestmark = pytest.mark.usefixtures("real_gaussians")

RELATIONS = ("zero_out", "replace_one")


def worse(p: Any, q: Any, epsilon: float, cell: float) -> float:
    """The smallest delta at that epsilon, the worse of both directions."""
    return max(hockey_stick(p, q, epsilon, cell), hockey_stick(q, p, epsilon, cell))


# --- by integration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("rate", "noise"), [(0.05, 0.7), (0.3, 1.0), (0.9, 2.0), (0.001, 0.2), (0.5, 0.3)])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_one_step_is_the_hockey_stick_divergence(rate: float, noise: float, relation: str, delta: float) -> None:
    x, cell = np.linspace(-15 - 1 / noise, 15 + 1 / noise, 400_001, retstep=True)
    epsilon = pld(steps(rate, noise, 1, relation), delta)
    actual = worse(*densities(x, rate, noise, relation), epsilon, cell)
    assert actual <= delta * (1 + 1e-6) and (epsilon == 0 or actual == pytest.approx(delta, rel=1e-3))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("pair", [((0.2, 0.8), (0.2, 0.8)), ((0.6, 1.5), (0.6, 1.5)), ((0.3, 0.9), (1.0, 2.5))])
def test_two_steps_are_the_divergence_of_the_products(pair: Any, relation: str) -> None:
    """`pair` is (rate, noise) of each step."""
    x, cell = np.linspace(-12, 12, 1501, retstep=True)
    (p1, q1), (p2, q2) = (densities(x, *one, relation) for one in pair)
    epsilon = pld([event for one in pair for event in steps(*one, 1, relation)], 1e-4)
    assert worse(np.outer(p1, p2), np.outer(q1, q2), epsilon, cell**2) == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("rate", slow_but([0.5], [0.1, 0.5, 1.0]))
@pytest.mark.parametrize("factor", [0.2, 1.0, 2.0, 20.0])
def test_no_two_contributions_are_easier_to_tell_apart_than_opposite_ones(rate: float, factor: float) -> None:
    """In the plane: of any two records of norm 1 at most, that take each other's place; `factor` is e^epsilon."""
    noise = 0.8  # over the largest norm, so half of that over the sensitivity
    x, cell = np.linspace(-7, 7, 221, retstep=True)
    plane = np.stack(np.meshgrid(x, x), -1)

    def at(g: Any) -> Any:
        return np.exp(-((plane - np.asarray(g) / noise) ** 2).sum(-1) / 2) / (2 * math.pi)

    def delta_of(g: Any, other: Any) -> float:
        p, q = ((1 - rate) * at((0, 0)) + rate * at(v) for v in (g, other))
        return hockey_stick(p, q, math.log(factor), cell**2)

    worst = delta_of((1, 0), (-1, 0))
    line, width = np.linspace(-12, 12, 200_001, retstep=True)
    pair = densities(line, rate, noise / 2, "replace_one")
    assert worst == pytest.approx(hockey_stick(*pair, math.log(factor), width), abs=2e-4)
    rng = NoiseStream(b"contributions", ()).generator("plane")
    angles, norms = rng.uniform(0, 2 * math.pi, (40, 2)), rng.uniform(0, 1, (40, 2)) ** 0.25
    for angle, length in zip(angles, norms, strict=True):
        g, other = ((n * math.cos(a), n * math.sin(a)) for a, n in zip(angle, length, strict=True))
        assert delta_of(g, other) <= worst + 1e-6
    for other in ((0, 0), (0, 1), (1, 0), (-0.5, 0)):
        assert delta_of((1, 0), other) <= worst + 1e-6


# --- by simulation -----------------------------------------------------------------------------------------


def simulated(rate: float, noise: float, n: int, relation: str, epsilon: float) -> tuple[float, float]:
    """(delta at that epsilon of the best set of outputs for it, its standard error)."""
    draws, rng = 50_000, NoiseStream(b"simulated", (n,)).generator("draws")
    both = []
    for mean in means(noise, relation):
        x = rng.standard_normal((draws, n)) + (rng.random((draws, n)) < rate) * mean
        logs = [np.log1p(rate * np.expm1(x * m - m * m / 2)).sum(1) for m in means(noise, relation)]
        both.append(float((logs[0] - logs[1] > epsilon).mean()))
    inside, outside = both
    return inside - math.exp(epsilon) * outside, math.sqrt((inside + math.exp(2 * epsilon) * outside) / draws)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("rate", "noise", "n"), [(0.3, 0.8, 4), (0.1, 0.7, 30)])
def test_many_steps_spend_what_is_said_and_half_the_noise_more(
    rate: float, noise: float, n: int, relation: str
) -> None:
    epsilon = pld(steps(rate, noise, n, relation), 0.05)
    actual, error = simulated(rate, noise, n, relation, epsilon)
    assert abs(actual - 0.05) < 4 * error < 0.04
    broken, error = simulated(rate, noise / 2, n, relation, epsilon)
    assert broken > 0.05 + 4 * error


# --- other accountants -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "noise", "n", "delta", "in_or_out", "replaced"),
    [
        (64 / 424, 2.51, 1000, 1e-5, 9.996169555228562, 22.522071999234438),
        (0.01, 4.0, 1000, 1e-5, 0.2721729194462703, 0.5613818125415123),
        (0.1, 0.6, 100, 1e-5, 20.573804348024357, 25.26821187754862),
        (0.5, 1.0, 10, 1e-6, 11.798776175043532, 17.52668982713704),
        (0.001, 0.6, 10000, 1e-6, 3.1522270307968516, 3.4546782367481015),
        (0.3, 0.8, 4, 1e-5, 6.904921114699317, 8.213282397483413),
    ],
)
def test_it_is_dp_accountings(
    rate: float, noise: float, n: int, delta: float, in_or_out: float, replaced: float
) -> None:
    """Of dp_accounting 0.6.0, whose noise is over the largest norm under every relation: `PLD.from_gaussian_mechanism(
    noise, sampling_prob=rate, neighboring_relation=...).self_compose(n).get_epsilon_for_delta(delta)` under
    REPLACE_SPECIAL, which it says is ADD_OR_REMOVE_ONE too, and REPLACE_ONE."""
    epsilons = [pld(steps(rate, noise, n, relation), delta) for relation in ("zero_out", "add_remove")]
    epsilons.append(pld(steps(rate, noise / 2, n, "replace_one"), delta))
    for ours, theirs in zip(epsilons, (in_or_out, in_or_out, replaced), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4) and ours < theirs * (1 + 1e-5)  # its grid is the coarser one


# --- the ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
def test_without_sampling_it_is_exact_and_the_grid_hardly_above(relation: str) -> None:
    for noise, n, delta in ((1.0, 1, 1e-5), (2.0, 10, 1e-9), (30.0, 400, 1e-5), (0.3, 3, 1e-6), (100.0, 100_000, 1e-9)):
        assert pld(steps(1.0, noise, n, relation), delta) == exact(steps(1.0, noise, n, relation), delta)
        nearly = pld(steps(1 - 1e-12, noise, n, relation), delta)
        assert nearly == pytest.approx(exact(steps(1.0, noise, n, relation), delta), rel=1e-5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_less_noise_more_steps_and_a_higher_rate_cost_more(relation: str) -> None:
    def epsilon(rate: float = 0.1, noise: float = 1.0, n: int = 50, delta: float = 1e-5) -> float:
        return pld(steps(rate, noise, n, relation), delta)

    dearer = [epsilon(rate=0.11), epsilon(noise=0.95), epsilon(n=51), epsilon(delta=9e-6)]
    assert 0 < epsilon() < min(dearer) < math.inf
    assert epsilon() == pld(steps(0.1, 1.0, 20, relation) + steps(0.1, 1.0, 30, relation), 1e-5)


def test_either_of_a_pair_may_be_the_one_without_the_record() -> None:
    """Where P and Q change places, each divergence is the other's, and the larger one the same."""
    loss = pairs.privacy_loss((pairs.Steps(0.3, 0.7, 5),), replaced=False)
    grid, inside, outside = (values[1:] for values in (loss.grid, loss.inside, loss.outside))  # as far to either side
    forth = pairs.PrivacyLoss(grid, inside, outside, loss.above, loss.below)
    back = pairs.PrivacyLoss(grid, outside[::-1], inside[::-1], loss.below, loss.above)
    assert forth.epsilon(1e-4) == pytest.approx(loss.epsilon(1e-4), rel=1e-9)
    assert back.epsilon(1e-4) == forth.epsilon(1e-4) > 1
    for tpr in (1e-3, 0.3, 0.999):
        assert back.least_fpr(tpr) == forth.least_fpr(tpr) == pytest.approx(loss.least_fpr(tpr), rel=1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_noise_is_too_small_or_too_large(relation: str) -> None:
    assert pld(steps(0.1, 0.0, 3, relation), 1e-5) == pld([NonPrivate("weights")], 1e-5) == math.inf
    assert pld([], 1e-5) == pld(steps(0.1, math.inf, 3, relation), 1e-5) == 0.0
    assert pld(steps(0.1, 1e6, 3, relation), 1e-5) == 0.0
    for noise in (0.2, 0.02, 1e-3, 1e-9):
        sampled, never = (pld(steps(rate, noise, 3, relation), 1e-5) for rate in (0.5, 1.0))
        assert 0 < sampled <= never < math.inf
    assert 0 < pld(steps(1e-5, 1.0, 100_000, relation), 1e-9) < 1


def test_a_delta_below_the_rounding_is_renyi_s() -> None:
    many = steps(1e-6, 1.0, 200_000)
    assert 0 < pld(many, 1e-12) == rdp(many, 1e-12) < 10


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_ceilings_are_those_of_the_same_loss(relation: str) -> None:
    """The curve touches each (epsilon, delta)'s line, and no attack of the simulation is above it."""
    events = steps(0.2, 0.7, 8, relation)
    kinds = accountants.steps_of(events)
    assert kinds is not None
    fprs, tprs = losses._roc(*kinds)
    for delta in (1e-4, 1e-2):
        epsilon = pld(events, delta)
        assert float((tprs - math.exp(epsilon) * fprs).max()) == pytest.approx(delta, rel=1e-4)
    for fpr in (0.001, 0.01):
        assert losses.tpr_ceiling(events, fpr) == np.interp(fpr, fprs, tprs)
        assert fpr < losses.tpr_ceiling(events, fpr) < gaussian.gaussian_tpr_ceiling(math.sqrt(8) / 0.7, fpr)
