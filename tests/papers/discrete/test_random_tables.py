"""The per-instance bound on random tables."""

from __future__ import annotations

import numpy as np
import pytest

from raydiff.papers.discrete.bound import audit
from raydiff.papers.discrete.theory.random_tables import RandomTable, growing, skewed
from raydiff.seeding import generator


def test_shares_of_the_values() -> None:
    table = skewed(20_000, 3, 5, p=0.6, rng=generator(0, "x"))
    shares = np.bincount(table.reshape(-1), minlength=5) / table.size
    assert shares == pytest.approx([0.6, 0.1, 0.1, 0.1, 0.1], abs=0.01)


def test_rows_that_agree_nowhere_are_added() -> None:
    setting = RandomTable(others=50, steps=6)
    main, radius = growing(setting, (50, 80, 400), generator(0, "x"))
    for row, size in enumerate((50, 80, 400)):
        far = np.full((size - 50, setting.columns), 2)
        table = np.concatenate([setting.table(generator(0, "x")), far])
        result, release = audit(table, setting.release, records=np.array([0])), setting.release
        rest = [setting.columns * (1 - release.kernel.blur[t - 1]) / size**2 for t in release.steps]
        assert main[row] == pytest.approx(result.terms[0] - release.price * np.array(rest), rel=1e-9)
        assert radius[row].tolist() == result.radius[0].tolist()
