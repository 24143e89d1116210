"""The fast audit against Algorithm 1 written out, and what the paper says about its bound."""

import ast
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from reference import pdp_reference
from reference.pdp_tables import CONDITIONS, SCHEDULES, kernel, skewed

from raydiff.models.d3pm_kernel import CategorySchedule, Linear, Sigmoid
from raydiff.papers.discrete import bound
from raydiff.papers.discrete.bound import CAVEATS, CONDITIONAL, UNCONDITIONAL, ReleasedRows, audit_rows, caveats
from raydiff.papers.discrete.kernel import Ints, Kernel
from raydiff.papers.discrete.radius import radius

LINEAR = kernel(Linear(), 10, 5)
SEEDS = st.integers(0, 99)


# --- agreement with the reference ----------------------------------------------------------------------------------


@st.composite
def releases(draw: st.DrawFn) -> tuple[Ints, ReleasedRows]:
    categories, steps = draw(st.integers(2, 5)), draw(st.integers(1, 10))
    size, p, seed = (draw(st.integers(2, 30)), draw(st.integers(1, 6))), draw(st.floats(0.1, 0.95)), draw(SEEDS)
    release = ReleasedRows(
        kernel=kernel(draw(st.sampled_from(SCHEDULES)), steps, categories),
        samples=draw(st.integers(1, 1000)),
        epsilon=draw(st.sampled_from([0.1, 1.0, 10.0])),
        step=draw(st.integers(0, steps)),
        condition=draw(st.sampled_from(CONDITIONS)),
    )
    return skewed(*size, categories, p=p, seed=seed), release


@settings(max_examples=60, deadline=None)
@given(releases())
def test_agrees_with_algorithm_1(case: tuple[Ints, ReleasedRows]) -> None:
    table, release = case
    result = audit_rows(table, release)
    np.testing.assert_allclose(result.of_records(result.delta), pdp_reference.deltas(table, release), 1e-9, 1e-9)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("schedule", [Linear(), Linear(rate=0.2), Sigmoid(rate=2.0)], ids=str)
def test_agrees_on_larger_tables(schedule: CategorySchedule, condition: str) -> None:
    """Skewed enough for every radius from 1 to n to occur."""
    table = np.concatenate([skewed(300, 7, 4, p=0.9, seed=1), skewed(40, 7, 4, p=0.2, seed=2)])
    release = ReleasedRows(kernel=kernel(schedule, 12, 4), condition=condition)
    result = audit_rows(table, release)
    assert schedule == Sigmoid(rate=2.0) or len(np.unique(result.radius)) >= 5  # under the sigmoid nearly all are n
    some = np.arange(290, 340, 7)
    expected = pdp_reference.deltas(table, release, some)
    np.testing.assert_allclose(result.of_records(result.delta)[some], expected, rtol=1e-9)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize(("rate", "categories"), [(0.002, 2), (0.01, 5), (0.05, 5), (0.5, 3)])
def test_the_radius_agrees_one_at_a_time(condition: str, rate: float, categories: int) -> None:
    """Counts of all orders, so that every radius occurs."""
    rng, t, n = np.random.default_rng(0), 2, 9
    this = kernel(Linear(rate=rate), 4, categories)
    near = np.floor(10 ** rng.uniform(-1, 5, (400, n + 1))).astype(np.int64)
    near[:, -1] += 1
    within = np.cumsum(near, axis=1)
    leak, change = 10 ** rng.uniform(-4, 1, 400), this.change(t)
    radii = radius(within, leak, this, t, condition, change=change)
    after, before = 1 / this.blur[t], 1 / this.blur[t - 1]
    same, other = this.same_since[t], this.other_since[t]
    for counts, nats, ball in zip(within.tolist(), leak, radii, strict=True):
        if condition == "theorem":
            assert ball == pdp_reference._theorem(counts, nats, change, after, same, other)
        else:
            assert ball == pdp_reference._relaxed(counts, nats, change, before, after, same, other)
    assert rate > 0.05 or len(np.unique(radii)) >= 4


def test_some_records_alone_equal_those_of_all() -> None:
    table = skewed(80, 4, 3, p=0.6)
    some = np.array([7, 3, 3, 60])
    every, few = (
        audit_rows(table, ReleasedRows(kernel=LINEAR)),
        audit_rows(table, ReleasedRows(kernel=LINEAR), records=some),
    )
    for name in ("delta", "leak", "psi", "radius", "similarity", "overlap", "alone", "terms"):
        expected = every.of_records(getattr(every, name))[some]
        np.testing.assert_array_equal(few.of_records(getattr(few, name)), expected)


