"""Verdicts on claims: each outcome from numbers made for it, and claims that no sweep can test."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from raydiff.report.papers.claims import (
    NOT,
    REPRODUCED,
    SCALE,
    Claim,
    Verdict,
    higher,
    holds,
    judged,
    lower,
    same,
    text,
    untested,
)
from raydiff.report.papers.claims_made import of

A: dict[str, Any] = {"method": "A"}
B: dict[str, Any] = {"method": "B"}


def runs(a: list[float], b: list[float]) -> pd.DataFrame:
    rows = [
        {"outcome": "finished", "data.name": "toy", "method": name, "seed": seed, "final/loss": value}
        for name, values in (("A", a), ("B", b))
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("a", "gain", "outcome"),
    [
        ([0.5, 0.6, 0.7], 0.4, REPRODUCED),  # 0.5 less, seed by seed, though seeds differ
        ([1.5, 1.6, 1.7], 0.4, NOT),
        ([1.01, 1.1, 1.19], 0.4, NOT),  # within 0.03 of it: a gain of 40 % would have shown
        ([0.4, 1.1, 1.9], 0.4, SCALE),
    ],
)
def test_a_difference_is_paired_and_judged_against_the_papers_gain(a: list[float], gain: float, outcome: str) -> None:
    frame = runs(a, [1.0, 1.1, 1.2])
    found = lower("loss", A, B, gain=gain)(frame)
    assert (found.outcome, found.n) == (outcome, 3)
    negated = frame.assign(**{"final/loss": -frame["final/loss"]})
    assert higher("loss", A, B, gain=gain)(negated).outcome == outcome


def test_pairs_are_those_that_both_sides_have() -> None:
    found = lower("loss", A, B, gain=0.1)(runs([0.1, 0.2, 0.3, 9.0], [1.0, 1.2, 1.1]))
    assert found.n == 3 and found.outcome == REPRODUCED
    assert lower("loss", A, B, gain=0.1)(runs([0.1], [1.0])).outcome == "not tested: fewer than two pairs"
    assert lower("loss", A, {"method": "C"}, gain=0.1)(runs([0.1], [1.0])).outcome.startswith("not tested: no such")
    assert lower("gain", A, B, gain=0.1)(runs([0.1], [1.0])).outcome.startswith("not tested: no such")


def test_what_varies_on_one_side_only_tells_pairs_too() -> None:
    """A sweep of two studies: B also ran on fewer records, which is nobody's pair."""
    frame = pd.concat([runs([0.1, 0.2, 0.3], [1.0, 1.2, 1.1]).assign(**{"data.train": 800}), runs([], [5.0, 5.0, 5.0])])
    frame["data.train"] = frame["data.train"].fillna(200)
    found = lower("loss", A, B, gain=0.1)(frame)
    assert found.n == 3 and found.ours.startswith("0.2 against 1.1: ")


def test_trials_that_nothing_tells_apart_make_no_pairs() -> None:
    frame = pd.concat([runs([0.1, 0.2], [1.0, 1.2]), runs([], [5.0, 5.0])])
    assert lower("loss", A, B, gain=0.1)(frame).outcome == "not tested: several trials go with one"


@pytest.mark.parametrize(
    ("values", "outcome"),
    [([0.5, 0.51, 0.49], REPRODUCED), ([0.6, 0.61, 0.62], NOT), ([0.3, 0.5, 0.8], SCALE)],
)
def test_a_value_is_held_by_an_interval_narrow_enough(values: list[float], outcome: str) -> None:
    assert holds("loss", A, 0.5, within=0.03)(runs(values, [])).outcome == outcome


def test_at_most_is_about_the_upper_end() -> None:
    judge = holds("loss", A, 0.1, within=0.05, at_most=True)
    assert judge(runs([0.0, 0.0, 0.0], [])).outcome == REPRODUCED
    assert judge(runs([0.09, 0.1, 0.11], [])).outcome == NOT


def test_an_infinite_value_is_no_gain() -> None:
    found = lower("loss", A, B, gain=0.1)(runs([0.1, math.inf], [1.0, 1.1]))
    assert (found.outcome, found.ours) == (NOT, "inf against 1.1 at most")


@pytest.mark.parametrize(
    ("a", "outcome"),
    [([1.01, 1.1, 1.19], REPRODUCED), ([1.2, 1.31, 1.4], NOT), ([0.5, 1.2, 1.6], SCALE)],
)
def test_the_same_means_an_interval_inside_the_margin(a: list[float], outcome: str) -> None:
    assert same("loss", A, B, within=0.05)(runs(a, [1.0, 1.1, 1.2])).outcome == outcome


def test_the_table_says_what_was_not_tested_and_leaves_out_unfinished_runs() -> None:
    frame = runs([0.5, 0.6], [1.0, 1.1])
    frame.loc[0, "outcome"] = "failed"
    common = {"source": "Table 9", "paper": "1 against 2", "differs": "all"}
    claims = [
        Claim(says="less", judge=lower("loss", A, B, gain=0.1), **common),
        Claim(says="elsewhere", judge=untested("data (DomainNet)"), **common),
    ]
    table = judged(frame, claims)
    assert table["outcome"].tolist() == ["not tested: fewer than two pairs", "not tested: data (DomainNet)"]
    assert "| elsewhere | Table 9 | 1 against 2 |  | **not tested: data (DomainNet)** | all |" in text(table)
    assert isinstance(claims[1].judge(frame), Verdict)


def test_claims_go_with_the_methods_and_data_that_ran() -> None:
    frame = runs([0.5], [1.0]).assign(**{"method.model": "DDPM"})
    assert of(frame) == []
    on_mnist = of(frame.assign(**{"method": "SPIRE", "data.name": "mnist"}))
    assert {c.source for c in on_mnist[:-1]} == {"Table 1 (mnist)"}
    assert on_mnist[-1].judge(frame).outcome == "not tested: data (CelebA's identities)"
    on_cifar = of(frame.assign(**{"method": "PFDM", "data.name": "cifar10"}))
    assert on_cifar[0].paper == "FID 35.78 against 36.44"
