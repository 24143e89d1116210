"""`python jobs/calibrate.py`: the published settings, and one sentence for bad input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raydiff.papers.pfdm import calibrate_command as calibrate

ROOT = Path(__file__).parents[3]
JOB = ROOT / "jobs" / "calibrate.py"


def rows(out: str) -> dict[str, list[str]]:
    return {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}


@pytest.mark.parametrize("clip, depths", [(15, (749, 740, 732)), (10, (693, 683, 675)), (35, (854, 845, 839))])
def test_the_papers_settings(capsys: pytest.CaptureFixture[str], clip: int, depths: tuple[int]) -> None:
    calibrate.main(
        ["--clip", str(clip), "--epsilon", "10", "--delta", "1e-5", "--schedule", "linear", "--steps", "1000"]
    )
    found = rows(capsys.readouterr().out)
    assert tuple(int(found[name][0]) for name in ("theorem", "rdp", "exact")) == depths
    assert "given" not in found


def test_a_given_depth_shows_all_three_epsilons(capsys: pytest.CaptureFixture[str]) -> None:
    calibrate.main(["--clip", "15", "--t0", "740"])
    found = rows(capsys.readouterr().out)
    assert found["given"] == found["rdp"] == ["740", "15.99", "10.77", "9.93", "9.25"]


def test_the_heading_says_what_epsilon_means(capsys: pytest.CaptureFixture[str]) -> None:
    calibrate.main(["--clip", "2.5", "--epsilon", "3", "--delta", "1e-6", "--schedule", "cosine", "--steps", "100"])
    heading = capsys.readouterr().out.splitlines()[0]
    parts = ("clip 2.5", "epsilon 3", "delta 1e-06", "per example", "replace-one", "local trust", "cosine", "T = 100")
    assert all(part in heading for part in parts)


def test_a_budget_that_only_some_accountants_can_keep(capsys: pytest.CaptureFixture[str]) -> None:
    calibrate.main(["--clip", "35", "--epsilon", "2"])
    found = rows(capsys.readouterr().out)
    assert found["theorem"] == ["none", "-", "-", "-", "-"]
    assert int(found["exact"][0]) <= 1000
    calibrate.main(["--clip", "35", "--epsilon", "1", "--t0", "1000"])  # none can, but a given depth has its epsilons
    assert rows(capsys.readouterr().out)["given"] == ["1000", "157.41", "2.24", "1.91", "1.75"]


@pytest.mark.slow
def test_it_starts_without_heavy_libraries() -> None:
    """As a user runs it; imports take most of the time of so short a job."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(JOB), "--clip", "15"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "torch" in imported and "740" in done.stdout
    assert not imported & {"diffusers", "opacus", "ray", "mlflow", "sklearn", "torchvision", "matplotlib", "cleanfid"}
