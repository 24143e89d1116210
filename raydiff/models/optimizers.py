"""torch's optimisers as functions: its classes import its compiler, which takes two seconds of CPU time per process."""

import functools

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from raydiff.tree import Params

ADAM = functools.partial(adam, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False)
_ADAMW = functools.partial(adamw, beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, maximize=False, fused=True)
_SGD = functools.partial(sgd, dampening=0.0, nesterov=False, maximize=False, fused=True)


@torch.no_grad()
def adamw_step(theta: Params, gradients: Params, state: Params, *, rate: float, decay: float) -> None:
    """A step of AdamW (Loshchilov & Hutter, ICLR 2019), in place, of the leaves that have a gradient.

    `state` gets, with a leaf's first step, `step/NAME`, `exp_avg/NAME` and `exp_avg_sq/NAME`.
    """
    for name in gradients:
        if f"step/{name}" not in state:
            state[f"step/{name}"] = torch.zeros((), device=theta[name].device)
            state |= {f"{moment}/{name}": torch.zeros_like(theta[name]) for moment in ("exp_avg", "exp_avg_sq")}
    means, squares, taken = ([state[f"{k}/{name}"] for name in gradients] for k in ("exp_avg", "exp_avg_sq", "step"))
    leaves = [theta[name] for name in gradients]
    # torch's fused optimisers on the CPU take gradients for contiguous.
    _ADAMW(leaves, [g.contiguous() for g in gradients.values()], means, squares, [], taken, lr=rate, weight_decay=decay)


@torch.no_grad()
def sgd_step(theta: Params, gradients: Params, state: Params, *, rate: float, decay: float, momentum: float) -> None:
    """A step of SGD, in place, of the leaves with a gradient; with momentum `state` gets `momentum_buffer/NAME`."""
    buffers: list[Tensor | None] = [state.get(f"momentum_buffer/{name}") for name in gradients]
    leaves = [theta[name] for name in gradients]
    _SGD(leaves, [g.contiguous() for g in gradients.values()], buffers, lr=rate, weight_decay=decay, momentum=momentum)
    state |= {f"momentum_buffer/{name}": b for name, b in zip(gradients, buffers, strict=True) if b is not None}
