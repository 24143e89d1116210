"""Presets: one round of prompts against many rounds of weights, FedDistr's comparison."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raydiff.data.datasets import Data
from raydiff.data.partition import Entangled, Pooled
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment import tuning
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.experiment.searchers import Settings
from raydiff.experiment.study import SEEDS, Arm, Choices, Study
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.models.classifier import CNN, Classifier, ResNet18
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.feddistr.method import FedDistr
from raydiff.privacy.client_level import ClientPrivacy

BUDGETS = (10.0, 100.0, 1000.0, 10_000.0)
"""Client-level epsilons; the paper states none for its noise."""
ROUNDS = (1, 10, 50)
RATE = ("method.local.optimizer", "method.local.learning_rate")
SLOW = ("sgd", 0.03)
FAST = ("sgd", 0.3)
FASTEST = ("sgd", 1.0)
ADAMW = ("adamw", 1e-3)


def _space(field: str, usual: float, rates: Sequence[Any], others: Sequence[float], *more: Any) -> Choices:
    """`field` at its usual value with these rates, and at other values with sgd at 0.1."""
    return {(*RATE, field): (*((*rate, usual) for rate in rates), *(("sgd", 0.1, value) for value in others), *more)}


SPACES: dict[type, Choices] = {
    FedAvg: {RATE: (SLOW, ("sgd", 0.1), FAST, FASTEST, ("adamw", 3e-4), ADAMW)},
    FedProx: _space("method.mu", 0.01, (SLOW, FAST, FASTEST, ADAMW), (0.001, 0.1)),
    Scaffold: _space("method.averaging.rate", 1.0, (SLOW, FAST, FASTEST), (0.5, 1.0), (*FAST, 0.5)),
    Moon: _space("method.mu", 1.0, (SLOW, FAST, FASTEST, ADAMW), (0.1, 5.0)),
}
"""Tuned settings of the averaging methods, six each, chosen by a method's arm of most rounds for all its arms."""
PROMPTS: Choices = {
    ("method.clusters", "method.least", "method.inversion.batch"): ((2, 10, 16), (6, 6, 8)),
    "method.guidance": (1.0, 2.0),
    "method.threshold": (0.5, 2.0),
}
"""Tuned settings of FedDistr. Inversion costs most, and settings that agree in it reuse it."""


def _feddistr(base: Experiment, *, clip: float, steps: int, batch: int, bounds: Training) -> Study:
    """FedDistr against the averaging methods after 1, 10 and 50 rounds of `steps` local steps.

    All on the same classifier. Beside them a classifier of the public records, FedAvg from it, and upper bounds; under
    noise, with settings as written here.
    """

    def local(**fields: Any) -> dict[str, Any]:
        return {f"method.local.{name}": value for name, value in fields.items()}

    weights = {"method.model": Classifier, **local(batch=batch, learning_rate=1e-3, decay="constant")}

    def averaged(method: type, rounds: int, **more: Any) -> Arm:
        arm = {"method": method, **weights, "method.rounds": rounds, **local(steps=rounds * steps)}
        sgd = local(optimizer="sgd", learning_rate=0.03) if method is Scaffold else {}
        space = SPACES[method] if rounds == ROUNDS[-1] and not more else {}
        return Arm(changes={**arm, **sgd, **more}, space=space, as_written=bool(more))

    alone = {"method": LocalOnly, **weights, "partition": Pooled, "clients": 1}
    central = local(steps=bounds.steps, batch=bounds.batch, decay=bounds.decay)
    private = {"method.averaging.privacy": ClientPrivacy}
    start = {f"method.pretrain.{name}": getattr(bounds, name) for name in ("steps", "batch", "learning_rate")}
    public = {"method.pretrain": Training, **start, **local(optimizer="adamw", learning_rate=3e-4)}  # of FedAvg's six
    beside = (
        Arm(changes={**alone, **central, "method.public_only": True}),
        Arm(changes={**alone, **central}),
        *(averaged(FedAvg, r, **public) for r in ROUNDS),
        *(averaged(m, r) for m in (FedAvg, FedProx, Scaffold, Moon) for r in ROUNDS),
        Arm(changes={"method.upload": "latents"}),
        *(Arm(changes={"method.epsilon": e, "method.clip": clip}, as_written=True) for e in BUDGETS),
        *(averaged(FedAvg, 50, **private, **{"method.averaging.privacy.epsilon": e}) for e in BUDGETS),
    )
    return Study(experiment=base, grid={"seed": SEEDS, "partition.xi": (0.0, 0.385)}, beside=beside, space=PROMPTS)


