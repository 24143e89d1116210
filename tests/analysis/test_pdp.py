"""What a sweep over tables says: removal, attack, and what is left out."""

import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import pdp
from analysis.pdp import attacks, removal

pytestmark = pytest.mark.slow

TRIAL: dict[str, Any] = {
    "outcome": "finished",
    "data.name": "german",
    "method": "LocalOnly",
    "clients": 1,
    "method.model.conditional": True,
    "audit.batch": 0.01,
    "seed": 0,
    "data.split_seed": 0,
    "method.model.steps": 10,
    "method.model.schedule": "Linear",
    "method.model.schedule.rate": 1.0,
    "final/eval/tv_pairs": 0.2,
    "final/eval/tv_pairs_floor": 0.1,
    "final/eval/accuracy": 0.7,
    "final/eval/accuracy/real": 0.8,
    "final/eval/accuracy/majority": 0.65,
}


def trials(axes: dict[str, list[Any]], **more: Any) -> pd.DataFrame:
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return pd.DataFrame([{**TRIAL, **more, **row} for row in rows])


def said(runs: pd.DataFrame, out: Path) -> str:
    pdp.write(runs, out, what="x")
    return (out / "pdp.md").read_text()


@pytest.fixture
def removed() -> pd.DataFrame:
    """Three splits; a tenth removed costs 0.02, 0.04 and 0.06 of an accuracy that differs much more between splits."""
    frame = trials({"audit.remove": [0.0, 0.1], "data.split_seed": [0, 1, 2]})
    frame["final/pdp/own/largest"] = 30 - 200 * frame["audit.remove"]
    frame["final/pdp/own/mean"] = 3.0
    frame["final/pdp/own/vacuous_share"] = 0.25
    split = frame["data.split_seed"]
    frame["final/eval/accuracy"] = 0.6 + split / 10 - (frame["audit.remove"] > 0) * (split + 1) * 0.02
    return frame


def test_removal_is_compared_split_by_split(removed: pd.DataFrame) -> None:
    table = removal(removed)
    assert table["removed"].tolist() == [0, 0.1]
    assert table["n"].tolist() == [3, 3]
    assert table["bound_largest"].tolist() == [30, 10]
    assert table["accuracy"].tolist() == pytest.approx([0.7, 0.66])
    whole, tenth = table.to_dict("records")
    assert pd.isna(whole["difference"])
    assert tenth["difference"] == pytest.approx(-0.04)
    half = 4.302653 * 0.02 / 3**0.5  # Student's quantile for three
    assert (tenth["difference_low"], tenth["difference_high"]) == pytest.approx((-0.04 - half, -0.04 + half))
    assert tenth["accuracy_high"] - tenth["accuracy"] > half
    assert (tenth["bound_difference"], tenth["bound_difference_low"]) == (-20, -20)


def test_the_attack_has_a_row_for_each_rate(tmp_path: Path) -> None:
    axes = {"method.model.steps": [20], "method.model.schedule.rate": [0.1, 0.5], "seed": [0, 1]}
    frame = trials(axes, **{"data.name": "adult", "final/eval/blackbox/random": 0.2})
    frame["final/eval/blackbox/n_members"] = 100.0
    frame["final/eval/blackbox/accuracy"] = [0.24, 0.26, 0.21, 0.21]
    cosine = frame.iloc[:2].assign(**{"method.model.schedule": "Cosine", "method.model.schedule.rate": float("nan")})
    frame = pd.concat([frame, cosine], ignore_index=True)
    table = attacks(frame)
    assert table[["method.model.schedule", "attack", "n"]].to_numpy().tolist() == [
        ["Cosine", 0.25, 2],
        ["Linear", 0.25, 2],
        ["Linear", 0.21, 2],
    ]
    says = said(frame, tmp_path)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in says.splitlines() if line.startswith("| LocalOnly")]
    assert [(row[3], row[4]) for row in cells] == [("Cosine", ""), ("Linear", "0.1"), ("Linear", "0.5")]
    assert pdp.CAVEAT in says
    assert {path.name for path in tmp_path.iterdir()} == {"pdp.md", "pdp-attack.csv"}


def test_removal_is_drawn_and_written(removed: pd.DataFrame, tmp_path: Path) -> None:
    says = said(removed, tmp_path)
    assert "-0.040 [-0.090, +0.010]" in says
    assert {path.name for path in tmp_path.iterdir()} == {"pdp.md", "pdp-removal.csv", "pdp-removal.png"}
