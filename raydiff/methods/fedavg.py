"""FedAvg on a denoiser (McMahan et al. 2017, arXiv 1602.05629; on DDPMs: FedDM, arXiv 2407.14730), with optional local
fine-tuning; with `averaging.privacy` DP-FedAvg (McMahan et al. 2018, arXiv 1710.06963).

Adversary: none without `averaging.privacy`: weights are sent as they are, so epsilon is infinite. With it: the server
(local or aggregate trust) or whoever sees the model (central trust); the unit is a client. Fine-tuning is not covered.

| paper | here |
|---|---|
| w_t | the server's state |
| w <- w - eta grad l(w; b), E local epochs | `fit`: a share of `local` in each round |
| w_{t+1} | `aggregate`: w_t and the mean of the clients' updates, `averaging` |
| n_k / n | `averaging.weights`: by number of records, or uniform |
| fine-tuning | `finetune`: in `personalize`, on the client's own records; of a client that joins later, too |

Deviations: the client's optimiser starts anew in each round; the learning rate decays over all rounds together.
"""

from __future__ import annotations

from dataclasses import dataclass

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import LocalResult, Round
from raydiff.methods._averaging import FineTuned
from raydiff.models.training import fit
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedAvg(FineTuned):
    """One shared denoiser, averaged after each round."""

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Gradient steps from the server's weights on the client's own records; send the difference."""
        steps = self.steps(rnd.number, len(data))
        w, _, loss = fit(self.model, server, data.images, data.labels, training=self.local, rng=rnd.rng, steps=steps)
        release = self.averaging.release(tree.sub(w, server), rnd, rounds=self.rounds)
        return LocalResult(state, release, {"train/loss": loss})
