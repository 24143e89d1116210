"""Membership inference by quantile regression: no shadow model.

Bertran et al., NeurIPS 2023 (arXiv 2307.03694), on diffusion models Tang et al. (arXiv 2312.05140). What a record's
loss would be if nobody had trained on it is predicted from the record alone, by a regression on records of which this
is known: of the conditional quantile q(x), which minimises the mean of the pinball loss

    level (s - q(x))          where s >= q(x)
    (1 - level) (q(x) - s)    elsewhere

A record whose loss s lies far below its own q(x) is called a member.

Deviations: the papers' regressors are networks, fitted to many times as many records; a client's calibration records
are hundreds, so that this one is linear, in as many of the pictures' principal components as there are records to
determine (`PER_COEFFICIENT`), and in what these leave of a picture. Where there are too few it is a constant: a
threshold for all records. One level is predicted and the others are parallel to it, in place of a regression for each
false positive rate: the threshold comes from calibration records as every attack's does. s is the logarithm of the
loss over fixed draws (`lira.statistics`), not SecMI's error. No bag of bootstrapped regressors. A record that was
fitted to is scored by a regression on other folds.

It is no attack of `scores.ATTACKS`, which sees a denoiser and records and does not know who is no member.

Shapes: N records, n of them to fit to, S timesteps, p coefficients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raydiff.evaluation.attacks.lira import TINY, with_mean
from raydiff.evaluation.attacks.membership import FOLDS

LEVEL = 0.1
"""Share of the non-members whose loss lies below the quantile: low, for the lower tail decides at few false alarms, and
not so low that a few hundred records could not tell where it begins."""
COMPONENTS = 16
"""Principal components at most."""
PER_COEFFICIENT = 10
"""Records to fit to for each coefficient, at least."""


def scores(statistics: Tensor, images: Tensor, known: Tensor) -> Tensor:
    """Of the target's statistics (N, S) of pictures (N, C, H, W): statistic - q(picture), (N, S + 1), low for members.

    `known` (N,) bool: the n records that nobody trained on. The last column is the mean of the others. Raises
    ValueError on shapes that do not go together, and fewer than 2 records to fit to."""
    if statistics.dim() != 2 or len(images) != len(statistics) or known.shape != statistics.shape[:1]:
        shapes = f"{tuple(statistics.shape)}, {tuple(images.shape)} and {tuple(known.shape)}"
        raise ValueError(f"statistics, images and known must be (N, S), (N, C, H, W) and (N,), got {shapes}")
    if int(known.sum()) < 2:
        raise ValueError(f"known must name at least 2 records to fit to, got {int(known.sum())}")
    flat = images.double().flatten(1)
    rows = known.nonzero()[:, 0]
    predicted = quantiles(flat[rows], statistics[rows], flat, level=LEVEL)
    fold = torch.arange(len(rows)) % FOLDS
    for k in range(min(FOLDS, len(rows))):
        held, others = rows[fold == k], rows[fold != k]
        predicted[held] = quantiles(flat[others], statistics[others], flat[held], level=LEVEL)
    return with_mean(statistics - predicted)


def quantiles(records: Tensor, statistics: Tensor, new: Tensor, *, level: float) -> Tensor:
    """Of `new` records (m, d) the predicted quantiles (m, S), by a fit to records (n, d) with statistics (n, S)."""
    from sklearn.linear_model import QuantileRegressor  # a second to import: only where it is used

    design, asked = _designs(records, new)
    columns = []
    for s in statistics.double().T:
        model = QuantileRegressor(quantile=level, alpha=0.0, fit_intercept=False)
        columns.append(torch.from_numpy(model.fit(design.numpy(), s.numpy()).predict(asked.numpy())))
    return torch.stack(columns, dim=1)


def _designs(records: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """What the quantiles are linear in, (n, p) and (m, p): 1, the first principal components of the records in units of
    their deviation, and the logarithm of what these leave, if anything."""
    n, mean = len(records), records.mean(0)
    _, sizes, directions = torch.linalg.svd(records - mean, full_matrices=False)
    rank = int((sizes > 1e-6 * sizes[0]).sum())
    count = max(0, min(COMPONENTS, n // PER_COEFFICIENT - 2, rank))

    def design(x: Tensor) -> Tensor:
        along = (x - mean) @ directions[:count].T
        left = ((x - mean).square().sum(1) - along.square().sum(1)).clamp_min(TINY).log()
        columns = [torch.ones_like(left), *(along / (sizes[:count] / n**0.5)).T]
        return torch.stack([*columns, left] if 0 < count < rank else columns, dim=1)

    return design(records), design(new)
