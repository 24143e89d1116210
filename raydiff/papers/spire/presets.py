"""Presets: clients that join later, SPIRE's comparison."""

from dataclasses import replace
from typing import Any

from raydiff.data.datasets import Data
from raydiff.data.partition import ByClass, UnseenClients
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.experiment.study import SEEDS, Arm, Choices, Study
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.perfedavg import PerFedAvg
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.networks import UNet
from raydiff.models.training import Training
from raydiff.papers.pfdm.method import PFDM
from raydiff.papers.pfdm.presets import digits, mnist
from raydiff.papers.spire.method import SPIRE

METRICS = ("accuracy", "kernel", "coverage", "labels", "memorization")  # no Frechet distance of small groups
PAPERS_MNIST = Data(name="mnist", train=24_000, public=2000, validation=0, calibration=0, test=4000)

OPTIMISER = ("method.averaging.moments", "method.averaging.update", "method.averaging.rate", "method.averaging.tau")
OPTIMISERS: Choices = {
    OPTIMISER: (("reset", "mean", 1.0, 1e-3), ("averaged", "mean", 1.0, 1e-3), ("reset", "adam", 3e-3, 1e-4))
}
"""How the federation is optimised: AdamW begun anew in each round, its moments averaged too, or Adam at the server."""
EVERY_STEP: Choices = {
    ("method.rounds", "method.local.optimizer", "method.local.learning_rate", *OPTIMISER): (
        *((400, "adamw", 2e-3, *optimiser) for optimiser in OPTIMISERS[OPTIMISER]),
        (2000, "sgd", 1.0, "reset", "adam", 2e-3, 1e-8),
    )
}
"""The same in 400 rounds of 5 steps; or a gradient in each of 2,000 rounds, by which the server takes Adam's steps."""


def _spaces(federation: Choices) -> dict[Any, Choices]:
    """Method -> ways to train before anybody joins, from which `raydiff tune` chooses."""
    averaging = dict.fromkeys((SPIRE, FedAvg, SharedRep, PerFedAvg), federation)
    (ways,) = federation.values()  # as many of local training; its optimiser is not that of an arm of one step a round
    rates = tuple(("adamw", rate) for rate in (2e-3, 4e-3, 8e-3, 1e-3)[: len(ways)])
    return {**averaging, LocalOnly: {("method.local.optimizer", "method.local.learning_rate"): rates}}


def _trained(path: str, training: Training) -> dict[str, Any]:
    """What is trained after the federation, in all but its batch."""
    return {f"{path}.{name}": getattr(training, name) for name in ("steps", "learning_rate", "decay")}


def _spire(
    base: Experiment,
    *,
    rounds: int,
    local: Training,
    joining: Training,
    finetune: Training,
    head: Training,
    inner: float = PerFedAvg.inner_rate,
) -> Study:
    """The paper's five methods, for the clients of the federation and for those that join later.

    SPIRE's `joining` its embedding, `finetune` FedAvg's, `head` joining a shared representation, `inner` the rate of
    Per-FedAvg's steps.
    """
    tuned = {"method.finetune": Training, "method.finetune.batch": local.batch}
    beside = (
        Arm(changes={"method": FedAvg, **tuned, **_trained("method.finetune", finetune)}),
        Arm(changes={"method": SharedRep, **_trained("method.joining", head)}),
        Arm(changes={"method": PerFedAvg, "method.adapt_steps": 100, "method.inner_rate": inner}),
        Arm(method=LocalOnly),
    )
    assert isinstance(base.method, PFDM | SPIRE)
    model = replace(base.method.model, conditional=False)
    method = SPIRE(model=model, rounds=rounds, local=local, joining=joining, sampling=base.method.sampling)
    experiment = replace(base, method=method, evaluation=Evaluation(metrics=METRICS, attacks=None))
    return Study(experiment=experiment, grid={"seed": SEEDS}, beside=beside)


