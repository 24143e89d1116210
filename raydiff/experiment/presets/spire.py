"""Presets: clients that join later, SPIRE's comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raydiff.data.datasets import Data
from raydiff.data.partition import ByClass, Newcomers
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.experiment.presets.pfdm import digits, mnist
from raydiff.experiment.study import SEEDS, Arm, Study
from raydiff.methods import PFDM, SPIRE, FedAvg, LocalOnly, PerFedAvg, SharedRep
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training


def _fine_tuning(path: str, rate: float) -> dict[str, Any]:
    """Training after the federation: 100 steps at a constant rate, about the paper's five epochs."""
    return {f"{path}.steps": 100, f"{path}.learning_rate": rate, f"{path}.decay": "constant"}


def _spire(base: Experiment, *, rounds: int, tau: int, rate: float, batch: int) -> Study:
    """The paper's five methods, for the clients of the federation and for those that join later.

    Competitors fine-tune at a tenth of the learning rate, SPIRE its embedding at 0.01, as in the paper. Per-FedAvg
    adapts by as many steps of SGD.
    """
    tenth = float(f"{rate / 10:g}")  # 1e-5, not 1.0000000000000001e-05
    tuning = {"method.finetune": Training, "method.finetune.batch": batch}
    beside = (
        Arm(changes={"method": FedAvg, **tuning, **_fine_tuning("method.finetune", tenth)}),
        Arm(changes={"method": SharedRep, **_fine_tuning("method.joining", tenth)}),
        Arm(changes={"method": PerFedAvg, "method.adapt_steps": 100}),
        Arm(method=LocalOnly),
    )
    assert isinstance(base.method, PFDM | SPIRE)
    method = SPIRE(
        model=DDPM(conditional=False, timesteps=base.method.model.timesteps, network=base.method.model.network),
        rounds=rounds,
        local=Training(steps=rounds * tau, batch=batch, learning_rate=rate, decay="constant"),
        joining=Training(steps=100, batch=batch, learning_rate=1e-2, decay="constant"),
        sampling=base.method.sampling,
    )
    kernel = Evaluation(distance="kernel", attack=False)
    return Study(experiment=replace(base, method=method, evaluation=kernel), grid={"seed": SEEDS}, beside=beside)


def spire_digits() -> Study:
    """Digits: 10 clients with one class each, 5 more that join with three; 100 rounds of 20 steps, half the paper's for
    MNIST."""
    base = replace(
        override(digits().experiment, {"method.model.network": MLP(width=128)}),
        data=Data(name="digits", train=900, validation=0, calibration=0, test=600),
        clients=10,
        partition=ByClass(),
        newcomers=Newcomers(clients=5, classes=3, records=60),
    )
    return _spire(base, rounds=100, tau=20, rate=1e-3, batch=20)


def spire_mnist() -> Study:
    """MNIST as in the paper: 30 clients x 400 records of one class, 30 more x 400 of three, the paper's widths."""
    base = replace(
        override(mnist().experiment, {"method.model.network": UNet(widths=(32, 64, 64), layers=2)}),
        data=Data(name="mnist", train=24_000, public=2000, validation=0, calibration=0, test=4000),
        clients=30,
        partition=ByClass(),
        newcomers=Newcomers(clients=30, classes=3, records=400),
    )
    return _spire(base, rounds=200, tau=20, rate=1e-3, batch=20)


def spire_cifar10() -> Study:
    """CIFAR-10, widths and numbers of clients as in the paper, with the records there are: 18 clients x 700 records of
    one class, 18 more x 275 of two; 400 rounds of 100 steps."""
    study = spire_mnist()
    changes = {
        "data": Data(name="cifar10", public=2000, validation=0, calibration=0, test=4000),
        "clients": 18,
        "newcomers": Newcomers(clients=18, classes=2, records=275),
        "method.model.network": UNet(widths=(64, 128, 128, 128), layers=2),
    }
    return _spire(override(study.experiment, changes), rounds=400, tau=100, rate=1e-4, batch=28)


def spire_faces() -> Study:
    """Faces at 64x64: 6 clients x 5 people, 2 more x 5 other people; 8 pictures of each."""
    study = spire_cifar10()
    changes = {
        "data": Data(name="faces", public=40, validation=0, calibration=0, test=80),
        "clients": 6,
        "newcomers": Newcomers(clients=2, classes=5, records=40, own_classes=True),
    }
    return _spire(override(study.experiment, changes), rounds=800, tau=50, rate=1e-4, batch=25)
