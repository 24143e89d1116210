"""A module as a pure function of its parameters."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from raydiff import seeding
from raydiff.tree import Params


class Buildable(Protocol):
    """A description of a network: frozen, so that equal ones share a module."""

    def build(self) -> nn.Module:
        """The module, initialised from the global generator."""


def fresh(model: Buildable, rng: torch.Generator) -> Params:
    """Fresh parameters of the model's network."""
    with seeding.forked(rng):
        module = model.build()
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


class Stateless:
    """`torch.func.functional_call` without its lookup of every parameter at each call, a tenth or more of a small
    network's training step."""

    def __init__(self, module: nn.Module) -> None:
        """Take over the module. Raises ValueError where parameters share a tensor."""
        self.module = module.requires_grad_(False)
        self._own: dict[str, tuple[dict[str, Any], str, Tensor]] = {}  # name -> its module's dictionary, key, tensor
        for path, owner in module.named_modules(remove_duplicate=False):
            for held in (owner._parameters, owner._buffers):
                self._own |= {f"{path}.{k}".lstrip("."): (held, k, v) for k, v in held.items() if v is not None}
        if len({id(own) for _, _, own in self._own.values()}) < len(self._own):
            raise ValueError(f"{type(module).__name__} has one tensor under two names: under which is it replaced?")

    def __call__(self, params: Params, *inputs: Any) -> Tensor:
        """The module's output with these parameters and buffers. Raises KeyError for a name that it lacks."""
        try:
            for name, value in params.items():
                held, key, _ = self._own[name]
                held[key] = value
            out: Tensor = self.module(*inputs)
            return out
        finally:
            for held, key, own in self._own.values():
                held[key] = own


@functools.lru_cache(maxsize=48)
def stateless(model: Buildable) -> Stateless:
    """The model's network, made once in a process; its own weights are of no use."""
    with torch.random.fork_rng(devices=[]):
        return Stateless(model.build())
