"""Each attack's formula against a slow one written from its paper, record by record."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.evaluation.attacks.scores import ATTACKS, DRAWS, grid, score_records
from raydiff.seeding import generator

ABAR = torch.cos(torch.linspace(0, 1.4, 21, dtype=torch.float64)) ** 2


def bent(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
    """No closed form, and no two pixels alike."""
    place = torch.arange(x[0].numel(), dtype=x.dtype).view(x[0].shape)
    return torch.sin(x + place) * (0.3 + t / 10).view(-1, 1, 1, 1) + 0.1 * labels[:, :1, None, None]


def records(n: int) -> Records:
    images = torch.linspace(-1, 1, n * 4).view(n, 1, 2, 2)
    return Records(images, torch.arange(n)[:, None] % 3, torch.arange(n))


def scored(name: str, denoiser=bent, n: int = 5, timesteps=(7, 2), **changes) -> Tensor:
    arguments = {"alphas_bar": ABAR, "timesteps": timesteps, "rng": generator(0), **changes}
    return score_records(ATTACKS[name], denoiser, records(n), **arguments)


def one_by_one(name: str, n: int = 5, timesteps=(7, 2)) -> Tensor:
    """The papers' formulas in double precision, with loops over records and pixels."""
    noise = torch.randn(DRAWS, 1, 2, 2, generator=generator(0)).double()
    out = []
    for i in range(n):
        x0, label = records(n).images[i].double(), records(n).labels[i]

        def z(x: Tensor, t: int, label: Tensor = label) -> Tensor:
            return bent(x[None], torch.tensor([t]), label[None])[0]

        row = []
        for t in timesteps:
            a, b = math.sqrt(ABAR[t]), math.sqrt(1 - ABAR[t])
            if name == "loss":
                row.append(sum(sum(float(p) ** 2 for p in (e - z(a * x0 + b * e, t)).flatten()) for e in noise) / DRAWS)
            if name == "pia":
                e = z(x0, 1)
                row.append(sum(float(p) ** 4 for p in (e - z(a * x0 + b * e, t)).flatten()))
            if name == "sima":
                row.append(sum(float(p) ** 4 for p in z(x0, t).flatten()))
            if name == "secmi":  # in y = x / sqrt(abar), p = sqrt(1 / abar - 1), where a DDIM step is an Euler step
                y, p = x0, [math.sqrt(1 / float(v) - 1) for v in ABAR]
                for s in range(t):
                    y = y + (p[s + 1] - p[s]) * z(y * math.sqrt(ABAR[s]), max(s, 1))
                up = y + (p[t + 1] - p[t]) * z(y * math.sqrt(ABAR[t]), t)
                back = up + (p[t] - p[t + 1]) * z(up * math.sqrt(ABAR[t + 1]), t + 1)
                row.append(float(ABAR[t] * (back - y).square().sum()))
        out.append(row)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_its_papers_formula(name: str) -> None:
    result = scored(name)
    assert result.shape == (5, 2) and result.dtype == torch.float64
    torch.testing.assert_close(result, one_by_one(name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ATTACKS)
def test_batches_keep_each_record_with_its_labels_and_its_noise(name: str) -> None:
    together, apart = scored(name, n=7), scored(name, n=7, batch=3)
    torch.testing.assert_close(together, apart)
    other = replace(records(7), labels=records(7).labels + 1)
    moved = score_records(ATTACKS[name], bent, other, alphas_bar=ABAR, timesteps=(7, 2), rng=generator(0))
    assert not torch.allclose(together, moved)


def test_secmi_steps_are_a_hundredth_of_the_chain() -> None:
    asked: list[int] = []

    def listens(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        asked.append(int(t[0]))
        return torch.zeros_like(x)

    chain = {"alphas_bar": torch.linspace(1, 0.01, 1001, dtype=torch.float64), "rng": generator(0)}
    score_records(ATTACKS["secmi"], listens, records(2), timesteps=[15, 30], **chain)
    assert asked == [1, 10, 15, 25, 20, 30, 40]  # 15 is on the way, and one step beyond it is 25


@pytest.mark.parametrize("timesteps", [[], [0], [3, 21]])
def test_timesteps_outside_the_chain_are_refused(timesteps: list[int]) -> None:
    with pytest.raises(ValueError, match=r"timesteps must be one or more numbers in 1 \.\. 20"):
        scored("pia", timesteps=timesteps)


def test_secmi_needs_a_step_beyond_and_every_attack_a_record() -> None:
    with pytest.raises(ValueError, match="timesteps must be below 20, got 20"):
        scored("secmi", timesteps=[20])
    with pytest.raises(ValueError, match="at least one record"):
        scored("pia", n=0)


def test_grid_starts_next_to_the_data_reaches_four_tenths_and_holds_the_papers_timesteps() -> None:
    assert grid(1000) == [1, 10, 20, 40, 60, 100, 140, 200, 280, 400]
    assert grid(100) == [1, 2, 4, 6, 10, 14, 20, 28, 40]
    assert grid(10) == [1, 2, 3, 4]
    assert grid(1) == [1]
