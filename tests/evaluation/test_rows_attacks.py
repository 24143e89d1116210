"""Attacks on the rows of a table: copies are found, independent rows are not, and small cases are those of brute force.

Each attack is held to the same three oracles, so they stand together.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from raydiff.evaluation.attacks import anonymeter, closest, domias
from raydiff.evaluation.attacks.anonymeter import Risk
from raydiff.evaluation.attacks.membership import AttackResult, attack as judge, wilson
from raydiff.seeding import generator

SPANS = (5,) * 6 + (0,) * 6


def table(count: int, seed: int) -> Tensor:
    """Rows of twelve columns that all go with a hidden one of three, so that rows are alike without being copies."""
    rng = generator(seed)
    kind = torch.randint(3, (count, 1), generator=rng)
    other = torch.randint(6, (count, 12), generator=rng)
    return torch.where(torch.rand(count, 12, generator=rng) < 0.4, kind, other)


MEMBERS, NONMEMBERS, REFERENCE, STRANGERS = (table(120, seed) for seed in (5, 6, 2, 3))
KNOWN = {"members": MEMBERS, "nonmembers": NONMEMBERS}


def apart(one: Tensor, other: Tensor, spans: tuple[int, ...] = SPANS) -> float:
    """Gower's distance of two rows, column by column."""
    each = zip(one.tolist(), other.tolist(), spans, strict=True)
    return sum(abs(a - b) / span if span and max(a, b) <= span else float(a != b) for a, b, span in each)


# --- the distance ---


def test_distances_are_those_of_each_column_by_itself() -> None:
    rows, records = torch.randint(6, (7, 5), generator=generator(0)), torch.randint(6, (9, 5), generator=generator(1))
    spans = (4, 0, 3, 0, 4)  # codes beyond a span are missing values
    result = closest.distances(rows, records, spans=spans)
    assert result.tolist() == [[pytest.approx(apart(a, b, spans)) for b in records] for a in rows]
    counted = torch.rand(7, 5, generator=generator(2)) < 0.5
    part = closest.distances(rows, records, spans=spans, columns=counted)
    for i, j in itertools.product(range(7), range(9)):
        c = counted[i]
        chosen = tuple(s for s, keep in zip(spans, c.tolist(), strict=True) if keep)
        assert float(part[i, j]) == pytest.approx(apart(rows[i, c], records[j, c], chosen))


def test_equal_distances_are_equal_to_the_bit() -> None:
    one, other = torch.tensor([[0, 0]]), torch.tensor([[1, 2], [3, 0], [2, 1]])
    assert 0.1 + 0.2 != 0.3
    assert closest.distances(one, other, spans=(10, 10)).unique().tolist() == [0.3]


def test_the_nearest_is_one_of_equals_by_lot() -> None:
    drawn = closest.nearest(torch.tensor([[2.0, 1.0, 1.0, 3.0]]).repeat(600, 1), generator(0))
    assert drawn.unique().tolist() == [1, 2] and 240 < int((drawn == 1).sum()) < 360


# --- copies are found, strangers are not ---


def of_domias(made: Tensor) -> AttackResult:
    inside, outside = (
        domias.scores(records, made=made, reference=REFERENCE, spans=SPANS) for records in (MEMBERS, NONMEMBERS)
    )
    return judge(
        calibration_members=inside[:60],
        calibration_nonmembers=outside[:60],
        members=inside[60:],
        nonmembers=outside[60:],
    )


def risks(made: Tensor) -> dict[str, Risk]:
    alone = anonymeter.singling_out(made, **KNOWN, rng=generator(7))
    assert alone is not None
    linked = anonymeter.linkability(made, **KNOWN, spans=SPANS, rng=generator(8))
    of_text = anonymeter.inference(made, 7, **KNOWN, spans=SPANS, rng=generator(9))
    of_number = anonymeter.inference(made, 0, **KNOWN, spans=SPANS, rng=generator(9))
    return {"singling out": alone, "linkability": linked, "inference": of_text, "of a number": of_number}


def test_rows_copied_from_members_are_found() -> None:
    near = closest.attack(MEMBERS, **KNOWN, spans=SPANS, rng=generator(5))
    assert near.dcr > 0.95 and near.dcr_interval[0] > 0.85
    assert near.nndr > 0.95 and near.nndr_interval[0] > 0.8
    for name, result in risks(MEMBERS).items():
        assert result.risk > 0.8 and result.risk_interval[0] > 0.7, (name, result)
        assert result.members > 0.8 > result.guesses + 0.3, name
    membership = of_domias(MEMBERS)
    assert membership.auc > 0.98 and membership.auc_interval[0] > 0.93


def test_rows_that_are_independent_of_members_are_not() -> None:
    near = closest.attack(STRANGERS, **KNOWN, spans=SPANS, rng=generator(5))
    for low, high in (near.dcr_interval, near.nndr_interval):
        assert low < 0.5 < high and 0.05 < high - low < 0.4
    for name, result in risks(STRANGERS).items():
        low, high = result.risk_interval
        assert low < 0 < high and high - low < 0.5, (name, result)
    low, high = of_domias(STRANGERS).auc_interval
    assert low < 0.5 < high and high - low < 0.25


def test_what_rows_say_of_everybody_is_no_risk() -> None:
    """One column is a copy of the other in all rows: strangers tell it of members and of others alike."""
    made, inside, outside = (torch.stack([rows[:, 6]] * 2, dim=1) for rows in (STRANGERS, MEMBERS, NONMEMBERS))
    result = anonymeter.inference(made, 1, members=inside, nonmembers=outside, spans=(0, 0), rng=generator(0))
    assert result.members == result.nonmembers == 1 > result.guesses + 0.4
    assert result.risk == 0 and result.risk_interval[0] < 0 < result.risk_interval[1]


