"""Ghost clipping for networks of linear layers, embeddings and layer norms: per-record gradients as factors.

The gradient of a linear layer's weights for one record is the outer product of the loss's gradient at the layer's
output and of its input. So its norm is the product of theirs, and a weighted sum over records is one matrix product
(Goodfellow 2015, arXiv 1510.01799; Bu et al. 2023, arXiv 2210.00038). An embedding is a linear layer whose input is a
row of a unit matrix. One forward and one backward pass serve all records.

Requires that every layer sees a record's input once, as a row of (B, features), and that nothing mixes records, as
batch statistics, attention over records or convolutions do. So `DPSGD` selects the networks, and any other use of a
parameter raises TypeError.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from raydiff import tree
from raydiff.tree import Params


class Outer(NamedTuple):
    """Matrices left_i right_i^T of B records, (B, m, n), by their factors."""

    left: Tensor  # (B, m)
    right: Tensor  # (B, n)

    def norms(self) -> Tensor:
        """Return the Frobenius norms, (B,) in float64."""
        return tree.norms(self.left) * tree.norms(self.right)

    def rows(self, kept: Tensor) -> "Outer":
        """Return the matrices of some records."""
        return Outer(self.left[kept], self.right[kept])

    def weighted(self, factors: Tensor) -> Tensor:
        """Return their sum (m, n) with these factors (B,), in float64."""
        return (factors[:, None] * self.left.double()).T @ self.right.double()


PerRecord = dict[str, Tensor | Outer]
"""Parameter -> its gradients for B records, (B, ...)."""


def gradient_factors(
    loss: Callable[[Params, tuple[Tensor, Tensor], Params, Params], Tensor],
    theta: Params,
    batch: tuple[Tensor, Tensor],
    draws: Params,
) -> tuple[PerRecord, Tensor]:
    """Return gradients for B records, and the sum of their losses, under draws (B, 1, ...).

    `loss` is a mean over records. Raises TypeError for a parameter that is not used once, by one of the layers.
    """
    with _Recorder(theta) as recorder, torch.enable_grad():
        mean = loss(theta, batch, {k: v.flatten(0, 1) for k, v in draws.items()}, {})
    if recorder.gradients.keys() != theta.keys():
        missed = ", ".join(sorted(theta.keys() - recorder.gradients.keys()))
        raise TypeError(f"no linear layer, embedding or normalisation takes {missed}: gradients need `per_record`")
    count = len(batch[0])
    at_outputs = torch.autograd.grad(mean, recorder.outputs)
    return {k: make(count * at_outputs[i]) for k, (i, make) in recorder.gradients.items()}, count * mean.detach()


class _Recorder(TorchFunctionMode):
    """Runs the layers that take these parameters, and records the factors of the parameters' gradients."""

    def __init__(self, theta: Params) -> None:
        super().__init__()
        self.names = {id(v): k for k, v in theta.items()}
        self.outputs: list[Tensor] = []
        self.gradients: dict[str, tuple[int, Callable[[Tensor], Tensor | Outer]]] = {}
        """Parameter -> (its layer's number, its gradients from those at the layer's output)."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        layers = {F.linear: self._linear, F.layer_norm: self._layer_norm, F.embedding: self._embedding}
        call: Callable[..., Any] = layers.get(func, func)
        return call(*args, **(kwargs or {}))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        inputs = x.detach()
        of_bias = {} if bias is None else {id(bias): lambda g: g}
        return self._keep(F.linear(x, weight, bias), {id(weight): lambda g: Outer(g, inputs), **of_bias})

    def _layer_norm(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        normal = F.layer_norm(x.detach(), shape, eps=eps)
        pairs = ((weight, lambda g: g * normal), (bias, lambda g: g))
        gradients = {id(v): make for v, make in pairs if v is not None}
        out = F.layer_norm(x, shape, weight, bias, eps)
        return self._keep(out, gradients) if gradients else out

    def _embedding(self, index: Tensor, weight: Tensor, *options: Any, **named: Any) -> Tensor:
        rows = F.one_hot(index, len(weight)).to(weight.dtype)
        return self._keep(F.embedding(index, weight, *options, **named), {id(weight): lambda g: Outer(rows, g)})

    def _keep(self, out: Tensor, gradients: dict[int, Callable[[Tensor], Tensor | Outer]]) -> Tensor:
        if not out.requires_grad:  # no parameter comes before it
            out = out.requires_grad_()
        for key, make in gradients.items():
            name = self.names.get(key)
            if name is None:
                raise TypeError("a layer takes weights that are no parameters as they are: gradients need `per_record`")
            if out.dim() != 2 or name in self.gradients:
                raise TypeError(f"{name} is not taken once, by rows of features: gradients need `per_record`")
            self.gradients[name] = (len(self.outputs), make)
        self.outputs.append(out)
        return out
