"""A Gaussian for each row of labels from noised sums: means of their own, one covariance for all.

The sums are S_k = sum of u over the n_k records of row k, and M = sum of u u^T over all n, packed so that the Frobenius
norm is the Euclidean one; both have Gaussian noise of a given scale.

Noise alone gives M / n the spectrum of a Wigner matrix, a semicircle that ends at 2 s sqrt(d), with s its standard
deviation off the diagonal: eigenvalues within are dropped, and one at l > 2 s sqrt(d) becomes a spike of
(l + sqrt(l^2 - 4 s^2 d)) / 2 (Benaych-Georges & Nadakuditi 2011, arXiv 0910.2120). The rest of the trace is spread
evenly. With the estimated second moment T as the prior of every mean, the best linear estimate of a mean is
T (T + v_k I)^-1 S_k / n_k, where v_k is the variance of S_k / n_k; the covariance is T less the second moment of the
means, with eigenvalues of at least 0. So samples have the second moment T, however noisy the means are.

Shapes: u (N, d); R rows of labels.
"""

import math

import torch
from torch import Tensor

from raydiff.data.records import label_rows
from raydiff.models.by_row import ByRow
from raydiff.models.ddpm import Denoiser
from raydiff.settings import settings
from raydiff.tree import Params


@settings(frozen=True, kw_only=True)
class Gaussians(ByRow):
    """A Gaussian for each row of labels, with one covariance, and nothing learned.

    Its parameters are mean (R, C, H, W), and the covariance as vectors (d, d), whose columns are its directions, and
    scales (d,), the standard deviations along them.
    """

    def draw(self, params: Params, labels: Tensor, rng: torch.Generator) -> Tensor:
        z = torch.randn(len(labels), self.pixels, generator=rng) * params["scales"]
        mean = params["mean"][label_rows(labels, self.labels)]
        return (mean + (z @ params["vectors"].T).view_as(mean)).clamp(-1, 1)

    def denoiser(self, params: Params) -> Denoiser:
        """(x_t, t, labels) -> E[z | x_t] for x_t = sqrt(abar_t) x + sqrt(1 - abar_t) z, in closed form."""
        vectors = params["vectors"]
        variances = params["scales"].square()
        abar = self.abar

        def call(x_t: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            a = abar[t].float()[:, None]
            mean = params["mean"][label_rows(labels, self.labels)].flatten(1)
            along = (x_t.flatten(1) - a.sqrt() * mean) @ vectors
            z = (along * (1 - a).sqrt() / (a * variances + 1 - a)) @ vectors.T
            return z.view_as(x_t)

        return call


def pack_outer_products(u: Tensor) -> Tensor:
    """(d (d + 1) / 2,) in float64: the sum of u u^T over u (N, d), its upper triangle row by row.

    Times sqrt 2 off the diagonal, so that the Euclidean norm is the matrix's.
    """
    u = u.double()
    row, column = torch.triu_indices(u.shape[1], u.shape[1])
    return (u.T @ u)[row, column] * _weights(row, column)


def unpack_matrix(values: Tensor, d: int) -> Tensor:
    """(d, d): the symmetric matrix."""
    row, column = torch.triu_indices(d, d)
    out = torch.zeros(d, d, dtype=values.dtype)
    out[row, column] = values / _weights(row, column)
    return torch.triu(out, 1).T + out


def _weights(row: Tensor, column: Tensor) -> Tensor:
    return torch.where(row == column, 1.0, 2.0).double().sqrt()  # In float64: float32's root of 2 is less exact.


def remove_noise(second: Tensor, std: float) -> tuple[Tensor, Tensor]:
    """(eigenvalues (d,) >= 0, eigenvectors (d, d)) of a symmetric (d, d), freed of noise `std` on packed entries."""
    values, vectors = torch.linalg.eigh(second)
    edge = math.sqrt(2 * len(second)) * std
    spike = values > edge
    spikes = torch.where(spike, (values + (values.square() - edge * edge).clamp_min(0).sqrt()) / 2, 0.0)
    rest = (values.sum() - spikes.sum()).clamp_min(0) / max(1, int((~spike).sum()))
    return torch.where(spike, spikes, rest), vectors


def estimate_gaussians(
    sums: Tensor, second: Tensor, counts: Tensor, *, std: float, second_std: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(means (R, d), vectors (d, d), scales (d,)) from sums (R, d), second (d, d) and counts (R,), float64.

    The sums have noise of standard deviations `std` and `second_std`. A row without records gets the mean of all.
    """
    n = float(counts.sum())
    values, vectors = remove_noise(second / n, second_std / n)
    present = counts > 0
    weights = counts / n
    noise = (std / counts[present, None]).square()
    shrunk = values / (values + noise).clamp_min(torch.finfo(values.dtype).tiny)
    means = torch.zeros_like(sums)
    means[present] = ((sums[present] / counts[present, None]) @ vectors * shrunk) @ vectors.T
    means[~present] = weights @ means
    between = (means * weights[:, None]).T @ means
    within, vectors = torch.linalg.eigh((vectors * values) @ vectors.T - between)
    return means, vectors, within.clamp_min(0).sqrt()
