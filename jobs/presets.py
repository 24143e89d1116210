"""Experiments by name. A preset is a function that returns a `Study`: one experiment, what to vary, what to compare
with.

Every field can be overridden on the command line; see `python jobs/sweep.py --help`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from raydiff.config import Experiment, Runtime
from raydiff.data.datasets import Data
from raydiff.data.partition import ByClass, Entangled, MajorityMinority, Newcomers, Pooled
from raydiff.diffusion.classifier import CNN, Classifier, ResNet18
from raydiff.diffusion.discrete import DiscreteDiffusion
from raydiff.diffusion.gaussian import DDPM, Sampling
from raydiff.diffusion.latent import LatentModel
from raydiff.diffusion.local import Training
from raydiff.diffusion.networks import MLP, UNet
from raydiff.evaluation.evaluate import Evaluation
from raydiff.evaluation.exposure import RowAudit
from raydiff.methods import PFDM, SPIRE, FedDistr, LocalOnly
from raydiff.settings import override


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Something to run beside a study's experiment."""

    changes: Mapping[str, str]
    """Field path -> value, as on the command line: in what it differs. It takes those of the study's axes that it has.
    """
    private: bool = False
    """Only where there is an epsilon."""
    at_depths: bool = False
    """In place of each epsilon, the depth t0 that it needs, without noise."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `jobs/sweep.py` runs."""

    experiment: Experiment
    """The trial from which the others differ."""
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axes: field path -> values, as one would write them on the command line."""
    beside: tuple[Arm, ...] = ()
    """What to compare it with."""
    also: tuple[Study, ...] = ()
    """Studies with axes of their own, run in the same sweep."""


BASELINES = (Arm(changes={"method": "localonly"}), Arm(changes={"method": "fedavg"}))
EPSILONS = ("10", "50", "200")
SEEDS = ("0", "1", "2", "3", "4")

# --- the main job ---


def digits() -> Study:
    """PFDM on scikit-learn's digits: 1,797 real 8x8 scans, minutes on 2 cores.

    clip 6.8 is the median norm of the public split; the paper sets C near the median too.
    """
    method = PFDM(
        model=DDPM(network=MLP(), timesteps=100),
        epsilon=10.0,
        clip=6.8,
        local=Training(steps=1000),
        server=Training(steps=1000),
        sampling=Sampling(sampler="ddim", steps=50),
        client_sampling=Sampling(sampler="ddim", steps=50),
    )
    experiment = Experiment(method=method, data=Data(name="digits"), clients=2, runtime=Runtime(workers=1))
    grid = {  # epsilon varies slowest: trials that share client models then run one after the other
        "method.epsilon": ("10", "50", "200", "none"),
        "method.model.schedule": ("linear", "cosine"),
        "clients": ("2", "4"),
    }
    return Study(experiment=experiment, grid=grid, beside=BASELINES)


# --- methods whose epsilons are of different kinds, side by side ---


def frontier() -> Study:
    """Digits, two clients: PFDM, DP-SGD and DP-FedAvg under either trust, each at its budgets, beside SPIRE with a
    private backbone (epsilon 10, central trust), FedAvg and local training.

    All means are unweighted, which central trust needs. A step of DP-SGD draws 64 of a client's 423 or 424 records.
    """
    base = override(digits().experiment, {"method.epsilon": 10.0})
    uniform = {"method.averaging.weights": "uniform"}
    fedavg = {"method": "fedavg", **uniform}
    private = {**fedavg, "method.averaging.privacy": "clientprivacy"}
    beside = (
        *(Arm(changes={"method.epsilon": epsilon}) for epsilon in EPSILONS[1:]),
        *(Arm(changes={"method": "dpsgd", **uniform, "method.epsilon": e}) for e in ("1", "10", "50")),
        *(
            Arm(changes={**private, "method.averaging.privacy.trust": trust, "method.averaging.privacy.epsilon": e})
            for trust in ("local", "central")
            for e in EPSILONS
        ),
        Arm(changes={**private, "method": "spire", "method.averaging.privacy.trust": "central"}),
        Arm(changes=fedavg),
        Arm(changes={"method": "localonly"}),
    )
    return Study(experiment=base, grid={"seed": SEEDS[:3]}, beside=beside)


# --- the paper's sizes, for GPUs ---

LONG = Training(steps=20_000, batch=128, learning_rate=2e-4)
PARTS = 20  # a training is kept after each twentieth, so that it can be run in slices
LONG_BASELINES = (Arm(changes={"method": "localonly"}), Arm(changes={"method": "fedavg", "method.rounds": f"{PARTS}"}))


def mnist() -> Study:
    """PFDM on MNIST at 28x28 with the paper's T = 1000 and batch 128: sized for a GPU that holds four clients and a
    server.

    1000 : 100 records of each majority and minority class, as in the paper's coloured MNIST; clip is the public median
    norm.
    """
    method = PFDM(
        model=DDPM(network=UNet(widths=(64, 128, 128), layers=2), timesteps=1000, precision="bfloat16"),
        epsilon=10.0,
        clip=26.9,
        local=LONG,
        server=LONG,
        local_parts=PARTS,
        server_rounds=PARTS,
        sampling=Sampling(sampler="ddim", steps=100),
        client_sampling=Sampling(sampler="ddim", steps=100),
    )
    data = Data(name="mnist", train=22_000, public=2000, validation=1000, calibration=1000, test=4000)
    runtime = Runtime(workers=4, gpu_per_worker=0.2, gpu_server=0.2)
    experiment = Experiment(method=method, data=data, clients=4, partition=MajorityMinority(ratio=0.1), runtime=runtime)
    return Study(experiment=experiment, grid={"method.epsilon": (*EPSILONS, "none")}, beside=LONG_BASELINES)


def colour_mnist() -> Study:
    """The same on coloured MNIST: 28x28 in three channels, conditions digit and colour."""
    study = mnist()
    changes = {"data.name": "colour-mnist", "method.clip": 47.9}
    return replace(study, experiment=override(study.experiment, changes))


def cifar10() -> Study:
    """PFDM on CIFAR-10 at 32x32 with the paper's clip (15: about half the median norm) and a UNet of four scales."""
    study = mnist()
    changes = {
        "data": Data(name="cifar10", public=2000, validation=1000, calibration=1000, test=4000),
        "method.model.network": UNet(widths=(128, 256, 256, 256), layers=2),
        "method.clip": 15.0,
        "method.local.steps": 100_000,
        "method.server.steps": 100_000,
    }
    return replace(study, experiment=override(study.experiment, changes))