# --- by label ------------------------------------------------------------------------------------------------------


def test_by_label_agrees_with_algorithm_1_on_the_labels_rows() -> None:
    table, labels = skewed(80, 4, 3, p=0.6), np.random.default_rng(0).choice([0, 2, 5], 80, p=[0.7, 0.2, 0.1])
    release = ReleasedRows(kernel=LINEAR)
    result = audit_rows(table, release, labels=labels)
    for label in (0, 2, 5):
        mine = labels == label
        expected = pdp_reference.deltas(table[mine], release)
        np.testing.assert_allclose(result.of_records(result.delta)[mine], expected, rtol=1e-9)
    some = np.array([70, 3, 3, 41])
    few = audit_rows(table, release, labels=labels, records=some)
    for name in ("delta", "radius", "similarity", "overlap", "alone"):
        expected = result.of_records(getattr(result, name))[some]
        np.testing.assert_array_equal(few.of_records(getattr(few, name)), expected)


def test_the_only_record_of_a_label() -> None:
    table, labels = skewed(30, 3, 3, p=0.6), np.repeat([0, 1], [29, 1])
    result = audit_rows(table, ReleasedRows(kernel=LINEAR, step=2), labels=labels)
    assert result.of_records(result.delta)[29] == math.inf
    assert result.of_records(result.alone)[29] == 3  # the label is what comes after the columns
    assert np.isfinite(result.of_records(result.delta)[:29]).all()
    assert not audit_rows(table, ReleasedRows(kernel=LINEAR, step=10), labels=labels).delta.any()  # rows of pure noise


def test_rows_of_each_label() -> None:
    """m_y is in the bound of label y's records alone."""
    table, labels = skewed(60, 3, 3, p=0.6), np.arange(60) % 2
    once = audit_rows(table, ReleasedRows(kernel=LINEAR), labels=labels)
    result = audit_rows(table, ReleasedRows(kernel=LINEAR, by_label=(1, 7)), labels=labels)
    expected = once.of_records(once.delta) * np.where(labels == 1, 7, 1)
    np.testing.assert_allclose(result.of_records(result.delta), expected, rtol=1e-12)


# --- what the bound is made of -------------------------------------------------------------------------------------


def test_by_hand() -> None:
    """One column, two values, one step to pure noise: s = 3 others, all in the ball."""
    table = np.array([[0], [0], [1], [1]])
    result = audit_rows(table, ReleasedRows(kernel=kernel(Linear(), 1, 2), epsilon=2.0))
    change, leak = 2.0, 2.0 / (1 + 3) * math.log(1 + 1 / 1)  # A_1 = 1 / (2 1/2 1/2); Sim = 3, Sim of the column 1
    np.testing.assert_allclose(result.leak, leak)
    np.testing.assert_allclose(result.delta, (leak + 1 / 9) / (2 * (1 - math.exp(-2))))
    np.testing.assert_allclose(result.psi, math.log(1 / leak) / math.log(3))
    np.testing.assert_array_equal(result.radius, 1)
    np.testing.assert_allclose(result.similarity, 3)
    np.testing.assert_allclose(result.overlap, 1 / 3)
    assert change == kernel(Linear(), 1, 2).change(1)


def test_the_proofs_constant_is_smaller_by_mu() -> None:
    """Eq. 8 against Lemma A.5, mu+_t (mubar+_{t-1} / mubar+_t - mubar-_{t-1} / mubar-_t)."""
    for t in range(1, 11):
        same, other = LINEAR.same_since, LINEAR.other_since
        stays = (1 + 4 * LINEAR.alpha[t]) / 5  # mu+_t
        lemma = stays * (same[t - 1] / same[t] - other[t - 1] / other[t])
        assert LINEAR.change(t) * stays == pytest.approx(lemma)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_value_of_its_own_is_reported_with_its_column(condition: str) -> None:
    table = np.concatenate([skewed(50, 3, 2, p=0.5), [[0, 2, 0]]])
    release = ReleasedRows(kernel=kernel(Linear(), 5, 3), condition=condition)
    result = audit_rows(table, release)
    delta, alone = result.of_records(result.delta), result.of_records(result.alone)
    assert (delta[-1], alone[-1]) == (math.inf, 1)
    assert np.isfinite(delta[:-1]).all() and (alone[:-1] == -1).all()
    later = audit_rows(table, replace(release, step=1))
    assert np.isfinite(later.delta).all()
    assert later.of_records(later.alone)[-1] == 1


