"""Flower: its simulation engine on its own Ray, with one CPU a client."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from analysis.bench.peers.work import Clock, Given, denoiser, read, train


@functools.lru_cache
def loaded(path: str) -> tuple[Given, Any]:
    """Once a process: the work and a network."""
    given = read(path)
    return given, denoiser(given)


class Ticking(FedAvg):
    def __init__(self, clock: Clock, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.clock = clock

    def aggregate_train(self, *given: Any) -> Any:
        done = super().aggregate_train(*given)
        self.clock.tick()
        return done


def main(path: str) -> None:
    clock = Clock()
    client_app = ClientApp()
    server_app = ServerApp()

    @client_app.train()
    def fit(message: Message, context: Context) -> Message:
        given, network = loaded(path)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        train(network, given, client)
        metrics = MetricRecord({"num-examples": len(given.images[client])})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def serve(grid: Grid, _: Context) -> None:
        given, network = loaded(path)
        Ticking(clock, given.clients).start(grid, ArrayRecord(network.state_dict()), num_rounds=given.rounds)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, read(path).clients, backend_config=backend)
    clock.report()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