# --- when does collaboration help? ---

SMALL_MNIST = Data(name="mnist", size=14, train=6400, public=1000, validation=0, calibration=10, test=1000)


def mnist_cpu() -> Study:
    """`mnist` at 14x14 with an MLP, T = 100 and 2,000 records: about half an hour on 2 cores."""
    study = mnist()
    changes = {
        "method": digits().experiment.method,
        "method.clip": 13.0,
        "method.model.network": MLP(width=384),
        "method.local.steps": 3000,
        "method.server.steps": 3000,
        "data": Data(name="mnist", size=14, train=2000, public=1000, validation=500, calibration=500, test=1000),
        "runtime": Runtime(workers=1),
    }
    return replace(study, experiment=override(study.experiment, changes), beside=BASELINES)


def collaboration() -> Study:
    """Digits, two clients: the minority's size x epsilon, against controls and baselines, with the same client models.

    35 records a class is the largest minority that is still one: there are 113 of each class in the training split.
    """
    base = override(
        digits().experiment,
        {
            "data": Data(name="digits", validation=0, calibration=10, test=400),
            "evaluation": Evaluation(attack=False, clusters=True),
        },
    )
    return _collaboration(base, minorities=("3", "20", "35"), centred_clip=4.26)


def collaboration_colour() -> Study:
    """The same on coloured MNIST, at 14x14, where it fits a CPU."""
    base = override(
        digits().experiment,
        {
            "data": replace(SMALL_MNIST, name="colour-mnist", train=4000, test=400),
            "evaluation": Evaluation(attack=False, clusters=True),
            "method.model.network": MLP(width=256, skip=True),
            "method.clip": 23.7,
        },
    )
    return _collaboration(base, minorities=("3", "20", "100"), centred_clip=7.27)


