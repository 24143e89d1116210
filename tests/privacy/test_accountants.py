"""Every bound against an oracle: integration, 80-digit arithmetic, opacus, the paper's own expression."""

import math
import re
from dataclasses import replace
from typing import get_args

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings, strategies as st
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from reference.gaussians import densities, hockey_stick, sampled_steps
from scipy.optimize import brentq
from scipy.stats import norm

from raydiff.formats import rounding as bounds
from raydiff.models.schedules import LinearBetas, alphas_bar
from raydiff.papers.pfdm.depth import depth_for, release_event
from raydiff.privacy import accountants, gaussian, renyi, tradeoff as losses
from raydiff.privacy.accountants import ACCOUNTANTS, MOST_DELTA, Unsupported, exact, pld, rdp, theorem
from raydiff.privacy.release import Gaussian, NonPrivate, Nothing, Relation, Trust, Unit

pytestmark = pytest.mark.usefixtures("real_gaussians")

NAMES = ("theorem", "rdp", "exact")
EVERY = (*NAMES, "pld")
LINEAR = alphas_bar(LinearBetas(), 1000)

mus = st.floats(-6, 6).map(lambda e: 10.0**e)
deltas = st.floats(-30, -0.3).map(lambda e: 10.0**e)


def of_mu(mu: float, **changes: object) -> Gaussian:
    about = {"unit": "example", "relation": "replace_one", "trust": "local", **changes}
    return Gaussian(1 / mu, **about)


def sampled(noise: float, rate: float, steps: int = 1) -> Gaussian:
    (event,) = sampled_steps(rate, noise, steps, "add_remove")
    return event  # type: ignore[no-any-return]


# --- exact -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.05, 0.3, 0.99, 1.01, 2.5, 6.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_exact_is_the_hockey_stick_divergence(mu: float, delta: float) -> None:
    x, cell = np.linspace(-15, 15 + mu, 400_001, retstep=True)
    actual = hockey_stick(norm.pdf(x - mu), norm.pdf(x), exact([of_mu(mu)], delta), cell)
    assert actual == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("mu", [1e-12, 1e-6, 1e-3, 0.5, 0.999, 1.0, 3.0, 20.0, 300.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-30, 1e-15, 1e-5, 0.3, 0.9])
def test_exact_at_the_extremes(mu: float, delta: float) -> None:
    epsilon = exact([of_mu(mu)], delta)
    with mpmath.workdps(80):
        m, e = mpmath.mpf(1) / mpmath.mpf(1 / mu), mpmath.mpf(epsilon)
        actual = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert actual <= delta if epsilon == 0 else abs(actual / delta - 1) < 1e-10


@pytest.mark.parametrize("mu", [1e-300, 1e-150, 1e13, 1e15, 1e17, 1e100, 1e160, 1e300])
@pytest.mark.parametrize("name", NAMES)
def test_no_mu_is_too_small_or_too_large(mu: float, name: str) -> None:
    for delta in (1e-300, 1e-100, 1e-30, 1e-5, 1e-2, 1 - 1e-12):
        epsilon = ACCOUNTANTS[name]([of_mu(mu)], delta)
        assert epsilon == pytest.approx(mu * mu / 2, rel=1e-8) if mu > 1 else 0 <= epsilon < 1e-100


