"""LiRA: membership inference by likelihood ratios from shadow models (Carlini et al., IEEE S&P 2022, arXiv 2112.03570).

A record's loss under shadow models, each trained on a random half of the candidate records, tells whether the record is
easy for every model. Scores are low for members.

| paper | here |
|---|---|
| phi(f(x), y), logit-scaled confidence | `statistics`: log of the diffusion loss at fixed timesteps over fixed draws |
| Algorithm 1, online | `scores(..., online=True)`: log N(out) - log N(in) |
| section VI, offline: 1 - Pr[N(mu_out, sigma_out^2) > conf] | `lira_scores`: the standard normal quantile of it |
| one variance for all records where shadows are few | of the deviations from each record's mean, below `MANY` shadows |

Deviations: shadows come as complementary pairs, so each record is in exactly half of them. Timesteps are judged one by
one and by their mean, not by a joint covariance.

Shapes: N records, M shadows, S timesteps.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.evaluation.attacks.scores import Query, add_given_noise, in_batches
from raydiff.lookup import check_value
from raydiff.models.ddpm import Denoiser

MANY = 64  # shadows from which on a variance per record is worth estimating (section VI)
BATCH = 1024
TINY = 1e-30  # lower bound of losses and deviations


def draw_memberships(records: int, shadows: int, rng: torch.Generator) -> Tensor:
    """Return which records each shadow is trained on: (M, N) bool.

    Shadows 2i and 2i + 1 are complementary. Raises ValueError for an odd number of shadows or 1 to 3, and for fewer
    than 2 records.
    """
    check_value("shadows", shadows, shadows in {0, *range(4, shadows + 1, 2)}, "0 or an even number of at least 4")
    check_value("records", records, records >= 2, "at least 2 to be halved")
    inside = torch.zeros(shadows, records, dtype=torch.bool)
    for first in range(0, shadows, 2):
        inside[first, torch.randperm(records, generator=rng)[: records // 2]] = True
        inside[first + 1] = ~inside[first]
    return inside


def statistics(
    denoiser: Denoiser,
    records: Records,
    *,
    alphas_bar: Tensor,
    timesteps: Sequence[int],
    draws: int,
    rng: torch.Generator,
) -> Tensor:
    """Return the log of the mean over `draws` of || eps - z(sqrt(abar_t) x0 + sqrt(1 - abar_t) eps, t) ||^2 per pixel.

    (N, S) float64. Equal arguments give every model the same eps. Raises ValueError as `scores.in_batches`.
    """
    check_value("draws", draws, draws >= 1, "at least 1")

    def columns(z: Query, x0: Tensor) -> list[Tensor]:
        out = []
        for t in timesteps:
            losses = torch.zeros(len(x0), dtype=torch.float64)
            for _ in range(draws):
                eps = torch.randn(x0.shape, generator=rng)
                error = eps - z(add_given_noise(x0, eps, alphas_bar, t), t)
                losses += error.double().square().flatten(1).mean(1)
            out.append((losses / draws).clamp_min(TINY).log())
        return out

    return in_batches(columns, denoiser, records, alphas_bar=alphas_bar, timesteps=timesteps, batch=BATCH)


def lira_scores(target: Tensor, shadows: Tensor, inside: Tensor, *, online: bool = False) -> Tensor:
    """Return the scores of statistics (N, S) against the shadows' (M, N, S): (N, S + 1); the last column is the mean.

    Args:
        inside: (M, N), which records each shadow was trained on: each of at least 2 shadows, and not of 2.
    """
    mean, deviation = _fit_normals(shadows, ~inside)
    z = (target - mean) / deviation
    if online:
        mean, deviation_in = _fit_normals(shadows, inside)
        z_in = (target - mean) / deviation_in
        z = (z_in.square() - z.square()) / 2 + (deviation_in / deviation).log()
    return with_mean(z)


def with_mean(columns: Tensor) -> Tensor:
    """Append the mean over timesteps: (N, S) -> (N, S + 1)."""
    return torch.cat([columns, columns.mean(1, keepdim=True)], dim=1)


def mean_of(shadows: Tensor, which: Tensor) -> Tensor:
    """Return the mean (N, S) of values (M, N, S) over the shadows selected for each record, (M, N)."""
    weight = which[:, :, None].double()
    return (weight * shadows).sum(0) / weight.sum(0)


def _fit_normals(shadows: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, S), and standard deviation (N, S) or (1, S), over the shadows selected for each record."""
    mean = mean_of(shadows, which)
    weight = which[:, :, None].double()
    count = weight.sum(0)
    squares = (weight * (shadows - mean).square()).sum(0)
    spread = squares / (count - 1)
    if len(shadows) < MANY:
        spread = squares.sum(0, keepdim=True) / (count - 1).sum(0, keepdim=True)
    return mean, spread.sqrt().clamp_min(TINY)
