"""Predictions for data sets: the truth is the data's, and every arm goes the way it must."""

from __future__ import annotations

import pytest
import torch

from raydiff.data.datasets import Data, Dataset, Records, load
from raydiff.models.ddpm import alphas_bar
from raydiff.papers.pfdm.depth import depth_for
from raydiff.papers.pfdm.theory.closed_forms import Gauss
from raydiff.papers.pfdm.theory.on_data import (
    MEASURED,
    ArmPrediction,
    Truth,
    depths,
    pooled_records,
    predict,
    predictions,
    truth,
)
from raydiff.seeding import generator


@pytest.fixture(scope="module")
def world() -> Truth:
    """Four classes in six dimensions, far apart, 300 records of each."""
    rng = generator(0, "world")
    roots = torch.randn(4, 6, 6, dtype=torch.float64, generator=rng) / 3
    means = 2 * torch.randn(4, 6, dtype=torch.float64, generator=rng)
    cluster = torch.tensor([True, True, False, False])
    centre = means.mean(0)
    return Truth(Gauss(means, roots @ roots.mT), cluster, centre, clip=5.0, centred_clip=4.5, pooled=300)


def row(found: list[ArmPrediction], minority: int, epsilon: float | None, sampler: str, arm: str) -> ArmPrediction:
    key = (minority, epsilon, sampler, arm)
    (it,) = (p for p in found if (p.minority, p.epsilon, p.sampler, p.arm) == key)
    return it


@pytest.fixture(scope="module")
def found(world: Truth) -> list[ArmPrediction]:
    budgets = depths(world, [10.0, 200.0, None], schedule="linear", timesteps=1000)
    return predictions(world, [3, 150], budgets, shared=True, seeds=10)


@pytest.mark.parametrize("sampler", MEASURED)
def test_without_noise_three_records_gain_from_three_hundred(found: list[ArmPrediction], sampler: str) -> None:
    assert row(found, 3, None, sampler, "pfdm").gain[1] > 0
    few, many = (row(found, n, None, sampler, "pfdm").gain[0] for n in (3, 150))
    assert many < few / 10


def test_the_gain_is_paired(found: list[ArmPrediction]) -> None:
    local, mine = (row(found, 3, 200.0, "ddim", arm) for arm in ("localonly", "pfdm"))
    assert mine.gain[0] == pytest.approx(local.w2[0] - mine.w2[0])
    assert mine.gain[2] - mine.gain[1] < local.w2[2] - local.w2[1]


def test_a_client_that_memorised_one_record_forgets_the_server(world: Truth) -> None:
    budgets = depths(world, [10.0, 200.0], schedule="linear", timesteps=1000)
    for cells in predict(world, minority=1, budgets=budgets, shared=False, seed=0).values():
        for sampler in MEASURED:
            for arm in ("pfdm", "no-server", "shuffled", "collafuse", "centre"):
                assert cells[sampler, arm] == pytest.approx(cells[sampler, "localonly"])


def test_depths_are_those_of_the_exact_accountant(world: Truth) -> None:
    abar = alphas_bar("linear", 1000)
    ten, none = depths(world, [10.0, None], schedule="linear", timesteps=1000)
    assert ten.t0 == depth_for(epsilon=10.0, delta=1e-5, clip=5.0, alphas_bar=abar, accountant="exact")
    assert ten.centred_t0 == depth_for(epsilon=10.0, delta=1e-5, clip=4.5, alphas_bar=abar, accountant="exact") < ten.t0
    assert (ten.abar, ten.centred_abar) == (float(abar[ten.t0]), float(abar[ten.centred_t0]))
    assert (none.t0, none.centred_t0, none.abar) == (1, 1, float(abar[1]))


def test_the_truth_of_digits_is_the_data() -> None:
    data = load(Data())
    world = truth(data)
    images = torch.cat([s.images for s in data.splits.values()]).flatten(1).double()
    threes = images[torch.cat([s.labels for s in data.splits.values()])[:, 0] == 3]
    torch.testing.assert_close(world.classes.mean[3], threes.mean(0))
    torch.testing.assert_close(world.classes.cov[3], threes.T.cov(correction=0))
    assert world.cluster.nonzero().flatten().tolist() == [0, 1, 6, 7, 9]
    assert world.clip == 6.8  # as the preset
    assert world.centred_clip < world.clip
    torch.testing.assert_close(world.centre, data.splits["public"].images.flatten(1).double().mean(0))
    assert (world.pooled, pooled_records(world, 20), pooled_records(world, 100)) == (84, 84, 200)


def dataset(labels: list[list[int]], *, public: int) -> Dataset:
    """One-pixel pictures; the first `public` rows are the public split, the rest is train."""
    rows = torch.arange(len(labels))
    records = Records(rows.float().view(-1, 1, 1, 1), torch.tensor(labels), rows)
    empty, names = records.select(rows[:0]), ("a", "b")
    splits = dict.fromkeys(("validation", "calibration", "test"), empty)
    splits |= {"public": records.select(rows[:public]), "train": records.select(rows[public:])}
    return Dataset("made", splits, (names,) * len(labels[0]), "")


def test_bad_data_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"data\.public must be at least 1"):
        truth(dataset([[0], [0], [1], [1]], public=0))
    with pytest.raises(ValueError, match="2 records of each class, got 1 in 'made'"):
        truth(dataset([[0], [0], [1]], public=1))
