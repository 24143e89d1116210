"""A module as a pure function of its parameters."""

import functools
from collections.abc import Hashable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from raydiff import seeding
from raydiff.tree import Params


class Buildable(Hashable, Protocol):
    """A description of a network: frozen, so that equal ones share a module."""

    def build(self) -> nn.Module:
        """The module, initialised from the global generator."""


def fresh(model: Buildable, rng: torch.Generator) -> Params:
    """Fresh parameters of the model's network. Raises ValueError where two of its layers share one."""
    with seeding.fork_rng(rng):
        module = model.build()
    if len([*module.named_parameters(remove_duplicate=False)]) > len([*module.parameters()]):
        raise ValueError(f"layers of {type(module).__name__} share a weight: give each its own")
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


@functools.lru_cache(maxsize=48)
def module_of(model: Buildable) -> nn.Module:
    """The model's network, made once in a process; its weights are of no use."""
    with torch.random.fork_rng(devices=[]):
        return model.build().requires_grad_(False)


def call(model: Buildable, params: Params, *inputs: Any) -> Tensor:
    """The output of the model's network with these parameters and buffers."""
    out: Tensor = torch.func.functional_call(module_of(model), dict(params), inputs, tie_weights=False)
    return out


def call_features(model: Buildable, submodule: str, params: Params, *inputs: Any) -> Tensor:
    """The output (B, ...) of a submodule of the model's network, a mean over all but the first two dimensions."""
    outputs = list[Tensor]()
    hook = module_of(model).get_submodule(submodule).register_forward_hook(lambda _, args, out: outputs.append(out))
    try:
        call(model, params, *inputs)
    finally:
        hook.remove()
    return outputs[0] if outputs[0].dim() == 2 else outputs[0].mean(dim=tuple(range(2, outputs[0].dim())))
