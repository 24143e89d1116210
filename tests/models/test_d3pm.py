"""Discrete diffusion: the chain against enumeration, and what training recovers."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff.data.records import codes_of, images_of
from raydiff.models.d3pm import DiscreteDiffusion, draw_codes
from raydiff.models.d3pm_kernel import Cosine, Linear, Sigmoid
from raydiff.models.training import Training, fit
from raydiff.privacy.private_gradient import per_record
from raydiff.seeding import generator

SCHEDULES = [Linear(), Linear(rate=0.4), Sigmoid(rate=2.5), Cosine()]
SMALL = DiscreteDiffusion(hidden=32, layers=3, steps=4, counts=(3, 2), labels=(2,))


def kernel(stay: float, k: int) -> Tensor:
    """Q = stay I + (1 - stay) 11^T / k, (k, k) float64: Q_t for stay = alpha_t, Qbar_t for abar_t."""
    return stay * torch.eye(k, dtype=torch.float64) + (1 - stay) / k


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_posterior_is_bayes_rule(schedule: Any) -> None:
    """q(v_{t-1} | v_t) from all paths v_0, v_{t-1}, v_t of one column, for every v_t and some distribution of v_0."""
    model = replace(SMALL, schedule=schedule)
    alpha, k = schedule.alpha(4).tolist(), 3
    clean = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    for t, now in itertools.product(range(1, 5), range(k)):
        expected = torch.zeros(k, dtype=torch.float64)
        for start in range(k):
            path = torch.eye(k, dtype=torch.float64)[start]
            for a in alpha[1:t]:
                path = path @ kernel(a, k)
            last = kernel(alpha[t], k)[:, now]
            # given v_0, which the network names with these probabilities
            expected += clean[start] * path * last / (path * last).sum()
        result = model.posterior(clean.expand(1, 1, k), torch.tensor([[now]]), torch.tensor([t]))
        torch.testing.assert_close(result[0, 0], expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_noised_rows_have_the_closed_forms_marginal(schedule: Any) -> None:
    model = replace(SMALL, schedule=schedule, counts=(3,))
    count = 20_000
    draws = model.draws(count, generator(0))
    noised = model.add_noise(torch.full((count, 1), 2), draws)
    for t in range(1, 5):
        here = noised[draws["t"] == t, 0]
        expected = kernel(float(model.abar[t]), 3)[2]
        error = (expected * (1 - expected) / len(here)).sqrt()
        assert ((here.bincount(minlength=3) / len(here) - expected).abs() < 4 * error + 1e-9).all()


def test_the_last_step_is_uniform_and_step_0_is_clean() -> None:
    params = SMALL.init(generator(1))
    predict, labels = SMALL.denoiser(params), torch.zeros(9000, 1, dtype=torch.long)
    noise = replace(SMALL, release=4).sample(predict, labels, generator(2))
    for column in noise.T:
        assert (column.bincount(minlength=3) / 9000 - 1 / 3).abs().max() < 0.02
    clean = SMALL.sample(predict, labels, generator(2))
    assert clean.shape == (9000, 2)
    assert clean[:, 1].max() == 1  # the second column has no third category
    assert (replace(SMALL, release=1).sample(predict, labels, generator(2))[:, 1] == 2).any()
    assert torch.equal(codes_of(SMALL.sampler(params)(labels, generator(2))), clean)


def perfect(data: Tensor, model: DiscreteDiffusion, weights: Tensor) -> Any:
    """p(v_0^i | v_t) where the rows `data` (s, n) have these probabilities, by enumeration."""

    def predict(noised: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        bars = torch.stack([kernel(float(a), model.k) for a in model.abar])
        like = weights * bars[t[:, None, None], data[None], noised[:, None]].prod(-1)  # (N, s)
        one = torch.nn.functional.one_hot(data, model.k).double()
        return torch.einsum("as,sik->aik", like / like.sum(1, keepdim=True), one)

    return predict


@pytest.mark.parametrize("schedule", [Linear(), Sigmoid(), Cosine()])
def test_a_perfect_denoiser_of_one_column_gives_the_data_back(schedule: Any) -> None:
    model = DiscreteDiffusion(steps=5, schedule=schedule, counts=(4,))
    predict = perfect(torch.tensor([[0], [1], [3]]), model, torch.tensor([0.5, 0.3, 0.2]))
    labels = torch.zeros(20_000, 0, dtype=torch.long)
    rows = model.sample(predict, labels, generator(0))
    result = rows[:, 0].bincount(minlength=4) / len(rows)
    assert (result - torch.tensor([0.5, 0.3, 0, 0.2])).abs().max() < 0.015
    early = replace(model, release=2).sample(predict, labels, generator(0))[:, 0].bincount(minlength=4) / len(rows)
    expected = torch.tensor([0.5, 0.3, 0, 0.2], dtype=torch.float64) @ kernel(float(model.abar[2]), 4)
    assert (early - expected).abs().max() < 0.015


def distance(rows: Tensor, others: Tensor) -> float:
    """Total variation of two samples of the six rows of (3, 2) categories."""
    one, other = ((r[:, 0] * 2 + r[:, 1]).bincount(minlength=6).double() / len(r) for r in (rows, others))
    return float((one - other).abs().sum() / 2)


def test_training_recovers_a_known_distribution_of_each_label() -> None:
    """Two columns that depend on each other and on the label: as close as the chain of a perfect denoiser."""
    tables = torch.tensor([[0.4, 0.0, 0.1, 0.2, 0.0, 0.3], [0.0, 0.5, 0.1, 0.0, 0.2, 0.2]])
    all_rows = torch.cartesian_prod(torch.arange(3), torch.arange(2))
    rows = all_rows[tables.multinomial(3000, replacement=True, generator=generator(0)).flatten()]
    labels = torch.arange(2).repeat_interleave(3000)[:, None]
    model = replace(SMALL, steps=10, hidden=64)
    training = Training(steps=350, batch=256, learning_rate=1e-2)
    params, _, _ = fit(model, model.init(generator(0)), images_of(rows), labels, training=training, rng=generator(1))
    for label in range(2):
        own, wanted = rows[labels[:, 0] == label], torch.full((6000, 1), label)
        table = (own[:, 0] * 2 + own[:, 1]).bincount(minlength=6) / len(own)
        made = model.sample(model.denoiser(params), wanted, generator(2))
        best = model.sample(perfect(all_rows, model, table), wanted, generator(3))
        assert distance(made, best) < 0.05
        assert distance(made, rows[labels[:, 0] == 1 - label]) > 0.4  # of the other label


def test_a_draw_is_never_a_value_of_probability_0() -> None:
    rng = generator(0)
    p = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0]).expand(50_000, 1, 5)
    result = draw_codes(p, rng)[:, 0].bincount(minlength=5) / 50_000
    assert result[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(float(result[1]) - 0.3) < 0.01


def test_gradients_of_single_rows_are_those_of_a_loop() -> None:
    """DP-SGD without noise or clipping, each row's gradient by torch.func.vmap."""
    model = SMALL
    rows, labels = images_of(torch.tensor([[0, 1], [2, 0], [1, 1]])), torch.tensor([[0], [1], [1]])
    params, draws = model.init(generator(0)), model.draws(6, generator(1))
    twice = {k: v.unflatten(0, (3, 2)) for k, v in draws.items()}
    result, losses = per_record(model.loss, params, (rows, labels), twice)
    for i in range(3):
        theta = {k: v.clone().requires_grad_() for k, v in params.items()}
        batch = (rows[i].repeat(2, 1, 1, 1), labels[i].repeat(2, 1))
        loss = model.loss(theta, batch, {k: v[i] for k, v in twice.items()}, {})
        loss.backward()
        torch.testing.assert_close(losses[i], loss)
        for name, leaf in theta.items():
            torch.testing.assert_close(result[name][i], leaf.grad, rtol=1e-4, atol=1e-6)


def test_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="discrete diffusion is for tables"):
        SMALL.for_data((1, 8, 8), (10,))
