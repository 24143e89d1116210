"""FedAvg (McMahan et al. 2017) against what it reduces to."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import KEYS, PASSES, records, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.methods._averaging import MOMENTS, Averaged, Averaging, FineTuned
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.classifier import CNN, Classifier
from raydiff.models.training import Training, fit
from raydiff.papers.spire.method import SPIRE
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


IDENTITIES: dict[str, tuple[type[Averaged], dict[str, Any], dict[str, Any]]] = {
    "FedProx": (FedProx, {"mu": 0.0}, {"mu": 1.0}),
    "MOON": (Moon, {"mu": 0.0}, {"mu": 1.0}),
    "SharedRep": (SharedRep, {"private": ()}, {}),
}
"""Method -> (class, the settings at which it is FedAvg, settings at which it is not)."""


@pytest.mark.parametrize("local", [None, PASSES])
@pytest.mark.parametrize("name", IDENTITIES)
def test_a_descendant_without_its_term_is_fedavg(method: FedAvg, name: str, local: Training | None) -> None:
    (cls, without, with_term), data = IDENTITIES[name], [records(0), records(1, 9)]
    common: dict[str, Any] = {"model": method.model, "local": local or method.local, "rounds": 2}
    plain, same, other = (
        run(m, data)[-1] for m in (FedAvg(**common), cls(**common, **without), cls(**common, **with_term))
    )
    assert tree.digest(same.server) == tree.digest(plain.server) != tree.digest(other.server)
    assert same.metrics == plain.metrics and same.ledger == plain.ledger


def test_it_trains_a_classifier() -> None:
    model = Classifier(network=CNN(widths=(4,), hidden=8))
    learning = FedAvg(model=model, local=Training(steps=60, batch=4, learning_rate=1e-2), rounds=2)
    first, last = run(learning)
    assert last.metrics["train/loss"] < first.metrics["train/loss"]
    deployed, x = learning.deploy(last.server), records(5).images
    assert deployed.classify is not None and torch.equal(deployed.classify(x), model.classify(last.server)(x))
    assert not deployed.samplers and not deployed.targets
    with pytest.raises(ValueError, match=r"^a classifier makes no pictures$"):
        _ = deployed.sample


@pytest.mark.parametrize("cls", [FedAvg, Scaffold])
def test_the_first_model_may_be_trained_on_the_public_records(cls: type[FineTuned]) -> None:
    learning = cls(model=Classifier(network=CNN(widths=(4,), hidden=8)), pretrain=Training(steps=40, batch=4))
    plain, public = replace(learning, pretrain=None), records(7)
    rng = generator(0)
    start = plain.shared(plain.init_server(public, rng))
    by_hand, _, _ = fit(learning.model, start, public.images, public.labels, training=learning.pretrain, rng=rng)
    server = learning.init_server(public, generator(0))
    assert tree.digest(learning.shared(server)) == tree.digest(by_hand) != tree.digest(start)
    assert tree.norm({k: v for k, v in server.items() if k.startswith("control/")}) == 0
    if cls is not Scaffold:  # Moments beside the weights are not trained.
        averaged = replace(learning, averaging=Averaging(moments="averaged"))
        both = averaged.init_server(public, generator(0))
        assert tree.digest(averaged.shared(both)) == tree.digest(by_hand) and tree.norm(tree.under(MOMENTS, both)) == 0
    for none in (None, public.select(torch.arange(0))):
        with pytest.raises(ValueError, match=r"^pretrain must be none where .*: data\.public is 0$"):
            learning.init_server(none, generator(0))


def deployed(method: FedAvg, server: Params, client: int) -> Any:
    state = method.personalize(server, {}, records(client), generator(1))
    return method.deploy(server, state)


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


def carried(method: Averaged, moments: str, clients: int = 1, **local: Any) -> Any:
    changed = replace(method, local=replace(method.local, **local), averaging=Averaging(moments=moments))  # type: ignore[arg-type]
    return run(changed, [records(i) for i in range(clients)])


@pytest.mark.parametrize("cls", [FedAvg, SharedRep, SPIRE])
def test_one_clients_moments_are_the_same_kept_or_averaged(method: FedAvg, cls: type[Averaged]) -> None:
    """And go on: a new optimiser in each round ends elsewhere."""
    model = replace(method.model, conditional=cls is not SPIRE)
    mine = cls(model=model, local=method.local, rounds=3)
    kept, averaged, reset = (carried(mine, moments) for moments in ("kept", "averaged", "reset"))
    for k, v in kept[-1].server.items():
        torch.testing.assert_close(averaged[-1].server[k], v, rtol=1e-4, atol=1e-4)
    assert kept[-1].server.keys() == averaged[-1].server.keys()
    assert tree.norm(tree.sub(kept[-1].server, reset[-1].server)) > 1e-3
    assert kept[0].server.keys() < averaged[0].server.keys()


def test_averaged_moments_are_the_mean_of_the_clients(method: FedAvg) -> None:
    first = carried(method, "averaged", clients=2)[0]
    start = method.init_server(None, generator(KEYS.seed, "server", "init"))
    each = []
    for i in range(2):
        data, rng = records(i), generator(KEYS.seed, "client", i, "round", 0)
        more: Any = {"rng": rng, "steps": method.steps(0, len(data)), "moments": {}}
        each.append(fit(method.model, start, data.images, data.labels, training=method.local, **more)[1])
    for k, v in tree.under(MOMENTS, first.server).items():
        one, other = (m[k].sqrt() if "exp_avg_sq" in k else m[k] for m in each)
        torch.testing.assert_close(v, (one + other) / 2, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("cls", [FedAvg, Scaffold, SPIRE])
def test_the_last_model_is_the_moving_average_over_rounds(method: FedAvg, cls: type[Averaged]) -> None:
    sgd = replace(method.local, optimizer="sgd", learning_rate=0.05)
    mine = cls(model=replace(method.model, conditional=cls is not SPIRE), local=sgd, rounds=3)
    plain, averaged = (carried(mine, "reset", clients=2, ema=ema) for ema in (0.0, 0.2))
    expected = plain[0].server
    for number in (2, 3):
        kept, now = Training(ema=0.2).ema_weight(number), plain[number - 1].server
        expected = {k: kept * v + (1 - kept) * now[k] for k, v in expected.items()}
    assert all(torch.equal(v, averaged[1].sent[k]) for k, v in plain[1].sent.items())
    for k in averaged[-1].server:
        weights = k.startswith("model/") or cls is not Scaffold
        torch.testing.assert_close(averaged[-1].server[k], (expected if weights else plain[-1].server)[k])
