"""Shared representation on a denoiser: the middle of the network is each client's own, the rest is averaged.

After Collins et al. 2021, arXiv 2102.07078; as SPIRE's comparison has it.

Adversary: none without `averaging.privacy`: weights are sent as they are, so epsilon is infinite. With it: the unit is
a client. The middle block is never sent, and is not covered.

| SPIRE, section 5 | here |
|---|---|
| down and up paths | the server's state |
| U-Net mid block | the client's state; `private` names it |

Deviations and choices where the papers are silent: all parts are trained together (Collins et al. alternate); every
client's middle starts from the server's first weights, from which an unseen client trains the middle alone.
"""

import torch

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, Deployed, LocalResult, Round
from raydiff.federated.upload_spec import UploadSpec
from raydiff.methods._averaging import Averaged, deploy_model
from raydiff.models.ddpm import DDPM
from raydiff.models.training import Training
from raydiff.settings import settings
from raydiff.tree import Params

START = "start"
"""The private part's first weights, in the server's state below this prefix."""


@settings(frozen=True, kw_only=True)
class SharedRep(Averaged):
    """A shared network with a private middle.

    Examples:
        >>> rd.SharedRep(private=("enter.", "time.")).private
        ('enter.', 'time.')
    """

    model: DDPM = DDPM()
    """Network and schedule."""
    private: tuple[str, ...] | None = None
    """Prefixes of the parameters that stay with the client; None: the middle of the network."""
    joining: Training = Training(steps=100, learning_rate=1e-4, decay="constant")
    """How a client that joins later trains its private part."""

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The shared part's first weights, and the private part's.

        Raises ValueError where `private` names no parameter, or leaves none to share.
        """
        private, shared = self._split(self.model.init(rng))
        if not shared or (not private and self._prefixes):
            raise ValueError(f"private must name some of the model's parameters, not all, got {self._prefixes}")
        return {**self.with_moments(shared), **tree.prefixed(START, private)}

    def join(self, server: Params, rng: torch.Generator) -> tuple[Params, Params]:
        """The private part, as every client had it at first."""
        return tree.under(START, server), self.shared(tree.without(START, server))

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train all; send the shared part's difference."""
        shared = tree.without(START, server)
        before = tree.without(SCRATCH, state) or tree.under(START, server)
        start = {**self.shared(shared), **before}
        w, moments, loss = self.fit_round(shared, state, data, rnd, start=start)
        private, after = self._split(w)
        return self.send(shared, after, moments, loss, private, rnd)

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        return super().upload_spec(tree.without(START, server), examples, round_number)

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """Sample the shared part with the client's own middle, which the server does not have."""
        if state is None:
            raise ValueError("the server of a SharedRep run has no whole model: the middle is with the clients")
        private = tree.without(SCRATCH, state) or tree.under(START, server)
        whole = {**self.shared(tree.without(START, server)), **private}
        return deploy_model(self.model, self.sampling, shared=None, personal=whole)

    @property
    def _prefixes(self) -> tuple[str, ...]:
        if self.private is not None:
            return self.private
        middle = self.model.network.middle
        if middle is None:
            raise ValueError(f"private must name parameters: the network {self.model.network} has no middle")
        return (middle,)

    def _split(self, params: Params) -> tuple[Params, Params]:
        """(private, shared)."""
        mine = {k for k in params if k.startswith(self._prefixes)}
        return {k: params[k] for k in mine}, {k: v for k, v in params.items() if k not in mine}
