"""What PFDM would do if every denoiser were perfect: closed forms for Gaussian classes. Nothing is trained.

A denoiser fitted to N(m, S) whose score is exact makes the reverse chain affine in x. Started from
x_t0 ~ N(mu~, S~) and run to 0 it ends, as its steps grow fine, in a Gaussian with

    mean  m + G (mu~ - sqrt(abar) m)        cov  G S~ G                            DDIM (eta = 0)
                                            cov  G S~ G + S (I - A^2)              ancestral (variance beta_t)

where sqrt(abar) G = A for DDIM and A^2 for the ancestral chain, and A has the eigenvectors of S and the entries
sqrt(lambda abar / (1 + (lambda - 1) abar)). With mu~ = sqrt(abar) mu_global this is the mean A mu_global + (I - A) m
of PFDM's proof (Patel et al., CVPR 2026, arXiv 2504.00952, appendix E.2). That proof follows the probability-flow
ODE, so it is about DDIM; for the paper's Algorithm 4 the global mean's weight is A^2.

Shapes: d pixels; leading axes are batches (classes, trials). All in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Generator, Tensor

from raydiff.models.ddpm import Denoiser
from raydiff.models.samplers import denoise
from raydiff.models.schedules import LinearBetas, alphas_bar
from raydiff.papers.pfdm.depth import depth_for
from raydiff.tree import clip_records

ABAR = alphas_bar(LinearBetas(), 1000)
"""(1001,): the schedule of all tables."""
RANK = 1e-10  # eigenvalues below this fraction of the largest one are rounding


@dataclass(frozen=True, eq=False)
class Gauss:
    """Gaussians N(mean, cov), one for each leading index; a `cov` without leading axes is common to all."""

    mean: Tensor  # (..., d) float64
    cov: Tensor  # (..., d, d) float64, positive semi-definite

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (..., d), ascending and at least 0, and eigenvectors (..., d, d) in columns."""
        values, vectors = torch.linalg.eigh(self.cov)
        return values.clamp_min(0), vectors

    @cached_property
    def factor(self) -> Tensor:
        """L (..., d, r) with L L^T = cov, where r is the largest rank."""
        values, vectors = self.spectrum
        rank = int((values > RANK * values.amax()).sum(-1).max())
        return vectors[..., -rank:] * values[..., None, -rank:].sqrt() if rank else vectors[..., :1] * 0

    def __getitem__(self, index: Tensor) -> Gauss:
        """Those at `index` along the first axis."""
        return Gauss(self.mean[index], self.cov[index] if self.cov.dim() > 2 else self.cov)

    def noised(self, abar: float) -> Gauss:
        """The distribution of sqrt(abar) x + sqrt(1 - abar) z."""
        eye = torch.eye(self.mean.shape[-1], dtype=self.mean.dtype)
        return Gauss(math.sqrt(abar) * self.mean, abar * self.cov + (1 - abar) * eye)

    def sample(self, count: int, rng: Generator) -> Tensor:
        """`count` records of each, (..., count, d)."""
        L = self.factor
        z = torch.randn(*self.mean.shape[:-1], count, L.shape[-1], dtype=torch.float64, generator=rng)
        return self.mean.unsqueeze(-2) + z @ L.mT

    def predict(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """The exact noise prediction sqrt(1 - abar_t) S_t^-1 (x - sqrt(abar_t) mean) for x (B, d)."""
        (values, vectors), abar = self.spectrum, float(ABAR[int(t[0])])
        along = (x - math.sqrt(abar) * self.mean) @ vectors
        return math.sqrt(1 - abar) * (along / (abar * values + 1 - abar)) @ vectors.mT


def reverse(
    predict: Denoiser, x: Tensor, start: int, stop: int = 0, *, sampler: str, rng: Generator, steps: int = 1000
) -> Tensor:
    """raydiff's chain, `denoise`, from x = x_start (B, d) to x_stop in at most `steps` steps."""
    none = torch.zeros(len(x), 0)
    return denoise(predict, x, labels=none, abar=ABAR, start=start, stop=stop, sampler=sampler, steps=steps, rng=rng)


@cache
def depth(epsilon: float | None, clip: float) -> int:
    """t0 of a budget with delta 1e-5, by the exact accountant; None: 1, without noise."""
    if epsilon is None:
        return 1
    return depth_for(epsilon=epsilon, delta=1e-5, clip=clip, alphas_bar=ABAR, accountant="exact")


def fitted(x: Tensor) -> Gauss:
    """Mean and covariance (divided by n, as in the paper) of the records x (..., n, d)."""
    mean = x.mean(-2)
    centred = x - mean.unsqueeze(-2)
    return Gauss(mean, centred.mT @ centred / x.shape[-2])


def fitted_classes(classes: Sequence[Tensor], *, shared: bool = True) -> Gauss:
    """One Gaussian for each class's records (n_c, d): means (K, d).

    One covariance for all if `shared`, the mean of the classes' weighted by their numbers of records, else one for
    each.
    """
    fits = [fitted(x) for x in classes]
    covs = torch.stack([f.cov for f in fits])
    counts = torch.tensor([len(x) for x in classes], dtype=torch.float64)
    common = torch.einsum("c,cij->ij", counts / counts.sum(), covs) if shared else covs
    return Gauss(torch.stack([f.mean for f in fits]), common)


def weight(eigenvalues: Tensor, abar: float, sampler: str) -> Tensor:
    """Fraction of the global mean left after the client's chain in each eigen-direction: A, or A^2 if ancestral.

    For abar < 1.
    """
    square = eigenvalues * abar / (1 + (eigenvalues - 1) * abar)
    return square.sqrt() if sampler == "ddim" else square


def measured_weight(eigenvalue: float, t0: int, *, sampler: str, steps: int = 1000) -> float:
    """The same number from `reverse`, with the exact score of N(0, eigenvalue) as its denoiser.

    Two chains with the same noise, from x_t0 = 1 and from 0: their difference is the factor between x_t0 and x_0.
    """
    client = Gauss(torch.zeros(1, dtype=torch.float64), torch.full((1, 1), eigenvalue, dtype=torch.float64))

    def end(x: float) -> float:
        x_t0 = torch.full((1, 1), x, dtype=torch.float64)
        rng = Generator().manual_seed(0)
        return float(reverse(client.predict, x_t0, t0, sampler=sampler, rng=rng, steps=steps))

    return math.sqrt(float(ABAR[t0])) * (end(1.0) - end(0.0))


def refine(start: Gauss, client: Gauss, *, abar: float, sampler: str) -> Gauss:
    """What the client's chain from t0 to 0 makes of x_t0 ~ `start`, with the exact score of `client`. abar < 1."""
    values, vectors = client.spectrum
    w = weight(values, abar, sampler)
    G = vectors * (w / math.sqrt(abar)).unsqueeze(-2) @ vectors.mT
    gap = start.mean - math.sqrt(abar) * client.mean
    cov = G @ start.cov @ G
    if sampler == "ancestral":
        cov = cov + vectors * (values * (1 - w)).unsqueeze(-2) @ vectors.mT
    return Gauss(client.mean + (G @ gap.unsqueeze(-1)).squeeze(-1), cov)


def w2_squared(p: Gauss, truth: Gauss) -> Tensor:
    """Squared 2-Wasserstein distances (...,): |means|^2 + tr P + tr Q - 2 tr (Q^1/2 P Q^1/2)^1/2."""
    L = truth.factor
    roots = torch.linalg.eigvalsh(L.mT @ p.cov @ L).clamp_min(0).sqrt().sum(-1)
    traces = p.cov.diagonal(dim1=-2, dim2=-1).sum(-1) + truth.cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    distance: Tensor = (p.mean - truth.mean).square().sum(-1) + (traces - 2 * roots).clamp_min(0)
    return distance


def uploads(x: Tensor, noise: Tensor, *, abar: float, clip: float | None) -> Tensor:
    """sqrt(abar) CLIP(x, clip) + sqrt(1 - abar) noise for records (..., d); clip None leaves them as they are."""
    d = x.shape[-1]
    clipped = x if clip is None else clip_records(x.reshape(-1, d), clip).view_as(x)
    return math.sqrt(abar) * clipped + math.sqrt(1 - abar) * noise


def deconvolved(sent: Gauss, *, abar: float, count: int) -> Gauss:
    """The classes' Gaussians, estimated from `fitted` uploads and the known noise, without any diffusion model.

    Mean / sqrt(abar), and (cov - (1 - abar) I) / abar in those eigen-directions alone that stand above what noise of
    `count` records reaches by itself, (1 - abar) (1 + sqrt(d / count))^2 (Marchenko & Pastur): the others are noise.
    """
    values, vectors = sent.spectrum
    edge = (1 - abar) * (1 + math.sqrt(values.shape[-1] / count)) ** 2
    kept = torch.where(values > edge, (values - (1 - abar)) / abar, 0.0)
    return Gauss(sent.mean / math.sqrt(abar), vectors * kept.unsqueeze(-2) @ vectors.mT)
