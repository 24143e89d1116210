"""Presets: PFDM on digits, the frontier of privacy, the paper's sizes, and when collaboration helps."""

from collections.abc import Iterable
from dataclasses import replace

from raydiff.data.datasets import Data
from raydiff.data.partition import MajorityMinority, Pooled
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.experiment.searchers import Settings
from raydiff.experiment.study import BASELINES, EPSILONS, SEEDS, Arm, Study
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.evolution import Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy.client_level import ClientPrivacy


def digits() -> Study:
    """PFDM on scikit-learn's digits: 1,797 real 8x8 scans, minutes on 2 cores.

    Clips are the median norm of the public split, near which the paper sets C, unless a preset says otherwise. The
    network has a skip: fewer hidden units than pixels cannot predict white noise else.
    """
    training = Training(steps=1000)
    chain = Sampling(sampler="ddim", steps=50)
    model = DDPM(network=MLP(skip=True), timesteps=100)
    method = PFDM(model=model, clip=6.8, local=training, server=training, sampling=chain, client_sampling=chain)
    experiment = Experiment(method=method, data=Data(name="digits"), clients=2, runtime=Runtime(workers=1))
    # Epsilon varies slowest: trials that share client models then run one after the other.
    grid = {"method.epsilon": (*EPSILONS, None), "method.model.schedule": ("linear", "cosine"), "clients": (2, 4)}
    return Study(experiment=experiment, grid=grid, beside=BASELINES)


def tradeoff() -> Study:
    """The main job: digits, clients with 3 records of each minority class, two minutes on 2 cores.

    Private Evolution is the private arm: it is closer to validation records than the sketch and DP-MERF. Network and
    steps were chosen on these too (docs/main-job.md).
    """
    training = Training(steps=600, learning_rate=4e-3)
    changes = {
        "method.model.network": MLP(width=128, depth=2, skip=True),
        "method.local": training,
        "method.server": training,
        "partition.minority": 3,
        "evaluation.samplers": False,
    }
    study = _varied(digits(), changes)
    return replace(study, beside=(*BASELINES, *_at((3.0, 10.0), {"method": Evolution})))


def _varied(study: Study, changes: Settings, beside: tuple[Arm, ...] | None = None) -> Study:
    """The study on another experiment, and beside other arms if there are some."""
    return replace(study, experiment=override(study.experiment, changes), beside=beside or study.beside)


# --- methods with different privacy definitions, side by side ---


COLUMN = (0.5, 1.0, 3.0, 10.0, 50.0)
"""Epsilons per example, replace-one, local trust, at which every method that states one is compared."""
CENTRED_CLIP = 4.26  # median distance of digits' public pictures from their mean


def frontier() -> Study:
    """Digits, two clients with 3 or 20 records of each minority class: which method at each epsilon?

    PFDM, with its clip around 0 and around the public mean, the sketch, as it is and
    refined by the client's denoiser of PFDM, DP-MERF, Private Evolution and DP-SGD at the same five epsilons; DP-FedAvg
    under either trust; FedAvg and local training.

    All means are unweighted, which central trust needs. A step of DP-SGD draws 64 of a client's about 430 records.
    """
    base = override(digits().experiment, {"method.epsilon": 10.0})
    centred = {"method.clip": CENTRED_CLIP, "method.center": "public"}
    sketch = {"method": Sketch, **centred}
    fedavg = {"method": FedAvg, "method.averaging.weights": "uniform"}
    dpsgd = {**fedavg, "method": DPSGD, "method.relation": "replace_one"}
    private = {**fedavg, "method.averaging.privacy": ClientPrivacy, "method.averaging.privacy.epsilon": 10.0}
    beside = (
        *_at([e for e in COLUMN if e != base.method.epsilon], {}),
        *_at(COLUMN, centred),
        *_at(COLUMN, sketch),
        *_at(COLUMN, {**sketch, "method.refine": 0.5, "method.denoiser": base.method.model}),
        *_at(COLUMN, {"method": DPMERF}),
        *_at(COLUMN, {"method": Evolution}),
        *_at(COLUMN, dpsgd),
        *(Arm(changes={**private, "method.averaging.privacy.trust": trust}) for trust in ("local", "central")),
        Arm(changes=fedavg),
        Arm(method=LocalOnly),
    )
    return Study(experiment=base, grid={"seed": SEEDS, "partition.minority": (3, 20)}, beside=beside)


def _at(epsilons: Iterable[float], changes: Settings) -> list[Arm]:
    return [Arm(changes={**changes, "method.epsilon": epsilon}) for epsilon in epsilons]


# --- the paper's sizes, for GPUs ---

LONG = Training(steps=20_000, batch=128, learning_rate=2e-4)
PARTS = 20  # a training is kept after each twentieth, so that it can be run in slices
LONG_BASELINES = (Arm(method=LocalOnly), Arm(changes={"method": FedAvg, "method.rounds": PARTS}))


