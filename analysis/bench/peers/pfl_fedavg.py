"""pfl-research: its own backend, algorithm and training loop; its processes talk through gloo."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from analysis.bench.peers.work import BATCH, Clock, denoiser, read


class Ticks(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


def main(path: str) -> None:
    given = read(path)
    clock = Clock()
    network = denoiser(given)
    network.metrics = lambda *_, **__: {}
    adamw = functools.partial(torch.optim.AdamW, weight_decay=0.0, fused=True)
    model = PyTorchModel(network, adamw, torch.optim.SGD(network.parameters(), lr=1.0))
    users = list(range(given.clients))

    def user(number: int) -> Dataset:
        return Dataset([given.images[number], given.labels[number]], user_id=str(number))

    sampler = get_user_sampler("minimize_reuse", users)
    backend = SimulatedBackend(FederatedDataset(user, sampler), None)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.rounds + 1,
            train_cohort_size=given.clients,
            val_cohort_size=None,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_learning_rate=given.learning_rate,
            local_batch_size=BATCH,
            local_num_steps=given.steps,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Ticks(clock)],
        send_metrics_to_platform=False,
    )
    assert all(np.isfinite(v.numpy()).all() for v in network.state_dict().values())
    clock.report()
    if torch.distributed.is_initialized():  # Else the process that ends last may abort.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