def _collaboration(base: Experiment, *, minorities: tuple[str, ...], centred_clip: float) -> Study:
    """Every arm at every (epsilon or its depth, minority size, seed).

    Clips are median norms of the public split, for the centred arms of the differences from its mean.
    """
    centred = {"method.clip": f"{centred_clip}", "method.center": "true"}
    beside = (
        Arm(changes={"method": "localonly"}),
        Arm(changes={"method.start": "noise"}, private=True),
        Arm(changes={"method.start": "shuffled"}, private=True),
        Arm(changes={"method.start": "gaussian"}, private=True),
        Arm(changes={}, at_depths=True),  # CollaFuse
        Arm(changes={"method": "localonly", **centred}),
        Arm(changes=centred, private=True),
        Arm(changes={**centred, "method.start": "gaussian"}, private=True),
        Arm(changes={"method": "fedavg"}),
        Arm(changes={"method": "localonly", "method.clip": "none", "partition": "pooled", "clients": "1"}),
    )
    grid = {"method.epsilon": (*EPSILONS, "none"), "partition.minority": minorities, "seed": SEEDS}
    return Study(experiment=base, grid=grid, beside=beside)


def clients() -> Study:
    """MNIST at 14x14, 6,400 records shared by more and more clients: the paper's study of M at fixed total data.

    Sized for 2 cores; the first 16 clients are measured.
    """
    base = override(
        mnist_cpu().experiment,
        {
            "data": replace(SMALL_MNIST, test=400),
            "evaluation": Evaluation(attack=False, clients=16),
            "method.model.network": MLP(width=256, skip=True),
            "method.local.steps": 1000,
            "method.server.steps": 2000,
            "method.sampling.steps": 25,
            "method.client_sampling.steps": 25,
        },
    )
    grid = {
        "seed": SEEDS[:2],
        "method.epsilon": ("10", "200"),  # slower than clients: trials of one M and seed share their client models
        "clients": ("4", "8", "16", "32", "64", "128"),
    }
    return Study(experiment=base, grid=grid, beside=(Arm(changes={"method": "localonly"}),))


# --- clients that join later: SPIRE's comparison ---


def _fine_tuning(path: str, rate: str) -> dict[str, str]:
    """Training after the federation: 100 steps at a constant rate, about the paper's five epochs."""
    return {f"{path}.steps": "100", f"{path}.learning_rate": rate, f"{path}.decay": "constant"}


