"""Per-FedAvg on a denoiser (Fallah, Mokhtari & Ozdaglar 2020, arXiv 2002.07948).

A shared model from which each client is one gradient step away from its own.

Adversary and unit of privacy: FedAvg's. The adapted models are not covered.

| paper | here |
|---|---|
| w | the server's state |
| F_i(w) = f_i(w - alpha grad f_i(w)) | the clients' objective, `inner_rate` |
| D, D' | the first half of a batch, for the inner gradient, and the second, for the loss after it |
| (I - alpha hess f_i(w)) | `order` second; first leaves the Hessian out (FO) |
| tau local steps of rate beta | part of `local` in each round |
| w - alpha grad f_i(w), after training | `personalize`, also by an unseen client: `adapt_steps` SGD steps |

Deviations: the paper draws a third batch for the Hessian; here it is that of D, so that a step follows the gradient of
one number, the loss on D' after a step on D. The outer step is the client's optimiser, AdamW by default, started anew
in each round; the learning rate decays over all rounds. The paper's Hessian-free variant is not here.
"""

from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from raydiff.data.records import Records
from raydiff.federated.method import LocalResult, Round
from raydiff.methods._averaging import Averaged
from raydiff.models.ddpm import DDPM
from raydiff.models.functional import module_of
from raydiff.models.training import Pair, Training
from raydiff.settings import Natural, NonNegative, settings
from raydiff.tree import Params


@settings(frozen=True, kw_only=True)
class PerFedAvg(Averaged):
    """FedAvg on the loss after one step of adaptation.

    Raises:
        ValueError: If batches cannot be halved, or a compiled model is to be differentiated twice.

    Examples:
        >>> rd.PerFedAvg(order="second", inner_rate=0.05).finetune.learning_rate
        0.05
    """

    model: DDPM = DDPM()
    """Network and schedule."""
    local: Training = Training()
    """Each client's training, all rounds together; each batch is halved."""
    order: Literal["first", "second"] = "first"
    """first takes the inner gradient for a constant; second differentiates it too."""
    inner_rate: NonNegative = 0.01
    """Learning rate of the inner step and of adaptation; 0 is FedAvg on the second halves."""
    adapt_steps: Natural = 1
    """Steps of adaptation on the client's own records before it samples."""

    def __post_init__(self) -> None:
        if not self.local.replacement:
            raise ValueError("local.replacement must be true: batches are halved, and a pass's last may be one record")
        if self.local.batch < 2:
            raise ValueError(f"local.batch must be at least 2, for it is halved, got {self.local.batch}")
        if self.order == "second" and self.model.compile:
            raise ValueError("order must be first where model.compile is on: its gradients have no gradients")

    @property
    def finetune(self) -> Training:
        """Adaptation; at rate 0 there is none."""
        steps, rate = (self.adapt_steps, self.inner_rate) if self.inner_rate else (0, 1.0)
        return Training(optimizer="sgd", learning_rate=rate, decay="constant", steps=steps, batch=self.local.batch)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train the loss after adaptation from the server's weights; send the difference."""
        module_of(self.model)  # `torch.func.grad` cannot build it.
        return self.send(server, *self.fit_round(server, state, data, rnd, objective=self._loss_after_step), state, rnd)

    def _loss_after_step(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        (images, labels), half, second = batch, len(batch[0]) // 2, self.order == "second"
        inner = slice(half)
        outer = slice(half, None)
        before: tuple[Pair, Params, Params] = ((images[inner], labels[inner]), _rows(draws, inner), {})
        # Fused attention's backward pass cannot itself be differentiated.
        with sdpa_kernel(SDPBackend.MATH) if second else nullcontext():
            if second:  # Within vmap this fails, where the second derivatives of `torch.func.grad` would be wrong.
                loss = self.model.loss(params, *before)
                gradients = torch.autograd.grad(
                    loss, [*params.values()], create_graph=True, allow_unused=True, materialize_grads=True
                )
            else:
                start = {k: v.detach() for k, v in params.items()}
                gradients = (*torch.func.grad(self.model.loss)(start, *before).values(),)
            adapted = {k: v - self.inner_rate * g for (k, v), g in zip(params.items(), gradients, strict=True)}
            return self.model.loss(adapted, (images[outer], labels[outer]), _rows(draws, outer), {})


def _rows(draws: Params, rows: slice) -> Params:
    return {k: v[rows] for k, v in draws.items()}