# --- rdp ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-2, 0.1, 0.532, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_rdp_is_opacus_over_dense_orders(mu: float, delta: float) -> None:
    orders = 1 + np.geomspace(1e-5, 1e7, 300_001)
    wanted, _ = get_privacy_spent(orders=orders, rdp=orders * mu**2 / 2, delta=delta)
    assert rdp([of_mu(mu)], delta) == pytest.approx(max(0.0, wanted), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("rate, noise, steps", [(0.01, 1.0, 1000), (0.2, 2.0, 30), (0.5, 0.8, 1)])
def test_sampled_rdp_is_opacus(rate: float, noise: float, steps: int) -> None:
    opacus = RDPAccountant()
    opacus.history = [(noise, rate, steps)]
    wanted = opacus.get_epsilon(1e-5, alphas=renyi.ORDERS)
    assert rdp([sampled(noise, rate, steps)], 1e-5) == pytest.approx(wanted, rel=1e-12)
    assert rdp([sampled(noise, rate)] * steps, 1e-5) == pytest.approx(wanted, rel=1e-12)


def test_sampled_and_unsampled_events_add_up_order_by_order() -> None:
    orders = renyi.ORDERS
    total = compute_rdp(q=0.1, noise_multiplier=1.5, steps=20, orders=orders) + np.array(orders) / (2 * 3.0**2)
    wanted, _ = get_privacy_spent(orders=orders, rdp=total, delta=1e-5)
    assert rdp([sampled(1.5, 0.1, 20), sampled(3.0, 1.0)], 1e-5) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("rate, noise", [(0.05, 0.7), (0.3, 1.0), (0.9, 2.0)])
def test_sampled_rdp_covers_the_hockey_stick_both_ways(rate: float, noise: float) -> None:
    x, cell = np.linspace(-15, 15 + 1 / noise, 400_001, retstep=True)
    p, q = densities(x, rate, noise, "add_remove")
    epsilon = rdp([sampled(noise, rate)], 1e-5)
    assert 0 < max(hockey_stick(p, q, epsilon, cell), hockey_stick(q, p, epsilon, cell)) <= 1e-5
    assert epsilon < rdp([sampled(noise, 1.0)], 1e-5)


def test_sampling_never_costs_more_than_none() -> None:
    """Also where the orders at hand are too coarse, for much noise and for little."""
    for noise in (0.05, 0.3, 3.0, 1e4):
        assert rdp([sampled(noise, 0.9999, 100)], 1e-5) <= rdp([sampled(noise, 1.0, 100)], 1e-5)
    assert rdp([sampled(math.inf, 0.1)], 1e-5) == 0.0


# --- theorem, and all three together -----------------------------------------------------------------------


@settings(deadline=None)
@given(clip=st.floats(0.1, 100), abar=st.floats(1e-6, 0.999), delta=deltas)
def test_theorem_is_pfdm_s_expression(clip: float, abar: float, delta: float) -> None:
    s2 = (1 - abar) / abar
    printed = 2 * clip**2 / s2 + clip * math.sqrt(8 * math.log(1 / delta) / s2)
    assert theorem([release_event(clip, abar)], delta) == pytest.approx(printed, rel=1e-9)


@settings(deadline=None)
@given(mu=mus, delta=deltas)
def test_exact_is_below_rdp_is_below_theorem(mu: float, delta: float) -> None:
    epsilons = [ACCOUNTANTS[n]([of_mu(mu)], delta) for n in ("exact", "rdp", "theorem")]
    assert 0 <= epsilons[0] <= epsilons[1] * (1 + 1e-12) <= epsilons[2] * (1 + 1e-11)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(mu=mus, delta=deltas, factor=st.floats(1.001, 100), steps=st.integers(2, 1000))
def test_less_noise_more_steps_and_a_smaller_delta_cost_more(
    name: str, mu: float, delta: float, factor: float, steps: int
) -> None:
    bound, once = ACCOUNTANTS[name], [of_mu(mu)]
    dearer = ([of_mu(mu * factor)], [of_mu(mu, steps=steps)], [*once, of_mu(mu / factor)])
    epsilons = [*(bound(events, delta) for events in dearer), bound(once, delta / factor)]
    assert bound(once, delta) <= min(epsilons) * (1 + 1e-12)


@pytest.mark.parametrize("name", EVERY)
@settings(deadline=None)
@given(parts=st.lists(st.tuples(st.floats(0.01, 10), st.integers(1, 9)), min_size=1, max_size=5), delta=deltas)
def test_composition_adds_mu_squared(name: str, parts: list[tuple[float, int]], delta: float) -> None:
    events = [of_mu(mu, steps=steps) for mu, steps in parts]
    together = of_mu(math.sqrt(sum(steps * mu**2 for mu, steps in parts)))
    wanted = ACCOUNTANTS[name]([together], delta)
    for order in (events, events[::-1], [Nothing(), *events, Nothing()]):
        assert ACCOUNTANTS[name](order, delta) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


# --- what they refuse, and the two ends --------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_nothing_costs_nothing_and_no_protection_is_infinite(name: str) -> None:
    epsilon = ACCOUNTANTS[name]
    silent = Gaussian(math.inf, "example", "replace_one", "local")
    assert epsilon([], 1e-5) == epsilon([Nothing()], 1e-5) == epsilon([silent], 1e-5) == 0.0
    bare = Gaussian(0.0, "example", "replace_one", "local")
    for events in ([NonPrivate("weights")], [of_mu(1), NonPrivate("weights")], [of_mu(1), bare]):
        assert epsilon(events, 1e-5) == math.inf
        assert accountants.gaussian_dp_mu(events) == math.inf


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("change", [{"unit": "client"}, {"relation": "add_remove"}, {"trust": "central"}])
def test_events_that_differ_do_not_compose(name: str, change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="do not compose"):
        ACCOUNTANTS[name]([of_mu(1), of_mu(1, **change)], 1e-5)
    if "trust" in change:
        with pytest.raises(ValueError, match="do not compose"):
            ACCOUNTANTS[name]([of_mu(1), NonPrivate("weights", "central")], 1e-5)


def test_sampling_is_refused_without_a_theorem() -> None:
    with pytest.raises(Unsupported, match="rdp has no theorem for Poisson sampling under replace_one"):
        rdp([of_mu(1), of_mu(1, sampling_rate=0.5)], 1e-5)
    for bound in (exact, theorem, lambda events, _: accountants.gaussian_dp_mu(events)):
        for relation in ("add_remove", "zero_out", "replace_one"):
            with pytest.raises(Unsupported, match="use the pld accountant"):
                bound([of_mu(1, relation=relation, sampling_rate=0.5)], 1e-5)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_record_that_counts_for_nothing_costs_what_a_removed_one_does(rate: float) -> None:
    removed = sampled(1.0, rate, 7)
    zeroed = replace(removed, relation="zero_out")
    assert 0 < rdp([zeroed], 1e-5) == rdp([removed], 1e-5) < math.inf


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_must_be_a_probability(name: str, delta: float) -> None:
    for events in ([], [of_mu(1)], [NonPrivate("weights")]):
        with pytest.raises(ValueError, match="delta must be in"):
            ACCOUNTANTS[name](events, delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_must_be_positive(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be > 0"):
        accountants.check_budget(epsilon, 1e-5)


# --- ceilings on attacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_the_ceilings_are_those_of_the_best_test(mu: float) -> None:
    thresholds = np.linspace(-12, 12 + mu, 200_001)
    fpr, tpr = norm.sf(thresholds), norm.sf(thresholds - mu)
    assert gaussian.gaussian_auc_ceiling(mu) == pytest.approx(-np.trapezoid(tpr, fpr), abs=1e-8)
    for i in (70_000, 100_000, 130_000):
        assert gaussian.gaussian_tpr_ceiling(mu, float(fpr[i])) == pytest.approx(tpr[i], abs=1e-9)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.1])
def test_no_test_beats_the_ceiling_by_epsilon_and_delta(delta: float) -> None:
    """(epsilon, delta)-DP says tpr <= e^epsilon fpr + delta; exact touches the ceiling in one point."""
    epsilon = exact([of_mu(1.5)], delta)
    gaps = [
        math.exp(epsilon) * fpr + delta - gaussian.gaussian_tpr_ceiling(1.5, fpr)
        for fpr in np.geomspace(1e-12, 1, 20_001)
    ]
    assert -1e-9 < min(gaps) < delta * 1e-4


def test_ceilings_at_the_ends() -> None:
    assert (gaussian.gaussian_tpr_ceiling(2.0, 0.0), gaussian.gaussian_tpr_ceiling(2.0, 1.0)) == (0.0, 1.0)
    assert gaussian.gaussian_tpr_ceiling(math.inf, 0.0) == gaussian.gaussian_auc_ceiling(math.inf) == 1.0


# --- PFDM's depth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clip, t0, wanted", [(15, 740, (10.76, 9.92, 9.24)), (10, 690, (10.24, 9.42, 8.77)), (35, 850, (10.30, 9.48, 8.83))]
)
def test_what_the_published_depths_spend(clip: int, t0: int, wanted: tuple[float, ...]) -> None:
    event = release_event(clip, float(LINEAR[t0]))
    assert tuple(round(ACCOUNTANTS[name]([event], 1e-5), 2) for name in NAMES) == wanted


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(
    betas=st.lists(st.floats(1e-4, 0.9), min_size=1, max_size=12),
    clip=st.floats(0.1, 5),
    epsilon=st.floats(0.1, 50),
    delta=deltas,
)
def test_a_depth_is_minimal_and_within_the_budget(
    name: str, betas: list[float], clip: float, epsilon: float, delta: float
) -> None:
    delta = min(delta, MOST_DELTA)
    abar = torch.cumprod(1 - torch.tensor([0.0, *betas], dtype=torch.float64), 0)
    actual = [ACCOUNTANTS[name]([release_event(clip, a)], delta) for a in abar.tolist()]
    budget = {"epsilon": epsilon, "delta": delta, "clip": clip, "alphas_bar": abar, "accountant": name}
    if actual[-1] > epsilon:
        with pytest.raises(ValueError, match=re.escape(f"this schedule is {bounds.up(actual[-1], 3)}")):
            depth_for(**budget)
        return
    t0 = depth_for(**budget)
    assert t0 >= 1 and actual[t0] <= epsilon
    assume(t0 > 1)
    assert min(actual[:t0]) > epsilon


