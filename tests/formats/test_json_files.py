"""JSON files: of what is sealed every flipped bit is found, and lines are whole after a crash."""

import itertools
import json
import math
import re
from pathlib import Path

import pytest

from raydiff.formats import json_files as files
from raydiff.formats.json_files import read_lines
from raydiff.storage.json_lines import JsonLines
from raydiff.storage.local import LocalFolder

FIELDS = {"ledger": "[]", "states": {"0": [1, "ab"]}, "Bär": [1, 2], "hash": "0" * 64}


def log_at(folder: Path) -> JsonLines:
    return JsonLines(LocalFolder(folder), "metrics.jsonl")


def test_every_flipped_bit_of_a_sealed_file_is_found() -> None:
    whole = files.sealed(FIELDS, "d/commit-00001.json").encode()
    assert files.parse_sealed(whole, "x", of="d/commit-00001.json") == FIELDS
    for at, bit in itertools.product(range(len(whole)), range(8)):
        flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        with pytest.raises(ValueError, match=r"^x is damaged"):
            files.parse_sealed(flipped, "x", of="d/commit-00001.json")


def test_a_sealed_file_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^x is damaged: it is a copy of d/commit-00001\.json$"):
        files.parse_sealed(files.sealed(FIELDS, "d/commit-00001.json").encode(), "x", of="d/commit-00002.json")
    with pytest.raises(ValueError, match=r"^x is damaged: it is not what was written$"):
        files.parse_sealed(json.dumps(FIELDS).encode(), "x", of="d/commit-00001.json")


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b'{"other": 1}'])
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a/outcome\.json (is not valid JSON|has no field 'outcome').*: delete it, "):
        files.parse_json(data, "a/outcome.json", needs="outcome")


def test_lines_are_read_from_where_the_last_ones_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step}) + "\n" for step in range(3)]
    assert files.read_lines_from(path, 0) == ([], 0)
    path.write_text(lines[0] + lines[1][:5])
    assert files.read_lines_from(path, 0) == ([{"step": 0}], len(lines[0]))
    path.write_text(lines[0] + lines[1] + lines[2])
    assert files.read_lines_from(path, len(lines[0])) == ([{"step": 1}, {"step": 2}], len("".join(lines)))
    path.write_text(lines[2])  # another file in its place
    assert files.read_lines_from(path, len("".join(lines))) == ([{"step": 2}], len(lines[2]))


def test_a_line_per_round_and_none_twice_also_in_the_next_process(tmp_path: Path) -> None:
    for _ in range(2):
        log = log_at(tmp_path / "deep")
        log.log(0, {"loss": 0.5, "epsilon": math.inf})
        log.log(0, {"loss": 9.0})
    log.log(1, {"loss": 0.25})
    lines = read_lines(tmp_path / "deep" / "metrics.jsonl")
    assert [(line["step"], line["loss"]) for line in lines] == [(0, 0.5), (1, 0.25)]
    assert lines[0]["epsilon"] == "inf" and lines[0]["time"] <= lines[1]["time"]
    log = log_at(tmp_path / "deep")
    log.log(2, {})
    assert sum(line.get("loss", 0.0) for line in log.lines) == 0.75


@pytest.mark.parametrize("cut", ['{"step": 1, "time": 17, "lo', '{"step": 1, "time": 17, "loss": 0.25}'])
def test_a_line_cut_short_spoils_no_other(tmp_path: Path, cut: str) -> None:
    """The second lacks only its end of line, and counts."""
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    log_at(tmp_path).log(0, {"loss": 0.5})
    with path.open("a") as f:
        f.write(cut)
    assert [line["step"] for line in read_lines(path)] == ([0, 1] if cut.endswith("}") else [0])
    log = log_at(tmp_path)
    log.log(1, {"loss": 0.25})
    log.log(2, {"loss": 0.125})
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert files.cut_short(path) == ([] if cut.endswith("}") else [2])


def test_nothing_else_writes_json() -> None:
    """What writes it elsewhere may write Infinity and NaN, which other parsers refuse."""
    package = Path(files.__file__).parents[1]
    others = [path for path in package.rglob("*.py") if re.search(r"\bjson\.dumps?\(", path.read_text())]
    assert others == [Path(files.__file__)]
    assert json.loads(files.dumps({"a": [math.inf, (-math.inf, math.nan)]})) == {"a": ["inf", ["-inf", None]]}
