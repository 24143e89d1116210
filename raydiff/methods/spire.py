"""SPIRE: a shared backbone and a private embedding of each client (Ozkara, Zhou & Diggavi, arXiv 2506.12303).

Each client trains the backbone and its own embedding together; the backbones are averaged, the embeddings are never
sent. A client that joins later fits an embedding alone, to the backbone as it is, and sends nothing.

Adversary: an honest-but-curious server; it sees the backbones' updates, which are sent as they are: epsilon is infinite
(the paper gives no guarantee). With `averaging.privacy` they are clipped and noised, and the unit is a client: the
paper's future work. The embedding, and what is sampled with it, is not covered.

| paper | here |
|---|---|
| theta_bb | the server's state |
| e_j | the client's state, `networks.CLIENT` among the model's parameters |
| Algorithm 1, tau local steps | `local_update`: `local.steps / rounds` steps |
| 1/m sum of theta_bb | `averaging`, uniform |
| Algorithm 2, fresh e | `join`; K steps at rate 0.01: `joining` |

Deviations and choices where the paper is silent:

- The paper feeds the embedding through the class-label interface; here it is added to the time embedding beside those
  of the labels, which is the same, and leaves room for labels (`model.conditional`; the paper has none).
- Both updates are written without a step size; here `local`, Adam by default, with the learning rate decayed over all
  rounds. The optimiser starts anew in each round.
- A fresh embedding is drawn from N(0, embedding_std^2); torch's embeddings have standard deviation 1.
- The paper's synchronisation step ("tau divides k" and "tau divides t + 1") is read as: every tau steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import Deployed, LocalResult, Round
from raydiff.methods._averaging import Averaged, Averaging, deployed
from raydiff.models.ddpm import DDPM, Sampling
from raydiff.models.networks import CLIENT
from raydiff.models.training import Training, fit_personal
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class SPIRE(Averaged):
    """Algorithm 1 (training) and Algorithm 2 (a new client)."""

    model: DDPM = DDPM(conditional=False)
    """Network and schedule; the embedding is added to it."""
    rounds: int = 10
    """Communication rounds."""
    local: Training = Training()
    """Each client's training, all rounds together."""
    averaging: Averaging = Averaging(weights="uniform")
    """The server's part of a round."""
    embedding_std: float = 1.0
    """Standard deviation of a fresh embedding."""
    train_embedding: bool = True
    """False leaves the clients' embeddings as they were drawn: an ablation."""
    joining: Training = Training(steps=100, learning_rate=1e-2, decay="constant")
    """How a client that joins later fits its embedding."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.embedding_std >= 0:
            raise ValueError(f"embedding_std must be >= 0, got {self.embedding_std}")

    @property
    def trained_model(self) -> DDPM:
        """The model with an embedding."""
        return replace(self.model, embedding=True)

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The backbone's first weights."""
        return {k: v for k, v in self.trained_model.init(rng).items() if k != CLIENT}

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """A fresh embedding, (dim,)."""
        return self._fresh(rnd.rng)

    def join(self, server: Params, rng: torch.Generator) -> tuple[Params, Params]:
        """A fresh embedding: all that a new client trains."""
        return self._fresh(rng), server

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train backbone and embedding together; send the backbone's difference."""
        trained, fixed = ({**server, **state}, {}) if self.train_embedding else (server, state)
        params, _, loss = fit_personal(
            self.trained_model,
            trained,
            fixed,
            (data.images, data.labels),
            training=self.local,
            rng=rnd.rng,
            steps=self.steps(rnd.number),
        )
        update = tree.sub({k: params[k] for k in server}, server)
        release = self.averaging.release(update, rnd, rounds=self.rounds)
        return LocalResult({CLIENT: params.get(CLIENT, state[CLIENT])}, release, {"train/loss": loss})

    def shared(self, server: Params) -> Params:
        """The backbone with embedding 0."""
        return {**server, CLIENT: torch.zeros(self.model.network.embedding_width)}

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """Sample the backbone with the client's embedding, or with 0."""
        shared, own = self.shared(server), None if state is None else {**server, **state}
        made = deployed(self.trained_model, self.sampling, shared=shared, own=own)
        return made if own else replace(made, about="images of the backbone with embedding 0")

    def _fresh(self, rng: torch.Generator) -> Params:
        return {CLIENT: self.embedding_std * torch.randn(self.model.network.embedding_width, generator=rng)}