def _spire(base: Experiment, *, rounds: int, tau: int, rate: float, batch: int) -> Study:
    """The paper's five methods, for the clients of the federation and for those that join later.

    Competitors fine-tune at a tenth of the learning rate, SPIRE its embedding at 0.01, as in the paper. Per-FedAvg
    adapts by as many steps of SGD.
    """
    tenth = f"{rate / 10:g}"
    tuning = {"method.finetune": "training", "method.finetune.batch": f"{batch}"}
    beside = (
        Arm(changes={"method": "fedavg", **tuning, **_fine_tuning("method.finetune", tenth)}),
        Arm(changes={"method": "sharedrep", **_fine_tuning("method.joining", tenth)}),
        Arm(changes={"method": "perfedavg", "method.adapt_steps": "100"}),
        Arm(changes={"method": "localonly"}),
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


# --- one round of prompts against many rounds of weights: FedDistr's comparison ---

BUDGETS = ("10", "100", "1000", "10000")
"""Client-level epsilons: of the paper's noise none is known."""


def _feddistr(base: Experiment, *, clip: float, steps: int, batch: int, bounds: Training, rate: float = 1e-3) -> Study:
    """FedDistr against the averaging methods on the same classifier after 1, 10 and 50 rounds of `steps` local steps,
    against its upper bounds, and against noise.
    """
    weights = {
        "method.model": "classifier",
        "method.local.batch": f"{batch}",
        "method.local.learning_rate": f"{rate:g}",
        "method.local.decay": "constant",
    }
    sgd = {"method.local.optimizer": "sgd", "method.local.learning_rate": f"{30 * rate:g}"}

    def averaged(method: str, rounds: int, **more: str) -> Arm:
        of = {"method": method, **weights, "method.rounds": f"{rounds}", "method.local.steps": f"{rounds * steps}"}
        return Arm(changes={**of, **(sgd if method == "scaffold" else {}), **more})

    alone = {"method": "localonly", **weights, "partition": "pooled", "clients": "1"}
    central = {
        "method.local.steps": f"{bounds.steps}",
        "method.local.batch": f"{bounds.batch}",
        "method.local.decay": bounds.decay,
    }
    private = {"method.averaging.privacy": "clientprivacy"}
    beside = (
        *(averaged(m, r) for m in ("fedavg", "fedprox", "scaffold", "moon") for r in (1, 10, 50)),
        Arm(changes={**alone, **central}),
        Arm(changes={"method.upload": "latents"}),
        Arm(changes={"partition": "pooled", "clients": "1"}),
        *(Arm(changes={"method.epsilon": e, "method.clip": f"{clip}"}) for e in BUDGETS),
        *(averaged("fedavg", 50, **private, **{"method.averaging.privacy.epsilon": e}) for e in BUDGETS),
    )
    return Study(experiment=base, grid={"seed": SEEDS, "partition.xi": ("0", "0.385")}, beside=beside)


def feddistr_digits() -> Study:
    """FedDistr on digits in five superclasses of two, five clients; its latent model is made first, by

    python jobs/pretrain_latent.py --data.public 500 --data.validation 0 --data.calibration 10 --data.test 400 \
        --out ~/raydiff/latent-digits
    """
    bounds = Training(steps=1000, batch=64, learning_rate=1e-3)
    method = FedDistr(
        model=LatentModel(path="~/raydiff/latent-digits"),
        clusters=2,
        least=10,
        threshold=2.0,  # public records: .9 between prompts that say the same, 3.1 between others; their norm is 2.1
        classifier=Classifier(network=CNN()),
        training=bounds,
    )
    base = Experiment(
        method=method,
        data=Data(name="digits", superclasses="pairs", public=500, validation=0, calibration=10, test=400),
        clients=5,
        partition=Entangled(xi=0.0),
        evaluation=Evaluation(distance="none", attack=False, clients=1),
        runtime=Runtime(workers=1),
    )
    return _feddistr(base, clip=2.1, steps=20, batch=32, bounds=bounds)


def feddistr_mnist() -> Study:
    """The same on MNIST at 14x14; its latent model is made first, by

    python jobs/pretrain_latent.py --data.name mnist --data.size 14 --data.public 10000 --data.train 6400 \
        --data.validation 1000 --data.calibration 10 --data.test 2000 --out ~/raydiff/latent-mnist14
    """
    study = feddistr_digits()
    changes = {
        "data": Data(
            name="mnist",
            size=14,
            superclasses="pairs",
            train=6400,
            public=10_000,
            validation=1000,
            calibration=10,
            test=2000,
        ),
        "method.model.path": "~/raydiff/latent-mnist14",
    }
    return replace(study, experiment=override(study.experiment, changes))


def feddistr_cifar100() -> Study:
    """The paper's CIFAR-100: ten superclasses of two classes each, ResNet-18; for a GPU, with a latent model of your
    own (`--method.model.path`: a folder, or owner/name of the hub)."""
    bounds = Training(steps=4000, batch=128, learning_rate=1e-3)
    base = override(
        feddistr_digits().experiment,
        {
            "data": Data(
                name="cifar100", superclasses="cifar100-10x2", public=200, validation=200, calibration=0, test=400
            ),
            "method.model.path": "",
            "method.inversion": Training(steps=500, batch=12, learning_rate=0.02),
            "method.images": 4000,
            "method.steps": 50,
            "method.guidance": 10.0,
            "method.classifier.network": ResNet18(),
            "method.training": bounds,
            "runtime": Runtime(workers=1, gpu_per_worker=0.5, gpu_server=0.5),
        },
    )
    study = _feddistr(base, clip=10.0, steps=50, batch=128, bounds=bounds)
    grid = {**study.grid, "clients": ("5", "10", "20"), "partition.xi": ("0", "0.003", "0.057", "0.385")}
    resnet = {"method.model.network": "resnet18"}
    beside = tuple(
        replace(a, changes={**a.changes, **resnet}) if "method.model" in a.changes else a for a in study.beside
    )
    return replace(study, grid=grid, beside=beside)


# --- synthetic rows of tables: how good, and what they tell of their training rows ---


def _tabular(data: Data) -> Study:
    """The black-box attack over T and the decay rate (Wei et al., Figure 7): a fifth of the rows are members, the same
    under all seeds. Beside it the other schedules, and FedAvg on four clients, each with a quarter of the rows.

    The paper's training: batch 30, rate 1e-3, 100 epochs, weight decay 5e-4 (here decoupled). FedAvg takes as many
    epochs in ten rounds; a client's members are then its own rows, 6 % of the records it is attacked with.
    """
    assert data.train is not None
    steps = data.train * 100 // 30
    method = LocalOnly(
        model=DiscreteDiffusion(steps=20),
        local=Training(steps=steps, batch=30, learning_rate=1e-3, weight_decay=5e-4, decay="constant"),
    )
    base = Experiment(
        method=method,
        data=data,
        clients=1,
        partition=Pooled(),
        evaluation=Evaluation(distance="tables"),
        audit=RowAudit(),
        runtime=Runtime(workers=1),
    )
    shared = {"method": "fedavg", "partition": "iid", "clients": "4", "method.local.steps": f"{steps // 4}"}
    sigmoid = {"method.model.schedule": "sigmoid"}
    beside = (
        *(Arm(changes={**sigmoid, "method.model.schedule.rate": rate}) for rate in ("2.5", "5")),
        Arm(changes={"method.model.schedule": "cosine"}),
        Arm(changes=shared),
    )
    grid = {
        "method.model.steps": ("20", "30"),
        "method.model.schedule.rate": ("0.1", "0.3", "0.5", "0.8", "1.0"),
        "seed": SEEDS[:3],
    }
    return Study(experiment=base, grid=grid, beside=beside)


def tabular_german() -> Study:
    """German Credit: 200 rows are trained on, 800 are not. 78 trials of about 20 seconds on a busy CPU core."""
    return _tabular(Data(name="german", train=200, public=0, validation=0, calibration=0, test=800))


def tabular_adult() -> Study:
    """Adult: 3,800 rows are trained on; those that are not are 15,200 of its test rows. The paper trains on 6,144."""
    return _tabular(Data(name="adult", train=3800, public=0, validation=0, calibration=0, test=15_200))


def _removal(data: Data, *, epochs: int) -> Experiment:
    """Leave the most exposed records out, train on the rest, and train a classifier on what that model makes (Wei et
    al., Figure 6: T = 10, linear schedule, batch 30, rate 1e-3, weight decay 5e-4, here decoupled)."""
    assert data.train is not None
    method = LocalOnly(
        model=DiscreteDiffusion(steps=10),
        local=Training(
            steps=data.train * epochs // 30, batch=30, learning_rate=1e-3, weight_decay=5e-4, decay="constant"
        ),
    )
    return Experiment(
        method=method,
        data=data,
        clients=1,
        partition=Pooled(),
        evaluation=Evaluation(distance="tables", attack=False),
        audit=RowAudit(),
        runtime=Runtime(workers=1),
    )


def removal_german() -> Study:
    """German Credit, 100 epochs as in the paper, a tenth of the 1,000 rows to test on. So few that which they are
    matters most: ten splits in place of seeds. 80 trials of about 15 seconds."""
    data = Data(name="german", train=800, public=0, validation=100, calibration=0, test=100)
    shares = ("0", "0.01", "0.03", "0.05", "0.1", "0.2", "0.3", "0.5")
    grid = {"audit.remove": shares, "data.split_seed": tuple(map(str, range(10)))}
    return Study(experiment=_removal(data, epochs=100), grid=grid)


def removal_adult() -> Study:
    """Adult: 24,574 training rows, all 15,315 test rows. 20 epochs; the paper's 100 take five times as long. 18 trials
    of about a minute."""
    data = Data(name="adult", train=24_574, public=0, validation=0, calibration=0, test=15_315)
    grid = {"audit.remove": ("0", "0.01", "0.03", "0.1", "0.3", "0.5"), "seed": SEEDS[:3]}
    return Study(experiment=_removal(data, epochs=20), grid=grid)


PRESETS: dict[str, Callable[[], Study]] = {
    "digits": digits,
    "frontier": frontier,
    "mnist": mnist,
    "mnist-cpu": mnist_cpu,
    "colour-mnist": colour_mnist,
    "cifar10": cifar10,
    "collaboration": collaboration,
    "collaboration-colour": collaboration_colour,
    "clients": clients,
    "feddistr-digits": feddistr_digits,
    "feddistr-mnist": feddistr_mnist,
    "feddistr-cifar100": feddistr_cifar100,
    "removal-adult": removal_adult,
    "removal-german": removal_german,
    "spire-digits": spire_digits,
    "spire-mnist": spire_mnist,
    "spire-cifar10": spire_cifar10,
    "spire-faces": spire_faces,
    "tabular-adult": tabular_adult,
    "tabular-german": tabular_german,
}
