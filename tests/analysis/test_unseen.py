"""The table of unseen clients: what is paired with what, by hand, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trial_folders import written

from analysis import unseen
from raydiff.report import load

pytestmark = pytest.mark.slow

NEW = {"SPIRE": (0.5, 0.7, 0.6), "FedAvg": (0.9, 1.0, 1.1)}


def trial(
    sweep: Path, method: str, seed: int, *, new: float | None, finetune: bool = False, embeddings: int | None = None
) -> None:
    folder = sweep / "trials" / f"{method.lower()}{seed}"
    tuning = {"kind": "Training", "steps": 100} if finetune else None
    config: dict[str, Any] = {"kind": "Experiment", "method": {"kind": method, "finetune": tuning}, "seed": seed}
    if embeddings is not None:
        config["method"]["embeddings"] = embeddings
    final: dict[str, float] = {"time/seconds": 60.0 + seed}
    for prefix, value in (("eval", 2.0 + seed), ("unseen", new)):
        if value is not None:
            final |= {f"{prefix}/kd_cnn/all": value, f"{prefix}/kd_cnn/all_floor": 0.01}
            final |= {f"{prefix}/ancestral/kd_cnn/all": value + 1, f"{prefix}/memorized_fraction": 0.01 * (1 + seed)}
    if method != "LocalOnly" and new is not None:
        final |= {"unseen/parameters": 10.0, "unseen/parameters_share": 0.25}
    (folder / "artifacts").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("")
    views = {view: {"epsilon": 0.0} for view in ("server", "outsiders")}
    outcome = {"outcome": "finished", "final": written(final), **views}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    for name in ("samples", "unseen"):
        Image.fromarray(np.full((8, 8), 40 * seed, np.uint8)).save(folder / "artifacts" / f"{name}.png")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for method, values in NEW.items():
        for seed, value in enumerate(values):
            trial(tmp_path, method, seed, new=value, finetune=method == "FedAvg")
    trial(tmp_path, "LocalOnly", 0, new=0.3)
    return tmp_path


def test_differences_are_taken_seed_by_seed(sweep: Path) -> None:
    rows = unseen.table(unseen.readings(load.runs(sweep)), "SPIRE").set_index("method")
    assert list(rows.index) == ["SPIRE", "LocalOnly", "FedAvg + fine-tuning"]  # SPIRE, then the nearest first
    tuned = rows.loc["FedAvg + fine-tuning"]
    gaps = np.subtract(*NEW.values())
    half = 4.302652729911275 * gaps.std(ddof=1) / math.sqrt(3)  # t at 97.5 %, 2 degrees of freedom
    assert tuned["unseen"] == pytest.approx(1.0) and tuned["unseen_gap"] == pytest.approx(gaps.mean())
    assert (tuned["unseen_low"], tuned["unseen_high"]) == pytest.approx((gaps.mean() - half, gaps.mean() + half))
    assert tuned["clients_gap"] == 0 and rows.loc["LocalOnly", "n"] == 1
    assert rows.loc["LocalOnly", "unseen_gap"] == pytest.approx(0.2)  # of the one seed that both have


def test_what_cannot_be_compared_is_refused_in_one_sentence(sweep: Path, tmp_path: Path) -> None:
    trial(tmp_path / "other", "SPIRE", 0, new=None)
    for arguments, message in (
        ([tmp_path / "other"], "there are no finished trials that measured clients which joined later"),
        ([sweep, "--first", "Moon"], "there is no Moon"),
    ):
        with pytest.raises(ValueError, match=message):
            unseen.main([str(argument) for argument in arguments])


def test_a_sweep_that_is_not_over_is_shown_as_far_as_it_goes(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method of one seed has a difference without an interval, one whose seeds are its own has none."""
    trial(sweep, "PerFedAvg", 5, new=0.5)
    unseen.main([str(sweep), "--out", str(sweep / "out")])
    lines = {line.split(" | ")[0].strip("| "): line for line in capsys.readouterr().out.splitlines()}
    assert "**-0.400 [-0.648, -0.152]** | 2.00% | 10 (25.000%)" in lines["FedAvg + fine-tuning"]
    assert " | 0.500 | - | " in lines["PerFedAvg"] and " | 0.300 | +0.200 | 1.00% | all | " in lines["LocalOnly"]
    assert "n = 1 to 3 seeds; noise floors (real against real): clients 0.010; unseen 0.010" in lines
