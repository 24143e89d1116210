from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raydiff.data.datasets import Records
from raydiff.evaluation.membership import Attack, attack, grid, pia_scores
from raydiff.seeding import generator


def column(*scores: float) -> Tensor:
    return torch.tensor(scores)[:, None]


def run(calibration: tuple[Tensor, Tensor], evaluation: tuple[Tensor, Tensor]) -> Attack:
    return attack(
        calibration_members=calibration[0],
        calibration_nonmembers=calibration[1],
        members=evaluation[0],
        nonmembers=evaluation[1],
    )


def gaussians(n: int, m: int, shift: float, rng: torch.Generator, columns: int = 1) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(n, columns, generator=rng),
        torch.randn(m, columns, generator=rng) + shift,
    )


def linear(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
    """z(x, t) = 2 x + t / 10 + class."""
    return 2 * x + (t / 10 + labels[:, 0]).view(-1, 1, 1, 1)


def records(n: int) -> Records:
    images = torch.linspace(-1, 1, n * 4).view(n, 1, 2, 2)
    return Records(images, torch.arange(n)[:, None] % 3, torch.arange(n))


def test_pia_of_a_linear_denoiser_by_hand() -> None:
    one = Records(torch.full((1, 1, 2, 2), 0.5), torch.ones(1, 1, dtype=torch.int64), torch.zeros(1).long())
    alphas_bar = torch.tensor([1.0, 0.9, 0.64], dtype=torch.float64)
    scores = pia_scores(linear, one, alphas_bar=alphas_bar, timesteps=[2])
    # e0 = 1 + 0.1 + 1; x_2 = 0.8 * 0.5 + 0.6 * 2.1 = 1.66; z(x_2, 2) = 4.52; four pixels of (2.1 - 4.52)^4
    assert scores.shape == (1, 1)
    assert float(scores) == pytest.approx(4 * 2.42**4, rel=1e-5)


def test_pia_in_batches_keeps_each_record_with_its_labels() -> None:
    alphas_bar = torch.linspace(1, 0.1, 11, dtype=torch.float64)
    together = pia_scores(linear, records(7), alphas_bar=alphas_bar, timesteps=[1, 4, 10])
    apart = pia_scores(linear, records(7), alphas_bar=alphas_bar, timesteps=[1, 4, 10], batch=3)
    assert together.shape == (7, 3)
    torch.testing.assert_close(together, apart)
    other = replace(records(7), labels=records(7).labels + 1)
    assert not torch.allclose(together, pia_scores(linear, other, alphas_bar=alphas_bar, timesteps=[1, 4, 10]))


@pytest.mark.parametrize("timesteps", [[], [0], [3, 11]])
def test_pia_refuses_timesteps_outside_the_chain(timesteps: list[int]) -> None:
    with pytest.raises(ValueError, match=r"timesteps must be one or more numbers in 1 \.\. 10"):
        pia_scores(linear, records(2), alphas_bar=torch.ones(11), timesteps=timesteps)


def test_grid_reaches_four_tenths_and_holds_the_papers_timestep() -> None:
    assert grid(1000) == [40, 80, 120, 160, 200, 240, 280, 320, 360, 400]
    assert grid(100)[-1] == 40
    assert grid(10) == [1, 2, 3, 4]
    assert grid(1) == [1]


def test_separated_scores_and_equal_scores_are_the_extremes() -> None:
    low, high = column(1, 2, 3), column(4, 5, 6)
    best = run((low, high), (low, high))
    assert (best.auc, best.balanced_accuracy, best.tpr_at_1pct_fpr) == (1.0, 1.0, 1.0)
    assert run((low, high), (high, low)).auc == 0.0
    same = run((low, low), (column(1, 1, 1), column(1, 1, 1)))
    assert (same.auc, same.balanced_accuracy, same.tpr_at_1pct_fpr) == (0.5, 0.5, 0.0)


def test_auc_counts_pairs_with_ties_as_half() -> None:
    members, nonmembers = column(1, 2, 2, 5), column(2, 3, 5)
    pairs = [1.0 if m < n else 0.5 if m == n else 0.0 for m in members for n in nonmembers]
    assert run((members, nonmembers), (members, nonmembers)).auc == pytest.approx(sum(pairs) / 12)


def test_delong_agrees_with_the_bootstrap() -> None:
    rng = generator(0)
    members, nonmembers = gaussians(150, 100, 0.7, rng)
    found = run((members, nonmembers), (members, nonmembers))
    low, high = found.auc_interval
    aucs = []
    for _ in range(2000):
        m = members[torch.randint(150, (150,), generator=rng), 0]
        n = nonmembers[torch.randint(100, (100,), generator=rng), 0]
        aucs.append((m[:, None] < n).double().mean())
    spread = float(torch.stack(aucs).std())
    assert (high - low) / (2 * 1.96) == pytest.approx(spread, rel=0.1)
    assert (high + low) / 2 == pytest.approx(found.auc)


def test_the_calibration_rows_choose_the_timestep() -> None:
    rng = generator(0)
    noise = gaussians(50, 50, 0, rng, columns=3)
    calibration = tuple(s.clone() for s in noise)
    calibration[1][:, 1] += 3  # column 1 separates in the calibration
    evaluation = tuple(s.clone() for s in gaussians(50, 50, 0, rng, columns=3))
    evaluation[1][:, 2] += 9  # column 2 would be best, in hindsight
    found = run((calibration[0], calibration[1]), (evaluation[0], evaluation[1]))
    assert found.timestep_index == 1
    assert found.auc < 0.7


def test_the_evaluation_rows_choose_nothing() -> None:
    rng = generator(0)
    calibration, evaluation = gaussians(120, 120, 1, rng, columns=4), gaussians(80, 80, 1, rng, columns=4)
    found = run(calibration, evaluation)
    mixed = torch.cat(evaluation)[torch.randperm(160, generator=rng)]
    other = run(calibration, (mixed[:80], mixed[80:]))
    assert (found.timestep_index, found.threshold) == (other.timestep_index, other.threshold)
    assert found.auc != other.auc
    assert run((calibration[0] + 1, calibration[1] + 1), evaluation).threshold != found.threshold


def test_the_threshold_is_the_best_of_the_calibration() -> None:
    found = run((column(1, 2, 3, 8), column(4, 6, 7, 9)), (column(3.4, 3.6), column(3.4, 9)))
    assert found.threshold == pytest.approx(3.5)  # 3 of 4 members at or below, no non-member
    assert found.balanced_accuracy == 0.5


def test_balanced_accuracy_interval_is_newcombes_published_example() -> None:
    # Newcombe 1998, table II (a), method 10: 56/70 - 48/80 = 0.2, 95 % interval 0.0524 to 0.3339
    members, nonmembers = column(*[0.0] * 56, *[2.0] * 14), column(*[0.0] * 48, *[2.0] * 32)
    found = run((column(0, 0), column(2, 2)), (members, nonmembers))
    assert found.balanced_accuracy == pytest.approx(0.6)
    assert found.balanced_accuracy_interval == pytest.approx(((1 + 0.0524) / 2, (1 + 0.3339) / 2), abs=5e-5)


def test_one_percent_threshold_comes_from_enough_calibration_nonmembers() -> None:
    hundred = torch.arange(100.0)[:, None]  # one of the hundred may be called a member: the bar is at 1
    members, nonmembers = column(*[0.5] * 3, *[1.0] * 7), column(0.5, *[2.0] * 3)
    found = run((column(-1, -1), hundred), (members, nonmembers))
    assert found.tpr_calibrated
    assert (found.tpr_at_1pct_fpr, found.fpr_reached) == (0.3, 0.25)
    assert found.tpr_at_1pct_fpr_interval == pytest.approx((0.1078, 0.6032), abs=5e-5)  # Wilson, 3 of 10


def test_with_fewer_calibration_nonmembers_it_is_read_off_the_evaluation() -> None:
    few = torch.arange(99.0)[:, None]
    members, nonmembers = column(*[0.5] * 3, *[1.0] * 7), column(*[1.0] * 4)
    found = run((column(-1, -1), few), (members, nonmembers))
    assert not found.tpr_calibrated
    assert (found.tpr_at_1pct_fpr, found.fpr_reached) == (0.3, 0.0)


def test_intervals_cover_a_known_auc() -> None:
    rng, truth, covered = (
        generator(0),
        0.5 * (1 + math.erf(1 / 2)),
        0,
    )  # unit Gaussians one apart: Phi(1/sqrt 2)
    for _ in range(200):
        low, high = run(gaussians(2, 2, 1, rng), gaussians(60, 60, 1, rng)).auc_interval
        covered += low <= truth <= high
    assert 181 <= covered <= 199  # binomial(200, 0.95): 190 +- 3 standard deviations


def test_metrics_are_flat_numbers() -> None:
    low, high = column(1, 2, 3), column(4, 5, 6)
    out = run((low, high), (low, high)).metrics("attack/client")
    assert out["attack/client/auc"] == 1.0
    assert (out["attack/client/auc_low"], out["attack/client/auc_high"]) == (1.0, 1.0)
    assert 0 < out["attack/client/tpr_at_1pct_fpr_low"] < out["attack/client/tpr_at_1pct_fpr_high"] <= 1
    assert (out["attack/client/n_members"], out["attack/client/tpr_calibrated"]) == (3.0, 0.0)
    assert all(type(v) is float for v in out.values())


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
