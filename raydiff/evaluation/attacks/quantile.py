"""Membership inference by quantile regression, without shadow models.

Bertran et al., NeurIPS 2023, arXiv 2307.03694; for diffusion models Tang et al., arXiv 2312.05140.

A regression on non-members predicts a low quantile q(x) of a record's loss s by the pinball loss. A record whose loss
lies far below its q(x) is called a member.

Deviations: the papers' regressors are networks; this one, for hundreds of calibration records, is linear in as many
principal components of the pictures as these determine and in the log residual. One level is predicted, and thresholds
for other false positive rates are parallel to it. s is the log loss over fixed draws (`lira.statistics`), not SecMI's
error. There is no bootstrap. A fitted record is scored by a regression on other folds.

Shapes: N records, n of them to fit to, S timesteps, p coefficients.
"""

import torch
from torch import Tensor

from raydiff.evaluation.attacks.lira import TINY, with_mean
from raydiff.evaluation.attacks.membership import FOLDS

LEVEL = 0.1  # of the quantile: the lower tail matters, and a few hundred records must determine it
COMPONENTS = 16  # principal components at most
PER_COEFFICIENT = 10  # fitted records per coefficient, at least


def quantile_scores(statistics: Tensor, images: Tensor, nonmembers: Tensor) -> Tensor:
    """Return statistics (N, S) minus q of pictures (N, C, H, W): (N, S + 1), low for members; the last is the mean.

    `nonmembers` (N,) bool says on which to fit, at least 2.
    """
    flat = images.double().flatten(1)
    rows = nonmembers.nonzero()[:, 0]
    predicted = quantiles(flat[rows], statistics[rows], flat, level=LEVEL)
    fold = torch.arange(len(rows)) % FOLDS
    for k in range(min(FOLDS, len(rows))):
        held = rows[fold == k]
        others = rows[fold != k]
        predicted[held] = quantiles(flat[others], statistics[others], flat[held], level=LEVEL)
    return with_mean(statistics - predicted)


def quantiles(records: Tensor, statistics: Tensor, new: Tensor, *, level: float) -> Tensor:
    """Return the quantiles (m, S) of `new` records (m, d), by a fit to records (n, d) with statistics (n, S)."""
    from sklearn.linear_model import QuantileRegressor  # a second to import: only where it is used

    design, design_new = _designs(records, new)
    columns = []
    for s in statistics.double().T:
        model = QuantileRegressor(quantile=level, alpha=0.0, fit_intercept=False)
        columns.append(torch.from_numpy(model.fit(design.numpy(), s.numpy()).predict(design_new.numpy())))
    return torch.stack(columns, dim=1)


def _designs(records: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Regressors (n, p) and (m, p): 1, the first principal components, standardised, and the log residual, if any."""
    n = len(records)
    mean = records.mean(0)
    _, sizes, directions = torch.linalg.svd(records - mean, full_matrices=False)
    rank = int((sizes > 1e-6 * sizes[0]).sum())
    count = max(0, min(COMPONENTS, n // PER_COEFFICIENT - 2, rank))

    def design(x: Tensor) -> Tensor:
        along = (x - mean) @ directions[:count].T
        left = ((x - mean).square().sum(1) - along.square().sum(1)).clamp_min(TINY).log()
        columns = [torch.ones_like(left), *(along / (sizes[:count] / n**0.5)).T]
        return torch.stack([*columns, left] if 0 < count < rank else columns, dim=1)

    return design(records), design(new)
