"""Verdicts on claims: each outcome by hand, and claims that no sweep can test."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trial_folders import written

from analysis import referee_presets
from analysis.claims import NOT, REPRODUCED, SCALE, Verdict, claims_of, main, rows_of, verdict

pytestmark = pytest.mark.slow

A: dict[str, Any] = {"method": "A"}
B: dict[str, Any] = {"method": "B"}


def lower(runs: pd.DataFrame, metric: str = "loss", *, gain: float = 0.1, others: dict[str, Any] = B) -> Verdict:
    return verdict(runs, "lower", metric, A, others, gain)


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
    judgement = lower(frame, gain=gain)
    assert (judgement.outcome, judgement.n) == (outcome, 3)
    negated = frame.assign(**{"final/loss": -frame["final/loss"]})
    assert verdict(negated, "higher", "loss", A, B, gain).outcome == outcome


def test_pairs_are_those_that_both_sides_have() -> None:
    pairs = lower(runs([0.1, 0.2, 0.3, 9.0], [1.0, 1.2, 1.1]))
    assert pairs.n == 3 and pairs.outcome == REPRODUCED
    assert lower(runs([0.1], [1.0])).outcome == "not tested: fewer than two pairs"
    assert lower(runs([0.1], [1.0]), others={"method": "C"}).outcome.startswith("not tested: no such")
    assert lower(runs([0.1], [1.0]), "gain").outcome.startswith("not tested: no such")
    twice = pd.concat([runs([0.1, 0.2], [1.0, 1.2]), runs([], [5.0, 5.0])])
    assert lower(twice).outcome == "not tested: several trials go with one"


@pytest.mark.parametrize(
    ("how", "values", "outcome"),
    [
        ("is 0.5", [0.5, 0.51, 0.49], REPRODUCED),
        ("is 0.5", [0.6, 0.61, 0.62], NOT),
        ("is 0.5", [0.3, 0.5, 0.8], SCALE),
        ("at most 0.1", [0.0, 0.0, 0.0], REPRODUCED),
        ("at most 0.1", [0.09, 0.1, 0.11], NOT),
    ],
)
def test_a_value_is_held_by_an_interval_narrow_enough(how: str, values: list[float], outcome: str) -> None:
    assert verdict(runs(values, []), how, "loss", A, {}, 0.03).outcome == outcome


@pytest.mark.parametrize(
    ("a", "outcome"), [([1.01, 1.1, 1.19], REPRODUCED), ([1.2, 1.31, 1.4], NOT), ([0.5, 1.2, 1.6], SCALE)]
)
def test_the_same_means_an_interval_inside_the_margin(a: list[float], outcome: str) -> None:
    assert verdict(runs(a, [1.0, 1.1, 1.2]), "same", "loss", A, B, 0.05).outcome == outcome


def frame_of(method: str, data: str) -> pd.DataFrame:
    return runs([0.5], [1.0]).assign(**{"method": method, "data.name": data, "method.model": "DDPM"})


def test_claims_go_with_the_methods_and_data_that_ran() -> None:
    assert list(claims_of(frame_of("A", "toy"))) == list(claims_of(pd.DataFrame({"method": ["SPIRE"]}))) == []
    for data, source in (("mnist", "Table 1 (mnist)"), ("digits", "Table 1 (MNIST)")):
        claims = list(claims_of(frame_of("SPIRE", data)))
        assert {c["source"] for c in claims[:-1]} == {source} and len(claims) == 6
        assert {c["ours"]["data.name"] for c in claims} == {data}
    for data, paper in (("cifar10", "FID 35.78 against 36.44"), ("digits", "FID 4.79 against 5.99")):
        claims = list(claims_of(frame_of("PFDM", data)))
        assert claims[0]["paper"] == paper and len(claims) == 10 and claims[0]["differs"].startswith(f"{data}, ")


def test_every_claim_can_be_judged() -> None:
    for row in rows_of("claims"):
        how, *value = row["judged"].rsplit(" ", 1) if row["judged"][:2] in ("is", "at") else [row["judged"]]
        assert how in ("lower", "higher", "same", "is", "at most") or how.startswith("not tested: ")
        assert all(float(v) >= 0 for v in value) and row["claim"] and row["source"]
        assert bool(row["metric"]) == bool(row["ours"]) == bool(row["margin"]) == (not how.startswith("not tested"))


def test_every_published_number_has_what_differs_and_a_preset() -> None:
    numbers = rows_of("published")
    assert {n["preset"] for n in numbers} <= set(vars(referee_presets)) and all(all(n.values()) for n in numbers)


def test_several_sweeps_are_one_page_each_with_its_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = ["--name", "mine", "--runtime.storage=/some/where", "--resume"]
    one = kept(tmp_path / "one", ["jobs/sweep.py", "spire-digits", *local, "--clients", "3"])
    two = kept(tmp_path / "two", ["jobs/sweep.py", "a.b:spire", "--name=x", "--grid", "seed=0"])
    main([str(one), str(two), "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "claims.md").read_text()
    assert page.strip() in capsys.readouterr().out
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["## In all", "## spire-digits", "## a.b:spire"] and "| in all | 0 | 0 | 0 | 12 |" in page
    first, second = (line for line in page.splitlines() if line.startswith("`raydiff"))
    counts = "1 of 2 trials finished, 2 minutes in all, on 2001-09-09, by raydiff 9.9, code "
    assert first.startswith(f"`raydiff sweep spire-digits --clients 3`: {counts}")
    assert second.startswith("`raydiff sweep a.b:spire --grid seed=0`: 1 of 2")
    assert first.rpartition(" ")[2] == second.rpartition(" ")[2]  # the same code


def kept(folder: Path, command: list[str], **about: str) -> Path:
    """A sweep of two trials, one of which has finished."""
    for seed in (0, 1):
        trial = folder / "trials" / f"{seed:016x}"
        trial.mkdir(parents=True)
        config = {"method": {"kind": "SPIRE"}, "data": {"kind": "Data", "name": "digits"}, "seed": seed}
        (trial / "config.json").write_text(json.dumps({"kind": "Experiment", **config}))
        (trial / "metrics.jsonl").write_text(json.dumps({"step": 0, "time": 1e9, "metrics": []}) + "\n")
    end = {"outcome": "finished", "says": {}, "final": written({"time/seconds": 100.0})}
    (folder / "trials" / f"{0:016x}" / "outcome.json").write_text(json.dumps(end))
    sweep = {"command": command, "version": "9.9", "code": {"a.py": "1"}, "trials": [f"{0:016x}", f"{1:016x}"], **about}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return folder
