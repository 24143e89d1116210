"""What a peer reads: the work as one file, and the network and loss of it in plain torch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH = 64


@dataclass(frozen=True)
class Given:
    """FedAvg's work, as `run.write` stores it."""

    clients: int
    steps: int  # of each client in each round
    rounds: int
    width: int
    depth: int
    timesteps: int
    learning_rate: float
    abar: Any  # of the noise schedule, float32 (timesteps + 1,)
    images: Sequence[Any]  # of each client: float32 (max(steps, 1) * BATCH, 1, 8, 8)
    labels: Sequence[Any]  # int64 (max(steps, 1) * BATCH, 1)
    weights: dict[str, Any]  # of the server


def read(path: str) -> Given:
    """Read the work. Raises OSError."""
    with np.load(path) as file:
        fields = json.loads(str(file["fields"]))
        by_client = [[file[f"{kind}/{i}"] for i in range(fields["clients"])] for kind in ("images", "labels")]
        abar = file["abar"]
        weights = {k.removeprefix("weights/"): file[k] for k in file.files if k.startswith("weights/")}
    return Given(**fields, abar=abar, images=by_client[0], labels=by_client[1], weights=weights)


class Clock:
    """The end of each round; prints what `run.seconds` reads."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        """A round has ended."""
        self.ends.append(time.perf_counter())

    def report(self) -> None:
        """Print the mean seconds of all rounds after the first."""
        print(json.dumps({"seconds": (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)}), flush=True)


def denoiser(given: Given) -> Any:
    """The network with the server's weights; its `loss(images, labels)` draws noise."""
    import torch

    from raydiff.models.ddpm import DDPM
    from raydiff.models.networks import MLP

    torch.set_num_threads(1)
    mlp = MLP(width=given.width, depth=given.depth)
    network = DDPM(network=mlp, shape=(1, 8, 8), labels=(10,), timesteps=given.timesteps).build()
    network.load_state_dict({k: torch.from_numpy(v) for k, v in given.weights.items()})
    abar = torch.from_numpy(given.abar)

    def loss(images: Any, labels: Any) -> Any:
        t = torch.randint(1, given.timesteps + 1, (len(images),))
        z = torch.randn_like(images)
        at = abar[t].view(-1, 1, 1, 1)
        return (
            (z - network(at.sqrt() * images + (1 - at).sqrt() * z, t * (1000 / given.timesteps), labels.long()))
            .square()
            .mean()
        )

    network.loss = loss  # type: ignore[assignment]
    return network


def train(network: Any, given: Given, client: int) -> None:
    """One client's steps of a round, on the weights that the network has."""
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), lr=given.learning_rate, weight_decay=0.0, fused=True)
    images = torch.from_numpy(given.images[client])
    labels = torch.from_numpy(given.labels[client])
    for step in range(given.steps):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        network.loss(images[rows], labels[rows]).backward()
        optimizer.step()
