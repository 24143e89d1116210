"""Gradients of single records that are never built, for networks of linear layers, embeddings and normalisations.

The gradient of a linear layer's weights for one record is an outer product: of the loss's gradient at the layer's
output, and of its input. So its norm is the product of theirs, and a weighted sum over records is one product of
matrices (Goodfellow 2015, arXiv 1510.01799; Bu et al. 2023, arXiv 2210.00038). An embedding is a linear layer whose
input is a row of a unit matrix. One pass forward and one backward for all records together give all of it, where
`private_gradient.per_record` writes a copy of the whole network for each record.

It holds where every layer sees a record's input once, as a row of (B, features), and nothing mixes records: of a
network with batch statistics, attention over records or convolutions it would be wrong. So who calls it names a network
(`DPSGD`), and whatever else the parameters go into is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from raydiff import tree
from raydiff.tree import Params


class Outer(NamedTuple):
    """Matrices (B, m, n), of each record left_i right_i^T, by their factors."""

    left: Tensor
    """(B, m)."""
    right: Tensor
    """(B, n)."""

    def norms(self) -> Tensor:
        """(B,) in float64: the Frobenius norms."""
        return tree.norms(self.left) * tree.norms(self.right)

    def rows(self, kept: Tensor) -> Outer:
        """Those of some records."""
        return Outer(self.left[kept], self.right[kept])

    def weighted(self, factors: Tensor) -> Tensor:
        """(m, n): their sum with these factors (B,), which are taken first: no product is larger than the result."""
        return (factors[:, None] * self.left).T @ self.right


PerRecord = dict[str, Tensor | Outer]
"""Of each parameter its gradients for B records: (B, ...)."""


def per_record(
    loss: Callable[[Params, tuple[Tensor, Tensor], Params, Params], Tensor],
    theta: Params,
    batch: tuple[Tensor, Tensor],
    draws: Params,
) -> tuple[PerRecord, Tensor]:
    """Gradients for B records, and the sum of their losses, under draws (B, 1, ...).

    `loss` is a mean over records. Raises TypeError where a parameter goes into anything but one of the layers, once.
    """
    with _Kept(theta) as kept, torch.enable_grad():
        mean = loss(theta, batch, {k: v.flatten(0, 1) for k, v in draws.items()}, {})
    if kept.gradients.keys() != theta.keys():
        missed = ", ".join(sorted(theta.keys() - kept.gradients.keys()))
        raise TypeError(f"no linear layer, embedding or normalisation takes {missed}: gradients need `per_record`")
    count = len(batch[0])
    at_outputs = torch.autograd.grad(mean, kept.outputs)
    return {k: of(count * at_outputs[i]) for k, (i, of) in kept.gradients.items()}, count * mean.detach()


class _Kept(TorchFunctionMode):
    """Runs the layers that take these parameters, and keeps what the parameters' gradients are made of."""

    def __init__(self, theta: Params) -> None:
        super().__init__()
        self.names = {id(v): k for k, v in theta.items()}
        self.outputs: list[Tensor] = []
        self.gradients: dict[str, tuple[int, Callable[[Tensor], Tensor | Outer]]] = {}
        """Of each parameter its layer's number, and what its gradients are, given those at the layer's output."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        layers = {F.linear: self._linear, F.layer_norm: self._layer_norm, F.embedding: self._embedding}
        call: Callable[..., Any] = layers.get(func, func)
        return call(*args, **(kwargs or {}))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        inputs = x.detach()
        given = {} if bias is None else {id(bias): lambda g: g}
        return self._keep(F.linear(x, weight, bias), {id(weight): lambda g: Outer(g, inputs), **given})

    def _layer_norm(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        normal = F.layer_norm(x.detach(), shape, eps=eps)
        made = ((weight, lambda g: g * normal), (bias, lambda g: g))
        given = {id(v): of for v, of in made if v is not None}
        out = F.layer_norm(x, shape, weight, bias, eps)
        return self._keep(out, given) if given else out

    def _embedding(self, index: Tensor, weight: Tensor, *options: Any, **named: Any) -> Tensor:
        rows = F.one_hot(index, len(weight)).to(weight.dtype)
        return self._keep(F.embedding(index, weight, *options, **named), {id(weight): lambda g: Outer(rows, g)})

    def _keep(self, out: Tensor, made: dict[int, Callable[[Tensor], Tensor | Outer]]) -> Tensor:
        if not out.requires_grad:  # What comes before it has no parameters.
            out = out.requires_grad_()
        for key, of in made.items():
            name = self.names.get(key)
            if name is None:
                raise TypeError("a layer takes weights that are no parameters as they are: gradients need `per_record`")
            if out.dim() != 2 or name in self.gradients:
                raise TypeError(f"{name} is not taken once, by rows of features: gradients need `per_record`")
            self.gradients[name] = (len(self.outputs), of)
        self.outputs.append(out)
        return out
