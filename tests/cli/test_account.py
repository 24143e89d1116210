"""`raydiff account`: what was spent elsewhere, against formulas and mechanisms that are written out here."""

from __future__ import annotations

import json
import math
import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opacus.accountants import RDPAccountant
from scipy import integrate, optimize, stats

from raydiff.__main__ import main
from raydiff.cli import account

FLOWER = ["--flower-epsilon", "10", "--clipping-norm", "1", "--sensitivity", "1"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """What --json says of each relation."""
    assert account.main([*arguments, "--json"]) == 0
    return {found["relation"]: found for found in json.loads(capsys.readouterr().out)["found"]}


def epsilon_by_quadrature(mu: float, delta: float) -> float:
    """Where the integral of max(0, p - e^epsilon q) is delta, for p = N(mu, 1) and q = N(0, 1)."""

    def gap(epsilon: float) -> float:
        edge = epsilon / mu + mu / 2  # p > e^epsilon q above it
        where = np.linspace(edge, max(edge, mu) + 12, 20001)
        return float(integrate.simpson(stats.norm.pdf(where, mu) - np.exp(epsilon + stats.norm.logpdf(where)), x=where))

    return float(optimize.brentq(lambda e: gap(e) - delta, 0, 1000))


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 10.4), (10, 48.4), (50, 167.9)])
def test_flowers_local_noise_is_calibrated_for_one_round(
    capsys: pytest.CaptureFixture[str], rounds: int, epsilon: float
) -> None:
    """LocalDpMod: sensitivity sqrt(2 ln(1.25 / delta)) / epsilon in each round, and the update clipped to its norm."""
    found = told(capsys, *FLOWER, "--rounds", str(rounds))
    std = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    assert round(found["zero_out"]["guarantee"]["epsilon"], 1) == epsilon
    for relation, moved in (("zero_out", 1), ("replace_one", 2)):
        guarantee = found[relation]["guarantee"]
        by_hand = epsilon_by_quadrature(moved * math.sqrt(rounds) / std, 1e-5)
        assert guarantee["epsilon"] == pytest.approx(by_hand, rel=1e-5)
        assert (guarantee["unit"], guarantee["trust"], guarantee["accountant"]) == ("client", "local", "exact")
    assert "the server sees which clients send" in found["add_remove"]["refused"]


def test_a_sensitivity_below_the_clipping_norm_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """What was said to be the sensitivity scales the noise; what was clipped says how much of it was needed."""
    right = told(capsys, *FLOWER)["zero_out"]
    half = told(capsys, "--flower-epsilon", "10", "--clipping-norm", "2", "--sensitivity", "1")["zero_out"]
    assert half["mu"] == pytest.approx(2 * right["mu"])
    other = told(capsys, *FLOWER, "--flower-delta", "1e-7")["zero_out"]
    assert other["mu"] == pytest.approx(right["mu"] * math.sqrt(math.log(1.25e5) / math.log(1.25e7)))


