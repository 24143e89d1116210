"""Gaussians from noised sums: the second moment without its noise, and the closed forms."""

import math

import pytest
import torch

from raydiff.models.moments import Gaussians, estimate_gaussians, pack_outer_products, remove_noise, unpack_matrix
from raydiff.seeding import generator


def test_packing_keeps_the_norm_and_is_undone() -> None:
    u = torch.randn(5, 7, generator=generator(0))
    matrix = u.double().T @ u.double()
    assert pack_outer_products(u).shape == (28,)
    assert float(pack_outer_products(u).norm()) == pytest.approx(float(matrix.norm()), rel=1e-12)
    torch.testing.assert_close(unpack_matrix(pack_outer_products(u), 7), matrix)


def noise(d: int, std: float, seed: int) -> torch.Tensor:
    return unpack_matrix(std * torch.randn(d * (d + 1) // 2, generator=generator(seed), dtype=torch.float64), d)


def test_a_spike_above_the_noise_is_found_with_its_size_and_what_is_below_is_not() -> None:
    d, std = 200, 0.1
    edge = 2 * std / math.sqrt(2) * math.sqrt(d)
    truth, spikes = torch.zeros(d, d, dtype=torch.float64), torch.tensor([3 * edge, 2 * edge, 0.2 * edge])
    truth[range(3), range(3)] = spikes.double()
    for seed in range(3):
        values, vectors = remove_noise(truth + noise(d, std, seed), std)
        result = (vectors * values) @ vectors.T
        big = values.sort(descending=True).values
        torch.testing.assert_close(big[:2].float(), spikes[:2], rtol=0.05, atol=0.0)
        assert float(big[2]) < 0.1 * edge and float(result.trace()) == pytest.approx(float(spikes.sum()), rel=0.1)


def test_what_is_drawn_has_the_second_moment_found_however_little_the_means_are_known() -> None:
    rng = generator(2)
    x, y = torch.randn(300, 5, generator=rng).double() + 1, torch.arange(300) % 3
    sums = torch.stack([x[y == k].sum(0) for k in range(3)])
    for std in (0.0, 50.0, 1e6):
        means, vectors, scales = estimate_gaussians(
            sums, x.T @ x, torch.full((3,), 100.0).double(), std=std, second_std=0.0
        )
        second = (vectors * scales.square()) @ vectors.T + means.T @ means / 3
        torch.testing.assert_close(second, x.T @ x / 300, rtol=1e-6, atol=1e-8)
    assert float(means.abs().max()) < 1e-3


def test_the_best_linear_estimate_of_a_mean_is_nearer_to_it_than_the_noised_one() -> None:
    rng, n = generator(3), torch.full((20,), 50.0).double()
    truth = torch.randn(20, 30, generator=rng).double() * torch.linspace(1, 0, 30)
    second = 50 * (truth.T @ truth + 20 * 0.01 * torch.eye(30))
    errors, raw = 0.0, 0.0
    for _ in range(5):
        sums = 50 * truth + 25.0 * torch.randn(20, 30, generator=rng)
        means, _, _ = estimate_gaussians(sums, second, n, std=25.0, second_std=0.0)
        errors += float((means - truth).square().sum())
        raw += float((sums / 50 - truth).square().sum())
    assert errors < 0.75 * raw


def test_the_denoiser_is_the_posterior_mean() -> None:
    """Against the moments of the joint Gaussian of x and x_t, one matrix inverse."""
    model = Gaussians(shape=(1, 2, 2), labels=(3,))
    rng = generator(6)
    vectors = torch.linalg.qr(torch.randn(4, 4, generator=rng))[0]
    means, scales = torch.randn(3, 1, 2, 2, generator=rng), torch.rand(4, generator=rng)
    params = {"mean": means, "vectors": vectors, "scales": scales}
    x_t, t, labels = torch.randn(5, 1, 2, 2, generator=rng), torch.tensor([1, 50, 300, 700, 1000]), torch.arange(5) % 3
    result = model.denoiser(params)(x_t, t, labels[:, None])
    sigma = (vectors * scales.square()) @ vectors.T
    for i in range(5):
        a = float(model.abar[t[i]])
        shift = (x_t[i] - math.sqrt(a) * means[labels[i]]).flatten()
        z = math.sqrt(1 - a) * torch.linalg.solve(a * sigma + (1 - a) * torch.eye(4), shift)
        torch.testing.assert_close(result[i].flatten(), z, rtol=1e-3, atol=1e-4)
