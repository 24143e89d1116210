"""The ceiling of sampled Gaussians: against closed forms, and the best attack by brute force."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import slow_but
from hypothesis import given, settings, strategies as st
from reference.gaussians import of_sum, sampled_steps
from scipy.stats import norm
from test_ledger import BARE, DELTA, UPLOAD, ledger_of

from raydiff.privacy import accountants, gaussian, grid, pld as pairs, tradeoff as losses
from raydiff.privacy.accountants import exact, rdp
from raydiff.privacy.filters import Budget, compose, cost
from raydiff.privacy.ledger import Entry, Exposure, Ledger
from raydiff.privacy.pld import Steps
from raydiff.privacy.release import DiscreteGaussian, Event, Gaussian, NonPrivate, Nothing
from raydiff.privacy.renyi import ORDERS
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
    assert 0 <= auc_on_grid(events) - gaussian.gaussian_auc_ceiling(mu) < 1e-5
    for fpr in FPRS:
        assert 0 <= tpr_on_grid(events, fpr) - gaussian.gaussian_tpr_ceiling(mu, fpr) < 1e-5
    assert losses.auc_ceiling(events) == pytest.approx(gaussian.gaussian_auc_ceiling(mu), rel=1e-12)


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
    continuous = gaussian.gaussian_auc_ceiling(exact)
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


# --- Several trials on the same data: composed, and under a budget against whoever chooses the second trial by what


# --- settings that were fixed beforehand ---


@settings(deadline=None)
@given(
    trials=st.lists(st.lists(st.lists(st.floats(0.2, 20), max_size=3), min_size=1, max_size=4), min_size=1, max_size=4)
)
def test_trials_compose_to_the_worst_path_of_a_record(trials: list[list[list[float]]]) -> None:
    """trials[k][client] = noise of each of its uploads; a record may sit with any client in each trial."""
    uploads = [[[replace(UPLOAD, std_over_sensitivity=n) for n in noises] for noises in trial] for trial in trials]
    ledgers = [
        Ledger(tuple(Entry(r, client, e, 1) for client, sent in enumerate(trial) for r, e in enumerate(sent)))
        for trial in uploads
    ]
    paths = [exact([e for sent in path for e in sent], DELTA) for path in itertools.product(*uploads)]
    together = compose(ledgers)
    assert together.epsilon(DELTA, "exact") == pytest.approx(max(paths), rel=1e-9, abs=1e-12)
    assert together.bytes_up == sum(ledger.bytes_up for ledger in ledgers)


def test_a_composed_ledger_is_a_ledger() -> None:
    trial = ledger_of({0: UPLOAD, 1: UPLOAD})
    together = compose([trial, trial])
    assert Exposure(together).mu() == pytest.approx(math.sqrt(2))
    assert Ledger.from_json(together.to_json()) == together
    assert "public by declaration: labels" in str(together.guarantees(DELTA, "exact")[0])


SAMPLED = Gaussian(1.0, "example", "add_remove", "local", 0.1, 50)


@pytest.mark.parametrize("change", [{"std_over_sensitivity": 0.8}, {"sampling_rate": 0.15}, {"steps": 90}])
def test_sampled_trials_compose_to_an_upper_bound(change: dict[str, float]) -> None:
    worse = replace(SAMPLED, **change)
    trials = [ledger_of({0: SAMPLED, 1: worse}), ledger_of({0: worse, 1: SAMPLED}, {0: SAMPLED})]
    together = compose(trials).epsilon(DELTA, "rdp")
    for path in itertools.product([[SAMPLED], [worse]], [[worse, SAMPLED], [SAMPLED]]):
        assert together >= rdp([e for events in path for e in events], DELTA)


def test_one_unprotected_trial_makes_the_sweep_infinite() -> None:
    together = compose([ledger_of({0: UPLOAD}), ledger_of({0: UPLOAD, 1: BARE})])
    assert together.epsilon(DELTA, "exact") == math.inf
    assert "weights sent as they are" in str(together.guarantees(DELTA, "exact")[0])


# --- settings that follow from the trial before ---

SECOND = ((1.0, 1), (0.001, 50), (0.01, 100), (0.1, 10))
"""(rate, steps) of the trials among which the adversary chooses; their noise is the least that is admitted."""


def event(kind: Steps, **more: Any) -> Gaussian:
    about = {"unit": "example", "relation": "zero_out", "trust": "local", **more}
    return Gaussian(kind.noise, sampling_rate=kind.rate, steps=kind.times, **about)


def least(epsilon_of: Callable[[Steps], float], epsilon: float) -> list[Steps]:
    """The trials of `SECOND` with the least noise, in [0.06, 1e4], at which that epsilon is within the budget."""
    admitted = []
    for rate, times in SECOND:
        low, high = math.log(0.06), math.log(1e4)
        if epsilon_of(Steps(rate, math.exp(high), times)) > epsilon:
            continue
        while high - low > 1e-3:
            middle = (low + high) / 2
            within = epsilon_of(Steps(rate, math.exp(middle), times)) <= epsilon
            low, high = (low, middle) if within else (middle, high)
        admitted.append(Steps(rate, math.exp(high), times))
    return admitted


def adaptive(first: Steps, second: list[Steps], epsilon: float) -> float:
    """The larger hockey-stick divergence at epsilon of the first trial followed by the best of `second`, for each of
    its losses: E max_i H_(epsilon - loss)(i)."""
    both = []
    for turned in (False, True):
        grid, mass, _ = _losses(first, turned)
        deltas = [_delta(*_losses(kind, turned), epsilon - grid) for kind in second]
        both.append(float((mass * np.max(deltas, axis=0)).sum()))
    return max(both)


def _losses(kind: Steps, turned: bool) -> tuple[Any, Any, Any]:
    x = pairs.privacy_loss((kind,), replaced=False)
    return (-x.grid[::-1], x.outside[::-1], x.inside[::-1]) if turned else (x.grid, x.inside, x.outside)


def _delta(grid: Any, p: Any, q: Any, at: Any) -> Any:
    """H_(e^at)(P, Q), for losses at or above `at`."""
    above, other = (np.append(mass[::-1].cumsum()[::-1], 0.0) for mass in (p, q))
    first = np.searchsorted(grid, at)
    return (above[first] - np.exp(np.clip(at, -600, 600)) * other[first]).clip(0, 1)


BUDGETS = [
    (2, 1e-5, Steps(1.0, 4.0, 1)),
    (2, 1e-5, Steps(0.01, 0.8, 200)),
    (4, 1e-5, Steps(0.01, 0.8, 200)),
    (4, 1e-3, Steps(0.3, 1.2, 3)),
]


@pytest.mark.parametrize(("epsilon", "delta", "first"), slow_but(BUDGETS[:2], BUDGETS))
def test_no_choice_of_the_second_trial_exceeds_delta(epsilon: float, delta: float, first: Steps) -> None:
    budget = Budget(epsilon=epsilon, delta=delta, relation="zero_out")
    assert budget.spent([[event(first)]]).epsilon <= epsilon
    admitted = least(lambda kind: budget.spent([[event(first)], [event(kind)]]).epsilon, epsilon)
    assert adaptive(first, [Steps(1.0, 1e4, 1)], epsilon) <= delta
    if admitted:
        assert adaptive(first, admitted, epsilon) <= delta
    else:  # The first one was judged by its privacy loss, and the filter has no room for it.
        order = budget.order([event(first)])
        assert budget.epsilon_of(cost((event(first),), order), order) > epsilon


@pytest.mark.parametrize(("epsilon", "delta", "first"), BUDGETS[:1])
def test_by_the_accountant_of_fixed_settings_delta_is_exceeded(epsilon: float, delta: float, first: Steps) -> None:
    """So the test above can fail."""
    admitted = least(lambda kind: accountants.pld([event(first), event(kind)], delta), epsilon)
    assert adaptive(first, admitted, epsilon) > 1.5 * delta


ABOUT = ("example", "zero_out", "local")
CHARGES = st.builds(Steps, st.sampled_from([0.01, 0.1, 1.0]), st.sampled_from([0.8, 2.0, 5.0]), st.integers(1, 50))
BUDGET = Budget(epsilon=5, relation="zero_out")


@given(first=CHARGES, rest=st.lists(CHARGES, min_size=1, max_size=4))
def test_all_trials_add_up_by_the_rule_that_the_first_one_set(first: Steps, rest: list[Steps]) -> None:
    """Not by the best of several, which is seen only afterwards."""
    from opacus.accountants.analysis.rdp import compute_rdp

    together = BUDGET.spent([[event(kind)] for kind in (first, *rest)])
    order = BUDGET.order([event(first)])
    if first.rate == 1:
        assert order is None
        mu = math.hypot(*(math.sqrt(kind.times) / kind.noise for kind in (first, *rest)))
        assert together.epsilon == pytest.approx(exact([Gaussian(1 / mu, *ABOUT)], 1e-5))
        return
    assert order in ORDERS
    sum_of = sum(compute_rdp(q=k.rate, noise_multiplier=k.noise, steps=k.times, orders=order) for k in (first, *rest))
    converted = sum_of + math.log(1 - 1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
    charge = 2 * grid.distance(max(0.0, converted), 1e-5)  # and little more delta
    assert together.epsilon == pytest.approx(max(0, converted) + charge, rel=1e-4)
    assert together.epsilon >= BUDGET.spent([[event(first)]]).epsilon


@given(first=CHARGES, rest=st.lists(CHARGES, max_size=3), last=CHARGES)
def test_what_is_spent_never_shrinks(first: Steps, rest: list[Steps], last: Steps) -> None:
    charges = [[event(kind)] for kind in (first, *rest)]
    assert BUDGET.spent([*charges, [event(last)]]).epsilon >= BUDGET.spent(charges).epsilon
    assert BUDGET.spent([*charges, [Nothing()], []]) == BUDGET.spent(charges)


def test_after_sampling_without_a_renyi_theorem_sampled_noise_counts_as_unsampled() -> None:
    """Under replace_one; the first alone is judged by its privacy loss."""
    budget = Budget(epsilon=5)
    first = event(Steps(0.1, 2.0, 10), relation="replace_one")
    assert budget.order([first]) is None
    assert budget.spent([[first]]).epsilon == accountants.pld([first], 1e-5)
    unsampled = exact([replace(first, sampling_rate=1.0, steps=20)], 1e-5)
    assert budget.spent([[first], [first]]).epsilon == pytest.approx(unsampled)


def test_discrete_noise_adds_up_by_divergences_and_never_by_curves() -> None:
    first, budget = DiscreteGaussian(2.0, *ABOUT), Budget(epsilon=9, relation="zero_out")
    order = budget.order([first])
    assert order is not None and cost((first,), order) == pytest.approx(order / 8)
    with pytest.raises(accountants.Unsupported):
        budget.spent([[Gaussian(2.0, *ABOUT)], [first]])


@pytest.mark.parametrize("bare", [NonPrivate("weights"), Gaussian(0.0, *ABOUT)])
def test_what_is_unprotected_is_infinite_wherever_it_stands(bare: Event) -> None:
    for charges in ([[bare], [event(Steps(0.1, 2.0, 1))]], [[event(Steps(0.1, 2.0, 1))], [bare]]):
        assert BUDGET.spent(charges).epsilon == math.inf
