"""Frechet and kernel distance of samples to real records in a feature space, with their noise floors.

Frechet distance (Heusel et al., NeurIPS 2017) and unbiased kernel distance with k(x, y) = (x.y / dim + 1)^3 (Binkowski
et al., ICLR 2018), as clean-fid computes them (Parmar et al., CVPR 2022); called FID and KID on Inception's features.
Their bias depends on the sizes of the sets. So every distance compares sets of EQUAL counts per class, and comes with
its noise floor, real half against real half. Below its floor, smaller is not better.

Shapes: features (N, dim), classes (N,) int64.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raydiff.data.records import half_counts
from raydiff.formats.metric_records import Metric
from raydiff.lookup import bare_name

PLAIN_NAMES = {"all": "distance_all", "minor": "distance_minority"}  # group of classes -> plain name of its distance
Beside = tuple[str, Tensor, Tensor, Tensor]
"""(group, samples, half A, half B): a group's samples beside two halves of the real records."""
SUBSET = 1000  # rows in one estimate of the kernel distance, at most


def frechet(a: Tensor, b: Tensor) -> float:
    """Return the Frechet distance of Gaussians fitted to a (N, dim) and b (M, dim), in squared feature units.

    Raises ValueError for fewer than 2 rows, different widths, or values that are not finite.
    """
    # the trace of the root of the product of covariances R^T R is the sum of the singular values of R_a R_b^T
    x, y = _as_doubles(a, b)
    root, other = (np.linalg.qr((z - z.mean(0)).numpy()).R / math.sqrt(len(z) - 1) for z in (x, y))
    traces = np.square(root).sum() + np.square(other).sum() - 2 * np.linalg.norm(root @ other.T, ord="nuc")
    return float((x.mean(0) - y.mean(0)).square().sum()) + float(traces)


def kernel(a: Tensor, b: Tensor, rng: torch.Generator) -> tuple[float, float]:
    """Return (estimate, spread) of the squared maximum mean discrepancy of features a (N, dim) and b (M, dim).

    The mean over 100 random subsets of min(N, M, 1000) rows, and their standard deviation; where both sets are the
    subset, the jackknife's standard error over pairs of rows. Raises ValueError as `frechet`.
    """
    x, y = _as_doubles(a, b)
    if len(x) == len(y) <= SUBSET:  # then every subset is the whole set, and one will do
        return _discrepancy(x, y), _jackknife(x, y)
    size = min(len(x), len(y), SUBSET)
    estimates = []
    for _ in range(100):
        subsets = (rows[torch.randperm(len(rows), generator=rng)[:size]] for rows in (x, y))
        estimates.append(_discrepancy(*subsets))
    return float(np.mean(estimates)), float(np.std(estimates, ddof=1))


