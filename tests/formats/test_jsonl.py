"""JSON lines: one per round, whole after a crash."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from raydiff.formats.json_files import read_lines
from raydiff.formats.jsonl import Jsonl


def test_a_line_per_round_and_none_twice_also_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    for _ in range(2):
        log = Jsonl(path)
        log.log(0, {"loss": 0.5, "epsilon": math.inf})
        log.log(0, {"loss": 9.0})
    log.log(1, {"loss": 0.25})
    lines = read_lines(path)
    assert [(line["step"], line["loss"]) for line in lines] == [(0, 0.5), (1, 0.25)]
    assert lines[0]["epsilon"] == math.inf and lines[0]["time"] <= lines[1]["time"]
    log = Jsonl(path)
    log.log(2, {})
    assert log.total("loss") == 0.75


@pytest.mark.parametrize("cut", ['{"step": 1, "time": 17, "lo', '{"step": 1, "time": 17, "loss": 0.25}'])
def test_a_line_cut_short_spoils_no_other(tmp_path: Path, cut: str) -> None:
    """The second lacks only its end of line, and counts."""
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    Jsonl(path).log(0, {"loss": 0.5})
    with path.open("a") as f:
        f.write(cut)
    assert [line["step"] for line in read_lines(path)] == ([0, 1] if cut.endswith("}") else [0])
    log = Jsonl(path)
    log.log(1, {"loss": 0.25})
    log.log(2, {"loss": 0.125})
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(0, 0.5), (1, 0.25), (2, 0.125)]
