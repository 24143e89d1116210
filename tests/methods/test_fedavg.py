"""FedAvg (McMahan et al. 2017) against what it reduces to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import KEYS, aggregated, records, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Round, Upload
from raydiff.methods.fedavg import FedAvg
from raydiff.models.training import Training, fit
from raydiff.privacy.release import disclose
from raydiff.seeding import generator
from raydiff.tree import Params


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> FedAvg:
    return FedAvg(model=tiny.method.model, local=tiny.method.local, rounds=3)


def test_one_client_and_one_round_is_plain_local_training(method: FedAvg) -> None:
    method, data = replace(method, rounds=1), records(0)
    start = method.init_server(None, generator(KEYS.seed, "server", "init"))
    rng = generator(KEYS.seed, "client", 0, "round", 0)
    alone, _, loss = fit(method.model, start, data.images, data.labels, training=method.local, rng=rng)
    (only,) = run(method, [data])
    torch.testing.assert_close(only.server, alone)
    assert tree.norm(tree.sub(only.server, start)) > 1e-2
    assert only.metrics["train/loss"] == loss


def test_the_update_is_the_mean_weighted_by_records(method: FedAvg) -> None:
    server = {"w": torch.tensor([1.0, 1.0])}
    sent = [torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])]
    uploads = [Upload(i, n, disclose({"w": w}, "w")) for i, (n, w) in enumerate(zip((30, 10), sent, strict=True))]
    after, metrics, events = aggregated(method, server, uploads, Round(0, generator(0)))
    assert after["w"].tolist() == [1 + 3.0, 1 + 2.0]
    assert metrics["server/update_norm"] == pytest.approx(math.sqrt(13))
    assert events == []


def deployed(method: FedAvg, server: Params, client: int) -> Any:
    state = method.personalize(server, {}, records(client), generator(1))
    return method.deploy(server, state)


def test_without_fine_tuning_all_clients_sample_the_shared_model(method: FedAvg) -> None:
    server, labels = run(method, [records(0)])[-1].sent, torch.arange(4)[:, None]
    first, second = (deployed(method, server, client) for client in (0, 1))
    assert list(first.targets) == ["global"]
    assert torch.equal(first.sample(labels, generator(2)), second.sample(labels, generator(2)))


def test_fine_tuning_is_local_training_from_the_shared_model(method: FedAvg) -> None:
    tuning, data = Training(steps=3, batch=4), records(0)
    server = run(method, [data])[-1].sent
    tuned = deployed(replace(method, finetune=tuning), server, 0)
    params, _, _ = fit(method.model, server, data.images, data.labels, training=tuning, rng=generator(1))
    x, t, labels = data.images[:4], torch.tensor([1, 5, 9, 20]), data.labels[:4]
    assert torch.equal(tuned.targets["client"].denoisers[0](x, t, labels), method.model.denoiser(params)(x, t, labels))
    assert torch.equal(tuned.targets["global"].denoisers[0](x, t, labels), method.model.denoiser(server)(x, t, labels))
    by_hand = deployed(method, params, 0).sample(labels, generator(2))
    assert torch.equal(tuned.sample(labels, generator(2)), by_hand)


def test_a_client_that_joins_later_fine_tunes_100_steps_at_a_tenth_of_the_rate_unless_told(method: FedAvg) -> None:
    tuning = Training(steps=3, batch=4)
    assert method.joining == replace(method.local, steps=100, learning_rate=2e-4, decay="constant")
    assert replace(method, finetune=tuning).joining == tuning
    passes = replace(method, local=replace(method.local, epochs=7))
    assert passes.joining == method.joining and passes.steps(1, 30) == passes.local.of(30).part(1, passes.rounds)
