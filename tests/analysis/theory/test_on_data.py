"""Predictions for data sets: the truth is the data's, and every arm goes the way it must."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from analysis.theory.closed_forms import Gauss
from analysis.theory.on_data import Truth, predictions, truth
from raydiff.data.datasets import Data, Dataset, Records, load
from raydiff.models.chains import MEASURED
from raydiff.seeding import generator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world() -> Truth:
    """Four classes in six dimensions, far apart, 300 records of each."""
    rng = generator(0, "world")
    roots = torch.randn(4, 6, 6, dtype=torch.float64, generator=rng) / 3
    means = 2 * torch.randn(4, 6, dtype=torch.float64, generator=rng)
    cluster = torch.tensor([True, True, False, False])
    centre = means.mean(0)
    return Truth(Gauss(means, roots @ roots.mT), cluster, centre, clip=5.0, centred_clip=4.5, records=300)


@pytest.fixture(scope="module")
def table(world: Truth) -> pd.DataFrame:
    rows = predictions(world, [3, 150], [200.0, None], seeds=5)
    return rows.set_index(["minority", "epsilon", "sampler", "arm"])


@pytest.mark.parametrize("sampler", MEASURED)
def test_without_noise_three_records_gain_from_three_hundred(table: pd.DataFrame, sampler: str) -> None:
    few, many = (table.loc[(n, "none", sampler, "pfdm")] for n in (3, 150))
    assert few["gain_low"] > 0 and many["gain_over_local"] < few["gain_over_local"] / 10


def test_the_gain_is_paired(table: pd.DataFrame) -> None:
    local, pfdm = (table.loc[(3, "200", "ddim", arm)] for arm in ("localonly", "pfdm"))
    assert pfdm["gain_over_local"] == pytest.approx(local["w2_squared"] - pfdm["w2_squared"])
    assert pfdm["gain_high"] - pfdm["gain_low"] < local["w2_high"] - local["w2_low"]


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
    assert (world.pooled(20), world.pooled(100)) == (84, 200)


def dataset(labels: list[list[int]], *, public: int) -> Dataset:
    """One-pixel pictures; the first `public` rows are the public split, the rest is train."""
    rows = torch.arange(len(labels))
    records = Records(rows.float().view(-1, 1, 1, 1), torch.tensor(labels), rows)
    empty, names = records.select(rows[:0]), ("a", "b")
    splits = dict.fromkeys(("validation", "calibration", "test"), empty)
    splits |= {"public": records.select(rows[:public]), "train": records.select(rows[public:])}
    return Dataset("toy", splits, (names,) * len(labels[0]), "")
