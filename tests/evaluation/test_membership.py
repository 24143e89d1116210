import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from raydiff.evaluation.attacks.membership import (
    COMBINED,
    ENOUGH,
    ROLES,
    AttackResult,
    _auc,
    _rate,
    attack,
    derived,
    needed,
)
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator


def column(*scores: float) -> Tensor:
    return torch.tensor(scores)[:, None]


def run(calibration: tuple[Tensor, Tensor], evaluation: tuple[Tensor, Tensor]) -> AttackResult:
    return attack(
        calibration_members=calibration[0],
        calibration_nonmembers=calibration[1],
        members=evaluation[0],
        nonmembers=evaluation[1],
    )


def gaussians(n: int, m: int, shift: float, rng: torch.Generator, columns: int = 1) -> tuple[Tensor, Tensor]:
    return (torch.randn(n, columns, generator=rng), torch.randn(m, columns, generator=rng) + shift)


def test_separated_scores_and_equal_scores_are_the_extremes() -> None:
    low, high = column(1, 2, 3), column(4, 5, 6)
    best = run((low, high), (low, high))
    assert (best.auc, best.balanced_accuracy) == (1.0, 1.0)
    assert best.auc_interval[0] < 0.9 and best.auc_interval[1] == 1.0  # three of each say no more than that
    assert run((low, high), (high, low)).auc == 0.0
    same = run((low, low), (column(1, 1, 1), column(1, 1, 1)))
    assert (same.auc, same.balanced_accuracy) == (0.5, 0.5)


def test_auc_counts_pairs_with_ties_as_half() -> None:
    members, nonmembers = column(1, 2, 2, 5), column(2, 3, 5)
    pairs = [1.0 if m < n else 0.5 if m == n else 0.0 for m in members for n in nonmembers]
    assert run((members, nonmembers), (members, nonmembers)).auc == pytest.approx(sum(pairs) / 12)


def test_the_calibration_rows_choose_the_timestep() -> None:
    rng = generator(0)
    noise = gaussians(50, 50, 0, rng, columns=3)
    calibration = tuple(s.clone() for s in noise)
    calibration[1][:, 1] += 3  # column 1 separates in the calibration
    evaluation = tuple(s.clone() for s in gaussians(50, 50, 0, rng, columns=3))
    evaluation[1][:, 2] += 9  # column 2 would be best, in hindsight
    outcome = run((calibration[0], calibration[1]), (evaluation[0], evaluation[1]))
    assert outcome.timestep_index == 1
    assert outcome.auc < 0.7


def test_the_evaluation_rows_choose_nothing() -> None:
    rng = generator(0)
    calibration, evaluation = gaussians(120, 120, 1, rng, columns=4), gaussians(80, 80, 1, rng, columns=4)
    outcome = run(calibration, evaluation)
    mixed = torch.cat(evaluation)[torch.randperm(160, generator=rng)]
    other = run(calibration, (mixed[:80], mixed[80:]))
    assert (outcome.timestep_index, outcome.threshold) == (other.timestep_index, other.threshold)
    assert outcome.auc != other.auc
    assert run((calibration[0] + 1, calibration[1] + 1), evaluation).threshold != outcome.threshold


def test_the_threshold_is_the_best_of_the_calibration() -> None:
    outcome = run((column(1, 2, 3, 8), column(4, 6, 7, 9)), (column(3.4, 3.6), column(3.4, 9)))
    assert outcome.threshold == pytest.approx(3.5)  # 3 of 4 members at or below, no non-member
    assert outcome.balanced_accuracy == 0.5


def test_balanced_accuracy_interval_is_newcombes_published_example() -> None:
    # Newcombe 1998, table II (a), method 10: 56/70 - 48/80 = 0.2, 95 % interval 0.0524 to 0.3339
    members, nonmembers = column(*[0.0] * 56, *[2.0] * 14), column(*[0.0] * 48, *[2.0] * 32)
    outcome = run((column(0, 0), column(2, 2)), (members, nonmembers))
    assert outcome.balanced_accuracy == pytest.approx(0.6)
    assert outcome.balanced_accuracy_interval == pytest.approx(((1 + 0.0524) / 2, (1 + 0.3339) / 2), abs=5e-5)


def test_one_percent_threshold_is_the_calibrations() -> None:
    calibration = torch.arange(500.0)[:, None]  # five of these may be called members: the bar is at 5
    members, nonmembers = column(*[4.5] * 3, *[5.0] * 7), column(*[4.0] * 2, *[9.0] * 498)
    outcome = run((column(-1, -1), calibration), (members, nonmembers))
    (rate,) = outcome.low_fpr
    assert (rate.fpr, rate.tpr, rate.fpr_reached) == (0.01, 0.3, 2 / 500)
    # the bar's rank is 2.1 to 11.6 by Wilson: no member below 2, all of them below 12
    assert rate.interval == (0.0, 1.0)
    mixed = column(*[0.5] * 20, *[4.5] * 10, *[11.5] * 20, *[99.0] * 50)  # shares .2, .3 and .5 below 2, 5 and 12
    (rate,) = run((column(-1, -1), calibration), (mixed, nonmembers)).low_fpr
    low, high = (
        0.3 - math.hypot(0.3 - 0.2189, 0.3 - 0.2),
        0.3 + math.hypot(0.3958 - 0.3, 0.5 - 0.3),
    )  # Wilson, 30 of 100
    assert rate.interval == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("sizes", "rates"), [((500, 500), [0.01]), ((499, 500), []), ((500, 499), [])])
