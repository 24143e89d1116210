"""FedAvg on a denoiser (McMahan et al. 2017, arXiv 1602.05629; on DDPMs: FedDM, arXiv 2407.14730), with optional local
fine-tuning.

Adversary: none considered. Weights are sent as they are, so epsilon is infinite.

| paper | here |
|---|---|
| w_t | the server's state |
| E local epochs | `local.steps / rounds` steps in each round |
| n_k / n | `Upload.examples`: weights by number of records |
| fine-tuning | `finetune`, in `deploy`, on the client's own records |

Deviations: the client's optimiser starts anew in each round; the learning rate decays over all rounds together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from raydiff import tree
from raydiff.data.datasets import Records
from raydiff.diffusion.gaussian import DDPM, Sampling
from raydiff.diffusion.local import Training, fit, span
from raydiff.method import Deployed, LocalResult, Metrics, Round, Shared, Upload
from raydiff.privacy.release import Event, disclose
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """One shared denoiser, averaged after each round."""

    model: DDPM = DDPM()
    """Network and schedule."""
    rounds: int = 10
    """Communication rounds."""
    local: Training = Training()
    """Each client's training, all rounds together."""
    finetune: Training | None = None
    """Training of the final model on the client's own records before it samples; None: sample the shared model."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    delta: ClassVar[float] = 1e-5
    accountant: ClassVar[str] = "exact"
    init_parts: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")

    @property
    def participating_rounds(self) -> int:
        """All of them."""
        return self.rounds

    @property
    def init_key(self) -> Hashable:
        """Clients keep no state."""
        return None

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The shared model's first weights."""
        return self.model.init(rng)

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """Nothing is kept between rounds."""
        return {}

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train from the server's weights on the client's records; send the difference."""
        first, steps = span(self.local.steps, self.rounds, rnd.number)
        params, _, loss = fit(
            self.model, server, data.images, data.labels, training=self.local, rng=rnd.rng, first=first, steps=steps
        )
        release = disclose(tree.sub(params, server), "weights sent as they are")
        return LocalResult(state, release, {"train/loss": loss})

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """w <- w + sum_k n_k / n delta_k."""
        mean = tree.weighted_mean((u.release.value, float(u.examples)) for u in uploads)
        return tree.add(server, mean), {"server/update_norm": tree.norm(mean)}, []

    def deploy(self, server: Params, state: Params, data: Records, rng: torch.Generator) -> Deployed:
        """Sample the shared model, fine-tuned first if asked for."""
        model, params = self.model, server
        denoisers = {"global": model.denoiser(server)}
        if self.finetune is not None:
            params, _, _ = fit(model, server, data.images, data.labels, training=self.finetune, rng=rng)
            denoisers["client"] = model.denoiser(params)
        samplers = self.sampling.samplers(model, model.denoiser(params))
        return Deployed(samplers, denoisers, model.timesteps, model.abar)

    def shared(self, server: Params) -> Shared:
        """The shared model, without fine-tuning."""
        samplers = self.sampling.samplers(self.model, self.model.denoiser(server))
        return Shared(samplers[self.sampling.sampler], "images of the shared model")
