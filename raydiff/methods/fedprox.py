"""FedProx on a denoiser: FedAvg whose clients are held near the server's weights.

Li et al. 2020, arXiv 1812.06127; on DDPMs: FedDM-prox, arXiv 2407.14730.

Adversary and unit of privacy: FedAvg's.

| paper | here |
|---|---|
| w^t | the server's state |
| F_k(w) | the model's loss |
| h_k(w; w^t) = F_k(w) + mu / 2 norm(w - w^t)^2 | the clients' objective, `mu` |
| gamma-inexact minimiser of h_k | part of `local` in each round |
| K devices, drawn with probability p_k, averaged alike | drawn uniformly, weighted by `averaging.weights` |

Deviations: all clients take the same number of steps, or of epochs; the term goes through the client's optimiser
(AdamW by default) and its momentum; the optimiser starts anew in each round; the learning rate decays over all rounds.
"""

import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.federated.method import LocalResult, Round
from raydiff.methods._averaging import FineTuned
from raydiff.settings import NonNegative, settings
from raydiff.tree import Params


@settings(frozen=True, kw_only=True)
class FedProx(FineTuned):
    """FedAvg with a proximal term.

    Examples:
        >>> rd.FedProx(rounds=20, mu=0.1).model.timesteps
        1000
    """

    mu: NonNegative = 0.01
    """Weight of the proximal term; 0 is FedAvg."""

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Minimise h_k from the server's weights; send the difference."""
        fitted = self.fit_round(server, state, data, rnd, objective=self._proximal, extras=self.shared(server))
        return self.send(server, *fitted, state, rnd)

    def _proximal(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """h_k(w; w^t); `extras` is w^t."""
        squares = torch.stack([(params[k] - extras[k]).square().sum() for k in params])
        return self.model.loss(params, batch, draws, {}) + self.mu / 2 * squares.sum()
