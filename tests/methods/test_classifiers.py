"""The averaging methods on a classifier: the identities that hold on a denoiser hold here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import records, run

from raydiff.federated.method import Deployed
from raydiff.methods.fedavg import FedAvg
from raydiff.models.classifier import CNN, Classifier
from raydiff.models.training import Training

MODEL = Classifier(network=CNN(widths=(4,), hidden=8))
ADAMW = Training(steps=8, batch=4)
DATA = [records(0), records(1, 9)]
X = records(5).images


def assert_only_classifies(deployed: Deployed) -> None:
    assert deployed.classify is not None and deployed.classify(X).shape == (12, 10)
    assert not deployed.samplers and not deployed.targets
    with pytest.raises(ValueError, match=r"^a classifier makes no pictures$"):
        _ = deployed.sample


def test_fedavg_trains_it() -> None:
    method = FedAvg(model=MODEL, local=replace(ADAMW, steps=120, learning_rate=1e-2), rounds=2)
    progress = run(method, DATA)
    assert progress[1].metrics["train/loss"] < progress[0].metrics["train/loss"]
    server = progress[-1].server
    deployed = method.deploy(server)
    assert_only_classifies(deployed)
    assert deployed.classify is not None and torch.equal(deployed.classify(X), MODEL.classify(server)(X))
    with pytest.raises(ValueError, match=r"^a classifier makes no pictures$"):
        _ = deployed.sample
