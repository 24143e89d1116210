"""RMIA: against loops over a table of losses, and against simulated losses whose optimal attack is known."""

import math

import pytest
import torch
from losses import calibrating, judged, looks_like_guessing, neyman_pearson, simulated
from torch import Tensor

from raydiff.evaluation.attacks import lira, rmia
from raydiff.evaluation.attacks.lira import halves
from raydiff.evaluation.attacks.rmia import GRID, interpolation, scores
from raydiff.seeding import generator


def table() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(target, shadows, inside, population) of 9 records, 6 shadows and 2 timesteps."""
    rng = generator(1, "table")
    losses = 0.2 + torch.rand(7, 9, 2, generator=rng, dtype=torch.float64)
    population = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    return losses[0].log(), losses[1:].log(), halves(9, 6, rng), population


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
    result = scores(target, shadows, inside, population, online=online)
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
    inside = halves(records, 8, rng)
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
def test_its_auc_is_that_of_neyman_and_pearson(shift: float, online: bool) -> None:
    """A twentieth of normal losses, around 0.8: the ratio is nearly exp of a difference of losses."""
    target, shadows, inside, members, _ = (
        (0.8 + 0.05 * x).log() if x.is_floating_point() else x for x in simulated(shift=shift)
    )
    population = calibrating(members) & ~members
    result = judged(scores(target, shadows, inside, population, online=online), members)
    assert looks_like_guessing(result) is (shift == 0)
    if not shift:
        return
    low, high = result.auc_interval
    assert low < neyman_pearson(shift, noise=1 / 32 if online else 1 / 16) < high
    assert high - low < 0.06
    assert judged(lira.with_mean(target), members).auc_interval[1] < low
