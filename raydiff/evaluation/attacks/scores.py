"""Membership attacks on a denoiser: scores of records, low for members. `membership` measures them.

| name | score at timestep t, e0 = z(x0, 1) | source |
|---|---|---|
| loss | mean over draws of (eps - z(sqrt(abar_t) x0 + sqrt(1 - abar_t) eps, t))^2 | Matsumoto et al., 2023 |
| pia | (e0 - z(sqrt(abar_t) x0 + sqrt(1 - abar_t) e0, t))^4 | Kong et al., ICLR 2024 |
| secmi | (x_t - what DDIM makes of x_t one step further and back)^2, x_t from x0 by DDIM | Duan et al., ICML 2023 |
| sima | z(x0, t)^4 | Rao et al., arXiv 2509.25003 |

Each is summed over channels and pixels. The papers' timesteps start at 0 and ours at 1; a clean record has abar_0 = 1.
SecMI is its statistic (SecMI_stat), whose steps are T / 100 long.

Shapes: N records in all, n of a batch, S timesteps, D draws of the loss.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.lookup import Door, takes
from raydiff.models.ddpm import Denoiser

DRAWS = 4  # noise draws per loss
Query = Callable[[Tensor, int], Tensor]  # (x_t (n, C, H, W), t) -> predicted noise, for the records' labels


class Attack(Protocol):
    """A score of some records at each of these timesteps."""

    def __call__(self, z: Query, x0: Tensor, *, abar: Tensor, timesteps: Sequence[int], noise: Tensor) -> list[Tensor]:
        """x0 (n, C, H, W), abar (T + 1,), noise (D, C, H, W): S scores (n,). Only `loss` needs the noise."""


def loss(z: Query, x0: Tensor, *, abar: Tensor, timesteps: Sequence[int], noise: Tensor) -> list[Tensor]:
    """Return the training loss at t, with the same noise for all records and timesteps."""
    return [
        torch.stack([_power(eps - z(add_given_noise(x0, eps, abar, t), t), 2) for eps in noise]).mean(0)
        for t in timesteps
    ]


def pia(z: Query, x0: Tensor, *, abar: Tensor, timesteps: Sequence[int], noise: Tensor) -> list[Tensor]:
    """Return the loss with the model's prediction for the clean record as the noise (proximal initialisation)."""
    e0 = z(x0, 1)
    return [_power(e0 - z(add_given_noise(x0, e0, abar, t), t), 4) for t in timesteps]


def secmi(z: Query, x0: Tensor, *, abar: Tensor, timesteps: Sequence[int], noise: Tensor) -> list[Tensor]:
    """Return DDIM's step error at t. One chain passes through all timesteps, so some of its steps are shorter."""
    steps = len(abar) - 1
    k = max(1, round(steps / 100))
    if max(timesteps) >= steps:
        raise ValueError(f"secmi goes one step beyond t: timesteps must be below {steps}, got {max(timesteps)}")
    levels = sorted({*range(0, max(timesteps), k), *timesteps, 0})
    x = x0
    errors = {}
    for t, after in itertools.zip_longest(levels, levels[1:]):
        eps = z(x, max(t, 1))
        if t in timesteps:
            beyond = min(t + k, steps)
            further = _ddim(x, eps, abar, t, beyond)
            errors[t] = _power(x - _ddim(further, z(further, beyond), abar, beyond, t), 2)
        if after is not None:
            x = _ddim(x, eps, abar, t, after)
    return [errors[t] for t in timesteps]


def sima(z: Query, x0: Tensor, *, abar: Tensor, timesteps: Sequence[int], noise: Tensor) -> list[Tensor]:
    """Return the noise that the model predicts in the clean record."""
    return [_power(z(x0, t), 4) for t in timesteps]


ATTACKS: Door[Attack] = Door(
    "attack",
    {"loss": loss, "pia": pia, "secmi": secmi, "sima": sima},
    check=takes("z", "x0", "abar", "timesteps", "noise"),
)


def score_records(
    attack: Attack,
    denoiser: Denoiser,
    records: Records,
    *,
    alphas_bar: Tensor,
    timesteps: Sequence[int],
    rng: torch.Generator,
    batch: int = 256,
) -> Tensor:
    """Return the scores of all records, (N, S) float64, low for members.

    All records get the same noise from `rng`: comparable scores need equal generators. Raises as `in_batches`.
    """
    noise = torch.randn(DRAWS, *records.images.shape[1:], generator=rng)

    def columns(z: Query, x0: Tensor) -> list[Tensor]:
        return attack(z, x0, abar=alphas_bar, timesteps=timesteps, noise=noise)

    return in_batches(columns, denoiser, records, alphas_bar=alphas_bar, timesteps=timesteps, batch=batch)


@torch.no_grad()
def in_batches(
    columns: Callable[[Query, Tensor], list[Tensor]],
    denoiser: Denoiser,
    records: Records,
    *,
    alphas_bar: Tensor,
    timesteps: Sequence[int],
    batch: int,
) -> Tensor:
    """Return the S columns of each batch of records, joined: (N, S).

    `alphas_bar` is (T + 1,) with abar_0 = 1. Raises ValueError for a timestep outside 1 .. T, and without a timestep or
    record.
    """
    steps = len(alphas_bar) - 1
    if not timesteps or any(not 1 <= t <= steps for t in timesteps):
        raise ValueError(f"timesteps must be one or more numbers in 1 .. {steps}, got {list(timesteps)}")
    if len(records) == 0:
        raise ValueError("records must hold at least one record to score")
    rows = []
    for x0, labels in zip(records.images.split(batch), records.labels.split(batch), strict=True):

        def query(x: Tensor, t: int, labels: Tensor = labels) -> Tensor:
            return denoiser(x, torch.full((len(x),), t, dtype=torch.int64), labels)

        rows.append(torch.stack(columns(query, x0), dim=1))
    return torch.cat(rows)


def grid(timesteps: int) -> list[int]:
    """Return the timesteps to try for T = `timesteps`: 1, T/100, ..., 0.4 T, densest where attacks are strongest."""
    return sorted({1, *(max(1, round(timesteps * percent / 100)) for percent in (1, 2, 4, 6, 10, 14, 20, 28, 40))})


def add_given_noise(x0: Tensor, eps: Tensor, abar: Tensor, t: int) -> Tensor:
    """Return x_t of records (n, C, H, W) and their noise."""
    a = float(abar[t])
    return math.sqrt(a) * x0 + math.sqrt(1 - a) * eps


def _ddim(x: Tensor, eps: Tensor, abar: Tensor, t: int, to: int) -> Tensor:
    """x_t to x_to, up or down, by DDIM with eta = 0."""
    a = float(abar[t])
    b = float(abar[to])
    return math.sqrt(b) * ((x - math.sqrt(1 - a) * eps) / math.sqrt(a)) + math.sqrt(1 - b) * eps


def _power(x: Tensor, p: int) -> Tensor:
    """||x||_p^p of each record, (n,) float64."""
    return x.double().abs().pow(p).flatten(1).sum(1)
