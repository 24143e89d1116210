"""Likelihood ratios: against simulated losses whose optimal attack is known, and against a model that memorised."""

import math
from itertools import combinations
from statistics import NormalDist

import pytest
import torch
from losses import N, calibrating, judged, looks_like_guessing, neyman_pearson, simulated
from torch import Tensor

from raydiff.data.records import Records
from raydiff.evaluation.attacks import lira, rmia
from raydiff.evaluation.attacks.lira import draw_memberships, lira_scores as lira_scores, statistics
from raydiff.evaluation.attacks.membership import (
    COMBINED,
    ENOUGH,
    ROLES,
    AttackResult,
    _auc,
    _rate,
    attack_membership,
    derived,
    needed,
)
from raydiff.evaluation.attacks.quantile import PER_COEFFICIENT, quantile_scores as quantile_scores, quantiles
from raydiff.evaluation.attacks.rmia import GRID, interpolation, rmia_scores as rmia_scores
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator


def column(*scores: float) -> Tensor:
    return torch.tensor(scores)[:, None]


def run(calibration: tuple[Tensor, Tensor], evaluation: tuple[Tensor, Tensor]) -> AttackResult:
    return attack_membership(
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


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_the_auc_of_lira_is_that_of_neyman_and_pearson(shift: float) -> None:
    """With k shadows without the record its mean is known up to 1/k of the variance, and nothing else is lost."""
    target, shadows, inside, members, mu = simulated(shift=shift)
    result = judged(lira_scores(target, shadows, inside), members)
    low, high = result.auc_interval
    assert low < neyman_pearson(shift, noise=1 / 16) < high
    assert high - low < 0.06
    assert result.auc == pytest.approx(judged(target - mu, members).auc, abs=0.015)  # who knows how hard each is
    if shift:  # a threshold for all records cannot know how hard each is
        assert judged(lira.with_mean(target), members).auc_interval[1] < low
    else:
        assert low < 0.5 < high


def test_online_it_knows_how_members_are_spread() -> None:
    """Members are no lower, only closer together: one-sided there is nothing to see."""
    target, shadows, inside, members, _ = simulated(shift=0.0, spread=0.2, shadows=64)
    offline, online = (judged(lira_scores(target, shadows, inside, online=on), members) for on in (False, True))
    assert offline.auc_interval[0] < 0.5 < offline.auc_interval[1] + 0.05
    # the test is |z|: P(0.2 |z| < |z'|) of two normal draws
    assert online.auc == pytest.approx(1 - 2 * math.atan(0.2) / math.pi, abs=0.03)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    target = torch.tensor([[1.0], [5.0]], dtype=torch.float64)
    inside = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.bool)
    shadows = torch.tensor([[0.0, 4.0], [2.0, 7.0], [1.0, 8.0], [4.0, 9.0]], dtype=torch.float64)[:, :, None]
    # without: record 0 has 2 and 4, record 1 has 4 and 8: means 3 and 6, variances 2 and 8, shared 5
    torch.testing.assert_close(
        lira_scores(target, shadows, inside)[:, 0], torch.tensor([-2.0, -1.0]).double() / math.sqrt(5)
    )
    with monkeypatch.context() as patch:
        patch.setattr(lira, "MANY", 4)  # a variance of each record
        each = lira_scores(target, shadows, inside)
    torch.testing.assert_close(each, torch.tensor([[-math.sqrt(2)] * 2, [-math.sqrt(1 / 8)] * 2]).double())
    # with: means 0.5 and 8, variances 0.5 and 2, shared 1.25
    online = torch.tensor([(0.25 / 1.25 - 4 / 5), (9 / 1.25 - 1 / 5)]).double() / 2 + math.log(1.25 / 5) / 2
    torch.testing.assert_close(lira_scores(target, shadows, inside, online=True)[:, 0], online)