def test_no_attack_on_such_a_mechanism_exceeds_the_ceilings_and_half_the_noise_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best attack on a client that sends an update of the clip norm, or nothing in its place, in 4 rounds."""
    found = told(capsys, "--sigma", "3", "--rounds", "4", "--unit", "client")["zero_out"]
    rng = np.random.default_rng(0)

    def attack(sigma: float) -> tuple[float, float]:
        outside, inside = (mean + rng.normal(0, sigma, (200_000, 4)).mean(axis=1) for mean in (0.0, 1.0))
        threshold = np.quantile(outside, 0.99)
        ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
        auc = (ranks.sum() - len(inside) * (len(inside) + 1) / 2) / len(inside) ** 2
        return float(auc), float((inside > threshold).mean())

    auc, tpr = attack(3.0)
    assert auc == pytest.approx(found["auc"], abs=4e-3) and tpr == pytest.approx(found["tpr"], abs=4e-3)
    auc, tpr = attack(1.5)
    assert auc > found["auc"] + 0.05 and tpr > found["tpr"] + 0.05


def test_opacus_history_costs_what_opacus_says(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = RDPAccountant()
    theirs.history = [(1.1, 0.01, 500), (0.9, 0.02, 200)]
    found = told(capsys, "--history", json.dumps(theirs.history))
    assert found["replace_one"]["guarantee"]["epsilon"] > found["zero_out"]["guarantee"]["epsilon"]
    for relation in ("zero_out", "add_remove"):
        epsilon = found[relation]["guarantee"]["epsilon"]
        assert 0.7 * theirs.get_epsilon(1e-5) < epsilon <= theirs.get_epsilon(1e-5) + 1e-6
        assert found[relation]["mu"] is None and 0.5 < found[relation]["auc"] < 1 and 0.01 < found[relation]["tpr"] < 1


@pytest.mark.parametrize(
    "how", [["--sigma", "1", "--q", "0.01", "--steps", "1000"], ["--history", "[[1, 0.01, 1000]]"]]
)
@pytest.mark.parametrize("trust", ["local", "central"])
@pytest.mark.parametrize("unit", ["example", "client"])
def test_sampling_counts_where_nobody_sees_who_is_drawn(
    capsys: pytest.CaptureFixture[str], how: list[str], unit: str, trust: str
) -> None:
    who = ["--unit", unit, "--trust", trust]
    found, every = (told(capsys, *of, *who)["zero_out"] for of in (how, ["--sigma", "1", "--steps", "1000"]))
    assert account.main([*how, *who]) == 0
    note = capsys.readouterr().out.splitlines()[-1]
    if (unit, trust) == ("client", "local"):
        assert found == every and "the server sees which clients send" in note
        ten = told(capsys, "--sigma", "1", "--steps", "10", *who)["zero_out"]["guarantee"]["epsilon"]
        assert found["guarantee"]["epsilon"] > ten > 17.8  # what one has spent that was drawn as often as expected
    else:
        assert found["guarantee"]["epsilon"] < 2 and "averaging over the batch drawn" in note
        assert "arXiv 2605.15648" in note


def test_what_is_not_sampled_has_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--sigma", "1"], FLOWER):
        account.main([*arguments, "--json"])
        assert json.loads(capsys.readouterr().out)["note"] == ""


def test_steps_and_rounds_are_all_counted(capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ["--sigma", "1.1", "--q", "0.01"]
    twice = told(capsys, *sampled, "--steps", "50", "--rounds", "2")["zero_out"]
    assert twice == told(capsys, *sampled, "--steps", "100")["zero_out"]
    assert twice["guarantee"]["epsilon"] > told(capsys, *sampled, "--steps", "50")["zero_out"]["guarantee"]["epsilon"]
    assert told(capsys, "--sigma", "2", "--rounds", "9")["replace_one"]["mu"] == pytest.approx(2 * 3 / 2)


def test_what_is_printed_says_what_an_epsilon_needs(capsys: pytest.CaptureFixture[str]) -> None:
    account.main([*FLOWER, "--rounds", "10"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "noise 0.4845 x the clip norm, 10 times"
    needs = ("epsilon 48.38", "per client", "zero-out", "local trust", "delta 1e-05", "exact accountant", "mu 6.528")
    assert all(part in lines[1] for part in (*needs, "AUC", "TPR"))
    assert len(lines) == 4


@pytest.mark.parametrize("more", [["--sigma", "1.1", "--q", "0.01", "--steps", "500"], ["--sigma", "7"], FLOWER])
def test_what_is_printed_is_no_less_than_what_was_computed(capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    found = told(capsys, *more)
    account.main(more)
    lines = {line.partition(":")[0].replace("-", "_"): line for line in capsys.readouterr().out.splitlines()}
    for relation, of in found.items():
        if of["guarantee"]:
            shown = re.findall(r"epsilon (\S+) \(.*above AUC (\S+), nor TPR (\S+) at", lines[relation])[0]
            assert all(map(operator.ge, map(float, shown), (of["guarantee"]["epsilon"], of["auc"], of["tpr"])))


def test_a_file_says_the_same_and_options_come_after_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (path := tmp_path / "spent.toml").write_text('history = [[1.1, 0.01, 500]]\nunit = "client"\ndelta = 1e-6\n')
    same = ["--history", "[[1.1, 0.01, 500]]", "--unit", "client"]
    assert told(capsys, str(path)) == told(capsys, *same, "--delta", "1e-6")
    assert told(capsys, str(path), "--delta", "1e-4") == told(capsys, *same, "--delta", "1e-4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of sigma, history, flower_epsilon; got none"),
        (["--sigma", "1", *FLOWER], "got sigma and flower_epsilon"),
        (["--sigma", "-1"], "sigma must be a number >= 0, got -1.0"),
        (["--sigma", "nan"], "sigma must be a number >= 0, got nan"),
        (["--sigma", "1", "--q", "0"], "q must be in (0, 1], got 0.0"),
        (["--sigma", "1", "--steps", "0"], "steps must be at least 1, got 0"),
        (["--sigma", "1", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["--sigma", "1", "--delta", "1"], "delta must be in (0, 1), got 1.0"),
        (["--sigma", "1", "--unit", "record"], "unit must be one of example, client, got 'record'"),
        (["--sigma", "1", "--clipping-norm", "1"], "clipping_norm goes with flower_epsilon alone"),
        ([*FLOWER, "--q", "0.5"], "q goes with sigma alone"),
        ([*FLOWER, "--trust", "central"], "leave out unit and trust"),
        (["--flower-epsilon", "10"], "flower_epsilon needs clipping_norm"),
        ([*FLOWER, "--sensitivity", "0"], "sensitivity must be a number > 0, got 0.0"),
        (["--history", "[[1.1, 0.01]]"], "must be a list like [[1.1, 0.01, 1000]]"),
        (["--history", "[[1.1, 0.01, 10.5]]"], "must be a list like [[1.1, 0.01, 1000]]"),
        (["missing.toml"], "missing.toml: No such file"),
    ],
)
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["account", *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sigma = ", "spent.toml: "),
        ("sigmas = 1", "spent.toml: unrecognized arguments: --sigmas=1"),
        ('sigma = "high"', "spent.toml: argument --sigma: invalid float value: 'high'"),
        ("history = 3", "spent.toml: argument --history: must be a list like"),
    ],
)
def test_a_bad_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spent.toml").write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["account", "spent.toml"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and message in err and err.count("\n") == 1
