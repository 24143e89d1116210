"""Likelihood ratios: against simulated losses whose optimal attack is known, and against a model that memorised."""

import math

import pytest
import torch
from losses import judged, neyman_pearson, simulated
from torch import Tensor

from raydiff.data.records import Records
from raydiff.evaluation.attacks import lira
from raydiff.evaluation.attacks.lira import halves, scores, statistics
from raydiff.seeding import generator


@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0])
def test_its_auc_is_that_of_neyman_and_pearson(shift: float) -> None:
    """With k shadows without the record its mean is known up to 1/k of the variance, and nothing else is lost."""
    target, shadows, inside, members, mu = simulated(shift=shift)
    result = judged(scores(target, shadows, inside), members)
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
    offline, online = (judged(scores(target, shadows, inside, online=on), members) for on in (False, True))
    assert offline.auc_interval[0] < 0.5 < offline.auc_interval[1] + 0.05
    # the test is |z|: P(0.2 |z| < |z'|) of two normal draws
    assert online.auc == pytest.approx(1 - 2 * math.atan(0.2) / math.pi, abs=0.03)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    target = torch.tensor([[1.0], [5.0]], dtype=torch.float64)
    inside = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.bool)
    shadows = torch.tensor([[0.0, 4.0], [2.0, 7.0], [1.0, 8.0], [4.0, 9.0]], dtype=torch.float64)[:, :, None]
    # without: record 0 has 2 and 4, record 1 has 4 and 8: means 3 and 6, variances 2 and 8, shared 5
    torch.testing.assert_close(
        scores(target, shadows, inside)[:, 0], torch.tensor([-2.0, -1.0]).double() / math.sqrt(5)
    )
    with monkeypatch.context() as patch:
        patch.setattr(lira, "MANY", 4)  # a variance of each record
        each = scores(target, shadows, inside)
    torch.testing.assert_close(each, torch.tensor([[-math.sqrt(2)] * 2, [-math.sqrt(1 / 8)] * 2]).double())
    # with: means 0.5 and 8, variances 0.5 and 2, shared 1.25
    online = torch.tensor([(0.25 / 1.25 - 4 / 5), (9 / 1.25 - 1 / 5)]).double() / 2 + math.log(1.25 / 5) / 2
    torch.testing.assert_close(scores(target, shadows, inside, online=True)[:, 0], online)


def test_halves_are_halves() -> None:
    inside = halves(101, 8, generator(0))
    assert inside.sum(0).tolist() == [4] * 101
    assert inside.sum(1).tolist() == [50, 51] * 4
    assert torch.equal(inside, halves(101, 10, generator(0))[:8])  # more shadows leave the first as they were
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
        *((lambda m=m: halves(10, m, generator(0)), f"shadows .* got {m}") for m in (7, 2)),
        (lambda: halves(1, 4, generator(0)), "records .* got 1"),
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
