"""Quantile regression: it minimises the pinball loss, covers what it says, and finds a planted leak."""

import math
from itertools import combinations

import pytest
import torch
from losses import N, calibrating, judged, looks_like_guessing, neyman_pearson
from torch import Tensor

from raydiff.evaluation.attacks import lira
from raydiff.evaluation.attacks.quantile import PER_COEFFICIENT, quantiles, scores
from raydiff.seeding import generator

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
def test_its_auc_is_that_of_neyman_and_pearson(shift: float) -> None:
    """The variance of a prediction by p coefficients from n records is p / n of level (1 - level) / density^2, which
    is 2.92 for standard normal losses at a level of 0.1."""
    x, y, members = planted(shift)
    known = calibrating(members) & ~members
    result = judged(scores(y, x, known), members)
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
    result = judged(scores(y, x[:, None, None], calibrating(members) & ~members), members)
    assert result.auc_interval[0] > judged(lira.with_mean(y), members).auc_interval[1] + 0.1


def test_without_a_leak_it_is_guessing() -> None:
    x, y, members = planted(0.0)
    assert looks_like_guessing(judged(scores(y, x, calibrating(members) & ~members), members))


def test_a_record_is_not_judged_by_a_fit_to_itself() -> None:
    x, y = losses(100, 4)
    known = torch.arange(100) % 2 == 0
    before = scores(y, x, known)
    y[40] -= 100
    after = scores(y, x, known)
    torch.testing.assert_close(before[40] - after[40], torch.full((2,), 100.0).double())
    assert not torch.equal(after[2], before[2])  # of another fold
    assert not torch.equal(after[1], before[1])  # of none
