"""Parts of a data set and shadow models by Ray workers: the results of one process, and errors in one sentence."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raydiff.results import generation
from raydiff.results.finished import open_finished
from raydiff.results.shadows import Attacked, ShadowRequest, open_attacked
from raydiff.runtime import tasks

NODES = [{"CPU": 2.0}]


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.ray
def test_workers_write_the_files_of_one_process(storage, tmp_path: Path, workers) -> None:
    """Existing files are kept."""
    finished, request = open_finished(storage.folder("pfdm")), generation.GenerationRequest(num=2 * generation.PART + 5)
    code = {"raydiff": "0.1.0"}
    generation.write_samples(finished, 1, tmp_path / "one", request, code=code)
    expected, out = files(tmp_path / "one"), tmp_path / "many"
    assert len(expected) == 4
    out.mkdir()
    kept = "train-00001-of-00003.parquet"
    for name in ("card.json", kept):
        (out / name).write_bytes(expected[name])
    before, seen = (out / kept).stat().st_mtime_ns, list[tuple[int, int]]()
    spread = tasks.spread_samples(1, NODES)  # A process takes seconds to start.
    generation.write_samples(finished, 1, out, request, code=code, on_progress=lambda *x: seen.append(x), spread=spread)
    assert files(out) == expected and (out / kept).stat().st_mtime_ns == before
    assert seen[0] == (1000, 2005) and seen[-1] == (2005, 2005) and len(seen) == 3


def test_workers_share_the_gpus() -> None:
    two = [{"GPU": 1.0}, {"GPU": 1.0}]
    assert [tasks._gpu_fraction(n, two) for n in (1, 2, 3, 6)] == [1.0, 1.0, 0.5, 0.3333]
    assert tasks._gpu_fraction(2, NODES) == 0.0


@pytest.mark.slow
@pytest.mark.ray
def test_shadows_have_the_bits_of_one_process(storage, copied, workers, monkeypatch: pytest.MonkeyPatch) -> None:
    local_one, remote_one = (
        open_attacked(ShadowRequest(trial=s.folder("localonly"), shadows=4, draws=1)) for s in (storage, copied)
    )
    elsewhere = copied.root / "x"  # with a cache of its own; its names are keyed by the sweep's secret
    elsewhere.mkdir()
    shutil.copy(local_one.finished.trial.sweep / "secret", elsewhere / "secret")
    alone = replace(
        local_one, finished=replace(local_one.finished, trial=replace(local_one.finished.trial, sweep=elsewhere))
    )
    expected = [alone.losses(i) for i in range(4)]
    assert sorted(tasks.train_shadows(remote_one, workers=2, nodes=[{"CPU": 4.0}])) == [0, 1, 2, 3]
    monkeypatch.setattr(Attacked, "_train", lambda *_: pytest.fail("it was not kept"))
    assert all(torch.equal(remote_one.losses(i), losses) for i, losses in enumerate(expected))


def test_a_worker_that_fits_on_no_node_is_refused(storage) -> None:
    attacked = open_attacked(ShadowRequest(trial=storage.folder("localonly"), shadows=4))
    with pytest.raises(ValueError, match=r"^no node has 1 CPU for a worker"):
        list(tasks.train_shadows(attacked, workers=1, nodes=[{"CPU": 0.5, "GPU": 1.0}, {"memory": 9.0}]))
