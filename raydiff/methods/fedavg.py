"""FedAvg on a denoiser, with optional local fine-tuning; with `averaging.privacy` DP-FedAvg.

McMahan et al. 2017, arXiv 1602.05629; on DDPMs: FedDM, arXiv 2407.14730; DP-FedAvg: McMahan et al. 2018, arXiv
1710.06963.

Adversary: none without `averaging.privacy`: weights are sent as they are, so epsilon is infinite. With it: the server
(local or aggregate trust) or whoever sees the model (central trust); the unit is a client. Fine-tuning is not covered.

| paper | here |
|---|---|
| w_t | the server's state |
| w <- w - eta grad l(w; b), E local epochs | `fit`: part of `local` in each round |
| w_{t+1} | `aggregate`: w_t and the mean of the clients' updates, `averaging` |
| n_k / n | `averaging.weights`: by number of records, or uniform |
| fine-tuning | `finetune`: in `personalize`, on the client's records; of an unseen client, too |

Deviations: the client's optimiser starts anew in each round unless `averaging.moments` says otherwise; the learning
rate decays over all rounds together.
"""

from raydiff.methods._averaging import FineTuned
from raydiff.settings import settings


@settings(frozen=True, kw_only=True)
class FedAvg(FineTuned):
    """One shared denoiser, averaged after each round: `Averaged` as it is.

    Examples:
        >>> method = rd.FedAvg(rounds=20, local=rd.Training(steps=2000))
        >>> method.upload_event(records=100, round_number=0)
        NonPrivate(what='weights sent as they are', trust='local')
    """
