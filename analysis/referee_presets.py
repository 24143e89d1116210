"""Presets of benchmarks that others published, with their settings, to be compared with their numbers.

python jobs/sweep.py analysis.referee_presets:niid_bench
"""

from __future__ import annotations

from dataclasses import replace

from raydiff.data.datasets import Data
from raydiff.data.partition import ByClass, Dirichlet, Iid
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.experiment.study import SEEDS, Arm, Study
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sketch import Sketch
from raydiff.models.classifier import Classifier, LeNet
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training

DELTA = 1.6657e-6  # DPImageBench's 1 / (N ln N) for its N = 55,000 training records, rounded down
BUDGETS = (0.2, 1.0, 10.0)
SKETCH = Sketch(delta=DELTA, center="black", clip=16.0, moment=0.7)  # chosen on the validation records


def niid_bench() -> Study:
    """NIID-Bench (Li et al., ICDE 2022, arXiv 2102.02079) on MNIST.

    Ten parties, one label each, or Dirichlet 0.5 over labels; all 60,000 training records, 50 rounds of ten epochs, the
    accuracy on the 10,000 test records at the end.

    FedProx's mu is that of the benchmark's example, MOON's our default. 24 trials of 30 million records each.
    `python -m analysis.referees SWEEP` compares with what is published.
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
        evaluation=Evaluation(metrics=("accuracy",), attacks=None, clients=1),
        runtime=Runtime(workers=1),
    )
    beside = (Arm(method=Scaffold), Arm(method=FedProx(mu=0.01)), Arm(method=Moon))
    return Study(experiment=base, grid={"seed": SEEDS[:3], "partition": (label_skew, ByClass())}, beside=beside)


def dpimagebench() -> Study:
    """DPImageBench (Gong et al., CCS 2025, arXiv 2503.14681) on MNIST.

    One client with 55,000 records, no public ones; 5,000 choose settings; the accuracy, on the 10,000 test records, of
    a classifier trained on samples alone.

    DP-MERF with the benchmark's features, steps and length scale (sigma^2 = 105 on [0, 1], so 20.5 here), and the
    sketch. 18 trials of one to three minutes of a CPU core. `python -m analysis.referees SWEEP` compares.
    """
    judge = Evaluation(metrics=("accuracy", "downstream"), attacks=None, downstream=("lenet",))
    training = replace(DPMERF().training, steps=3000)
    base = Experiment(
        method=DPMERF(epsilon=1.0, delta=DELTA, features=10_000, length=20.5, training=training),
        data=Data(name="mnist", public=0, validation=5000, calibration=0, test=10_000),
        clients=1,
        partition=Iid(),
        evaluation=replace(judge, per_class=500, ceiling=False),
        runtime=Runtime(workers=1),
    )
    grid = {"method.epsilon": BUDGETS, "seed": SEEDS[:3]}
    return Study(experiment=base, grid=grid, beside=(Arm(method=SKETCH),))


def dpimagebench_dpsgd() -> Study:
    """The same by DP-SGD (DPDM), DP-FETA, and DP-SGD after the whole sketch.

    An MLP, 100 steps, one draw for each gradient, a 2,500th of the published draws; rates by the validation loss. Nine
    trials of two CPU minutes.
    """
    local = Training(steps=100, batch=1024, learning_rate=1e-2)
    network = MLP(width=256, depth=2, skip=True)
    return _with_central(DPSGD(model=DDPM(network=network), rounds=1, local=local), rate=3e-3)


def dpimagebench_gpu() -> Study:
    """The same at the benchmark's size.

    A UNet of 1.6 million parameters, batch 4096, 150 epochs, 32 draws for each gradient, classifiers of 60,000 samples.
    By arithmetic 13 hours a trial on one H100 (7e17 operations), and 10 GB.
    """
    local = Training(steps=2015, batch=4096, learning_rate=3e-4, decay="constant", ema=0.1)
    model = DDPM(network=UNet(widths=(64, 64), layers=2))
    study = _with_central(DPSGD(model=model, rounds=40, local=local, multiplicity=32), rate=3e-4)
    judges = {"evaluation.downstream": ("lenet", "cnn", "resnet18"), "evaluation.per_class": 6000}
    runtime = Runtime(gpu_per_worker=0.9, gpu_server=0.1)
    return replace(study, experiment=override(replace(study.experiment, runtime=runtime), judges))


def _with_central(dpdm: DPSGD, rate: float) -> Study:
    """A method, and the same after central images, whose epsilon is near DP-FETA's at sigma 5, for all budgets."""
    dpdm = replace(dpdm, delta=DELTA, max_grad_norm=0.01, sampling=Sampling(sampler="ddim", steps=50))
    both = replace(SKETCH, relation="zero_out", epsilon=0.15)
    change = {"method.rounds": dpdm.rounds + 1, "method.local.learning_rate": rate}
    arms = tuple(Arm(changes={**change, "method.central": c}) for c in (replace(both, moment=0.0), both))
    experiment = replace(dpimagebench().experiment, method=dpdm)
    return Study(experiment=experiment, grid={"method.epsilon": BUDGETS}, beside=arms)
