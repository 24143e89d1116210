"""FedAvg on digits as one writes it without a framework: in one process, or in two that talk through pipes. The work
that `bench` compares raydiff with."""

from __future__ import annotations

import contextlib
import math
import multiprocessing as mp
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from raydiff import seeding
from raydiff.data.datasets import Records
from raydiff.experiment.trial import Trial, make_clients
from raydiff.methods import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.tree import Params

PROCESSES = 2  # plain ones, and Ray workers beside them


class Plain:
    """FedAvg's client as one writes it without a framework: a module, an optimiser, a loop."""

    def __init__(self, trial: Trial, ids: Sequence[int]) -> None:
        method = trial.experiment.method
        assert isinstance(method, FedAvg) and isinstance(method.model, DDPM)
        self.method, self.model, self.seed = method, method.model, trial.experiment.seed
        self.records = {c.number: c.data for c in make_clients(trial, ids)}
        model = self.model
        self.net: nn.Module = model.network.build(model.shape, model.labels, model.timesteps)
        self.abar = model.abar.float()

    def train(self, client: int, server: Params, number: int) -> tuple[int, float]:
        """Leave the client's weights in `net`; gives its number of records and its mean loss."""
        training, data = self.method.local, self.records[client]
        steps = training.steps // self.method.rounds
        rng = seeding.generator(self.seed, "client", client, "round", number)  # the same draws in all ways
        self.net.load_state_dict(server)
        optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        total = torch.zeros(())
        for step in range(steps * number, steps * (number + 1)):
            rate = training.learning_rate * 0.5 * (1 + math.cos(math.pi * step / training.steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = self.loss(data, training.batch, rng)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return len(data), float(total) / max(steps, 1)

    def loss(self, data: Records, batch: int, rng: torch.Generator) -> Tensor:
        """The denoising loss on a batch."""
        model = self.model
        rows = torch.randint(len(data.images), (batch,), generator=rng)
        t = torch.randint(1, model.timesteps + 1, (batch,), generator=rng)
        z = torch.randn(batch, *model.shape, generator=rng)
        abar = self.abar[t].view(-1, 1, 1, 1)
        x_t = abar.sqrt() * data.images[rows] + (1 - abar).sqrt() * z
        out: Tensor = (z - self.net(x_t, t, data.labels[rows])).square().mean()
        return out


def first_weights(trial: Trial) -> Params:
    """The server's weights before round 0, as `rounds()` makes them."""
    return trial.experiment.method.init_server(None, seeding.generator(trial.experiment.seed, "server", "init"))


def add(total: Params, weights: Params, examples: int) -> None:
    """Add a client's weights to the running sum."""
    for name, value in weights.items():
        total[name].add_(value, alpha=examples)


def floor(trial: Trial) -> Iterator[Params]:
    """A plain loop in this process."""
    plain = Plain(trial, range(trial.experiment.clients))
    server = first_weights(trial)
    for number in range(trial.experiment.method.rounds):
        total, weight = {k: torch.zeros_like(v) for k, v in server.items()}, 0
        for client in plain.records:
            examples, _ = plain.train(client, server, number)
            add(total, plain.net.state_dict(), examples)
            weight += examples
        server = {k: v.div_(weight) for k, v in total.items()}
        yield server


def two_processes(trial: Trial, pipes: Sequence[Connection]) -> Iterator[Params]:
    """Half of the clients in each of two processes; weights go through pipes."""
    server = first_weights(trial)  # before the others begin: in tests they are threads, and share torch's generator
    for pipe in pipes:
        pipe.send(trial)
    for number in range(trial.experiment.method.rounds):
        for pipe in pipes:
            pipe.send((number, {k: v.numpy() for k, v in server.items()}))
        total, weight = {k: torch.zeros_like(v) for k, v in server.items()}, 0
        for client in range(trial.experiment.clients):
            weights, examples, _ = pipes[client % len(pipes)].recv()
            add(total, {k: torch.from_numpy(v) for k, v in weights.items()}, examples)
            weight += examples
        server = {k: v.div_(weight) for k, v in total.items()}
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
            server = {k: torch.from_numpy(v) for k, v in weights.items()}
            for client in plain.records:
                examples, loss = plain.train(client, server, number)
                pipe.send(({k: v.numpy() for k, v in plain.net.state_dict().items()}, examples, loss))


@contextlib.contextmanager
def plain_processes() -> Iterator[list[Connection]]:
    """Pipes to persistent processes that `serve`."""
    context, pipes, processes = mp.get_context("spawn"), [], []
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
