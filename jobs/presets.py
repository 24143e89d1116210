"""Experiments by name. A preset is a function that returns a `Study`: one experiment, what to vary, what to compare
with.

Every field can be overridden on the command line; see `python jobs/sweep.py --help`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raydiff.config import Experiment, Runtime, override
from raydiff.data.datasets import Data
from raydiff.data.partition import MajorityMinority
from raydiff.diffusion.gaussian import DDPM, Sampling
from raydiff.diffusion.local import Training
from raydiff.diffusion.networks import MLP, UNet
from raydiff.methods import PFDM


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `jobs/sweep.py` runs."""

    experiment: Experiment
    """The trial from which the others differ."""
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axes: field path -> values, as one would write them on the command line."""
    baselines: tuple[str, ...] = ()
    """Methods run beside it on the axes that they have."""


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
    return Study(experiment=experiment, grid=grid, baselines=BASELINES)


def mnist() -> Study:
    """PFDM on MNIST at 28x28 with the paper's T = 1000 and batch 128: sized for a GPU that holds four clients and a
    server.

    1000 : 100 records of each majority and minority class, as in the paper's coloured MNIST; clip is the public median
    norm.
    """
    training = Training(steps=20_000, batch=128, learning_rate=2e-4)
    method = PFDM(
        model=DDPM(network=UNet(widths=(64, 128, 128), layers=2), timesteps=1000),
        epsilon=10.0,
        clip=MNIST_CLIP,
        local=training,
        server=training,
        server_rounds=20,
        sampling=Sampling(sampler="ddim", steps=100),
        client_sampling=Sampling(sampler="ddim", steps=100),
    )
    data = Data(name="mnist", train=22_000, public=2000, validation=1000, calibration=1000, test=4000)
    runtime = Runtime(workers=4, gpu_per_worker=0.2, gpu_server=0.2)
    experiment = Experiment(method=method, data=data, clients=4, partition=MajorityMinority(ratio=0.1), runtime=runtime)
    return Study(experiment=experiment, grid={"method.epsilon": ("10", "50", "200", "none")}, baselines=BASELINES)


def mnist_cpu() -> Study:
    """The same study at 14x14 with an MLP, T = 100 and 2,000 records: about half an hour on 2 cores."""
    study = mnist()
    experiment = override(
        study.experiment,
        {
            "method": digits().experiment.method,
            "method.clip": MNIST_14_CLIP,
            "method.model.network": MLP(width=384),
            "method.local.steps": 3000,
            "method.server.steps": 3000,
            "data.size": 14,
            "data.train": 2000,
            "data.public": 1000,
            "data.validation": 500,
            "data.calibration": 500,
            "data.test": 1000,
            "runtime": Runtime(workers=1),
        },
    )
    return Study(experiment=experiment, grid=study.grid, baselines=BASELINES)


BASELINES = ("localonly", "fedavg")
MNIST_CLIP, MNIST_14_CLIP = 26.9, 13.0
"""Median norms of the public split."""
PRESETS: dict[str, Callable[[], Study]] = {"digits": digits, "mnist": mnist, "mnist-cpu": mnist_cpu}
