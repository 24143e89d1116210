"""FedAvg on digits without a framework: the work that `bench` compares raydiff with.

It runs in one process, client by client or with all clients' weights stacked, in two processes that talk through
pipes, or in two actors of Ray.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing as mp
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from raydiff import seeding, tree
from raydiff.data.datasets import Records
from raydiff.experiment.trial import Trial, make_clients
from raydiff.methods.fedavg import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, table_name
from raydiff.models.training import Training
from raydiff.tree import Params

PROCESSES = 2  # plain ones, and Ray workers beside them


class Plain:
    """FedAvg's client as one writes it without a framework: a module, an optimiser, a loop."""

    def __init__(self, trial: Trial, ids: Sequence[int]) -> None:
        method = trial.experiment.method
        assert isinstance(method, FedAvg) and isinstance(method.model, DDPM)
        self.method = method
        self.model = method.model
        self.seed = trial.experiment.seed
        self.records = {c.client_id: c.data for c in make_clients(trial, ids)}
        model = self.model
        self.net: nn.Module = model.build()
        self.abar = model.abar.float()

    def train(self, client: int, server: Params, number: int) -> tuple[int, float]:
        """Leave the client's weights in `net`; gives its number of records and its mean loss."""
        training = self.method.local
        data = self.records[client]
        steps = training.steps // self.method.rounds
        rng = seeding.generator(self.seed, "client", client, "round", number)  # the same draws in all ways
        self.net.load_state_dict(server)
        optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        total = torch.zeros(())
        for step in range(steps * number, steps * (number + 1)):
            for group in optimizer.param_groups:
                group["lr"] = _rate(training, step)
            loss = self.loss(data, training.batch, rng)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return len(data), float(total) / max(steps, 1)

    def round(self, server: Params, number: int) -> tuple[Params, int]:
        """(the sum of its clients' weights, each times its number of records; their records)."""
        total = {k: torch.zeros_like(v) for k, v in server.items()}
        records = 0
        for client in self.records:
            examples, _ = self.train(client, server, number)
            for name, value in self.net.state_dict().items():
                total[name].add_(value, alpha=examples)
            records += examples
        return total, records

    def loss(self, data: Records, batch: int, rng: torch.Generator) -> Tensor:
        """The denoising loss on a batch."""
        x_t, t, labels, z = self.noised(data, batch, rng)
        out: Tensor = (z - self.net(x_t, t * (1000 / self.model.timesteps), labels)).square().mean()
        return out

    def noised(self, data: Records, batch: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A batch of noised pictures, their timesteps, labels and noise."""
        model = self.model
        rows = torch.randint(len(data.images), (batch,), generator=rng)
        t = torch.randint(1, model.timesteps + 1, (batch,), generator=rng)
        z = torch.randn(batch, *model.shape, generator=rng)
        abar = self.abar[t].view(-1, 1, 1, 1)
        return abar.sqrt() * data.images[rows] + (1 - abar).sqrt() * z, t, data.labels[rows], z


class Stacked(Plain):
    """All clients' weights as one leaf (clients, ...) each: a step of all is one pass through batched products."""

    def round(self, server: Params, number: int) -> tuple[Params, int]:
        training = self.method.local
        clients = list(self.records)
        steps = training.steps // self.method.rounds
        rngs = [seeding.generator(self.seed, "client", c, "round", number) for c in clients]
        theta = {k: v.expand(len(clients), *v.shape).clone().requires_grad_() for k, v in server.items()}
        optimizer = torch.optim.AdamW(
            theta.values(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        for step in range(steps * number, steps * (number + 1)):
            optimizer.param_groups[0]["lr"] = _rate(training, step)
            drawn = [self.noised(self.records[c], training.batch, rng) for c, rng in zip(clients, rngs, strict=True)]
            x_t, t, labels, z = (torch.stack(parts) for parts in zip(*drawn, strict=True))
            optimizer.zero_grad()
            (z.flatten(2) - self.forward(theta, x_t.flatten(2), t, labels)).square().mean((1, 2)).sum().backward()
            optimizer.step()
        records = [len(self.records[c]) for c in clients]
        weights = torch.tensor(records, dtype=torch.float32)
        total = {k: torch.tensordot(weights, v.detach(), 1) for k, v in theta.items()}
        return total, sum(records)

    def forward(self, theta: Params, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """`MLP`'s output for pictures (clients, batch, pixels), timesteps (clients, batch), labels (.., .., 1)."""
        F = nn.functional
        network = self.model.network

        def linear(name: str, h: Tensor) -> Tensor:
            return torch.baddbmm(theta[f"{name}.bias"][:, None], h, theta[f"{name}.weight"].mT)

        def norm(name: str, h: Tensor) -> Tensor:
            scale = theta[f"{name}.weight"][:, None]
            shift = theta[f"{name}.bias"][:, None]
            return F.layer_norm(h, h.shape[-1:]) * scale + shift

        frequency = torch.exp(torch.arange(32) * (-math.log(10_000) / 32))
        angle = (t * (1000 / self.model.timesteps))[..., None] * frequency
        emb = linear("time.2", F.silu(linear("time.0", torch.cat([angle.sin(), angle.cos()], -1))))
        emb = F.silu(emb + theta[table_name(0)][torch.arange(len(t))[:, None], labels[..., 0]])
        h = linear("enter", x)
        assert isinstance(network, MLP)
        for i in range(network.depth):
            scale, shift = linear(f"blocks.{i}.condition", emb).chunk(2, -1)
            inner = norm(f"blocks.{i}.norm", h) * (1 + scale) + shift
            h = h + linear(f"blocks.{i}.second", F.silu(linear(f"blocks.{i}.first", inner)))
        return linear("leave.1", norm("leave.0", h))


def _rate(training: Training, step: int) -> float:
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * step / training.steps))


def first_weights(trial: Trial) -> Params:
    """The server's weights before round 0, as `rounds()` makes them."""
    return trial.experiment.method.init_server(None, seeding.generator(trial.experiment.seed, "server", "init"))


def mean(sums: Sequence[tuple[Params, int]]) -> Params:
    """The next weights, from the sum of each process."""
    (total, records), *others = sums
    for more, count in others:
        total = {k: v + more[k] for k, v in total.items()}
        records += count
    return {k: v / records for k, v in total.items()}


def floor(trial: Trial, kind: type[Plain] = Plain) -> Iterator[Params]:
    """A plain loop in this process."""
    plain = kind(trial, range(trial.experiment.clients))
    server = first_weights(trial)
    for number in range(trial.experiment.method.rounds):
        server = mean([plain.round(server, number)])
        yield server


def two_processes(trial: Trial, pipes: Sequence[Connection]) -> Iterator[Params]:
    """Half of the clients in each of two processes; weights and sums go through pipes."""
    server = first_weights(trial)  # before the others begin: in tests they are threads, and share torch's generator
    for pipe in pipes:
        pipe.send(trial)
    for number in range(trial.experiment.method.rounds):
        for pipe in pipes:
            pipe.send((number, tree.arrays(server)))
        sums = [pipe.recv() for pipe in pipes]
        server = mean([(tree.tensors(total), records) for total, records in sums])
        yield server


def serve(pipe: Connection, index: int) -> None:
    """A plain process: a trial, then rounds of it; None ends it."""
    torch.set_num_threads(1)
    with pipe:  # closed if this fails, so that the other end does not wait for ever
        while (message := pipe.recv()) is not None:
            if isinstance(message, Trial):
                plain = Plain(message, range(index, message.experiment.clients, PROCESSES))
                continue
            number, weights = message
            total, records = plain.round(tree.tensors(weights), number)
            pipe.send((tree.arrays(total), records))


def two_actors(trial: Trial, actors: Sequence[Any]) -> Iterator[Params]:
    """Half of the clients in each of two actors of Ray, any that are there; weights and sums are Ray's objects."""
    import ray

    server = first_weights(trial)
    ray.get([actor.__ray_call__.remote(_host, trial, index) for index, actor in enumerate(actors)])
    for number in range(trial.experiment.method.rounds):
        weights = ray.put(tree.arrays(server))
        sums = ray.get([actor.__ray_call__.remote(_sum, weights, number) for actor in actors])
        server = mean([(tree.tensors(total), records) for total, records in sums])
        yield server


_HOSTED: list[Plain] = []
"""The clients of this actor."""


def _host(_: Any, trial: Trial, index: int) -> None:
    _HOSTED[:] = [Plain(trial, range(index, trial.experiment.clients, PROCESSES))]


def _sum(_: Any, weights: dict[str, Any], number: int) -> tuple[dict[str, Any], int]:
    total, records = _HOSTED[0].round(tree.tensors(weights), number)
    return tree.arrays(total), records


@contextlib.contextmanager
def plain_processes() -> Iterator[list[Connection]]:
    """Pipes to persistent processes that `serve`."""
    context = mp.get_context("spawn")
    pipes = []
    processes = []
    try:
        for index in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, index), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield pipes
    finally:
        for process in processes:
            process.terminate()
            process.join()