# --- brute force ---


def test_shares_are_those_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a row is in a table twice, and both distances are 0."""
    monkeypatch.setattr(closest, "BATCH", 4)
    made, inside, outside = table(15, 10), table(6, 11), table(6, 12)
    inside[1], outside[:2] = inside[0], made[0]
    made[1] = inside[0]
    dcr = nndr = 0.0
    for row in made:
        to_members, to_others = (sorted(apart(row, r) for r in records)[:2] for records in (inside, outside))
        one, other = (round(a / b, 6) if b else 1.0 for a, b in (to_members, to_others))
        a, b = round(to_members[0], 9), round(to_others[0], 9)
        dcr += (a < b) + 0.5 * (a == b)
        nndr += (one < other) + 0.5 * (one == other)
    result = closest.attack(made, members=inside, nonmembers=outside, spans=SPANS, rng=generator(0))
    assert (result.dcr, result.nndr) == (pytest.approx(dcr / 15), pytest.approx(nndr / 15))


def test_the_interval_is_as_wide_as_drawing_members_by_lot_makes_it() -> None:
    """All made rows lie at one record of 2 x 3: who has it decides everything, however many rows there are."""
    records = table(6, 20)
    made = records[:1].repeat(500, 1)
    result = closest.attack(made, members=records[:3], nonmembers=records[3:], spans=SPANS, rng=generator(0))
    assert result.dcr == 1 and result.dcr_interval == (0.5, 1.0)


@pytest.mark.slow
def test_intervals_of_nothing_hold_one_half() -> None:
    """40 pairs of tables from one population, with five times as many made rows: 95 % of them, at least 34."""
    held = [0, 0]
    for trial in range(40):
        made, inside, outside = (table(n, 100 + 3 * trial + i) for i, n in enumerate((200, 40, 40)))
        result = closest.attack(made, members=inside, nonmembers=outside, spans=SPANS, rng=generator(trial))
        for i, (low, high) in enumerate((result.dcr_interval, result.nndr_interval)):
            held[i] += low <= 0.5 <= high
    assert min(held) >= 34


def test_a_predicate_singles_out_what_is_alone_in_a_table_of_one_column() -> None:
    """Made rows 0 0 1 2: the values 1 and 2 are alone; among members both, among others neither is (two 1, no 2)."""
    made, inside, outside = (torch.tensor(rows)[:, None] for rows in ([0, 0, 1, 2], [0, 0, 1, 2], [0, 1, 1, 0]))
    result = anonymeter.singling_out(made, members=inside, nonmembers=outside, rng=generator(0))
    assert result is not None
    assert (result.members, result.nonmembers, result.attempts) == (1, 0, 2)
    assert anonymeter.singling_out(made[:2], members=inside, nonmembers=outside, rng=generator(0)) is None


def test_a_link_is_one_row_that_is_nearest_to_both_halves() -> None:
    """Two columns: a half is one of them, and each of a record's values is in one made row, the same or not."""
    made = torch.tensor([[0, 1], [2, 3], [4, 5]])
    linked, split = torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([[0, 3], [2, 5], [4, 1]])
    result = anonymeter.linkability(made, members=linked, nonmembers=split, spans=(0, 0), rng=generator(0))
    assert (result.members, result.nonmembers, result.attempts) == (1, 0, 3)


def test_a_value_is_inferred_from_the_row_that_is_nearest_in_the_others() -> None:
    made = torch.tensor([[0, 0, 3], [1, 1, 4]])
    right, wrong = torch.tensor([[0, 0, 3], [1, 1, 4], [0, 0, 3]]), torch.tensor([[0, 0, 4], [1, 1, 3], [1, 1, 0]])
    result = anonymeter.inference(made, 2, members=right, nonmembers=wrong, spans=(0, 0, 0), rng=generator(0))
    assert (result.members, result.nonmembers) == (1, 0)


def test_a_risk_is_anonymeters() -> None:
    """Its success_rate and residual_success, written out, of 30 and 10 of 50."""
    hits = torch.arange(50)
    result = anonymeter.risk(hits < 30, hits < 10, hits < 5)
    z2 = 1.959963984540054**2
    (r, e), (c, f) = (
        ((n + z2 / 2) / (50 + z2), math.sqrt(z2) / (50 + z2) * math.sqrt(n * (50 - n) / 50 + z2 / 4)) for n in (30, 10)
    )
    half = math.hypot(e / (1 - c), (r - 1) / (1 - c) ** 2 * f)
    assert result.risk == pytest.approx((r - c) / (1 - c))
    assert result.risk_interval == pytest.approx((result.risk - half, result.risk + half))
    assert result.intervals == {"members": wilson(30, 50), "nonmembers": wilson(10, 50), "guesses": wilson(5, 50)}


def test_the_score_is_the_logarithm_of_two_densities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domias, "BATCH", 3)
    records, made, reference = table(4, 15), table(6, 16), table(5, 17)
    result = domias.scores(records, made=made, reference=reference, spans=SPANS)
    for i, j in itertools.product(range(4), range(len(domias.BANDWIDTHS))):
        of_made, of_reference = (
            sum(math.exp(-apart(records[i], row) / domias.BANDWIDTHS[j]) for row in rows) / len(rows)
            for rows in (made, reference)
        )
        assert float(result[i, j]) == pytest.approx(math.log(of_reference / of_made))