def mnist() -> Study:
    """PFDM on MNIST at 28x28 with the paper's T = 1000 and batch 128, for a GPU that holds four clients and a server.

    1000 : 100 records of each majority and minority class, as in the paper's coloured MNIST.
    """
    model = DDPM(network=UNet(widths=(64, 128, 128), layers=2), timesteps=1000, precision="bfloat16")
    chain = Sampling(sampler="ddim", steps=100)
    method = PFDM(model=model, clip=26.9, local=LONG, server=LONG, sampling=chain, client_sampling=chain)
    method = replace(method, local_parts=PARTS, server_rounds=PARTS)
    data = Data(name="mnist", train=22_000, public=2000, validation=1000, calibration=1000, test=4000)
    runtime = Runtime(workers=4, gpu_per_worker=0.2, gpu_server=0.2)
    experiment = Experiment(method=method, data=data, clients=4, partition=MajorityMinority(ratio=0.1), runtime=runtime)
    return Study(experiment=experiment, grid={"method.epsilon": (*EPSILONS, None)}, beside=LONG_BASELINES)


def colour_mnist() -> Study:
    """The same on coloured MNIST: 28x28 in three channels, conditions digit and colour. Its clip is the paper's."""
    return _varied(mnist(), {"data.name": "colour-mnist", "method.clip": 20.0, "method.center": "black"})


def cifar10() -> Study:
    """PFDM on CIFAR-10 at 32x32 with the paper's clip (15: about half the median norm) and a UNet of four scales."""
    changes = {
        "data": Data(name="cifar10", public=2000, validation=1000, calibration=1000, test=4000),
        "method.model.network": UNet(widths=(128, 256, 256, 256), layers=2),
        "method.clip": 15.0,
        "method.local.steps": 100_000,
        "method.server.steps": 100_000,
    }
    return _varied(mnist(), changes)


# --- when does collaboration help? ---

SMALL_MNIST = Data(name="mnist", size=14, train=6400, public=1000, validation=0, calibration=10, test=1000)
UNCLIPPED = {"method.clip": None, "method.center": "grey"}


def mnist_cpu() -> Study:
    """`mnist` at 14x14 with an MLP, T = 100 and 2,000 records: about half an hour on 2 cores."""
    changes = {
        "method": digits().experiment.method,
        "method.clip": 13.0,
        "method.model.network": MLP(width=384, skip=True),
        "method.local.steps": 3000,
        "method.server.steps": 3000,
        "data": Data(name="mnist", size=14, train=2000, public=1000, validation=500, calibration=500, test=1000),
        "runtime": Runtime(workers=1),
    }
    return _varied(mnist(), changes, BASELINES)


def collaboration() -> Study:
    """Digits, two clients: the minority's size x epsilon, against controls and baselines, with the same client models.

    35 records a class is the largest minority that is still one: there are 113 of each class in the training split.
    """
    base = replace(digits().experiment, data=Data(name="digits", validation=0, calibration=10, test=400))
    return _collaboration(base, minorities=(3, 20, 35), centred_clip=CENTRED_CLIP)


def collaboration_colour() -> Study:
    """The same on coloured MNIST, at 14x14, where it fits a CPU; clipped around black, as in the paper."""
    changes = {
        "data": replace(SMALL_MNIST, name="colour-mnist", train=4000, test=400),
        "method.model.network": MLP(width=256, skip=True),
        "method.clip": 8.44,
        "method.center": "black",
    }
    return _collaboration(override(digits().experiment, changes), minorities=(3, 20, 100), centred_clip=7.27)


def _collaboration(base: Experiment, *, minorities: tuple[int, ...], centred_clip: float) -> Study:
    """Every arm at every (epsilon or its depth, minority size, seed).

    `centred_clip`: the median distance of the public split's pictures from its mean.
    """
    base = replace(base, evaluation=Evaluation(attacks=None, clusters=True))
    centred = {"method.clip": centred_clip, "method.center": "public"}
    beside = (
        Arm(method=LocalOnly),
        *(Arm(changes={"method.start": start}, private=True) for start in ("noise", "shuffled", "gaussian")),
        Arm(at_depths={}),  # CollaFuse
        *(Arm(changes=clip, at_depths={"method.start": "real"}) for clip in ({}, centred)),
        Arm(changes={"method": LocalOnly, **centred}),
        Arm(changes=centred, private=True),
        Arm(changes={**centred, "method.start": "gaussian"}, private=True),
        Arm(method=FedAvg),
        Arm(changes={"method": LocalOnly, **UNCLIPPED, "partition": Pooled, "clients": 1}),
    )
    grid = {"method.epsilon": (*EPSILONS, None), "partition.minority": minorities, "seed": SEEDS}
    return Study(experiment=base, grid=grid, beside=beside)


def clients() -> Study:
    """MNIST at 14x14, 6,400 records among more and more clients: the paper's study of M at fixed total data.

    Sized for 2 cores; the first 16 clients are measured. Epsilon varies more slowly than M: trials of one M and seed
    share their client models.
    """
    changes = {
        "data": replace(SMALL_MNIST, test=400),
        "evaluation": Evaluation(attacks=None, clients=16),
        "method.model.network": MLP(width=256, skip=True),
        "method.local.steps": 1000,
        "method.server.steps": 2000,
        "method.sampling.steps": 25,
        "method.client_sampling.steps": 25,
    }
    base = override(mnist_cpu().experiment, changes)
    grid = {"seed": SEEDS[:2], "method.epsilon": (10.0, 200.0), "clients": (4, 8, 16, 32, 64, 128)}
    return Study(experiment=base, grid=grid, beside=(Arm(method=LocalOnly),))
