"""Presets: benchmarks that others published, with their settings, to be compared with their numbers."""

from __future__ import annotations

from dataclasses import replace

from raydiff.data.datasets import Data
from raydiff.data.partition import ByClass, Dirichlet, Pooled
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.study import SEEDS, Arm, Study
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sketch import Sketch
from raydiff.models.classifier import Classifier, LeNet
from raydiff.models.training import Training


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
    """DPImageBench (Gong et al., CCS 2025, arXiv 2503.14681) on MNIST: one client, epsilon 1 and 10 at delta 1e-5; the
    accuracy, on the 10,000 test records, of a classifier trained on samples alone.

    DP-MERF with the benchmark's features and steps, and beside it the sketch. A thousand of the 60,000 training records
    are public: they give the kernel's length, the sketch's center and its clip, their median distance from that; the
    client has the others. 12 trials of about three minutes of a CPU core, in one process. `raydiff referees SWEEP`
    compares with what is published.
    """
    judge = Evaluation(distance="none", attack=False, metrics=("accuracy", "downstream"), downstream=("lenet",))
    base = Experiment(
        method=DPMERF(epsilon=1.0, features=10_000, training=replace(DPMERF().training, steps=3000)),
        data=Data(name="mnist", public=1000, validation=0, calibration=0, test=10_000),
        clients=1,
        partition=Pooled(),
        evaluation=replace(judge, per_class=500, ceiling=False),
        runtime=Runtime(pool="local"),
    )
    sketch = {"method": Sketch, "method.clip": 14.0, "method.center": "public"}
    grid = {"method.epsilon": (1.0, 10.0), "seed": SEEDS[:3]}
    return Study(experiment=base, grid=grid, beside=(Arm(changes=sketch),))
