"""Errors and delta of trained models: perfect ones have none, some by hand, and the chain by sampling."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from reference.pdp_tables import SCHEDULES, kernel, skewed
from scipy.stats import chisquare

from analysis.theory.exact import (
    clean_chances,
    column_chances,
    exact,
    hockey_stick,
    joint,
    neighbours,
)
from analysis.theory.trained import Predictions, predictions, trained, transitions
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.d3pm_kernel import CategorySchedule
from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Floats, Kernel
from raydiff.seeding import generator
from raydiff.tree import Params

pytestmark = pytest.mark.slow

MODEL = DiscreteDiffusion(hidden=16, layers=2, steps=4, counts=(3, 3))


def noisy(seed: int) -> Params:
    """Of a denoiser with strong opinions."""
    params = MODEL.init(generator(seed))
    return {**params, "leave.weight": 4 * params["leave.weight"]}


def chain(model: Predictions, noise: Kernel, columns: int, step: int) -> Floats:
    p = np.full(noise.categories**columns, noise.categories ** -float(columns))
    for t in range(noise.steps, step, -1):
        p = p @ joint(transitions(model(t), noise, t))
    return p


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("step", [0, 2])
def test_perfect_models_have_no_error(schedule: CategorySchedule, step: int) -> None:
    table, noise = skewed(12, 2, 3, p=0.5), kernel(schedule, 5, 3)
    release = ReleasedRows(kernel=noise, epsilon=0.05, step=step)
    tables = neighbours(table, 4, noise)
    result = trained(table, 4, release, [partial(clean_chances, counts, noise) for counts in tables])
    perfect = exact(table, 4, release)
    assert (result.delta, result.path) == pytest.approx((perfect.delta, perfect.path), rel=1e-9)
    np.testing.assert_allclose(result.gaps, perfect.gaps, atol=1e-12)
    assert np.array_equal(result.gamma, np.zeros(5 - step)) and np.array_equal(result.mean, np.zeros(5 - step))
    assert len(result.gaps) == 5 - step
    for t in range(1, 6):
        given = transitions(clean_chances(tables[0], noise, t), noise, t)
        np.testing.assert_allclose(given, column_chances(tables[0], noise, t), rtol=1e-9)


@pytest.mark.parametrize("step", [0, 2])
def test_a_denoisers_chain_is_what_it_samples(step: int) -> None:
    params, count = noisy(1), 40_000
    noise = Kernel(alpha=MODEL.schedule.alpha(4).tolist(), categories=3)
    expected = chain(predictions(MODEL.denoiser(params), 2, 3), noise, 2, step)
    rows = replace(MODEL, release=step).sample(MODEL.denoiser(params), torch.zeros(count, 0), generator(2))
    seen = np.bincount(np.ravel_multi_index(tuple(rows.numpy().T), (3, 3)), minlength=9)
    assert chisquare(seen, expected * count).pvalue > 0.01
    assert chisquare(seen, np.roll(expected, 1) * count).pvalue < 1e-6
    assert np.abs(expected - 1 / 9).max() > 0.02


@pytest.mark.parametrize("step", [0, 1, 3])
def test_delta_is_that_of_the_two_chains(step: int) -> None:
    noise = Kernel(alpha=MODEL.schedule.alpha(4).tolist(), categories=3)
    models = [predictions(MODEL.denoiser(noisy(seed)), 2, 3) for seed in (1, 2)]
    release = ReleasedRows(kernel=noise, epsilon=0.1, step=step)
    table = skewed(9, 2, 3, p=0.5)
    result, perfect = trained(table, 0, release, models), exact(table, 0, release)
    p, q = (chain(model, noise, 2, step) for model in models)
    assert result.delta == pytest.approx(max(hockey_stick(p, q, 0.1), hockey_stick(q, p, 0.1)))
    assert 1e-3 < result.delta <= result.path <= perfect.forward + result.error
    assert math.isinf(result.error) == (step == 0)
