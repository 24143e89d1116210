"""FedProx (Li et al. 2020) against FedAvg, and by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import KEYS, PASSES, QUADRATIC, aggregated, records, run, values

from raydiff import tree
from raydiff.data.records import Records
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Round, Upload
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.methods._averaging import Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.networks import UNet
from raydiff.models.training import Training, fit
from raydiff.privacy.release import NonPrivate, disclose
from raydiff.seeding import generator
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params


def test_two_rounds_of_two_steps_by_hand() -> None:
    """Target 1, rate 1/2, mu 1/2: the gradient is (w - 1) + (w - w^t) / 2, and w^t is each round's own."""
    training = Training(steps=4, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant")
    first, second = run(FedProx(model=QUADRATIC, local=training, rounds=2, mu=0.5), [values(1.0)])
    # from 0: gradient -1 to 0.5, then -0.5 + 0.25 to 0.625; the objectives 1/2 and 1/8 + 1/16
    assert first.server["w"].tolist() == [0.625]
    assert first.metrics["train/loss"] == pytest.approx((0.5 + 0.125 + 0.0625) / 2)
    # from 0.625: gradient -0.375 to 0.8125, then -0.1875 + 0.09375 to 0.859375
    assert second.server["w"].tolist() == [0.859375]


def test_the_term_goes_through_the_momentum_by_hand() -> None:
    """Target 1, rate 1/2, mu 1/2, momentum 1/2, from 0: v = -1 to 1/2; then -1/2 + 1/4 - 1/2 = -3/4 to 7/8."""
    training = Training(steps=2, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant", momentum=0.5)
    (only,) = run(FedProx(model=QUADRATIC, local=training, rounds=1, mu=0.5), [values(1.0)])
    assert only.server["w"].tolist() == [0.875]


# --- MOON (Li, He & Song 2021) against FedAvg, and by hand


@pytest.fixture(scope="module")
def moon(tiny: Experiment) -> Moon:
    return Moon(model=tiny.method.model, local=tiny.method.local, rounds=3)


def test_the_objective_compares_with_the_servers_model_and_the_clients_last(moon: Moon) -> None:
    """A round is `fit` of the two terms, written out; the three models see the same noised batch."""
    server, last, data = (moon.model.init(generator(i)) for i in (0, 1)), None, records(0)
    (server, last), model = tuple(server), moon.model

    def objective(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        z, g, p = (torch.nn.functional.normalize(model.features(w, batch, draws)) for w in (params, server, last))
        towards, away = ((z * g).sum(1) / 0.5).exp(), ((z * p).sum(1) / 0.5).exp()
        return model.loss(params, batch, draws, {}) - (towards / (towards + away)).log().mean()

    more: Any = {"training": moon.local, "rng": generator(2), "steps": range(2, 5), "objective": objective}
    by_hand, _, loss = fit(model, server, data.images, data.labels, **more)
    state = tree.prefixed("scratch/previous", last)
    result = moon.local_update(server, state, data, Round(1, generator(2)))
    assert result.metrics["train/loss"] == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(tree.under("scratch/previous", result.state), by_hand, rtol=1e-4, atol=1e-5)


def test_a_client_keeps_its_model_of_the_last_round_that_it_took_part_in(moon: Moon, tmp_path: Path) -> None:
    store = Checkpoint(tmp_path / "trial", tmp_path / "cache")
    clients = [Client(i, moon, records(i), keys=KEYS, store=store) for i in range(2)]
    seen: dict[int, set[str]] = {0: set(), 1: set()}
    took_part: dict[int, int] = {0: 0, 1: 0}
    for progress in run_rounds(moon, LocalExecutor(clients), keys=KEYS, participants=len(clients) // 2, store=store):
        (entry,) = (e for e in progress.ledger.entries if e.round == progress.number)
        took_part[entry.client] += 1
        for client in clients:
            state = client.state(progress.number)
            assert set(tree.under("scratch/previous", state)) == (set(progress.server) if state else set())
            seen[client.client_id] |= {tree.digest(state)} if state else set()
    assert {i: len(digests) for i, digests in seen.items()} == took_part
    assert sum(took_part.values()) == 3


# --- Shared representation: what is shared, what is not, and FedAvg where all is


@pytest.fixture(scope="module")
def sharedrep(tiny: Experiment) -> SharedRep:
    return SharedRep(model=tiny.method.model, local=tiny.method.local, rounds=3)


@pytest.mark.parametrize("unet", [False, True], ids=["mlp", "unet"])
def test_the_middle_never_leaves_its_client(sharedrep: SharedRep, unet: bool) -> None:
    if unet:
        sharedrep = replace(sharedrep, model=replace(sharedrep.model, network=UNet(widths=(8, 8))))
    whole = sharedrep.model.init(generator(0)).keys()
    middle = {k for k in whole if k.startswith(sharedrep.model.network.middle)}
    assert middle and middle != whole
    server, state = sharedrep.init_server(None, generator(0)), {}
    for number in range(3):
        result = sharedrep.local_update(server, state, records(0), Round(number, generator(1)))
        assert result.release.value.keys() == whole - middle
        assert result.state.keys() == middle
        server, _, _ = aggregated(sharedrep, server, [Upload(0, 12, result.release)], Round(number, generator(2)))
        state = result.state


def test_a_client_that_joins_trains_the_middle_alone(sharedrep: SharedRep) -> None:
    server = run(sharedrep)[-1].sent
    personal, fixed = sharedrep.join(server, generator(0))
    assert all(k.startswith("blocks.0.") for k in personal)
    assert personal.keys() | fixed.keys() == sharedrep.model.init(generator(0)).keys()
    assert not personal.keys() & fixed.keys()
    unseen = Client(7, sharedrep, records(7), keys=KEYS, unseen=True)
    labels = torch.zeros(5, 1, dtype=torch.int64)
    drawn = unseen.deploy(server, 2).sample(labels, generator(2))
    untrained = sharedrep.deploy(server, personal).sample(labels, generator(2))
    assert not torch.equal(drawn, untrained)


def test_what_cannot_be_split_is_refused(sharedrep: SharedRep) -> None:
    for private in (("nothing.",), ("",)):
        with pytest.raises(ValueError, match=r"^private must name some of the model's parameters, not all, got "):
            replace(sharedrep, private=private).init_server(None, generator(0))
    with pytest.raises(ValueError, match=r"^the server of a SharedRep run has no whole model"):
        sharedrep.deploy({})
    with pytest.raises(ValueError, match=r"^rounds must be at least 1, got 0$"):
        SharedRep(rounds=0)


# --- SCAFFOLD (Karimireddy et al. 2020) against FedAvg, and by hand


HALVES = Training(steps=4, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant")


@pytest.fixture(scope="module")
def scaffold(tiny: Experiment) -> Scaffold:
    training = Training(steps=8, batch=8, optimizer="sgd", learning_rate=0.1)
    return Scaffold(model=tiny.method.model, local=training, rounds=2)


@pytest.mark.parametrize("local", [None, PASSES])
def test_the_first_round_is_fedavgs_by_sgd(scaffold: Scaffold, local: Training | None) -> None:
    scaffold = replace(scaffold, local=local or scaffold.local)
    data = [records(0), records(1, 9)]
    fedavg = FedAvg(model=scaffold.model, local=scaffold.local, rounds=2)
    plain, corrected = run(fedavg, data), run(scaffold, data)
    models = [tree.under("model", progress.server) for progress in corrected]
    assert tree.digest(models[0]) == tree.digest(plain[0].server)
    assert tree.digest(models[1]) != tree.digest(plain[1].server)
    assert corrected[0].metrics["train/loss"] == plain[0].metrics["train/loss"]


def test_two_rounds_by_hand() -> None:
    scaffold = Scaffold(model=QUADRATIC, local=HALVES, rounds=2)
    first, second = run(scaffold, [values(1.0), values(3.0)])
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
    scaffold = Scaffold(model=QUADRATIC, local=training, rounds=1, averaging=Averaging(weights="uniform"))
    (only,) = run(scaffold, [values(1.0), large])
    rates = [[0.125 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)] for steps in (4, 8)]
    ways = [target * (1 - math.prod(1 - rate for rate in own)) for target, own in zip((1, 3), rates, strict=True)]
    assert only.server["model/w"].item() == pytest.approx(sum(ways) / 2)
    means = [way / sum(own) for way, own in zip(ways, rates, strict=True)]
    assert only.server["control/w"].item() == pytest.approx(-sum(means) / 2)


def test_control_variates_follow_the_share_of_clients_that_took_part() -> None:
    """2 of N = 8 clients: x moves by the mean, c by a quarter of it."""
    scaffold = Scaffold(averaging=Averaging(rate=0.5))
    server = {"model/w": torch.tensor([1.0]), "control/w": torch.tensor([10.0])}
    sent = [{"model/w": torch.tensor([v]), "control/w": torch.tensor([w])} for v, w in ((4.0, -8.0), (8.0, 16.0))]
    uploads = [Upload(i, 5, disclose(value, "w")) for i, value in enumerate(sent)]
    after, _, events = aggregated(scaffold, server, uploads, Round(3, generator(0), clients=8))
    assert after["model/w"].item() == 1 + 0.5 * 6 and after["control/w"].item() == 10 + 2 / 8 * 4
    assert events == [] and after.keys() == server.keys()


def test_the_servers_optimiser_moves_the_model_alone() -> None:
    scaffold = Scaffold(model=QUADRATIC, local=HALVES, rounds=2, averaging=Averaging(update="momentum"))
    last = run(scaffold, [values(1.0), values(3.0)])[-1]
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


def test_a_message_is_twice_fedavgs_and_the_ledger_says_what_it_is(scaffold: Scaffold) -> None:
    last = run(scaffold, [records(0), records(1)])[-1]
    assert {e.event for e in last.ledger.entries} == {NonPrivate("weights and control variates sent as they are")}
    assert last.ledger.bytes_up == 2 * 2 * 2 * tree.nbytes(tree.under("model", last.server))
