"""Closed forms of perfect denoisers against raydiff's chains, brute force and numbers by hand."""

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from analysis.theory.closed_forms import (
    ABAR,
    Gauss,
    fitted,
    measured_weight,
    refine,
    reverse,
    uploads,
    w2_squared,
    weight,
)
from raydiff.models.samplers import MEASURED
from raydiff.seeding import generator

pytestmark = pytest.mark.slow


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def random_gauss(d: int, *path: str) -> Gauss:
    rng = generator(0, *path)
    root = torch.randn(d, d, dtype=torch.float64, generator=rng)
    return Gauss(torch.randn(d, dtype=torch.float64, generator=rng), root @ root.mT / d)


def square_root(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(a)
    return vectors * values.sqrt() @ vectors.mT


# --- the sampler's limit ---


@pytest.mark.parametrize(
    ("t0", "value", "sampler", "expected"), [(740, 1.0, "ancestral", 0.0039), (690, 5.0, "ddim", 0.1968)]
)
def test_the_weight_is_that_of_the_chain(t0: int, value: float, sampler: str, expected: float) -> None:
    measured = measured_weight(value, t0, sampler=sampler)
    assert measured == pytest.approx(expected, abs=5e-5)
    assert float(weight(tensor(value), float(ABAR[t0]), sampler)) == pytest.approx(measured, rel=2e-3)


@pytest.mark.parametrize("sampler", MEASURED)
def test_refine_is_the_limit_of_simulated_chains(sampler: str) -> None:
    """In two dimensions, where the client's covariance and that of x_t0 do not commute."""
    t0, count, rng = 250, 40_000, generator(0, "chains")
    client = Gauss(tensor(1.0, -0.5), tensor([2.0, 0.8], [0.8, 0.5]))
    start = Gauss(tensor(-1.0, 2.0), tensor([0.4, -0.3], [-0.3, 1.5]))
    x = reverse(client.predict, start.sample(count, rng), t0, sampler=sampler, rng=rng)
    ended = fitted(x)

    def error(by: str) -> float:
        limit = refine(start, client, abar=float(ABAR[t0]), sampler=by)
        return max(float((limit.mean - ended.mean).abs().max()), float((limit.cov - ended.cov).abs().max()))

    other = next(s for s in MEASURED if s != sampler)
    assert error(sampler) < 0.03  # standard errors are below 0.01
    assert error(other) > 0.1  # A where A^2 belongs, or the reverse, would show


@pytest.mark.parametrize("sampler", MEASURED)
def test_a_client_that_memorised_one_record_forgets_the_server(sampler: str) -> None:
    client = fitted(tensor([1.0, 2.0]))
    end = refine(random_gauss(2, "start"), client, abar=0.5, sampler=sampler)
    torch.testing.assert_close((end.mean, end.cov), (client.mean, client.cov))


# --- the distance ---


def test_w2_is_the_best_assignment() -> None:
    """Points with exactly the moments of P, and their images under the linear map that takes P to Q optimally: the
    best of all assignments of the shuffled images costs exactly the distance."""
    p, q, count = random_gauss(3, "p"), random_gauss(3, "q"), 120
    z = torch.randn(count, 3, dtype=torch.float64, generator=generator(0, "points"))
    white = (z - z.mean(0)) @ torch.linalg.inv(square_root(fitted(z).cov))
    root = square_root(p.cov)
    inverse = torch.linalg.inv(root)
    x = p.mean + white @ root
    y = q.mean + (x - p.mean) @ inverse @ square_root(root @ q.cov @ root) @ inverse
    torch.testing.assert_close(fitted(y).cov, q.cov)
    cost = torch.cdist(x, y[torch.randperm(count, generator=generator(0, "order"))]).square().numpy()
    best = float(cost[linear_sum_assignment(cost)].mean())
    assert float(w2_squared(p, q)) == pytest.approx(best, rel=1e-9)


# --- fits and uploads ---


def test_uploads_are_clipped_scaled_and_noised() -> None:
    x, noise = tensor([[3.0, 4.0], [0.3, 0.4]]), torch.ones(1, 2, 2, dtype=torch.float64)
    sent = uploads(x, noise, abar=0.36, clip=1.0)
    torch.testing.assert_close(sent, 0.6 * tensor([[0.6, 0.8], [0.3, 0.4]]) + 0.8)
    torch.testing.assert_close(uploads(x, noise, abar=0.36, clip=None), 0.6 * x + 0.8)
