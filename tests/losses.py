"""Simulated losses of members and non-members, and the result of an attack on them."""

import math

import torch
from torch import Tensor

from raydiff.evaluation.attacks.lira import draw_memberships
from raydiff.evaluation.attacks.membership import AttackResult, attack_membership
from raydiff.seeding import generator

N = 4000


def calibrating(members: Tensor) -> Tensor:
    """Every other record."""
    return torch.arange(len(members)) % 2 == 0


def judged(columns: Tensor, members: Tensor) -> AttackResult:
    """An attack that half of the records calibrate."""
    half = calibrating(members)
    return attack_membership(
        calibration_members=columns[half & members],
        calibration_nonmembers=columns[half & ~members],
        members=columns[~half & members],
        nonmembers=columns[~half & ~members],
    )


def simulated(*, shift: float, spread: float = 1.0, shadows: int = 32) -> tuple[Tensor, ...]:
    """(target, shadows, inside, members, mu): losses N(mu_i, 1) of non-members, N(mu_i - shift, spread^2) of members;
    mu_i ~ N(0, 3^2)."""
    rng = generator(7, "simulated")
    inside = draw_memberships(N, shadows, rng)
    members = torch.rand(N, generator=rng) < 0.5
    mu = 3 * torch.randn(N, generator=rng, dtype=torch.float64)

    def loss(trained_on: Tensor) -> Tensor:
        noise = torch.randn(trained_on.shape, generator=rng, dtype=torch.float64)
        return (mu + torch.where(trained_on, spread * noise - shift, noise))[..., None]

    return loss(members), loss(inside), inside, members, mu[:, None]


def neyman_pearson(shift: float, *, noise: float) -> float:
    """AUC of the best test between N(0, v) and N(-shift, v), v = 1 + noise."""
    return 0.5 * (1 + math.erf(shift / math.sqrt(2 * (1 + noise)) / math.sqrt(2)))


def looks_like_guessing(result: AttackResult) -> bool:
    """Whether its AUC is within four standard deviations of 1/2, for m members among n others in random order: Mann and
    Whitney's variance (m + n + 1) / (12 m n), smaller with ties. False for one guess in 15,000."""
    m, n = result.n_members, result.n_nonmembers
    return abs(result.auc - 0.5) < 4 * math.sqrt((m + n + 1) / (12 * m * n))
