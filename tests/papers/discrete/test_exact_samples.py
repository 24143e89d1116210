"""delta of several samples: against products written out, binomials and multinomials, and against composition."""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, multinomial

from raydiff.papers.discrete.kernel import Floats
from raydiff.papers.discrete.theory import exact as pdp_exact
from raydiff.papers.discrete.theory.exact import deltas, hockey_stick


def pair(size: int, *, seed: int, spread: float = 0.3) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(size))
    q = p * np.exp(spread * rng.standard_normal(size))
    return p, q / q.sum()


def written_out(p: Floats, q: Floats, epsilon: float, samples: int) -> float:
    p, q = (reduce(np.kron, [each] * samples) for each in (p, q))
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def test_one_sample_is_the_hockey_stick() -> None:
    p, q = pair(5000, seed=0)  # more than ATOMS
    expected = max(hockey_stick(p, q, 0.2), hockey_stick(q, p, 0.2))
    assert deltas(p, q, 0.2, 1) == (expected, expected)
    assert deltas(np.array([0.5, 0.5]), np.array([0.5, 0.5]), 0.1, 7) == (0, 0)


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_small_products_are_exact(samples: int) -> None:
    p, q = pair(6, seed=samples)
    expected = written_out(p, q, 0.4, samples)
    assert expected > 0.005
    assert deltas(p, q, 0.4, samples) == pytest.approx((expected, expected), rel=1e-9)


@pytest.mark.parametrize("samples", [5, 31, 64])
def test_equal_losses_are_one_atom(samples: int) -> None:
    """2^64 products of two outcomes have 65 losses: a binomial."""
    counts = np.arange(samples + 1)
    p, q = binom.pmf(counts, samples, 0.3), binom.pmf(counts, samples, 0.35)
    expected = max(hockey_stick(p, q, 0.5), hockey_stick(q, p, 0.5))
    found = deltas(np.array([0.3, 0.7]), np.array([0.35, 0.65]), 0.5, samples)
    assert found == pytest.approx((expected, expected), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_binned_products_have_the_truth_between_them(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 samples of 3 outcomes, all 861 counts by themselves, with 100 atoms."""
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.25, 0.32, 0.43])
    counts = [(a, b, 40 - a - b) for a, b in itertools.product(range(41), repeat=2) if a + b <= 40]
    all_p, all_q = (multinomial.pmf(counts, 40, each) for each in (p, q))
    truth = max(hockey_stick(all_p, all_q, epsilon), hockey_stick(all_q, all_p, epsilon))
    monkeypatch.setattr(pdp_exact, "ATOMS", 100)
    least, most = deltas(p, q, epsilon, 40)
    assert least < truth < most
    assert most - least < 0.05 * truth


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=7),
    st.integers(2, 4),
    st.sampled_from([0.01, 0.3, 2.0]),
)
def test_bins_bracket_the_truth(masses: list[tuple[int, int]], samples: int, epsilon: float) -> None:
    """Also outcomes that one of the two never has."""
    p, q = (np.array(each, dtype=np.float64) + (1 if not any(each) else 0) for each in zip(*masses, strict=True))
    p, q = p / p.sum(), q / q.sum()
    truth = written_out(p, q, epsilon, samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdp_exact, "ATOMS", 6)
        least, most = deltas(p, q, epsilon, samples)
    assert least <= truth + 1e-9
    assert truth <= most + 1e-9
    assert most <= 1 + 1e-9
