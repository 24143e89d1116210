"""Parts of a data set by Ray workers: the files of one process, and errors in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiff.results import generation as generate
from raydiff.results.finished import open_finished
from raydiff.results.generation import Request
from raydiff.runtime import tasks

CODE = {"raydiff": "0.1.0"}
NODES = [{"CPU": 2.0}]


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.ray
def test_workers_write_the_files_of_one_process(storage, tmp_path: Path, workers) -> None:
    """Those that are there already are left alone, and the others made."""
    finished, asked = open_finished(storage.folder("pfdm")), Request(num=3 * generate.PART + 5)
    generate.write(finished, 1, tmp_path / "one", asked, code=CODE)
    expected = files(tmp_path / "one")
    assert len(expected) == 5
    seen: list[tuple[int, int]] = []
    out = tmp_path / "many"
    out.mkdir()
    (out / "card.json").write_bytes(expected["card.json"])
    there = "train-00001-of-00004.parquet"
    (out / there).write_bytes(expected[there])
    before = (out / there).stat().st_mtime_ns
    spread = tasks.of_samples(2, NODES)
    generate.write(finished, 1, out, asked, code=CODE, say=lambda *x: seen.append(x), spread=spread)
    assert files(out) == expected and (out / there).stat().st_mtime_ns == before
    assert seen[0] == (1000, 3005) and seen[-1] == (3005, 3005) and len(seen) == 4
    lost = generate.maker(finished, 1, tmp_path / "\0", asked)
    with pytest.raises(ValueError, match="null byte"):
        list(tasks.of_samples(1, NODES)(lost, [0]))


def test_more_workers_than_fit_are_refused(storage, tmp_path: Path) -> None:
    make = generate.maker(open_finished(storage.folder("pfdm")), 0, tmp_path, Request(num=4000))
    with pytest.raises(ValueError, match=r"^3 workers were asked for, but the nodes have room for 2: --workers$"):
        list(tasks.of_samples(3, NODES)(make, range(4)))


def test_gpus_are_shared_by_the_workers() -> None:
    two = [{"GPU": 1.0}, {"GPU": 1.0}]
    assert [tasks._share(n, two) for n in (1, 2, 3, 6)] == [1.0, 1.0, 0.5, 0.3333]
    assert tasks._share(2, NODES) == 0.0
