"""The pair of trainings: one never sees the record, and both come nearer to the perfect models."""

from __future__ import annotations

import numpy as np
import pytest

from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training
from raydiff.papers.discrete.theory.random_tables import RandomTable
from raydiff.papers.discrete.theory.trained import _trainings, stages
from raydiff.seeding import generator
from raydiff.tree import Params

TRAINING = Training(steps=60, learning_rate=1e-2, decay="constant")
TINY = RandomTable(p=0.7, others=40, columns=2, categories=2, steps=4, epsilon=0.05)


def test_errors_fall_and_the_record_begins_to_matter() -> None:
    table = TINY.table(generator(0))
    first, *_, last = stages(TINY, table, (0, 20, 60), training=TRAINING, seed=0, hidden=16)
    assert first.delta == first.path == 0  # both still the same model
    assert 0 < last.delta <= last.path
    for name in ("gamma", "mean", "gap"):
        before, after = getattr(first, name).max(), getattr(last, name).max()
        assert after < 0.7 * before, name


@pytest.mark.parametrize("without", [True, False])
def test_only_one_of_them_sees_the_record(without: bool) -> None:
    model = DiscreteDiffusion(hidden=8, layers=2, steps=4, counts=(2, 2))
    table = TINY.table(generator(0))

    def trained(record: list[int]) -> Params:
        rows = np.concatenate([[record], table[1:]])
        *_, params = _trainings(model, rows, (5, 30), TRAINING, 0, without=without)
        return params

    one, other = trained([1, 1]), trained([0, 1])
    assert all(one[name].equal(other[name]) for name in one) == without
