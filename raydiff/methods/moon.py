"""MOON on a denoiser (Li, He & Song 2021, arXiv 2103.16049): FedAvg with a model-contrastive term.

Clients' features are pulled towards the server's model and away from their own last one.

Adversary and unit of privacy: FedAvg's.

| paper | here |
|---|---|
| w^t | the server's state |
| w_i^{t-1} | the client's `scratch/previous/`: its model of the last round that it took part in |
| z, z_glob, z_prev | `model.features` of the three models on the same noised batch |
| l_sup | the model's loss |
| l_con = -log(e^(sim(z, z_glob) / tau) / (e^(sim(z, z_glob) / tau) + e^(sim(z, z_prev) / tau))) | `_contrastive` |
| mu, tau | `mu`, `temperature` |

Deviations: the features are the denoiser's (last hidden layer, or middle block), without the paper's projection head.
In a client's first round the server's model takes the place of its last one: then z_prev = z_glob, and the term has no
gradient. The client's optimiser starts anew in each round; the learning rate decays over all rounds together.
"""

from torch import Tensor
from torch.nn.functional import normalize, softplus

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, LocalResult, Round
from raydiff.methods._averaging import FineTuned
from raydiff.models.networks import Network
from raydiff.settings import NonNegative, Positive, settings
from raydiff.tree import Params

PREVIOUS = f"{SCRATCH}/previous"


@settings(frozen=True, kw_only=True)
class Moon(FineTuned):
    """FedAvg with a model-contrastive term.

    Raises:
        ValueError: If the model has no features to compare.

    Examples:
        >>> rd.Moon(mu=5.0, model=rd.Classifier()).temperature
        0.5
    """

    mu: NonNegative = 1.0
    """Weight of the contrastive term; 0 is FedAvg."""
    temperature: Positive = 0.5
    """What the similarities are divided by."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.model, "features", None)):
            raise ValueError(f"MOON compares models by their features, and {type(self.model).__name__} has none")
        network = getattr(self.model, "network", None)
        if isinstance(network, Network) and network.features is None:
            raise ValueError(f"MOON compares models by their features, and the network {network} has none")

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train from the server's weights on both terms; send the difference, and keep the model for the next round."""
        shared = self.shared(server)
        previous = tree.under(PREVIOUS, state) or shared
        extras = {**tree.prefixed("global", shared), **tree.prefixed("previous", previous)}
        w, moments, loss = self.fit_round(server, state, data, rnd, objective=self._contrastive, extras=extras)
        return self.send(server, w, moments, loss, tree.prefixed(PREVIOUS, w), rnd)

    def _contrastive(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """l_sup + mu l_con; `extras` are the global and the previous model."""
        models = (params, tree.under("global", extras), tree.under("previous", extras))
        z, z_glob, z_prev = (normalize(self.model.features(model, batch, draws)) for model in models)
        # This difference of cosines is exactly 0 where z_prev equals z_glob.
        nearer_prev = (z * (z_prev - z_glob)).sum(1) / self.temperature
        return self.model.loss(params, batch, draws, {}) + self.mu * softplus(nearer_prev).mean()