def test_halves_are_halves() -> None:
    inside = draw_memberships(101, 8, generator(0))
    assert inside.sum(0).tolist() == [4] * 101
    assert inside.sum(1).tolist() == [50, 51] * 4
    assert torch.equal(inside, draw_memberships(101, 10, generator(0))[:8])  # more shadows leave the first as they were
    assert len({tuple(row) for row in inside.tolist()}) == 8


# --- the statistic ---


def records(n: int) -> Records:
    images = torch.linspace(-1, 1, n * 4).view(n, 1, 2, 2)
    return Records(images, torch.arange(n)[:, None] % 3, torch.arange(n))


ABAR = torch.tensor([1.0, 0.9, 0.64], dtype=torch.float64)


def test_the_loss_of_a_denoiser_that_answers_the_class() -> None:
    """z = class: the error is (eps - class)^2, on average 1 + class^2."""
    result = statistics(
        lambda x, t, labels: labels[:, :, None, None].expand_as(x) * (t[0] == 2),
        records(6),
        alphas_bar=ABAR,
        timesteps=[1, 2],
        draws=2000,
        rng=generator(0),
    )
    assert result.shape == (6, 2) and result.dtype == torch.float64
    result = result.exp()
    torch.testing.assert_close(result[:, 0], torch.ones(6).double(), atol=0.05, rtol=0)
    torch.testing.assert_close(result[:, 1], torch.tensor([1.0, 2, 5] * 2).double(), atol=0.15, rtol=0)


# --- refused ---


