"""A client that runs out of GPU memory is named with the setting to raise."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from raydiff.experiment import trial
from raydiff.federated.client import Client
from raydiff.runtime import actors, device_faults
from raydiff.runtime.actors import Worker
from raydiff.runtime.gpu_memory import OutOfMemory
from raydiff.storage.checkpoint import INITIAL


def out_of_memory(*_):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(("share", "kind"), [(0.25, OutOfMemory), (0.0, torch.OutOfMemoryError)])
def test_a_worker_names_the_client_and_the_setting(tiny, tmp_path, monkeypatch, share, kind):
    """Without a share, the error is torch's own."""
    monkeypatch.setattr(actors, "cap_memory", lambda _: None)
    monkeypatch.setattr(device_faults, "check_gpu", lambda _: None)
    this = trial.open_trial(replace(tiny, evaluation=None), tmp_path / "s")
    worker = Worker()
    worker.host(this, [0, 1], share)
    monkeypatch.setattr(Client, "run", out_of_memory)
    with pytest.raises(kind) as e:
        list(worker.run(this.experiment.digest, [1], {}, 3, 0.0))
    if share:
        arrived = pickle.loads(pickle.dumps(e.value))  # as it travels
        assert (arrived.who, arrived.number, arrived.field, arrived.share) == ("client 1", 3, "gpu_per_worker", 0.25)


@pytest.mark.parametrize(
    ("share", "number", "says"),
    [
        (0.5, 2, "in round 2: .*raise --runtime.gpu-server, or lower the batch size$"),
        (1.0, 2, "1 of a GPU: lower the batch size$"),
        (0.5, INITIAL, "before round 0"),
    ],
)
def test_the_advice_is_a_larger_share_or_a_smaller_batch(share, number, says):
    with pytest.raises(OutOfMemory, match=says):
        raise OutOfMemory("the server", number, "gpu_server", share)
