"""SCAFFOLD (Karimireddy et al. 2020) against FedAvg, and by hand."""

import math
from dataclasses import replace

import pytest
import torch
from toys import PASSES, QUADRATIC, aggregated, records, run, values

from raydiff import tree
from raydiff.data.records import Records
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Round, Upload
from raydiff.methods._averaging import Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.scaffold import Scaffold
from raydiff.models.training import Training
from raydiff.privacy.release import NonPrivate, disclose
from raydiff.seeding import generator

HALVES = Training(steps=4, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant")


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> Scaffold:
    training = Training(steps=8, batch=8, optimizer="sgd", learning_rate=0.1)
    return Scaffold(model=tiny.method.model, local=training, rounds=2)


@pytest.mark.parametrize("local", [None, PASSES])
def test_the_first_round_is_fedavgs_by_sgd(method: Scaffold, local: Training | None) -> None:
    method = replace(method, local=local or method.local)
    data = [records(0), records(1, 9)]
    fedavg = FedAvg(model=method.model, local=method.local, rounds=2)
    plain, corrected = run(fedavg, data), run(method, data)
    models = [tree.under("model", progress.server) for progress in corrected]
    assert tree.digest(models[0]) == tree.digest(plain[0].server)
    assert tree.digest(models[1]) != tree.digest(plain[1].server)
    assert corrected[0].metrics["train/loss"] == plain[0].metrics["train/loss"]


def test_two_rounds_by_hand() -> None:
    method = Scaffold(model=QUADRATIC, local=HALVES, rounds=2)
    first, second = run(method, [values(1.0), values(3.0)])
    # client 0 goes 0, 0.5, 0.75 and has c_0 = -0.75; client 1 goes 0, 1.5, 2.25 and has c_1 = -2.25
    assert first.server["model/w"].tolist() == [1.5] and first.server["control/w"].tolist() == [-1.5]
    # client 0: y - 1 - 0.75 is -0.25, then -0.125: 1.6875, c_0 = -0.75 + 1.5 - 0.1875 = 0.5625
    # client 1: y - 3 + 0.75 is -0.75, then -0.375: 2.0625, c_1 = -2.25 + 1.5 - 0.5625 = -1.3125
    assert second.server["model/w"].tolist() == [1.875] and second.server["control/w"].tolist() == [-0.375]
    assert second.metrics["server/update_norm"] == 0.375 and second.metrics["server/control_norm"] == 0.375
    # the metric is the loss, without the linear term: client 0 at 1.5 and 1.625, client 1 at 1.5 and 1.875
    assert second.client_metrics[0]["train/loss"] == (0.5**2 + 0.625**2) / 4
    assert second.client_metrics[1]["train/loss"] == (1.5**2 + 1.125**2) / 4


def test_momentum_carries_further_and_c_is_still_a_mean_gradient() -> None:
    """Momentum 1/2, rate 1/4: gradients -1 and -3/4, velocities -1 and -5/4; a gradient of 1 goes (1 + 3/2) / 4.

    c_i weighs the first gradient by (1 + 1/2) / 4, the second by 1/4: -(1.5 + 0.75) / 2.5 = -0.9.
    """
    training = replace(HALVES, steps=2, learning_rate=0.25, momentum=0.5)
    (only,) = run(Scaffold(model=QUADRATIC, local=training, rounds=1), [values(1.0)])
    assert only.server["model/w"].item() == pytest.approx(0.5625)
    assert only.server["control/w"].item() == pytest.approx(-0.9)


def test_each_client_divides_by_its_own_steps() -> None:
    """Two epochs of 4 and of 8 records in batches of 2: 4 steps and 8, along a cosine each."""
    training = replace(HALVES, epochs=2, learning_rate=0.25, decay="cosine")
    large = Records(torch.full((8, 1), 3.0), torch.ones(8, 1), torch.arange(8))
    method = Scaffold(model=QUADRATIC, local=training, rounds=1, averaging=Averaging(weights="uniform"))
    (only,) = run(method, [values(1.0), large])
    rates = [[0.125 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)] for steps in (4, 8)]
    ways = [target * (1 - math.prod(1 - rate for rate in own)) for target, own in zip((1, 3), rates, strict=True)]
    assert only.server["model/w"].item() == pytest.approx(sum(ways) / 2)
    means = [way / sum(own) for way, own in zip(ways, rates, strict=True)]
    assert only.server["control/w"].item() == pytest.approx(-sum(means) / 2)


def test_control_variates_follow_the_share_of_clients_that_took_part() -> None:
    """2 of N = 8 clients: x moves by the mean, c by a quarter of it."""
    method = Scaffold(averaging=Averaging(rate=0.5))
    server = {"model/w": torch.tensor([1.0]), "control/w": torch.tensor([10.0])}
    sent = [{"model/w": torch.tensor([v]), "control/w": torch.tensor([w])} for v, w in ((4.0, -8.0), (8.0, 16.0))]
    uploads = [Upload(i, 5, disclose(value, "w")) for i, value in enumerate(sent)]
    after, _, events = aggregated(method, server, uploads, Round(3, generator(0), clients=8))
    assert after["model/w"].item() == 1 + 0.5 * 6 and after["control/w"].item() == 10 + 2 / 8 * 4
    assert events == [] and after.keys() == server.keys()


def test_the_servers_optimiser_moves_the_model_alone() -> None:
    method = Scaffold(model=QUADRATIC, local=HALVES, rounds=2, averaging=Averaging(update="momentum"))
    last = run(method, [values(1.0), values(3.0)])[-1]
    assert set(last.server) == {"model/w", "control/w", "server_only/averaging/first/w"}
    assert last.server["server_only/averaging/first/w"].item() == pytest.approx(0.9 * 1.5 + 0.375)
    assert last.server["control/w"].item() == -0.375


def test_it_finds_the_optimum_that_fedavg_misses() -> None:
    """Targets 0 and 4 with curvatures 1 and 0.1: the mean loss is least at 0.4 / 1.1."""
    training = Training(steps=200, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant")
    clients = [values(0.0, 1.0), values(4.0, 0.1)]
    corrected = run(Scaffold(model=QUADRATIC, local=training, rounds=40), clients)[-1].server["model/w"]
    drifted = run(FedAvg(model=QUADRATIC, local=training, rounds=40), clients)[-1].server["w"]
    assert corrected.item() == pytest.approx(0.4 / 1.1, abs=1e-4)
    assert drifted.item() - 0.4 / 1.1 > 0.3


def test_a_message_is_twice_fedavgs_and_the_ledger_says_what_it_is(method: Scaffold) -> None:
    last = run(method, [records(0), records(1)])[-1]
    assert {e.event for e in last.ledger.entries} == {NonPrivate("weights and control variates sent as they are")}
    assert last.ledger.bytes_up == 2 * 2 * 2 * tree.nbytes(tree.under("model", last.server))
