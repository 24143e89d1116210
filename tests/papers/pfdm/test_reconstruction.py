"""What a reconstruction is measured by, and what the two ends of the noise give."""

import math

import pytest
import torch
from torch import Tensor

from raydiff.models.samplers import denoise
from raydiff.models.schedules import LinearBetas, alphas_bar
from raydiff.papers.pfdm.reconstruction import compare, reconstruct
from raydiff.seeding import generator

ABAR = alphas_bar(LinearBetas(), 100)


def records(n: int) -> tuple[Tensor, Tensor]:
    images = torch.rand(n, 1, 8, 8, generator=generator(0, "records")) * 2 - 1
    return images, torch.arange(n) % 4


def attacked(t0: int, *, knows: bool, n: int = 80) -> tuple[Tensor, Tensor, Tensor]:
    """(reconstructions, originals, classes): by the denoiser that knows every original, or by one that says 0."""
    originals, classes = records(n)
    a = float(ABAR[t0])
    noise = torch.randn(originals.shape, generator=generator(0, "noise"))
    uploads = math.sqrt(a) * originals + math.sqrt(1 - a) * noise

    def z_theta(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        abar = ABAR[t].float().view(-1, 1, 1, 1)
        return (x - abar.sqrt() * originals) / (1 - abar).sqrt() if knows else torch.zeros_like(x)

    def chain(x: Tensor, labels: Tensor) -> Tensor:
        return denoise(
            z_theta, x, labels=labels, abar=ABAR, start=t0, sampler="ancestral", bound=1.0, rng=generator(0, "chain")
        )

    return reconstruct(chain, uploads, classes[:, None]), originals, classes


@pytest.mark.parametrize("t0", [1, 70])
def test_a_perfect_denoiser_gives_the_originals_back(t0: int) -> None:
    result = compare(*attacked(t0, knows=True))
    assert result.mse < 1e-8 and result.psnr > 80 and result.ssim > 0.999
    assert result.closest == result.closest_in_class == 1.0
    assert result.mse_wrong > 0.3 and result.ssim_wrong < 0.5


def test_of_pure_noise_only_chance_is_right() -> None:
    originals, classes = records(400)
    result = compare(torch.randn(originals.shape, generator=generator(5)).clamp(-1, 1), originals, classes)
    assert result.closest_random == 1 / 400 and result.closest_in_class_random == pytest.approx(1 / 100)
    assert result.closest <= 5 / 400  # Binomial(400, 1/400) exceeds 5 once in 1700
    assert result.closest_in_class <= 12 / 400  # expected 4
    assert result.mse > result.mse_wrong and result.psnr < result.psnr_wrong


def test_by_hand() -> None:
    """Four grey pictures, of 0, 1, .5 and -1; the last is the only one of its class."""
    grey = lambda *values: torch.tensor(values)[:, None, None, None].expand(-1, 1, 3, 3)  # noqa: E731
    originals, classes = grey(0.0, 1.0, 0.5, -1.0), torch.tensor([0, 0, 0, 1])
    result = compare(grey(0.1, 0.5, 0.5, -0.4), originals, classes)
    assert result.mse == pytest.approx((0.01 + 0.25 + 0 + 0.36) / 4)
    assert result.mse_wrong == pytest.approx((0.16 + 0 + 0.25 + 0.16) / 4)  # beside .5, .5, 0 or 1, and 0
    assert result.closest == 2 / 4  # of .1 and .5; -.4 is nearer to 0 than to -1
    assert result.closest_in_class == 3 / 4  # which is of another class
    assert result.closest_in_class_random == pytest.approx((1 / 3 * 3 + 1) / 4)
    psnr = [10 * math.log10(4 / mse) for mse in (0.01, 0.25, 1e-10, 0.36)]
    assert result.psnr == pytest.approx(sum(psnr) / 4, abs=1e-4)


def test_ssim_is_the_formula_on_one_window() -> None:
    """7x7 pictures have one window: means, sample variances and covariance of all pixels."""
    rng = generator(3)
    a, b = (torch.rand(2, 1, 7, 7, generator=rng, dtype=torch.float64) * 2 - 1 for _ in range(2))
    c1, c2 = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    by_hand = []
    for x, y in zip(a.flatten(1), b.flatten(1), strict=True):
        mx, my, v = x.mean(), y.mean(), torch.cov(torch.stack([x, y]))
        by_hand.append((2 * mx * my + c1) * (2 * v[0, 1] + c2) / ((mx**2 + my**2 + c1) * (v[0, 0] + v[1, 1] + c2)))
    assert compare(a, b, torch.tensor([0, 0])).ssim == pytest.approx(float(sum(by_hand)) / 2, abs=1e-9)


@pytest.mark.parametrize(
    ("made", "classes", "says"),
    [
        (torch.zeros(3, 1, 8, 8), torch.zeros(4), "with an original and a class each, got"),
        (torch.zeros(4, 1, 8, 8), torch.zeros(3), "with an original and a class each, got"),
        (torch.zeros(4, 1, 2, 2), torch.zeros(4), "SSIM needs pictures of at least 3 pixels a side"),
    ],
)
def test_refusals(made: Tensor, classes: Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compare(made, torch.zeros(4, *made.shape[1:]), classes)