def test_a_false_positive_rate_needs_five_nonmembers_above_it(sizes: tuple[int, int], rates: list[float]) -> None:
    assert (needed(0.01), needed(0.001)) == (500, 5000)
    calibration, evaluation = (gaussians(4, n, 0, generator(0)) for n in sizes)
    result = run(calibration, evaluation)
    assert [rate.fpr for rate in result.low_fpr] == rates
    names = columns(result.metrics())
    assert ("tpr_at_1pct_fpr" in names) == bool(rates) and not any("0.1pct" in name for name in names)


def phi(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(
    ("members", "nonmembers", "spread", "shift"),
    [
        (10, 10, 1.0, 0.0),
        (20, 20, 1.0, 1.0),
        (20, 20, 1.0, 2.9),  # an AUC of 0.98, where DeLong's interval alone covers in 73 % of samples
        (20, 400, 3.0, 0.0),  # where Newcombe's alone does too seldom
        (60, 60, 1.0, 1.0),
    ],
)
def test_auc_intervals_cover_at_small_n(members: int, nonmembers: int, spread: float, shift: float) -> None:
    rng, truth, covered = generator(0), phi(shift / math.sqrt(1 + spread**2)), 0
    for _ in range(300):
        inside, outside = gaussians(members, nonmembers, shift, rng)
        low, high = _auc(spread * inside[:, 0], outside[:, 0])[1]
        covered += low <= truth <= high
    assert covered >= 273  # binomial(300, 0.95): 285 - 3 standard deviations


@pytest.mark.parametrize(
    ("fpr", "nonmembers", "members", "shift"),
    [
        (0.01, 500, 20, 0.0),
        (0.01, 500, 50, 1.0),
        (0.01, 500, 250, 2.5),  # where Wilson's interval at the threshold as it is covers in 60 % of samples
        (0.001, 5000, 100, 1.5),
    ],
)
def test_true_positive_rates_intervals_cover(fpr: float, nonmembers: int, members: int, shift: float) -> None:
    """A member's score is N(0, 1), a non-member's N(shift, 1): TPR(fpr) = Phi(shift + Phi^-1(fpr))."""
    rng, truth, covered = generator(1), phi(shift + NormalDist().inv_cdf(fpr)), 0
    for _ in range(200):
        inside, calibration = gaussians(members, nonmembers, shift, rng)
        rate = _rate(fpr, calibration[:, 0], inside[:, 0], calibration[:, 0])
        assert rate.interval[0] <= rate.tpr <= rate.interval[1]
        covered += rate.interval[0] <= truth <= rate.interval[1]
    assert covered >= 181  # binomial(200, 0.95): 190 - 3 standard deviations


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(1, 2), "at least 2 rows"),
        (torch.zeros(3, 1), "the same columns"),
        (torch.full((3, 2), math.nan), "must not be NaN"),
    ],
)
def test_refuses_scores_it_cannot_rank(bad: Tensor, message: str) -> None:
    fine = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=message):
        run((fine, fine), (bad, fine))


# --- a combination ---


def roles(shifts: list[float], seed: int, n: int = 100) -> dict[str, Tensor]:
    """Normal scores, those of non-members shifted, column by column."""
    rng, apart = generator(seed), torch.tensor(shifts)
    return {k: torch.randn(n, len(shifts), generator=rng) + apart * k.endswith("nonmembers") for k in ROLES}


def test_a_combination_is_not_fitted_to_the_calibration_rows_that_it_scores() -> None:
    """Of 40 columns that say nothing a fit to 30 rows of a kind makes an AUC near 1 on these rows, 0.5 on others."""
    each = [derived(roles([0.0] * 40, seed, n=30))[COMBINED] for seed in range(5)]
    aucs = [_auc(of["calibration_members"][:, 0], of["calibration_nonmembers"][:, 0])[0] for of in each]
    assert abs(sum(aucs) / 5 - 0.5) < 0.1


def test_the_evaluation_rows_set_nothing_in_a_combination() -> None:
    of = roles([1.0, 0.5], 0)
    together, other = (derived(each)[COMBINED] for each in (of, {**of, "nonmembers": of["nonmembers"] + 9}))
    assert all(torch.equal(together[k], other[k]) for k in ROLES[:3])


def test_few_rows_or_one_column_are_not_combined() -> None:
    assert COMBINED in derived(roles([1.0, 1.0], 0, n=ENOUGH))
    assert COMBINED not in derived(roles([1.0, 1.0], 0, n=ENOUGH - 1)) and COMBINED not in derived(roles([1.0], 0))
