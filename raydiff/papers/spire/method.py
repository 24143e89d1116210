"""SPIRE: a shared backbone and a private embedding of each client (Ozkara, Zhou & Diggavi, arXiv 2506.12303).

Each client trains the backbone and its embedding together; the backbones are averaged, the embeddings are never sent. A
client that joins later fits only an embedding, to the backbone as it is, and sends nothing.

Adversary: an honest-but-curious server; it sees the backbones' updates, which are sent as they are: epsilon is infinite
(the paper gives no guarantee). With `averaging.privacy` they are clipped and noised, and the unit is a client: the
paper's future work. The embeddings, their weights, and what is sampled with them are not covered.

| paper | here |
|---|---|
| theta_bb | the server's state |
| e_j | the client's state, `networks.CLIENT` among the model's parameters |
| Algorithm 1, tau local steps | `local_update`: a part of `local` in each round |
| 1/m sum of theta_bb | `averaging`, uniform |
| Algorithm 2, fresh e | `join`; K steps at rate 0.01: `joining` |

Deviations and choices where the paper is silent:

- The paper feeds the embedding through the class-label interface; here it is added to the time embedding beside those
  of the labels, which is the same, and leaves room for labels (`model.conditional`; the paper has none).
- Both updates are written without a step size; here `local`, Adam by default, with the learning rate decayed over all
  rounds. The optimiser starts anew in each round (`averaging.moments`).
- A fresh embedding is drawn from N(0, embedding_std^2); torch's embeddings have standard deviation 1.
- A client that joins may have several `embeddings`: K-means clusters its pictures without their labels, each record
  trains its cluster's embedding, and a picture is sampled with one drawn by the clusters' sizes. One embedding is one
  point in a space whose points the backbone learned from clients of one kind each; a client of several kinds has no
  such point. The federation's clients have one each, as in the paper.
- The paper's synchronisation step ("tau divides k" and "tau divides t + 1") is read as: every tau steps.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, Deployed, LocalResult, Round, Sampler, Target
from raydiff.methods._averaging import MOMENTS, Averaged, Averaging, deploy_model
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import CLIENT, table_name
from raydiff.models.training import Completed, Training
from raydiff.papers.k_means import k_means
from raydiff.settings import Count, NonNegative, settings
from raydiff.tree import Params

KINDS = table_name(0)
"""A joining client's several embeddings, (k, dim), in its state and among the model's parameters."""
SHARES = "shares"
"""In its state: the fraction of its records in each one's cluster, (k,)."""


@settings(frozen=True, kw_only=True)
class SPIRE(Averaged):
    """Algorithm 1 (training) and Algorithm 2 (a new client).

    Raises:
        ValueError: If there are several embeddings where labels are conditions.

    Examples:
        >>> rd.SPIRE(rounds=20, joining=rd.Training(steps=50)).trained_model.embedding
        True
    """

    model: DDPM = DDPM(conditional=False)
    """Network and schedule; the embedding is added to it."""
    averaging: Averaging = Averaging(weights="uniform")
    """The server's part of a round."""
    embedding_std: NonNegative = 1.0
    """Standard deviation of a fresh embedding."""
    train_embedding: bool = True
    """False leaves the clients' embeddings as they were drawn: an ablation."""
    joining: Training = Training(steps=100, learning_rate=1e-2, decay="constant")
    """How a client that joins later fits its embedding."""
    embeddings: Count = 1
    """Embeddings of a client that joins later, one for each cluster of its pictures."""

    def __post_init__(self) -> None:
        if self.embeddings > 1 and self.model.conditional:
            raise ValueError(f"embeddings must be 1 where model.conditional is true, got {self.embeddings}")

    @property
    def trained_model(self) -> DDPM:
        """The model with an embedding; with several, a record's kind is a label, and they are the embeddings of it."""
        return self._with_one if self.embeddings == 1 else replace(self.model, labels=(self.embeddings,))

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The backbone's first weights."""
        return self.with_moments({k: v for k, v in self._with_one.init(rng).items() if k != CLIENT})

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """A fresh embedding, (dim,)."""
        return {CLIENT: self._fresh(rnd.rng)}

    def join(self, server: Params, rng: torch.Generator) -> tuple[Params, Params]:
        """A fresh embedding, or several: all that a new client trains."""
        fresh = {CLIENT: self._fresh(rng)} if self.embeddings == 1 else {KINDS: self._fresh(rng, self.embeddings)}
        return fresh, tree.without(MOMENTS, server)

    def kinds(self, data: Records, rng: torch.Generator) -> tuple[Records, Params]:
        """The records with their cluster as a last label where there are several embeddings, and its fractions."""
        if self.embeddings == 1:
            return data, {}
        seed = int(torch.randint(2**31, (1,), generator=rng))
        clusters = k_means(data.images.flatten(1).double().numpy(), min(self.embeddings, len(data)), seed)
        fractions = clusters.bincount(minlength=self.embeddings) / len(clusters)
        return replace(data, labels=torch.cat([data.labels, clusters[:, None]], dim=1)), {SHARES: fractions}

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train backbone and embedding together; send the backbone's difference."""
        weights = tree.without(MOMENTS, server)
        mine = {CLIENT: state[CLIENT]}
        trained, fixed = ({**weights, **mine}, {}) if self.train_embedding else (weights, mine)
        model = self._with_one
        more: dict[str, Any] = {"model": model, "objective": Completed(model), "extras": fixed}
        w, moments, loss = self.fit_round(server, state, data, rnd, start=trained, **more)
        state = {CLIENT: w.get(CLIENT, mine[CLIENT])}
        return self.send(server, {k: w[k] for k in weights}, moments, loss, state, rnd)

    def shared(self, server: Params) -> Params:
        """The backbone with embedding 0."""
        return {**tree.without(MOMENTS, server), CLIENT: torch.zeros(self._with_one.embedding_width)}

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """Sample the backbone with the client's embedding, with one of several for each picture, or with 0."""
        server = tree.without(MOMENTS, server)
        state = None if state is None else tree.without(SCRATCH, state)
        personal = None if state is None or SHARES in state else {**server, **state}
        result = deploy_model(self._with_one, self.sampling, shared=self.shared(server), personal=personal)
        if state is None:
            return replace(result, about="images of the backbone with embedding 0")
        return result if personal else self._mixed(result, {**server, KINDS: state[KINDS]}, state[SHARES])

    def _mixed(self, shared: Deployed, params: Params, fractions: Tensor) -> Deployed:
        """A client's model with several embeddings; an attack may ask it with each that a record has."""
        model = self.trained_model
        chains = self.sampling.samplers(model, model.denoiser(params))
        each = tuple(model.denoiser(params, fixed=(kind,)) for kind in fractions.nonzero()[:, 0].tolist())
        return replace(
            shared,
            samplers={name: partial(_of_kinds, chain, fractions) for name, chain in chains.items()},
            about="images of a client's model",
            targets={**shared.targets, "client": Target(each, model.abar)},
        )

    @property
    def _with_one(self) -> DDPM:
        return replace(self.model, embedding=True)

    def _fresh(self, rng: torch.Generator, *count: int) -> Tensor:
        return self.embedding_std * torch.randn(*count, self._with_one.embedding_width, generator=rng)


def _of_kinds(chain: Sampler, fractions: Tensor, labels: Tensor, rng: torch.Generator) -> Tensor:
    """A picture for each label, of a kind drawn by the fractions."""
    kinds = torch.multinomial(fractions, len(labels), replacement=True, generator=rng)
    return chain(torch.cat([labels, kinds[:, None]], dim=1), rng)