def _as_published(base: Experiment, *, rounds: int, tau: int, rate: float, batch: int) -> Study:
    """The paper's rates: SPIRE's embedding at 0.01, its competitors at a tenth of the learning rate, 100 steps.

    About five epochs, all constant. Per-FedAvg adapts by as many steps of SGD.
    """
    a_tenth = float(f"{rate / 10:g}")  # 1e-5, not 1.0000000000000001e-05
    tenth = Training(steps=100, learning_rate=a_tenth, decay="constant")
    local = Training(steps=rounds * tau, batch=batch, learning_rate=rate, decay="constant")
    joining = Training(steps=100, batch=batch, learning_rate=1e-2, decay="constant")
    return _spire(base, rounds=rounds, local=local, joining=joining, finetune=tenth, head=tenth)


def _as_searched(
    base: Experiment, federation: Choices, *, joining: float, finetune: float, head: float, inner: float
) -> Study:
    """Decay and rounds, and rates of whoever joins, that validation records chose; SPIRE also with three embeddings.

    `raydiff tune PRESET --metric unseen/kd_cnn/all` chooses how the federation is trained.
    """
    study = _spire(
        base,
        rounds=400,
        local=Training(steps=2000, batch=20, learning_rate=2e-3, decay="cosine"),
        joining=Training(steps=1000, batch=20, learning_rate=joining, decay="cosine"),
        finetune=Training(steps=1000, learning_rate=finetune, decay="cosine"),
        head=Training(steps=1000, learning_rate=head, decay="cosine"),
        inner=inner,
    )
    arms = (Arm(changes={"method.embeddings": 3}), *study.beside)
    spaces = _spaces(federation)
    beside = (replace(arm, space=spaces.get(arm.method or arm.changes.get("method"), {})) for arm in arms)
    return replace(study, beside=tuple(beside), space=spaces[SPIRE])


def spire_digits() -> Study:
    """Digits: 10 clients with one class each, 5 more that join with three; SPIRE also with three embeddings."""
    base = replace(
        override(digits().experiment, {"method.model.network.width": 128}),
        data=Data(name="digits", train=750, validation=190, calibration=0, test=600),
        clients=10,
        partition=ByClass(),
        unseen=UnseenClients(clients=5, classes=3, records=50),
    )
    return _as_searched(base, OPTIMISERS, joining=0.1, finetune=1e-3, head=3e-4, inner=0.01)


def spire_mnist14() -> Study:
    """The paper's clients and records of MNIST at 14x14: an MLP, trained as in `spire_digits`, or by a step a round."""
    changes = {
        "data": replace(PAPERS_MNIST, size=14, validation=1000),
        "clients": 30,
        "unseen": UnseenClients(clients=30, classes=3, records=400),
    }
    base = override(spire_digits().experiment, changes)
    return _as_searched(base, EVERY_STEP, joining=0.3, finetune=3e-3, head=3e-3, inner=0.03)


def spire_mnist() -> Study:
    """MNIST as in the paper: 30 clients x 400 records of one class, 30 more x 400 of three, the paper's widths."""
    base = replace(
        override(mnist().experiment, {"method.model.network": UNet(widths=(32, 64, 64), layers=2, attention=(1, 2))}),
        data=PAPERS_MNIST,
        clients=30,
        partition=ByClass(),
        unseen=UnseenClients(clients=30, classes=3, records=400),
    )
    return _as_published(base, rounds=200, tau=20, rate=1e-3, batch=20)


def spire_cifar10() -> Study:
    """CIFAR-10, widths and numbers of clients as in the paper, with all its records.

    18 clients x 700 records of one class, 18 more x 275 of two; 400 rounds of 100 steps.
    """
    changes = {
        "data": Data(name="cifar10", public=2000, validation=0, calibration=0, test=4000),
        "clients": 18,
        "unseen": UnseenClients(clients=18, classes=2, records=275),
        "method.model.network": UNet(widths=(64, 128, 128, 128), layers=2, attention=(1, 2)),
    }
    return _as_published(override(spire_mnist().experiment, changes), rounds=400, tau=100, rate=1e-4, batch=28)


def spire_faces() -> Study:
    """Faces at 64x64: 6 clients x 5 people, 2 more x 5 other people; 8 pictures of each."""
    changes = {
        "data": Data(name="faces", public=40, validation=0, calibration=0, test=80),
        "clients": 6,
        "unseen": UnseenClients(clients=2, classes=5, records=40, own_classes=True),
    }
    return _as_published(override(spire_cifar10().experiment, changes), rounds=800, tau=50, rate=1e-4, batch=25)
