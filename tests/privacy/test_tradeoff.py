"""The ceiling of sampled Gaussians: against closed forms, and the best attack by brute force."""

import math
from typing import Any

import numpy as np
import pytest
from reference.gaussians import of_sum, sampled_steps
from scipy.stats import norm

from raydiff.privacy import accountants, gaussian, tradeoff as losses
from raydiff.privacy.release import DiscreteGaussian, NonPrivate
from raydiff.seeding import NoiseStream

FPRS = [1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9]


def steps(rate: float, noise: float, n: int, relation: str = "add_remove") -> list[Any]:
    return sampled_steps(rate, noise, n, relation)


def auc_on_grid(events: list[Any]) -> float:
    return losses._auc(*accountants.steps_of(events))


def tpr_on_grid(events: list[Any], fpr: float) -> float:
    return losses._tpr(*accountants.steps_of(events), fpr)


@pytest.mark.parametrize(("noise", "n"), [(1.0, 1), (0.4, 1), (2.0, 10), (30.0, 400)])
def test_without_sampling_it_is_the_closed_form_and_never_below(noise: float, n: int) -> None:
    events = steps(1.0, noise, n)
    mu = math.sqrt(n) / noise
    assert 0 <= auc_on_grid(events) - gaussian.auc_ceiling(mu) < 1e-5
    for fpr in FPRS:
        assert 0 <= tpr_on_grid(events, fpr) - gaussian.tpr_ceiling(mu, fpr) < 1e-5
    assert losses.auc_ceiling(events) == pytest.approx(gaussian.auc_ceiling(mu), rel=1e-12)


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 0.3), (0.01, 2.0)])
def test_one_step_is_the_likelihood_ratio_s_own_curve_and_never_below(rate: float, noise: float) -> None:
    events = steps(rate, noise, 1)
    x = norm.isf(np.array(FPRS))
    best = (1 - rate) * norm.sf(x) + rate * norm.sf(x - 1 / noise)
    above = np.array([tpr_on_grid(events, fpr) for fpr in FPRS]) - best
    assert (above > -1e-15).all() and (above < 1e-4).all()
    auc = 0.5 * (1 - rate) + rate * norm.cdf(1 / noise / math.sqrt(2))
    assert 0 <= auc_on_grid(events) - auc < 1e-5


def attacked(rate: float, noise: float, n: int, *, assumed: float, draws: int = 40_000) -> tuple[float, float]:
    """AUC, and its standard error, of the likelihood ratio on a mechanism of this noise where `assumed` is claimed."""
    rng = NoiseStream(b"attacked", (n,)).generator("draws")
    statistics = []
    for inside in (True, False):
        shifts = (rng.random((draws, n)) < rate) / noise if inside else np.zeros((draws, n))
        x = (rng.standard_normal((draws, n)) + shifts) * noise  # in units of the sensitivity
        statistics.append(np.log1p(rate * np.expm1(x / assumed**2 - 1 / (2 * assumed**2))).sum(1))
    placed = np.searchsorted(np.sort(statistics[1]), statistics[0]) / draws
    return float(placed.mean()), math.sqrt(2 * placed.var() / draws)


@pytest.mark.parametrize(("rate", "noise", "n"), [(0.3, 0.8, 4), (0.05, 0.6, 30), (0.5, 3.0, 10)])
def test_the_best_attack_reaches_the_ceiling_and_half_the_noise_breaks_through_it(
    rate: float, noise: float, n: int
) -> None:
    ceiling = losses.auc_ceiling(steps(rate, noise, n))
    auc, error = attacked(rate, noise, n, assumed=noise)
    assert auc - 4 * error < ceiling < auc + 4 * error
    broken, error = attacked(rate, noise / 2, n, assumed=noise)
    assert broken - 4 * error > ceiling


def test_in_or_out_is_zero_out_too() -> None:
    assert losses.auc_ceiling(steps(0.1, 1.0, 5, "zero_out")) == losses.auc_ceiling(steps(0.1, 1.0, 5))


def test_the_ends() -> None:
    assert losses.auc_ceiling([]) == losses.auc_ceiling(steps(0.1, math.inf, 3)) == 0.5
    assert tpr_on_grid(steps(0.1, 1.0, 3), 1.0) == 1.0
    assert 1e-3 <= tpr_on_grid(steps(1e-3, 0.01, 1), 0.0) < 1.001e-3
    assert auc_on_grid(steps(0.9, 0.1, 100)) == 1.0


# --- where only Renyi divergences are known ---


def best_attack(sigma: int, shares: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """(false, true positive rates) of all thresholds on a sum of shares that is moved by `shift` or not: its likelihood
    ratio rises, so no test is better."""
    noise = of_sum(sigma, shares)
    tails = [np.append(np.pad(noise, pad)[::-1].cumsum()[::-1], 0.0) for pad in ((0, shift), (shift, 0))]
    return tails[0], tails[1]


def broken_through(mu: float, fpr: np.ndarray, tpr: np.ndarray) -> bool:
    event = DiscreteGaussian(1 / mu, "client", "replace_one", "aggregate")
    highest = np.array([losses.tpr_ceiling([event], float(f)) for f in fpr.clip(0.0, 1.0)])
    area = float(np.trapezoid(tpr[::-1], fpr[::-1]))
    return bool((tpr > highest + 1e-12).any()) or area > losses.auc_ceiling([event])


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("shares", [2, 5])
def test_the_best_attack_on_a_sum_stays_below_the_ceiling_and_with_a_third_of_the_noise_does_not(
    mu: float, shares: int
) -> None:
    shift = round(mu * math.sqrt(shares) * 16)
    exact = shift / (math.sqrt(shares) * 16)
    assert not broken_through(exact, *best_attack(16, shares, shift))
    assert broken_through(exact, *best_attack(16, shares, 3 * shift))
    continuous = gaussian.auc_ceiling(exact)
    event = DiscreteGaussian(1 / exact, "client", "replace_one", "aggregate")
    assert continuous < losses.auc_ceiling([event]) < min(1.0, 0.5 + 1.4 * (continuous - 0.5))


def test_without_noise_any_attack_on_a_sum_is_allowed() -> None:
    event = DiscreteGaussian(1.0, "client", "replace_one", "aggregate")
    silent = DiscreteGaussian(0.0, "client", "replace_one", "aggregate")
    for events in ([event, NonPrivate("it", "aggregate")], [silent]):
        assert losses.auc_ceiling(events) == losses.tpr_ceiling(events, 0.01) == 1.0
    nothing = [DiscreteGaussian(math.inf, "client", "replace_one", "aggregate")]
    assert losses.auc_ceiling(nothing) == pytest.approx(0.5, abs=1e-3)
    assert losses.tpr_ceiling(nothing, 0.25) == pytest.approx(0.25)
    assert losses.tpr_ceiling([event], 0.0) == 0.0 and losses.tpr_ceiling([event], 1.0) == 1.0
