"""Fixtures of all tests. One thread, so that no number depends on how many cores the machine has."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import latents
import pytest
import torch
from storages import Storage

from raydiff import tree
from raydiff.__main__ import main
from raydiff.data.datasets import Data, Records
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.quality import features
from raydiff.experiment.config import Experiment, Runtime
from raydiff.federated.method import Method
from raydiff.formats import json_files
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy import accountants, grid, private_gradient
from raydiff.storage import file_names
from raydiff.storage.checksums import dump_tensors, load_tensors
from raydiff.tree import Params

torch.set_num_threads(1)
TRIAL, PATHS = json_files.TRIAL, file_names.OURS


@pytest.fixture
def fine_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps so small that to float32 a release is signal plus noise: for tests of the signal or the noise's scale."""
    monkeypatch.setattr(grid, "FINENESS", 2**30)


@pytest.fixture
def real_gaussians(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bounds without the addition of `grid.add_sampler_cost` for the sampler: to compare with other accountants."""
    caches = (accountants.mu_for, private_gradient.noise_multiplier_for)
    monkeypatch.setattr(grid, "add_sampler_cost", lambda bound, delta: bound(delta))
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """(name, function that writes a file or folder) -> its path: one of pytest-xdist's processes writes it for all."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / name).exists():
                make(shared / f"{name}.part")
                (shared / f"{name}.part").rename(shared / name)
        return shared / name

    return make_once


@pytest.fixture(scope="session", autouse=True)
def one_feature_network(once: Callable[[str, Callable[[Path], object]], Path]) -> Iterator[None]:
    """Trials share the feature network of the same public records."""
    train = features.train_cnn

    def shared(records: Records, **settings: Any) -> Params:
        digest = tree.digest({**records.leaves, "labels": records.labels})
        key = hashlib.sha256(f"{digest} {sorted(settings.items())}".encode()).hexdigest()
        path = once(f"cnn-{key}", lambda path: path.write_bytes(dump_tensors(train(records, **settings))))
        return load_tensors(path.read_bytes(), path)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "train_cnn", functools.lru_cache(maxsize=16)(shared))
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced_files() -> Iterator[None]:
    """Files outlive the process anyway; what synchronising them is for, tests with an `os.fsync` of their own show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def readable_names_of_trials() -> Iterator[None]:
    """Trials that tests write are called "a" or "beforePFDM0", not by 16 digits; `digests` undoes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_files, "TRIAL", re.compile(r"[\w.-]+"))
        patch.setattr(file_names, "OURS", re.compile(PATHS.pattern.replace(TRIAL.pattern, r"[\w.-]+", 1)))
        yield


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are called by their digests alone, as outside of tests."""
    monkeypatch.setattr(json_files, "TRIAL", TRIAL)
    monkeypatch.setattr(file_names, "OURS", PATHS)


@pytest.fixture(autouse=True)
def restored_process() -> Iterator[None]:
    """Undo what a command or a worker sets in its process: the umask, and the GPUs that it sees."""
    environment, umask = dict(os.environ), os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if "CUDA_VISIBLE_DEVICES" in environment:
        os.environ["CUDA_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Handle signals as by default, also where pytest runs under `nohup` or in the background of a shell."""
    defaults = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The `raydiff` command in this process: its arguments -> (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return int(end.value.code or 0), *capsys.readouterr()

    return run


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
def latent_model(once: Callable[[str, Callable[[Path], object]], Path]) -> LatentModel:
    """An untrained latent diffusion model for digits."""
    return LatentModel(path=str(once("latent", latents.write))).for_data((1, 8, 8), (10,))


@pytest.fixture(scope="session")
def storage(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The sweeps pfdm, localonly and fedavg, of `tiny` without evaluation. Shared: read-only."""
    finished = Storage(tmp_path_factory.mktemp("storage"))
    model, short = tiny.method.model, Training(steps=8, batch=8)
    methods: dict[str, Method] = {
        "pfdm": tiny.method,
        "localonly": LocalOnly(model=model, local=short),
        "fedavg": FedAvg(model=model, local=short, rounds=2),
    }
    for name, method in methods.items():
        finished.finish(name, replace(tiny, method=method, evaluation=None))
    return finished


@pytest.fixture
def copied(storage: Storage, tmp_path: Path) -> Storage:
    """The same, the test's own."""
    shutil.copytree(storage.root, tmp_path / "storage")
    return Storage(tmp_path / "storage")


@pytest.fixture(scope="session")
def migrated(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """An MLflow store with its tables, whose creation takes seconds."""
    from mlflow import MlflowClient

    return once("mlflow.db", lambda path: MlflowClient(f"sqlite:///{path}").search_experiments())


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of data sets that are not embedded."""
    root = os.environ.get("RAYDIFF_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("RAYDIFF_DATA does not name a folder of data sets")
    return Path(root)