def feddistr_digits() -> Study:
    """FedDistr on digits in five superclasses of two, five clients; train its latent model first by

    raydiff pretrain --data.public 500 --data.validation 200 --data.calibration 10 --data.test 400 \
        --out ~/raydiff/latent-digits

    These settings were not tuned; the choice of `raydiff tune` is in tuned/feddistr-digits.json.
    """
    bounds = Training(steps=1000, batch=64, learning_rate=1e-3)
    method = FedDistr(
        model=LatentModel(path="~/raydiff/latent-digits"),
        clusters=2,
        least=10,
        threshold=2.0,  # public records: .9 between matched prompts, 3.1 between others; their norm is 2.1
        classifier=Classifier(network=CNN()),
        training=bounds,
    )
    base = Experiment(
        method=method,
        data=Data(name="digits", superclasses="pairs", public=500, validation=200, calibration=10, test=400),
        clients=5,
        partition=Entangled(xi=0.0),
        evaluation=Evaluation(metrics=("accuracy",), attacks=None, clients=1),
        runtime=Runtime(workers=1),
    )
    return _feddistr(base, clip=2.1, steps=20, batch=32, bounds=bounds)


def is_compared(changes: Settings) -> bool:
    """Averaging after 50 rounds, FedAvg after one, public records alone, pooled ones, noise at one budget."""
    budget = changes.get("method.epsilon", changes.get("method.averaging.privacy.epsilon"))
    if budget is not None:
        return bool(budget == 1000)
    rounds = changes.get("method.rounds")
    return rounds == 50 or changes.get("method") is LocalOnly or (rounds == 1 and changes["method"] is FedAvg)


def feddistr_elsewhere() -> Study:
    """As feddistr-digits, with its chosen settings, but with public records of another source, MNIST at 8x8; first run

    raydiff pretrain --data.public-from mnist --data.size 8 --data.public 2000 --data.validation 200 \
        --data.calibration 10 --data.test 400 --out ~/raydiff/latent-mnist8
    """
    study = tuning.apply_tuned("feddistr-digits", feddistr_digits)
    data = replace(study.experiment.data, public_from="mnist", size=8, public=2000, train=687)  # clients as large
    changes = {"data": data, "method.model.path": "~/raydiff/latent-mnist8"}
    beside = tuple(arm for arm in study.beside if is_compared(arm.changes))
    return replace(study, experiment=override(study.experiment, changes), beside=beside)


def feddistr_mnist() -> Study:
    """The same on MNIST at 14x14; train its latent model first by

    raydiff pretrain --data.name mnist --data.size 14 --data.public 10000 --data.train 6400 \
        --data.validation 1000 --data.calibration 10 --data.test 2000 --out ~/raydiff/latent-mnist14
    """
    study = feddistr_digits()
    data = replace(study.experiment.data, name="mnist", size=14, train=6400, public=10_000, validation=1000, test=2000)
    changes = {"data": data, "method.model.path": "~/raydiff/latent-mnist14"}
    return replace(study, experiment=override(study.experiment, changes))


def feddistr_cifar100() -> Study:
    """The paper's CIFAR-100: ten superclasses of two classes each, ResNet-18.

    For a GPU, with a latent model from `--method.model.path` (a folder, or owner/name of the hub).
    """
    bounds = Training(steps=4000, batch=128, learning_rate=1e-3)
    data = Data(name="cifar100", superclasses="cifar100-10x2", public=200, validation=200, calibration=0, test=400)
    changes = {
        "data": data,
        "method.model.path": "",
        "method.inversion": Training(steps=500, batch=12, learning_rate=0.02),
        "method.images": 4000,
        "method.steps": 50,
        "method.guidance": 10.0,
        "method.classifier.network": ResNet18(),
        "method.training": bounds,
        "runtime": Runtime(workers=1, gpu_per_worker=0.5, gpu_server=0.5),
    }
    base = override(feddistr_digits().experiment, changes)
    study = _feddistr(base, clip=10.0, steps=50, batch=128, bounds=bounds)
    grid = {**study.grid, "clients": (5, 10, 20), "partition.xi": (0.0, 0.003, 0.057, 0.385)}
    resnet = {"method.model.network": ResNet18}
    arms = (replace(a, changes={**a.changes, **resnet}) if "method.model" in a.changes else a for a in study.beside)
    return replace(study, grid=grid, beside=tuple(arms))