def test_linear_in_the_released_rows() -> None:
    table = skewed(100, 4, 5, p=0.6)
    one, many = (audit_rows(table, ReleasedRows(kernel=LINEAR, samples=m)).delta for m in (1, 1000))
    np.testing.assert_allclose(many, 1000 * one, rtol=1e-12)


def test_later_release_steps_leak_less() -> None:
    table = skewed(100, 4, 5, p=0.6)
    deltas = [audit_rows(table, ReleasedRows(kernel=LINEAR, step=step)).delta for step in range(11)]
    assert all((late <= early).all() for early, late in itertools.pairwise(deltas))
    assert not deltas[10].any()
    whole = audit_rows(table, ReleasedRows(kernel=LINEAR))
    np.testing.assert_allclose(whole.terms[:, 4:].sum(axis=1), deltas[4], rtol=1e-12)


def test_figure_4() -> None:
    """n / s^psi at t = 1, 2, 3, 5, 8 for p = 0.5, k = n = 5, T = 20, s = 1000: values computed independently of this
    code, for another draw of the table."""
    leaks = []
    for seed in range(10):
        table = np.concatenate([[[1] * 5], skewed(1000, 5, 5, p=0.5, seed=seed)])
        leaks.append(audit_rows(table, ReleasedRows(kernel=kernel(Linear(), 20, 5)), records=np.array([0])).leak[0])
    np.testing.assert_allclose(np.median(leaks, axis=0)[[0, 1, 2, 4, 7]], [24, 11, 5.4, 0.41, 2.4e-4], rtol=0.4)


# --- bad input, words ----------------------------------------------------------------------------------------------


def test_the_audit_and_the_ledger_know_nothing_of_each_other() -> None:
    """pDP is data-dependent: no epsilon of the ledger may become a bound; that no bound becomes an event follows from
    the rooms, for privacy imports nothing of the papers (`test_layering`)."""
    audits = list(DISCRETE.glob("*.py"))
    assert len(audits) > 10 and {path.stem: privacy_imports(path) for path in audits} == {
        path.stem: set() for path in audits
    }


DISCRETE = Path(bound.__file__).parent


def privacy_imports(path: Path) -> set[str]:
    """Modules and packages of raydiff.privacy that a file imports."""
    tree = ast.parse(path.read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    whole = {alias.name for node in froms if node.module == "raydiff.privacy" for alias in node.names}
    return whole | {str(n.module).split(".")[2] for n in froms if str(n.module).startswith("raydiff.privacy.")}


def test_what_is_printed_with_it() -> None:
    text = " ".join(CAVEATS)
    for words in ("training error not included", "data-dependent", "confidential to the curator", "replacement for DP"):
        assert words in text


def test_a_schedule_that_stops_before_pure_noise_is_told() -> None:
    whole, part = (kernel(Linear(rate=r), 20, 5) for r in (1.0, 0.1))
    assert caveats(ReleasedRows(kernel=whole)) == (*CAVEATS, UNCONDITIONAL)
    assert caveats(ReleasedRows(kernel=whole), conditional=True) == (*CAVEATS, CONDITIONAL)
    assert "keeps 0.34 of the signal" in caveats(ReleasedRows(kernel=part))[-1]


@pytest.mark.parametrize("change", [{"step": -1}, {"step": 11}, {"samples": 0}, {"by_label": (1, 0)}])
def test_bad_releases(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="|".join(("samples", *change))):
        replace(ReleasedRows(kernel=LINEAR), **change)


@pytest.mark.parametrize(("alpha", "categories", "says"), [([1, 0.5], 1, "categories"), ([1, 0, 0.5], 2, "last step")])
def test_bad_kernels(alpha: list[float], categories: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Kernel(alpha=alpha, categories=categories)


def test_a_table_of_one_row_has_no_bound() -> None:
    with pytest.raises(ValueError, match="two rows"):
        audit_rows(np.zeros((1, 3), dtype=int), ReleasedRows(kernel=LINEAR))
