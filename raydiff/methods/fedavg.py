"""FedAvg on a denoiser (McMahan et al. 2017, arXiv 1602.05629; on DDPMs: FedDM, arXiv 2407.14730), with optional local
fine-tuning; with `averaging.privacy` DP-FedAvg (McMahan et al. 2018, arXiv 1710.06963).

Adversary: none without `averaging.privacy`: weights are sent as they are, so epsilon is infinite. With it: the server
(local trust) or whoever sees the model (central trust); the unit is a client. Fine-tuning is not covered.

| paper | here |
|---|---|
| w_t | the server's state |
| E local epochs | `local.steps / rounds` steps in each round |
| n_k / n | `averaging.weights`: by number of records, or uniform |
| fine-tuning | `finetune`: in `deploy`, on the client's own records; by a client that joins later, of the whole model |

Deviations: the client's optimiser starts anew in each round; the learning rate decays over all rounds together.
"""

from __future__ import annotations

from dataclasses import dataclass

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import LocalResult, Round
from raydiff.methods._averaging import AnyModel, Averaged, Averaging
from raydiff.models.ddpm import DDPM, Sampling
from raydiff.models.training import Training
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaged):
    """One shared denoiser, averaged after each round."""

    model: AnyModel = DDPM()
    """What is trained: a denoiser, or a classifier of label column 0."""
    rounds: int = 10
    """Communication rounds."""
    local: Training = Training()
    """Each client's training, all rounds together."""
    averaging: Averaging = Averaging()
    """The server's part of a round."""
    finetune: Training | None = None
    """Training of the final model on the client's own records before it samples; None: sample the shared model."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train from the server's weights on the client's records; send the difference."""
        params, metrics = self.train(server, data, rnd)
        release = self.averaging.release(tree.sub(params, server), rnd, rounds=self.rounds)
        return LocalResult(state, release, metrics)
