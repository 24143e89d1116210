"""JSON files: every flipped bit is found, and lines are whole after a crash."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from raydiff.formats import json_files as files
from raydiff.formats.json_files import Jsonl, read_lines

FIELDS = {"outcome": "finished", "final": {"privacy/epsilon_server": 9.5, "Bär": [1, 2]}, "hash": "0" * 64}


@pytest.mark.parametrize("indent", [None, 1])
def test_every_flipped_bit_is_found(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(files.sealed(FIELDS, path, indent=indent))
    assert files.read_json(path) == FIELDS
    whole = path.read_bytes()
    for at, bit in itertools.product(range(len(whole)), range(8)):
        flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        with pytest.raises(ValueError, match=r"outcome\.json (is damaged|is not valid JSON).*: delete it, and"):
            files.parse_json(flipped, path)


def test_a_damaged_line_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [files.sealed({"step": step, "loss": 0.5}, path) for step in range(3)]
    path.write_text("\n".join([lines[0], lines[1].replace("0.5", "0.4"), lines[2], ""]))
    assert read_lines(path) == [{"step": 0, "loss": 0.5}, {"step": 2, "loss": 0.5}]
    assert files.cut_short(path) == [2]


def test_lines_are_read_from_where_the_last_ones_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [files.sealed({"step": step}, path) + "\n" for step in range(3)]
    assert files.read_lines_from(path, 0) == ([], 0)
    path.write_text(lines[0] + lines[1][:20])
    assert files.read_lines_from(path, 0) == ([{"step": 0}], len(lines[0]))
    path.write_text(lines[0] + lines[1] + lines[2])
    assert files.read_lines_from(path, len(lines[0])) == ([{"step": 1}, {"step": 2}], len("".join(lines)))
    path.write_text(lines[2])  # another file in its place
    assert files.read_lines_from(path, len("".join(lines))) == ([{"step": 2}], len(lines[2]))


@pytest.mark.parametrize("place", ["/a/trials/{}/outcome.json", "s3://b/x/sweeps/s/trials/{}/artifacts/ledger.json"])
@pytest.mark.parametrize("other", ["/a/trials/{}1/outcome.json", "/a/trials/{}0/config.json", "outcome.json"])
def test_a_file_of_another_trial_or_name_is_refused_wherever_the_storage_is(place: str, other: str) -> None:
    digest = "0" * 15
    where = place.format(f"{digest}0")
    data = files.sealed(FIELDS, files.identity(where)).encode()
    assert files.parse_json(data, f"/moved to/another mount/{where.partition('trials/')[2]}") == FIELDS
    with pytest.raises(ValueError, match=f"is damaged: it is a copy of {digest}0/"):
        files.parse_json(data, other.format(digest))


def test_a_line_of_another_trial_is_refused_not_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / f"{trial:016x}" / "metrics.jsonl" for trial in range(2)]
    for path in paths:
        Jsonl(path).log(0, {"loss": 0.5})
    paths[0].write_bytes(paths[1].read_bytes())
    for read in (read_lines, files.cut_short, Jsonl):
        with pytest.raises(ValueError, match=rf"^line 1 of {paths[0]} is damaged: it is a copy of 0+1/metrics"):
            read(paths[0])


def test_what_was_written_without_a_digest_is_believed() -> None:
    for fields in (FIELDS, {"data_digest": "ab" * 32}, {}):
        assert files.parse_json(json.dumps(fields).encode(), "config.json") == fields


def test_a_file_that_somebody_was_meant_to_edit_is_believed() -> None:
    data = files.sealed(FIELDS, "mine.json").replace("9.5", "4.5").encode()
    with pytest.raises(ValueError, match=r"mine\.json is damaged"):
        files.parse_json(data, "mine.json")
    fields = files.parse_json(data, "mine.json", edited=True)
    assert fields["final"]["privacy/epsilon_server"] == 4.5 and not {"of", "sha256"} & {*fields}


def test_a_line_per_round_and_none_twice_also_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    for _ in range(2):
        log = Jsonl(path)
        log.log(0, {"loss": 0.5, "epsilon": math.inf})
        log.log(0, {"loss": 9.0})
    log.log(1, {"loss": 0.25})
    lines = read_lines(path)
    assert [(line["step"], line["loss"]) for line in lines] == [(0, 0.5), (1, 0.25)]
    assert lines[0]["epsilon"] == "inf" and lines[0]["time"] <= lines[1]["time"]
    log = Jsonl(path)
    log.log(2, {})
    assert sum(line.get("loss", 0.0) for line in log.lines) == 0.75


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
