"""The averaging methods on a classifier: the identities that hold on a denoiser hold here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import records, run

from raydiff import tree
from raydiff.federated.method import Deployed
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.models.classifier import CNN, Classifier
from raydiff.models.training import Training

MODEL = Classifier(network=CNN(widths=(4,), hidden=8))
ADAMW = Training(steps=8, batch=4)
SGD = Training(steps=8, batch=4, optimizer="sgd", learning_rate=0.1, decay="constant")
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


@pytest.mark.parametrize(("without", "with_term"), [(FedProx(mu=0.0), FedProx(mu=1.0)), (Moon(mu=0.0), Moon(mu=1.0))])
def test_without_its_term_it_is_fedavg_bit_for_bit(without: FedProx | Moon, with_term: FedProx | Moon) -> None:
    plain = run(FedAvg(model=MODEL, local=ADAMW, rounds=2), DATA)[-1]
    same, other = (run(replace(m, model=MODEL, local=ADAMW, rounds=2), DATA)[-1] for m in (without, with_term))
    assert tree.digest(same.server) == tree.digest(plain.server) != tree.digest(other.server)
    assert same.metrics == plain.metrics and same.ledger == plain.ledger


def test_scaffold_is_fedavg_until_it_has_control_variates() -> None:
    plain = run(FedAvg(model=MODEL, local=SGD, rounds=2), DATA)
    method = Scaffold(model=MODEL, local=SGD, rounds=2)
    corrected = run(method, DATA)
    first, second = (tree.digest(tree.under("model", progress.server)) for progress in corrected)
    assert first == tree.digest(plain[0].server) and second != tree.digest(plain[1].server)
    deployed = method.deploy(corrected[-1].server)
    assert_only_classifies(deployed)
    trained = tree.under("model", corrected[-1].server)
    assert deployed.classify is not None and torch.equal(deployed.classify(X), MODEL.classify(trained)(X))