# --- who is seen is not hidden by sampling -------------------------------------------------------------------


@pytest.mark.parametrize("trust", get_args(Trust))
@pytest.mark.parametrize("relation", get_args(Relation))
@pytest.mark.parametrize("unit", get_args(Unit))
@settings(max_examples=2, deadline=None)
@given(rate=st.floats(1e-3, 0.5), noise=st.floats(0.5, 5), steps=st.integers(1, 50))
def test_participants_that_the_adversary_sees_are_not_amplified(
    unit: Unit, relation: Relation, trust: Trust, rate: float, noise: float, steps: int
) -> None:
    """By no accountant and no ceiling; all other units are, by those that have a theorem."""
    every = Gaussian(noise, unit, relation, trust, steps=steps)
    drawn = replace(every, sampling_rate=rate)
    seen = unit == "client" and trust != "central"
    for name, bound in ACCOUNTANTS.items():
        try:
            epsilon = bound([drawn, Nothing()], 1e-5)
        except Unsupported:
            assert not seen
            continue
        unsampled = bound([every], 1e-5)
        assert epsilon == unsampled if seen else epsilon <= unsampled, name
    assert (losses.auc_ceiling([drawn]) == losses.auc_ceiling([every])) == seen
    assert (losses.tpr_ceiling([drawn], 0.01) == losses.tpr_ceiling([every], 0.01)) == seen


