"""Shared representation: what is shared, what is not, and FedAvg where all is."""

from dataclasses import replace

import pytest
import torch
from toys import KEYS, aggregated, records, run

from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Round, Upload
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.networks import UNet
from raydiff.seeding import generator


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> SharedRep:
    return SharedRep(model=tiny.method.model, local=tiny.method.local, rounds=3)


@pytest.mark.parametrize("unet", [False, True], ids=["mlp", "unet"])
def test_the_middle_never_leaves_its_client(method: SharedRep, unet: bool) -> None:
    if unet:
        method = replace(method, model=replace(method.model, network=UNet(widths=(8, 8))))
    whole = method.model.init(generator(0)).keys()
    middle = {k for k in whole if k.startswith(method.model.network.middle)}
    assert middle and middle != whole
    server, state = method.init_server(None, generator(0)), {}
    for number in range(3):
        result = method.local_update(server, state, records(0), Round(number, generator(1)))
        assert result.release.value.keys() == whole - middle
        assert result.state.keys() == middle
        server, _, _ = aggregated(method, server, [Upload(0, 12, result.release)], Round(number, generator(2)))
        state = result.state


def test_a_client_that_joins_trains_the_middle_alone(method: SharedRep) -> None:
    server = run(method)[-1].sent
    personal, fixed = method.join(server, generator(0))
    assert all(k.startswith("blocks.0.") for k in personal)
    assert personal.keys() | fixed.keys() == method.model.init(generator(0)).keys()
    assert not personal.keys() & fixed.keys()
    unseen = Client(7, method, records(7), keys=KEYS, unseen=True)
    labels = torch.zeros(5, 1, dtype=torch.int64)
    drawn = unseen.deploy(server, 2).sample(labels, generator(2))
    untrained = method.deploy(server, personal).sample(labels, generator(2))
    assert not torch.equal(drawn, untrained)


def test_what_cannot_be_split_is_refused(method: SharedRep) -> None:
    for private in (("nothing.",), ("",)):
        with pytest.raises(ValueError, match=r"^private must name some of the model's parameters, not all, got "):
            replace(method, private=private).init_server(None, generator(0))
    with pytest.raises(ValueError, match=r"^the server of a SharedRep run has no whole model"):
        method.deploy({})
    with pytest.raises(ValueError, match=r"^rounds must be at least 1, got 0$"):
        SharedRep(rounds=0)
