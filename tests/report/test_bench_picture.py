"""The benchmarks' lines as tables and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raydiff.cli.bench import command, picture

SCALE = {"steps": 2, "parameters": 5000, "total_mb": 2000.0, "targets": {}, "met": {}}
LINES = [
    {"what": "machine", "cpu": "one", "cores": 2, "memory_gb": 24.0, "torch": "2"},
    {"what": "scale", "clients": 8, "vectorize": False, "seconds_per_round": 0.1, **SCALE},
    {"what": "scale", "clients": 1000, "vectorize": False, "seconds_per_round": 9.0, **SCALE},
    {"what": "scale", "clients": 1000, "vectorize": True, "seconds_per_round": 4.0, **SCALE},
    {"what": "size", "clients": 8, "vectorize": False, "seconds_per_round": 0.02, **SCALE},
    {"what": "packed", "clients": 1000, "rounds": 5, "same_bits": False},
    {"what": "sweep", "trials": 16, "slots_s": 100.0, "working": 90.0, "outside": 8.0, "waiting": 2.0},
]


def written(folder: Path, lines: list[dict]) -> str:
    path = folder / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return str(path)


def test_tables_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.png"
    assert picture.main([written(tmp_path, LINES), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "one, 2 cores, 24 GB; torch 2" in said
    assert "|  | 1000 | True | 4 | 2 | 5000 | 2000 |" in said
    assert "| packed | clients | rounds | same_bits |" in said and "|  | 1000 | 5 | False |" in said  # no picture of it
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 20_000


def test_each_measurement_of_the_round_loop_is_drawn() -> None:
    assert set(picture.PANELS) == {"size", *command.MEASUREMENTS} - {"audit", "options"}


@pytest.mark.parametrize(
    ("lines", "says"), [(LINES[:1], "nothing to draw"), ([{"a": 1}], "is not what jobs/bench.py prints")]
)
def test_other_files_are_refused(tmp_path: Path, lines: list[dict], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        picture.read([Path(written(tmp_path, lines))])
