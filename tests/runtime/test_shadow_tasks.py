"""Shadows as Ray tasks: the bits of one process, and errors in one sentence."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from raydiff.results.shadows import Attacked, Request, open_attacked
from raydiff.runtime import tasks

pytestmark = pytest.mark.ray


def test_ray_gives_the_bits_of_one_process(storage, copied, workers, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (open_attacked(Request(trial=s.folder("localonly"), shadows=4, draws=1)) for s in (storage, copied))
    elsewhere = copied.root / "x"  # with a cache of its own; its names are keyed by the sweep's secret
    elsewhere.mkdir()
    shutil.copy(here.finished.trial.sweep / "secret", elsewhere / "secret")
    alone = replace(here, finished=replace(here.finished, trial=replace(here.finished.trial, sweep=elsewhere)))
    expected = [alone.losses(i) for i in range(4)]
    assert sorted(tasks.of_shadows(there, workers=2, nodes=[{"CPU": 4.0}])) == [0, 1, 2, 3]
    monkeypatch.setattr(Attacked, "_train", lambda *_: pytest.fail("it was not kept"))
    for i in range(4):
        assert torch.equal(there.losses(i), expected[i])


def test_a_failed_training_is_one_sentence(copied, workers) -> None:
    there = open_attacked(Request(trial=copied.folder("localonly"), shadows=4, draws=1))
    lost = replace(there, request=replace(there.request, client=7))
    with pytest.raises(ValueError) as e:
        list(tasks.of_shadows(lost, workers=1, nodes=[{"CPU": 1.0}]))
    assert str(e.value) == "there is no client 7: this trial has clients 0 to 1"


def test_no_room_is_refused(storage) -> None:
    attacked = open_attacked(Request(trial=storage.folder("localonly"), shadows=4))
    with pytest.raises(ValueError, match=r"^a shadow needs 1 CPU on one node, and no node has it: --workers 1 trains"):
        list(tasks.of_shadows(attacked, workers=1, nodes=[{"CPU": 0.5, "GPU": 1.0}, {"memory": 9.0}]))
