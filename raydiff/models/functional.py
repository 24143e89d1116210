"""A module as a pure function of its parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from raydiff.tree import Params


class Stateless:
    """What `torch.func.functional_call` does. That looks every parameter up, and checks it, at each call, which takes a
    tenth of a small network's training step or more; this does so once."""

    def __init__(self, module: nn.Module) -> None:
        """The module is kept, and nothing else should use it. Raises ValueError where parameters share a tensor."""
        self.module = module.requires_grad_(False)
        self._own: dict[str, tuple[dict[str, Any], str, Tensor]] = {}  # name -> its module's dictionary, key, tensor
        for path, owner in module.named_modules(remove_duplicate=False):
            for held in (owner._parameters, owner._buffers):
                found = {f"{path}.{key}".lstrip("."): (held, key, v) for key, v in held.items() if v is not None}
                self._own |= found
        if len({id(own) for _, _, own in self._own.values()}) < len(self._own):
            raise ValueError(f"{type(module).__name__} has one tensor under two names: under which is it replaced?")

    def __call__(self, params: Params, *inputs: Any) -> Tensor:
        """The module's output with these parameters and buffers; those that are not given are its own.

        Raises KeyError for a name that it does not have.
        """
        try:
            for name, value in params.items():
                held, key, _ = self._own[name]
                held[key] = value
            out: Tensor = self.module(*inputs)
            return out
        finally:
            for held, key, own in self._own.values():
                held[key] = own