# --- how far pld is above the truth --------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@example(rate=10**-4.9375, noise=45.0, delta=1e-9)  # its epsilon is smaller than a cell of the grid
@given(rate=st.floats(-5, -0.1).map(lambda e: 10.0**e), noise=st.floats(0.3, 300), delta=st.floats(1e-9, 1e-2))
def test_pld_of_one_step_is_above_the_truth_by_less_than_a_thousandth_of_one_or_of_itself(
    rate: float, noise: float, delta: float
) -> None:
    """The truth by the hockey-stick divergences of the pair, in closed form."""
    r = 1 / noise

    def divergence(epsilon: float) -> float:
        c = math.exp(epsilon)
        at = math.log1p((c - 1) / rate) / r + r / 2
        towards = (1 - rate) * norm.sf(at) + rate * norm.sf(at - r) - c * norm.sf(at)
        if (inner := 1 + (1 / c - 1) / rate) <= 0:
            return float(towards)
        at = math.log(inner) / r + r / 2
        return float(max(towards, norm.cdf(at) - c * ((1 - rate) * norm.cdf(at) + rate * norm.cdf(at - r))))

    truth = brentq(lambda epsilon: divergence(epsilon) - delta, 0.0, 60.0) if divergence(0.0) > delta else 0.0
    assert truth - 1e-9 <= pld([sampled(noise, rate)], delta) <= truth + 1e-3 * max(1.0, truth)