@pytest.mark.parametrize(
    ("call", "says"),
    [
        *((lambda m=m: draw_memberships(10, m, generator(0)), f"shadows .* got {m}") for m in (7, 2)),
        (lambda: draw_memberships(1, 4, generator(0)), "records .* got 1"),
        *((lambda t=t: loss_of(timesteps=t), "timesteps") for t in ([3], [])),
        (lambda: loss_of(draws=0), "draws"),
        (lambda: loss_of(n=0), "records"),
    ],
)
def test_refused(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def loss_of(*, n: int = 3, timesteps: tuple[int, ...] | list[int] = (1,), draws: int = 1) -> Tensor:
    return statistics(
        lambda x, t, labels: x, records(n), alphas_bar=ABAR, timesteps=timesteps, draws=draws, rng=generator(0)
    )


# --- RMIA: against loops over a table of losses, and against simulated losses whose optimal attack is known


def table() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(target, shadows, inside, population) of 9 records, 6 shadows and 2 timesteps."""
    rng = generator(1, "table")
    losses = 0.2 + torch.rand(7, 9, 2, generator=rng, dtype=torch.float64)
    population = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    return losses[0].log(), losses[1:].log(), draw_memberships(9, 6, rng), population


def ratio(losses: list[float], inside: list[bool], own: float, a: float | None) -> float:
    """Pr(x given theta) / Pr(x) of one record, from its losses under the shadows; online where there is no a."""
    out = [math.exp(-loss) for loss, known in zip(losses, inside, strict=True) if not known]
    with_it = [math.exp(-loss) for loss, known in zip(losses, inside, strict=True) if known]
    mean = sum(out) / len(out)
    prior = (mean + sum(with_it) / len(with_it)) / 2 if a is None else ((1 + a) * mean + 1 - a) / 2
    return math.exp(-own) / prior


@pytest.mark.parametrize("online", [False, True])
def test_by_loops_over_a_table(monkeypatch: pytest.MonkeyPatch, online: bool) -> None:
    target, shadows, inside, population = table()
    a = [0.3, 0.8]
    monkeypatch.setattr(rmia, "interpolation", lambda *_: torch.tensor(a).double())
    result = rmia_scores(target, shadows, inside, population, online=online)
    for s in range(2):
        ratios = [
            ratio(
                shadows[:, i, s].exp().tolist(),
                inside[:, i].tolist(),
                float(target[i, s].exp()),
                None if online else a[s],
            )
            for i in range(9)
        ]
        for x in range(9):
            others = [z for z in range(9) if population[z] and z != x]
            share = sum(ratios[x] >= ratios[z] for z in others) / len(others)
            assert float(result[x, s]) == pytest.approx(1 - share, abs=1e-12)
    torch.testing.assert_close(result[:, 2], result[:, :2].mean(1))


def memorised(records: int, left: float) -> tuple[Tensor, Tensor]:
    """(statistics of 8 shadows (8, N, 1), inside): a shadow's loss of a record that it has is `left` times as large."""
    rng = generator(2, "memorised")
    inside = draw_memberships(records, 8, rng)
    hard = 0.02 + 0.2 * torch.rand(records, 1, generator=rng, dtype=torch.float64)
    noise = 0.1 * torch.randn(8, records, 1, generator=rng, dtype=torch.float64)
    return (hard * torch.where(inside[..., None], left, 1.0)).log() + noise, inside


def test_a_tells_best_what_shadow_0_was_trained_on() -> None:
    """By counting pairs for each a, with the other shadows' losses alone."""
    shadows, inside = memorised(60, 0.8)
    others, known, own = shadows[1:, :, 0].exp().T.tolist(), inside[1:].T.tolist(), shadows[0, :, 0].exp().tolist()
    aucs = {}
    for a in GRID:
        ratios = [ratio(others[i], known[i], own[i], a) for i in range(60)]
        pairs = [(ratios[x], ratios[y]) for x in range(60) for y in range(60) if inside[0, x] and not inside[0, y]]
        aucs[a] = sum((x > y) + (x == y) / 2 for x, y in pairs) / len(pairs)
    (chosen,) = interpolation(shadows, inside).tolist()
    assert aucs[chosen] == pytest.approx(max(aucs.values()), abs=1e-12)
    assert max(aucs.values()) > aucs[0.0] + 0.05


@pytest.mark.parametrize("left", [0.6, 0.8, 1.0])
def test_a_is_what_is_left_of_a_members_loss(left: float) -> None:
    """To first order exp(-L) is 1 - L, and in = a out + 1 - a says that a member's loss is a times a stranger's."""
    assert abs(float(interpolation(*memorised(4000, left))) - left) < 0.11


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("online", [False, True])
def test_the_auc_of_rmia_is_that_of_neyman_and_pearson(shift: float, online: bool) -> None:
    """A twentieth of normal losses, around 0.8: the ratio is nearly exp of a difference of losses."""
    target, shadows, inside, members, _ = (
        (0.8 + 0.05 * x).log() if x.is_floating_point() else x for x in simulated(shift=shift)
    )
    population = calibrating(members) & ~members
    result = judged(rmia_scores(target, shadows, inside, population, online=online), members)
    assert looks_like_guessing(result) is (shift == 0)
    if not shift:
        return
    low, high = result.auc_interval
    assert low < neyman_pearson(shift, noise=1 / 32 if online else 1 / 16) < high
    assert high - low < 0.06
    assert judged(lira.with_mean(target), members).auc_interval[1] < low


# --- Quantile regression: it minimises the pinball loss, covers what it says, and finds a planted leak


PIXELS = 6


def losses(n: int, seed: int, *, spread: float = 0.0) -> tuple[Tensor, Tensor]:
    """(pictures (n, 1, 1, 6), log losses (n, 1)): normal around a mean linear in the picture, which has variance 9
    among pictures, with the deviation 1 + spread |first pixel|."""
    rng = generator(seed, "losses")
    x = torch.randn(n, PIXELS, generator=rng, dtype=torch.float64)
    noise = torch.randn(n, 1, generator=rng, dtype=torch.float64) * (1 + spread * x[:, :1].abs())
    return x[:, None, None], 3 * x.mean(1, keepdim=True) * PIXELS**0.5 + noise


def pinball(residuals: Tensor, level: float) -> float:
    return float(torch.where(residuals >= 0, level * residuals, (level - 1) * residuals).mean())


@pytest.mark.parametrize("level", [0.1, 0.5])
def test_no_line_through_two_records_is_better(level: float) -> None:
    """A minimum of the pinball loss lies at a line through two of the records; of many colours one pixel is a line."""
    rng = generator(0, "line")
    x = torch.rand(3 * PER_COEFFICIENT, 1, generator=rng, dtype=torch.float64)
    y = 2 * x + torch.randn(len(x), 1, generator=rng, dtype=torch.float64)
    result = pinball(y - quantiles(x, y, x, level=level), level)
    lines = []
    for i, j in combinations(range(len(x)), 2):
        slope = (y[i] - y[j]) / (x[i] - x[j])
        lines.append(pinball(y - y[i] - slope * (x - x[i]), level))
    assert result == pytest.approx(min(lines), rel=1e-9)


@pytest.mark.parametrize("level", [0.1, 0.5])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_it_covers_what_it_says(level: float, spread: float) -> None:
    """To first order the share of new losses below the fitted quantile errs by the mean of (level - [y < q(x)]) over
    the n fitted records, whatever their spread (the normal equations of a design with a constant), and by the p
    records at most through which the fit passes; the share among m new ones errs by its own binomial deviation."""
    n, m, p = 1000, 10_000, PIXELS + 1
    (x, y), (new, truth) = losses(n, 1, spread=spread), losses(m, 2, spread=spread)
    below = float((truth < quantiles(x.flatten(1), y, new.flatten(1), level=level)).double().mean())
    assert abs(below - level) < 4 * math.sqrt(level * (1 - level) * (1 / n + 1 / m)) + p / n


def planted(shift: float) -> tuple[Tensor, Tensor, Tensor]:
    """(pictures, losses, members): a member's loss is `shift` lower."""
    x, y = losses(N, 3)
    members = torch.rand(N, generator=generator(3, "members")) < 0.5
    return x, y - shift * members[:, None], members


@pytest.mark.parametrize("shift", [0.7, 2.0])
def test_the_auc_of_quantiles_is_that_of_neyman_and_pearson(shift: float) -> None:
    """The variance of a prediction by p coefficients from n records is p / n of level (1 - level) / density^2, which
    is 2.92 for standard normal losses at a level of 0.1."""
    x, y, members = planted(shift)
    known = calibrating(members) & ~members
    result = judged(quantile_scores(y, x, known), members)
    assert not looks_like_guessing(result)
    low, high = result.auc_interval
    assert low < neyman_pearson(shift, noise=2.92 * (PIXELS + 1) / int(known.sum())) < high
    assert high - low < 0.06
    assert judged(lira.with_mean(y), members).auc_interval[1] < low  # one threshold for all records


def test_what_the_components_leave_of_a_picture_tells_of_its_loss() -> None:
    """Three directions in which pictures differ much say nothing; how rough they are in all the others does."""
    rng = generator(7, "rough")
    rough = torch.randn(N, 1, generator=rng, dtype=torch.float64)
    x = rough.exp() * torch.randn(N, 40, generator=rng, dtype=torch.float64)
    x[:, :3] = 1000 * torch.randn(N, 3, generator=rng, dtype=torch.float64)
    members = torch.rand(N, generator=rng) < 0.5
    y = 3 * rough + torch.randn(N, 1, generator=rng, dtype=torch.float64) - 1.5 * members[:, None]
    result = judged(quantile_scores(y, x[:, None, None], calibrating(members) & ~members), members)
    assert result.auc_interval[0] > judged(lira.with_mean(y), members).auc_interval[1] + 0.1


def test_without_a_leak_it_is_guessing() -> None:
    x, y, members = planted(0.0)
    assert looks_like_guessing(judged(quantile_scores(y, x, calibrating(members) & ~members), members))


def test_a_record_is_not_judged_by_a_fit_to_itself() -> None:
    x, y = losses(100, 4)
    known = torch.arange(100) % 2 == 0
    before = quantile_scores(y, x, known)
    y[40] -= 100
    after = quantile_scores(y, x, known)
    torch.testing.assert_close(before[40] - after[40], torch.full((2,), 100.0).double())
    assert not torch.equal(after[2], before[2])  # of another fold
    assert not torch.equal(after[1], before[1])  # of none
