"""A module as a pure function of its parameters, against `torch.func.functional_call`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from raydiff.models.functional import Stateless
from raydiff.models.networks import MLP, UNet

SHAPE, LABELS, T = (1, 8, 8), (10,), 20
INPUTS = (
    torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0)),
    torch.tensor([1, 9, 20]),
    torch.ones(3, 1).long(),
)


def built(network: MLP | UNet, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return network.build(SHAPE, LABELS, T)


def params_of(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone().requires_grad_() for k, v in module.named_parameters()}


@pytest.mark.parametrize("network", [MLP(width=8, depth=2), UNet(widths=(8, 16), layers=1)], ids=["mlp", "unet"])
def test_it_is_functional_call(network: MLP | UNet) -> None:
    stateless, params = Stateless(built(network, 0)), params_of(built(network, 1))
    mine, theirs = stateless(params, *INPUTS), functional_call(built(network, 0), params, INPUTS)
    assert torch.equal(mine, theirs) and not torch.equal(mine, built(network, 0)(*INPUTS))
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), params.values()) for x in (mine, theirs)), strict=True):
        assert torch.equal(a, b)
    stacked = {k: torch.stack([v, 2 * v]).detach() for k, v in params.items()}
    both = torch.func.vmap(lambda p: stateless(p, *INPUTS))(stacked)
    torch.testing.assert_close(both[0], mine, rtol=1e-4, atol=1e-5)


def test_its_own_parameters_come_back_after_an_error_too() -> None:
    stateless, params = Stateless(built(MLP(width=8, depth=1), 0)), params_of(built(MLP(width=8, depth=1), 1))
    before = stateless({}, *INPUTS)
    stateless(params, *INPUTS)
    assert torch.equal(stateless({}, *INPUTS), before)
    with pytest.raises(RuntimeError):
        stateless(params, INPUTS[0][:, :, :4], *INPUTS[1:])
    with pytest.raises(KeyError, match="nobody"):
        stateless({**params, "nobody": torch.zeros(1)}, *INPUTS)
    assert torch.equal(stateless({}, *INPUTS), before)
    assert not any(p.requires_grad for p in stateless.module.parameters())


def test_a_tensor_under_two_names_is_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    with pytest.raises(ValueError, match="one tensor under two names"):
        Stateless(module)
    one = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="one tensor under two names"):
        Stateless(nn.Sequential(one, one))
