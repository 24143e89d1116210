"""Digests in JSON: every flipped bit is found."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from raydiff.formats import json_files as files

FIELDS = {"outcome": "finished", "final": {"privacy/epsilon_server": 9.5, "Bär": [1, 2]}, "hash": "0" * 64}


@pytest.mark.parametrize("indent", [None, 1])
def test_every_flipped_bit_is_found(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(files.sealed(FIELDS, indent=indent))
    assert files.read_json(path) == FIELDS
    whole = path.read_bytes()
    for at, bit in itertools.product(range(len(whole)), range(8)):
        flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        with pytest.raises(ValueError, match=r"outcome\.json (is damaged|is not valid JSON).*: delete it, and"):
            files.parse_json(flipped, path)


def test_a_damaged_line_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [files.sealed({"step": step, "loss": 0.5}) for step in range(3)]
    path.write_text("\n".join([lines[0], lines[1].replace("0.5", "0.4"), lines[2], ""]))
    assert files.read_lines(path) == [{"step": 0, "loss": 0.5}, {"step": 2, "loss": 0.5}]
    assert files.cut_short(path) == [2]


def test_what_was_written_without_a_digest_is_believed() -> None:
    for fields in (FIELDS, {"data_digest": "ab" * 32}, {}):
        assert files.parse_json(json.dumps(fields).encode(), "config.json") == fields


def test_a_file_that_somebody_was_meant_to_edit_is_believed() -> None:
    data = files.sealed(FIELDS).replace("9.5", "4.5").encode()
    with pytest.raises(ValueError, match=r"mine\.json is damaged"):
        files.parse_json(data, "mine.json")
    fields = files.parse_json(data, "mine.json", edited=True)
    assert fields["final"]["privacy/epsilon_server"] == 4.5 and "sha256" not in fields
