"""Presets: benchmarks that others published, with their settings, to be compared with their numbers."""

from __future__ import annotations

from dataclasses import replace

from raydiff.data.datasets import Data
from raydiff.data.partition import ByClass, Dirichlet, Iid
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.experiment.study import SEEDS, Arm, Study
from raydiff.methods.central_images import CentralImages
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sketch import Sketch
from raydiff.models.classifier import Classifier, LeNet
from raydiff.models.ddpm import DDPM, Sampling
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training

DELTA = 1.6657e-6
"""DPImageBench's 1 / (N ln N) of its N = 55,000 training records, rounded down."""
BUDGETS = (0.2, 1.0, 10.0)
BLACK = {"origin": -1.0, "clip": 14.0, "moment": 0.7}
"""Of the sketch and the central images, chosen on the 5,000 validation records among clips 12 to 26, moments .7, 1.5.
"""


def niid_bench() -> Study:
    """NIID-Bench (Li et al., ICDE 2022, arXiv 2102.02079) on MNIST: ten parties, one label each, or Dirichlet 0.5 over
    labels; all 60,000 training records, 50 rounds of ten epochs, the accuracy on the 10,000 test records at the end.

    FedProx's mu is that of the benchmark's example, MOON's our default. Runs in one process: 24 trials of 30 million
    records each. `raydiff referees SWEEP` compares with what is published.
    """
    rounds = 50
    sgd = Training(optimizer="sgd", learning_rate=0.01, momentum=0.9, weight_decay=1e-5, decay="constant")
    local = replace(sgd, epochs=10 * rounds, batch=64, replacement=False)
    label_skew = Dirichlet(alpha=0.5, balanced=True)
    base = Experiment(
        method=FedAvg(model=Classifier(network=LeNet()), rounds=rounds, local=local),
        data=Data(name="mnist", public=0, validation=0, calibration=0, test=10_000),
        clients=10,
        partition=label_skew,
        evaluation=Evaluation(distance="none", attack=False, clients=1, metrics=("accuracy",)),
        runtime=Runtime(pool="local"),
    )
    beside = (Arm(method=Scaffold), Arm(method=FedProx(mu=0.01)), Arm(method=Moon))
    return Study(experiment=base, grid={"seed": SEEDS[:3], "partition": (label_skew, ByClass())}, beside=beside)


def dpimagebench() -> Study:
    """DPImageBench (Gong et al., CCS 2025, arXiv 2503.14681) on MNIST: one client with 55,000 records, no public ones;
    5,000 choose settings; the accuracy, on the 10,000 test records, of a classifier trained on samples alone.

    DP-MERF with the benchmark's features, steps and length scale (sigma^2 = 105 on [0, 1], so 20.5 here), and beside it
    the sketch. 18 trials of one to three minutes of a CPU core, in one process; `--grid clients=2,10,100` shares the
    records among more clients. `raydiff referees SWEEP` compares with what is published.
    """
    judge = Evaluation(distance="none", attack=False, metrics=("accuracy", "downstream"), downstream=("lenet",))
    training = replace(DPMERF().training, steps=3000)
    base = Experiment(
        method=DPMERF(epsilon=1.0, delta=DELTA, features=10_000, length=20.5, training=training),
        data=Data(name="mnist", public=0, validation=5000, calibration=0, test=10_000),
        clients=1,
        partition=Iid(),
        evaluation=replace(judge, per_class=500, ceiling=False),
        runtime=Runtime(pool="local"),
    )
    sketch = {"method": Sketch, "method.delta": DELTA, **{f"method.{k}": v for k, v in BLACK.items()}}
    grid = {"method.epsilon": BUDGETS, "seed": SEEDS[:3]}
    return Study(experiment=base, grid=grid, beside=(Arm(changes=sketch),))


def dpimagebench_dpsgd() -> Study:
    """The same by DP-SGD (DPDM), DP-FETA, and DP-SGD after the whole sketch, at a thousandth of the published compute:
    an MLP, 200 steps, one draw for each gradient. Nine trials of three minutes of a CPU core."""
    model = DDPM(network=MLP(width=256, depth=2, skip=True), prediction="v")
    local, chain = Training(steps=200, batch=2048, learning_rate=1e-3), Sampling(sampler="ddim", steps=50)
    dpdm = DPSGD(model=model, delta=DELTA, rounds=2, local=local, max_grad_norm=0.01, sampling=chain)
    feta = CentralImages(training=Training(steps=1000, batch=50), **{**BLACK, "moment": 0.0})
    firsts = (None, feta, replace(feta, moment=BLACK["moment"]))
    experiment = replace(dpimagebench().experiment, method=dpdm)
    return Study(experiment=experiment, grid={"method.central": firsts, "method.epsilon": BUDGETS})


def dpimagebench_gpu() -> Study:
    """The same at the benchmark's size: a UNet of two scales with attention, batch 4096, 150 epochs, 32 draws for each
    gradient, three classifiers of 60,000 samples. About ten hours a trial on one H100, and 30 GB, by arithmetic."""
    study, changes = (
        dpimagebench_dpsgd(),
        {
            "method.model.network": UNet(widths=(64, 64), layers=2),
            "method.local": Training(steps=2015, batch=4096, learning_rate=3e-4, decay="constant"),
            "method.multiplicity": 32,
            "method.rounds": 41,
            "method.ema": 0.999,
            "evaluation.downstream": ("lenet", "cnn", "resnet18"),
            "evaluation.per_class": 6000,
            "runtime": Runtime(gpu_per_worker=0.9, gpu_server=0.1),
        },
    )
    return replace(study, experiment=override(study.experiment, changes))