def split_halves(classes: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return positions of two disjoint halves of classes (N,), with `half_counts` records of each class."""
    a = b = torch.empty(0, dtype=torch.int64)
    for c, n in half_counts(classes).items():
        rows = torch.nonzero(classes == c).flatten()
        rows = rows[torch.randperm(len(rows), generator=rng)]
        a = torch.cat([a, rows[:n]])
        b = torch.cat([b, rows[n : 2 * n]])
    return a, b


def beside_halves(
    samples: Tensor,
    sample_classes: Tensor,
    reference: Tensor,
    reference_classes: Tensor,
    *,
    groups: Mapping[str, Sequence[int]],
    rng: torch.Generator,
) -> Iterator[Beside]:
    """Yield (name, samples, half A, half B) of each group of classes that has a half.

    Raises ValueError unless the samples hold `half_counts` of each class.
    """
    wanted = half_counts(reference_classes)
    for c in sorted(set().union(*groups.values())):
        count = int((sample_classes == c).sum())
        need = wanted.get(c, 0)
        if count != need:
            raise ValueError(f"samples must hold {need} of class {c}, as half of the reference does, got {count}")
    both = split_halves(reference_classes, rng)
    for name, group in groups.items():
        members = torch.tensor(list(group), dtype=torch.int64)
        a, b = (reference[half[torch.isin(reference_classes[half], members)]] for half in both)
        if len(a):
            yield name, samples[torch.isin(sample_classes, members)], a, b


def frechet_distances(compared: Iterable[Beside], *, features: str) -> list[Metric]:
    """Return Frechet distances of samples to real records for each group in `beside_halves`, with their floors.

    A group's distance is the mean of the distances samples-A and samples-B, its floor the distance A-B. Raises
    ValueError as `frechet`.
    """
    metrics: list[Metric] = []
    for group, samples, a, b in compared:
        metric = frechet_metric(features, group)
        distance = (frechet(samples, a) + frechet(samples, b)) / 2
        metrics += [metric.with_value(distance), metric.beside(frechet(a, b), role="floor")]
    return metrics


def kernel_distances(compared: Iterable[Beside], *, features: str, rng: torch.Generator) -> list[Metric]:
    """Return kernel distances as `frechet_distances`, and their spread."""
    metrics: list[Metric] = []
    for group, samples, a, b in compared:
        metric = kernel_metric(features, group)
        readings = [kernel(samples, half, rng) for half in (a, b)]
        distance, spread = (sum(r) / 2 for r in zip(*readings, strict=True))
        metrics += [
            metric.with_value(distance),
            metric.beside(spread, role="spread"),
            metric.beside(kernel(a, b, rng)[0], role="floor"),
        ]
    return metrics


def frechet_metric(features: str, group: str) -> Metric:
    """Return the Frechet distance of a group in these features, without a value.

    Of Inception's many features the bias is too large to rank by a small group.
    """
    network = bare_name(features)
    ranks = {"all": 3} if network == "inception" else {"minor": 1, "all": 2}
    return _distance(
        "fid" if network == "inception" else f"fd_{network}", group, f"Fréchet distance of {network} features", ranks
    )


def kernel_metric(features: str, group: str) -> Metric:
    """Return the kernel distance of a group in these features, without a value."""
    network = bare_name(features)
    return _distance(
        "kid" if network == "inception" else f"kd_{network}",
        group,
        f"kernel distance of {network} features",
        {"all": 4},
    )


def _distance(name: str, group: str, description: str, ranks: Mapping[str, int]) -> Metric:
    return Metric(
        name=name,
        group=group,
        lower_is_better=True,
        shown=PLAIN_NAMES.get(group, ""),
        rank=ranks.get(group, 0),
        description=description,
    )


def label_accuracy(logits: Tensor, classes: Tensor) -> float:
    """Return the fraction of images with the right class: logits (N, classes), classes (N,)."""
    return float((logits.argmax(1) == classes).double().mean())


def _kernels(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(n, n) each: the sum of the kernels within x and y (n, dim) without the diagonal, and the kernel across."""
    within, across = ((u @ v.T / x.shape[1] + 1) ** 3 for u, v in ((x, x), (x, y)))
    within = within + (y @ y.T / x.shape[1] + 1) ** 3
    return within.fill_diagonal_(0.0), across


def _discrepancy(x: Tensor, y: Tensor) -> float:
    n = len(x)
    within, across = _kernels(x, y)
    return float(within.sum() / (n * (n - 1)) - 2 * across.sum() / n**2)


def _jackknife(x: Tensor, y: Tensor) -> float:
    """Standard error of the unbiased estimate on x and y (n, dim), leaving out row i of both; NaN below n = 3."""
    n = len(x)
    if n < 3:
        return math.nan
    within, across = _kernels(x, y)
    pairs = within.sum() - 2 * within.sum(0)
    crosses = across.sum() - across.sum(0) - across.sum(1) + across.diag()
    left_out = pairs / ((n - 1) * (n - 2)) - 2 * crosses / (n - 1) ** 2
    return float(((n - 1) / n * (left_out - left_out.mean()).square().sum()).sqrt())


def _as_doubles(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both as float64 on the CPU."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(
            f"features must be two matrices of equal width with at least 2 rows each, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if not (a.isfinite().all() and b.isfinite().all()):
        raise ValueError("features must be finite, got infinite or NaN values")
    return a.cpu().double(), b.cpu().double()
