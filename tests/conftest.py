"""What all tests share. One thread, so that no number depends on how many cores the machine has."""

from __future__ import annotations

import os

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # before anything imports ray
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MPLBACKEND", "Agg")

from pathlib import Path

import pytest
import torch

from raydiff.config import Experiment, Runtime
from raydiff.data.datasets import Data
from raydiff.diffusion.gaussian import DDPM
from raydiff.diffusion.local import Training
from raydiff.diffusion.networks import MLP
from raydiff.evaluation.evaluate import Evaluation
from raydiff.methods import PFDM

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Experiment:
    """PFDM on 60 digits, two clients; width 32, T = 20, 8 steps for each model: tens of milliseconds."""
    method = PFDM(
        model=DDPM(network=MLP(width=32, depth=1), timesteps=20),
        clip=6.4,
        local=Training(steps=8, batch=8),
        server=Training(steps=8, batch=8),
        server_rounds=3,
    )
    return Experiment(
        method=method,
        data=Data(train=60, public=80, validation=60, calibration=20, test=100),
        evaluation=Evaluation(dim=4, members=8),
        runtime=Runtime(pool="local"),
    )


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of data sets that are not embedded."""
    root = os.environ.get("RAYDIFF_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("RAYDIFF_DATA does not name a folder of data sets")
    return Path(root)
