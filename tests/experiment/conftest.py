"""A trial to be run in a bucket, what it gives in a folder, and machines for it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from buckets import begun, result, through

from raydiff.data.partition import Iid
from raydiff.experiment.config import Experiment
from raydiff.methods._averaging import Averaging
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.storage import staging


@pytest.fixture
def noised(tiny: Experiment) -> Experiment:
    """Three clients, two in a round; each has a state of its own, and noises what it sends."""
    method = SPIRE(
        model=DDPM(network=MLP(width=16, depth=1), timesteps=8, conditional=False),
        rounds=3,
        local=Training(steps=2, batch=8),
        averaging=Averaging(weights="uniform", privacy=ClientPrivacy(epsilon=20.0)),
    )
    return replace(tiny, method=method, clients=3, participants=2, evaluation=None, partition=Iid())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Moves to another machine, and returns the bucket's URI."""
    count = iter(range(1000))

    def another() -> str:
        monkeypatch.setenv(staging.PLACE, str(tmp_path / f"machine{next(count)}"))
        return f"file://{tmp_path}/bucket"

    return another


@pytest.fixture
def undisturbed(noised: Experiment, tmp_path: Path) -> dict[str, object]:
    """The result in a folder, undisturbed."""
    return result(through(begun(noised, str(tmp_path / "folder"))))
