"""FedAvg (McMahan et al. 2017) against what it reduces to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import KEYS, PASSES, records, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.methods._averaging import Averaged, FineTuned
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.moon import Moon
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.classifier import CNN, Classifier
from raydiff.models.training import Training, fit
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
