"""The audit of a file: what is printed, what is saved, and one sentence for bad input. Nothing is trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))
import audit as job

from raydiff.data.tabular import Table, read
from raydiff.diffusion.uniform import Sigmoid
from raydiff.privacy import pdp_reference
from raydiff.privacy.pdp import Release
from raydiff.privacy.pdp_kernel import Kernel


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """60 rows; row 41 has a colour of its own and row 7 no label."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "colour": rng.choice(["red", "blue"], 60),
            "size": rng.choice(["s", "m", "l"], 60),
            "age": rng.integers(20, 70, 60),
            "income": rng.choice(["low", "high"], 60),
        }
    )
    frame.loc[41, "colour"] = "green"
    frame.loc[7, "income"] = None
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def run(file: Path, *more: str) -> Path:
    out = file.parent / "out"
    arguments = [str(file), "--label", "income", "--bins", "4", "--steps", "5", "--schedule", "sigmoid"]
    assert job.main([*arguments, "--out", str(out), *more]) == 0
    return out


def test_prints_and_saves(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(file, "--release", "7", "--epsilon", "0.5", "--remove", "0.1", "--exposed", "2")
    text = capsys.readouterr().out
    assert (out / "report.txt").read_text() in text
    assert "row 41: inf  no other record has its colour" in text
    assert "59 records, 3 columns, k = 4" in text
    assert "1 of them infinite" in text
    assert "conditional on the removed set, not the pipeline's guarantee" in text
    assert "valid for a perfectly trained model, training error not included" in text
    assert "data-dependent, confidential to the curator, no replacement for DP" in text
    assert text.count("  row ") == 2
    (removal,) = json.loads((out / "removals.json").read_text())
    assert removal["share"] == 0.1
    assert removal["left"]["records"] == 53
    assert removal["left"]["infinite"] == 0
    assert (out / "audit.png").stat().st_size > 1000


def test_rows_hold_the_bound_of_algorithm_1(file: Path) -> None:
    frame = pd.read_parquet(run(file, "--release", "7", "--epsilon", "0.5", "--remove") / "records.parquet")
    assert frame["row"].tolist() == [row for row in range(60) if row != 7]
    table = read(Table(source=str(file), label="income", bins=4)).codes.numpy()
    kernel = Kernel(alpha=Sigmoid().alpha(5).tolist(), categories=4)
    expected = pdp_reference.deltas(table, Release(kernel=kernel, samples=7, epsilon=0.5))
    np.testing.assert_allclose(frame["delta"], expected, rtol=1e-9)
    assert {f"{name}_{t}" for name in ("psi", "radius", "similarity") for t in range(1, 6)} < set(frame.columns)
    assert frame.loc[frame["row"] == 41, "alone_in"].item() == "colour"
    assert frame["alone_in"].isna().sum() == 58


def test_a_later_step_and_a_schedule_that_stops_early(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(file, "--release-step", "2", "--schedule", "linear", "--rate", "0.1", "--condition", "theorem")
    text = capsys.readouterr().out
    assert "0 of them infinite" in text
    assert "of the signal at T, but generation starts from pure noise" in text
    assert "psi_2" not in pd.read_parquet(out / "records.parquet").columns


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--label", "salary"], "no column 'salary'"),
        (["--epsilon", "0"], "epsilon must be a positive number"),
        (["--release", "0"], "samples must be at least 1, got 0"),
        (["--release-step", "6"], r"step must be in 0\.\.5, got 6"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--schedule", "cubic"], "linear, sigmoid, cosine, got 'cubic'"),
        (["--schedule", "linear", "--rate", "2"], r"\(0, 1\], got 2"),
        (["--condition", "loose"], "theorem, relaxed"),
        (["--remove", "1.5"], r"\(0, 1\), got 1.5"),
        (["--remove", "0.99"], "leaves 1 records"),
    ],
)
def test_bad_input_is_one_sentence(file: Path, more: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(file, *more)
