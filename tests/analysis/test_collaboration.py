"""Paired differences: which trial is which arm, what is paired with what, and the interval by hand."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from analysis import collaboration
from raydiff.cli.report import FinishedSweepOptions

pytestmark = pytest.mark.slow


def run(method: str = "PFDM", **changes: Any) -> dict[str, Any]:
    """A row as `load.runs` gives it."""
    fields: dict[str, Any] = {"epsilon": 10.0, "t0": math.nan, "start": "denoiser", "center": "grey"}
    row = {"method": method, "partition": "MajorityMinority", "partition.minority": 3.0, "seed": 0}
    row |= {f"method.{k}": v for k, v in fields.items()} | changes
    return row | {"outcome": "finished", "evaluation.features": "cnn"}


ARMS = {
    "pfdm": {},
    "shuffled": {"method.start": "shuffled"},
    "no-server": {"method.start": "noise"},
    "gaussian": {"method.start": "gaussian"},
    "collafuse": {"method.epsilon": math.nan, "method.t0": 61.0},
    "real": {"method.epsilon": math.nan, "method.t0": 61.0, "method.start": "real"},
    "centre": {"method.center": "public"},
    "centre-gaussian": {"method.center": "public", "method.start": "gaussian"},
    "localonly": {"method": "LocalOnly", "method.epsilon": math.nan},
    "centre-localonly": {"method": "LocalOnly", "method.center": "public", "method.epsilon": math.nan},
    "fedavg": {"method": "FedAvg", "method.center": math.nan},
    "centralised": {"method": "LocalOnly", "partition": "Pooled", "partition.minority": math.nan},
}


@pytest.mark.parametrize("arm", ARMS)
def test_each_trial_is_its_arm(arm: str) -> None:
    assert collaboration._arm({**run(), **ARMS[arm]}) == arm


def depths_of(trials: dict[str, float]) -> pd.DataFrame:
    """`load.read_rounds` of trials with these depths."""
    rows = [(digest, 0, "t0", depth) for digest, depth in trials.items()]
    return pd.DataFrame(rows, columns=["digest", "step", "metric", "value"])


@pytest.fixture
def sweep() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of a sweep of two seeds: distances arm by arm, seed by seed."""
    values = {
        "localonly": (5.0, 7.0),
        "no-server": (9.0, 9.0),
        "shuffled": (8.0, 8.0),
        "pfdm": (4.0, 5.0),
        "collafuse": (4.5, 6.0),
        "real": (3.0, 4.9),
        "fedavg": (1.0, 2.0),
        "centralised": (0.5, 1.5),
    }
    runs, depths = [], {}
    for arm, distances in values.items():
        for seed, value in enumerate(distances):
            digest = f"{arm}-{seed}"
            names = ("cluster_a", "cluster_b") if arm == "centralised" else ("minor",)
            measured = {f"final/eval/ddim/fd_cnn/{n}": value + i for i, n in enumerate(names)}  # mean: + 1/2
            runs.append({**run(seed=seed), **ARMS[arm], **measured, "digest": digest})
            if arm in ("no-server", "shuffled", "pfdm", "collafuse"):
                depths[digest] = 61.0
    return pd.DataFrame(runs), depths_of(depths)


def test_differences_are_taken_seed_by_seed(sweep: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    table = collaboration.differences(collaboration.distances(*sweep)).set_index(["arm", "against"])
    pfdm = table.loc[("pfdm", "localonly")]
    assert (pfdm["minority"], pfdm["epsilon"], pfdm["sampler"], pfdm["n"]) == (3.0, 10.0, "ddim", 2)
    assert (pfdm["arm_mean"], pfdm["against_mean"], pfdm["mean"]) == (4.5, 6.0, -1.5)
    half = 12.706205 * 0.5**0.5 / 2**0.5  # t(0.975, 1) s / sqrt(n) of the differences -1 and -2
    assert (pfdm["low"], pfdm["high"]) == (pytest.approx(-1.5 - half), pytest.approx(-1.5 + half))
    assert table.loc[("pfdm", "no-server"), "mean"] == -4.5
    assert table.loc[("real", "localonly"), ["epsilon", "mean"]].tolist() == [10.0, -2.05]  # of 2 and 2.1
    assert pfdm["share"] == pytest.approx(1.5 / 2.05) and math.isnan(table.loc[("real", "localonly"), "share"])
    assert table.loc[("collafuse", "localonly"), ["epsilon", "mean"]].tolist() == [10.0, -0.75]  # by its depth
    assert table.loc[("centralised", "localonly"), ["minority", "mean"]].tolist() == [3.0, -4.5]  # mean of its clusters
    assert table.loc[("fedavg", "localonly"), "mean"] == -4.5


def test_the_command_prints_the_table_and_writes_the_files(
    sweep: tuple[pd.DataFrame, pd.DataFrame],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, rounds = sweep
    opened = SimpleNamespace(runs=runs, rounds=rounds)
    monkeypatch.setattr(FinishedSweepOptions, "open", lambda options: (opened, options.out))  # There is no folder.
    collaboration.main(["sweep", "--out", str(tmp_path)])
    assert "| 3 | 10 | ddim | 6.00 | -1.50 [-7.85, +4.85]; share 73% [" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"paired.csv", "paired.md"}
