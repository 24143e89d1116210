"""The work of `overhead` by other frameworks, each in a virtual environment of its own (`--peers FOLDER`).

Each script trains with AdamW on batches that are there from the start: a little less work than raydiff has, which draws
them. Beside the framework they import torch or JAX, numpy, and of raydiff the network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analysis.bench.peers.work import BATCH
from analysis.bench.plain_fedavg import PROCESSES, Plain, first_weights
from raydiff import tree
from raydiff.experiment.trial import Trial
from raydiff.models.networks import MLP

ROOT = Path(__file__).parents[3]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}")
PEERS: dict[str, tuple[str, ...]] = {"pfl": TORCHRUN, "flower": (), "fedjax": ()}
"""name of its environment's folder -> how python starts its script."""
ONE_CORE = ("fedjax",)  # these are compared with one process


def found(folder: Path | None) -> dict[str, Path]:
    """The Python of each peer that has an environment in this folder. Raises ValueError if none has."""
    if folder is None:
        return {}
    pythons = {name: folder.resolve() / name / "bin" / "python" for name in PEERS}
    if not any(path.exists() for path in pythons.values()):
        raise ValueError(f"{folder} has no virtual environment named {', '.join(PEERS)}")
    return {name: path for name, path in pythons.items() if path.exists()}


def seconds(name: str, python: Path, trial: Trial, file: Path) -> float:
    """Seconds per round after the first, of a fresh process. Raises OSError with the end of its output if it fails."""
    write(trial, file)
    command = [python, *PEERS[name], "-m", f"analysis.bench.peers.{name}_fedavg", file]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    core = {min(os.sched_getaffinity(0))}
    pinned = (lambda: os.sched_setaffinity(0, core)) if name in ONE_CORE else None
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, preexec_fn=pinned)
    of_processes = re.findall(r'\{"seconds": ([^}]+)\}', done.stdout)  # They may share a line.
    if done.returncode or not of_processes:
        raise OSError(f"{name} ended with code {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return max(map(float, of_processes))


def write(trial: Trial, file: Path) -> None:
    """Write what `work.read` reads: of each client the batches of a round, drawn once."""
    experiment = trial.experiment
    plain = Plain(trial, range(trial.experiment.clients))
    network = plain.model.network
    method = plain.method
    assert isinstance(network, MLP) and method.local.batch == BATCH
    rows = max(method.local.steps // method.rounds, 1) * BATCH
    arrays: dict[str, Any] = {"abar": plain.abar.numpy()}
    for client, records in plain.records.items():
        drawn = torch.randint(len(records.images), (rows,), generator=torch.Generator().manual_seed(client))
        arrays |= {f"images/{client}": records.images[drawn].numpy(), f"labels/{client}": records.labels[drawn].numpy()}
    fields = {
        "clients": experiment.clients,
        "steps": method.local.steps // method.rounds,
        "rounds": method.rounds,
        "width": network.width,
        "depth": network.depth,
        "timesteps": plain.model.timesteps,
        "learning_rate": method.local.learning_rate,
    }
    arrays |= tree.prefixed("weights", tree.arrays(first_weights(trial)))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, fields=np.array(json.dumps(fields)), **arrays)
