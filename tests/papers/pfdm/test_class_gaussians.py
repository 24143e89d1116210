"""The per-class Gaussians against the distribution that the records are drawn from."""

import pytest
import torch

from raydiff.papers.pfdm.class_gaussians import draw_noised_records, fit_classes
from raydiff.seeding import generator

STD = 0.8


def noised(n: int = 4000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(records of two label rows, their labels, the truth's factor): variance 4 along one direction, else none."""
    rng, direction = generator(0), torch.nn.functional.normalize(torch.arange(1.0, 10.0), dim=0)
    labels = torch.tensor([[0, 1], [2, 0]]).repeat(n // 2, 1)
    means = torch.where(labels[:, :1] == 0, -1.0, 3.0)
    clean = means + 2 * torch.randn(n, 1, generator=rng) * direction
    return (clean + STD * torch.randn(n, 9, generator=rng)).view(n, 1, 3, 3), labels, 2 * direction


def test_the_noise_is_taken_out_of_the_covariance() -> None:
    x, labels, truth = noised()
    fitted = fit_classes(x, labels, noise_std=STD)
    assert fitted["labels"].tolist() == [[0, 1], [2, 0]]
    assert torch.allclose(fitted["mean"][1], torch.full((1, 3, 3), 3.0), atol=0.15)
    for factor in fitted["factor"]:
        covariance = factor @ factor.T
        assert int(torch.linalg.matrix_rank(covariance, hermitian=True, atol=1e-4)) == 1
        assert torch.allclose(covariance, torch.outer(truth, truth), atol=0.25)


def test_a_label_row_never_seen_is_its_class_and_a_class_never_seen_is_refused() -> None:
    x, labels, _ = noised()
    fitted = fit_classes(x, labels, noise_std=STD)
    pairs = torch.tensor([[0, 1], [2, 0]]), torch.tensor([[0, 0], [2, 1]])
    seen, other = (draw_noised_records(fitted, rows, noise_std=STD, rng=generator(0)) for rows in pairs)
    assert torch.equal(seen, other)
    with pytest.raises(ValueError, match=r"^no upload has the labels \[1, 0\]$"):
        draw_noised_records(fitted, torch.tensor([[0, 1], [1, 0]]), noise_std=STD, rng=generator(0))
