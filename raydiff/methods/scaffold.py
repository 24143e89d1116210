"""SCAFFOLD on a denoiser (Karimireddy et al. 2020, arXiv 1910.06378).

Control variates take the drift out of the clients' steps.

Adversary: none: weights and control variates are sent as they are, so epsilon is infinite. `averaging.privacy` is
refused: it has no guarantee for the control variates. A message is twice as long as FedAvg's, in both directions.

| paper, Algorithm 1 | here |
|---|---|
| x, c | the server's `model/` and `control/` |
| c_i | the client's `scratch/control/`; 0 before its first round |
| K, eta_l | part of `local` in each round |
| y <- y - eta_l (g(y) - c_i + c) | `_corrected`: the loss, and a linear term |
| c_i+, option II | c_i - c + (x - y) / (how far a gradient of 1 would have carried) |
| x <- x + eta_g mean of (y - x) | `averaging`, its `rate` |
| c <- c + S / N mean of (c_i+ - c_i) | the same mean, over the S clients of the round, of the N of the federation |

Deviations: the learning rate may decay over all rounds, and sgd may have momentum. So K eta_l becomes the distance that
the client's K steps go along a constant gradient of 1, and (x - y) over it is still a mean of the corrected gradients,
weight decay included. NIID-Bench (arXiv 2102.02079) divides by K eta_l with momentum too, and corrects y past the
momentum; here the gradient is corrected, as in the paper. The paper's means are uniform; here both are weighted by
`averaging.weights`, so that the corrections of all clients cancel in the model's mean.
"""

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, SERVER_ONLY, LocalResult, Mean, Metrics, Round
from raydiff.methods._averaging import FineTuned
from raydiff.models.training import Training
from raydiff.privacy.release import Event, NonPrivate, disclose
from raydiff.settings import settings
from raydiff.tree import Params

MODEL = "model"
CONTROL = "control"
UNPROTECTED_TEXT = "weights and control variates sent as they are"


@settings(frozen=True, kw_only=True)
class Scaffold(FineTuned):
    """FedAvg by SGD with control variates.

    Raises:
        ValueError: If the optimiser is not sgd, or `averaging` has moments or privacy.

    Examples:
        >>> rd.Scaffold(local=rd.Training(optimizer="adamw"))
        Traceback (most recent call last):
        ValueError: local.optimizer must be sgd, whose steps SCAFFOLD corrects, got adamw
    """

    local: Training = Training(optimizer="sgd", learning_rate=0.03, decay="constant")
    """Each client's training, all rounds together, by sgd; an MLP bears ten times this rate."""

    def __post_init__(self) -> None:
        if self.local.optimizer != "sgd":
            raise ValueError(f"local.optimizer must be sgd, whose steps SCAFFOLD corrects, got {self.local.optimizer}")
        if self.averaging.moments != "reset":
            raise ValueError("averaging.moments must be reset: control variates take their place")
        if self.averaging.privacy is not None:
            raise ValueError("averaging.privacy must be none: SCAFFOLD's control variates are sent without protection")

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """x, and c = 0."""
        model = super().init_server(public, rng)
        return {**tree.prefixed(MODEL, model), **tree.prefixed(CONTROL, tree.scale(model, 0.0))}

    def shared(self, server: Params) -> Params:
        return tree.under(MODEL, server)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """K corrected steps from x; send y - x and c_i+ - c_i."""
        x = tree.under(MODEL, server)
        c = tree.under(CONTROL, server)
        none = tree.scale(c, 0.0)
        c_i = tree.under(f"{SCRATCH}/{CONTROL}", state) or none
        y, _, loss = self.fit_round(x, {}, data, rnd, objective=self._corrected, extras=tree.sub(c, c_i))
        far = _distance_along(self.local.of(len(data)), self.steps(rnd.number, len(data)))
        change = tree.sub(tree.scale(tree.sub(x, y), 1 / far), c) if far else none  # No steps, no gradient.
        sent = {**tree.prefixed(MODEL, tree.sub(y, x)), **tree.prefixed(CONTROL, change)}
        release = disclose(sent, UNPROTECTED_TEXT)
        return LocalResult(tree.prefixed(f"{SCRATCH}/{CONTROL}", tree.add(c_i, change)), release, {"train/loss": loss})

    def upload_event(self, records: int, round_number: int) -> Event:
        return NonPrivate(UNPROTECTED_TEXT)

    def _corrected(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """The loss, with the gradient g(y) + c - c_i; `extras` is c - c_i."""
        linear = torch.stack([(params[k] * extras[k]).sum() for k in params]).sum()
        return self.model.loss(params, batch, draws, {}) + (linear - linear.detach())

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """The server's optimiser takes one step with x; c follows the clients' control variates."""
        update = tree.under(MODEL, uploads.value)
        change = tree.under(CONTROL, uploads.value)
        moments = f"{SERVER_ONLY}/averaging"
        x, moved = self.averaging.step(tree.under(MODEL, server), update, tree.under(moments, server))
        c = tree.add(tree.under(CONTROL, server), tree.scale(change, uploads.count / rnd.clients))
        model = tree.prefixed(MODEL, x)
        after = {**server, **model, **tree.prefixed(CONTROL, c), **tree.prefixed(moments, moved)}
        metrics = {"server/update_norm": tree.norm(update), "server/control_norm": tree.norm(c)}
        return self.with_average(after, model, rnd), metrics, []


def _distance_along(training: Training, steps: range) -> float:
    """How far sgd goes in these steps along a gradient that is always 1."""
    velocity = far = 0.0
    for step in steps:
        velocity = training.momentum * velocity + 1
        far += training.rate(step) * velocity
    return far
