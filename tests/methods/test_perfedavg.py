"""Per-FedAvg (Fallah, Mokhtari & Ozdaglar 2020) against FedAvg, by hand, and against finite differences."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import QUADRATIC, asked, deployed_of, joined, records, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Round
from raydiff.methods.perfedavg import PerFedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.functional import module_of
from raydiff.models.networks import UNet
from raydiff.models.training import Training, fit
from raydiff.seeding import generator
from raydiff.tree import Params

ATTENTION = DDPM(network=UNet(widths=(8, 16)), timesteps=20, prediction="epsilon", levels="uniform")


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> PerFedAvg:
    return PerFedAvg(model=tiny.method.model, local=tiny.method.local, rounds=2, inner_rate=0.1)


@pytest.mark.parametrize("order", ["first", "second"])
def test_at_inner_rate_0_it_trains_on_the_second_halves(method: PerFedAvg, order: Any) -> None:
    """A round is FedAvg's on rows 2, 3 and 4 of each batch of 5, with the same draws."""
    method = replace(method, order=order, inner_rate=0.0, local=replace(method.local, batch=5))
    server, data, model = method.model.init(generator(0)), records(0), method.model

    def halved(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        return model.loss(params, (batch[0][2:], batch[1][2:]), {k: v[2:] for k, v in draws.items()}, {})

    more: Any = {"training": method.local, "rng": generator(1), "steps": range(4, 8), "objective": halved}
    by_hand, _, loss = fit(model, server, data.images, data.labels, **more)
    result = method.local_update(server, {}, data, Round(1, generator(1)))
    assert tree.digest(result.release.value) == tree.digest(tree.sub(by_hand, server))
    assert result.metrics["train/loss"] == loss


@pytest.mark.parametrize(("order", "gradient"), [("first", -5.0), ("second", -2.5)])
def test_a_gradient_by_hand(order: Any, gradient: float) -> None:
    """From 1, curvature 2, rate 1/4: target 0 leads to 1/2, where target 3 pulls with 2 (1/2 - 3) = -5; the step's own
    derivative is 1 - 2 / 4."""
    method = PerFedAvg(order=order, inner_rate=0.25)
    object.__setattr__(method, "model", QUADRATIC)
    w = torch.tensor([1.0], requires_grad=True)
    batch = (torch.tensor([[0.0], [3.0]]), torch.full((2, 1), 2.0))
    loss = method._loss_after_step({"w": w}, batch, {"t": torch.zeros(2)}, {})
    loss.backward()
    assert loss.item() == (0.5 - 3) ** 2 and w.grad is not None and w.grad.tolist() == [gradient]


def in_float64(order: Any) -> tuple[Any, Params]:
    """(the objective on one batch of 4 as a function of the parameters, parameters) of the UNet with attention."""
    method = PerFedAvg(model=ATTENTION, order=order, inner_rate=0.05)
    module_of(ATTENTION)
    data, draws = records(0, 4), ATTENTION.draws(4, generator(1))
    draws["z"] = draws["z"].double()
    params = {k: v.double().requires_grad_() for k, v in ATTENTION.init(generator(0)).items()}
    return lambda w: method._loss_after_step(w, (data.images.double(), data.labels), draws, {}), params


def test_second_order_is_the_gradient_of_the_real_unet() -> None:
    """Along a random direction, by central differences: their error, of order step^2, is about 1e-8 in float64."""
    objective, params = in_float64("second")
    objective(params).backward()
    gradient = {k: v.grad for k, v in params.items() if v.grad is not None}
    assert gradient.keys() == params.keys() and all(bool(g.isfinite().all()) for g in gradient.values())
    rng = generator(2)
    direction = {k: torch.randn(v.shape, generator=rng, dtype=v.dtype) for k, v in params.items()}

    def moved(step: float) -> float:
        w = {k: (v.detach() + step * direction[k]).requires_grad_() for k, v in params.items()}
        return float(objective(w).detach())

    along = sum(float((gradient[k] * direction[k]).sum()) for k in params)
    assert (moved(1e-5) - moved(-1e-5)) / 2e-5 == pytest.approx(along, rel=1e-6)
    first, same = in_float64("first")
    assert float(first(same).detach()) == pytest.approx(moved(0.0), rel=1e-14)  # two graphs: the last bit is the CPU's
    first(same).backward()
    along_first = sum(float((v.grad * direction[k]).sum()) for k, v in same.items() if v.grad is not None)
    assert along_first != pytest.approx(along, rel=1e-3)


def test_clients_adapt_the_shared_model_and_unseen_clients_do_the_same(method: PerFedAvg) -> None:
    method = replace(method, adapt_steps=3)
    server = run(method, [records(0)])[-1].sent
    adapted = deployed_of(method, server, records(7))
    own, unseen = joined(method, server, records(7))
    training = Training(optimizer="sgd", learning_rate=0.1, decay="constant", steps=3, batch=8)
    assert method.joining == training
    data = records(7)
    by_hand, _, _ = fit(method.model, server, data.images, data.labels, training=training, rng=generator(1))
    assert tree.digest(own) == tree.digest(by_hand)
    assert torch.equal(asked(adapted, "client"), asked(unseen, "client"))
    assert not torch.equal(asked(adapted, "client"), asked(adapted, "global"))
    labels = torch.arange(4)[:, None]
    shared = method.deploy(server).sample(labels, generator(2))
    assert not torch.equal(shared, adapted.sample(labels, generator(2)))
