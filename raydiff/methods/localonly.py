"""Non-collaborative training: each client's own denoiser, and nothing is sent.

Baseline of PFDM (Patel et al., CVPR 2026). Privacy: no message leaves the client, so epsilon is 0 against the server;
what the client itself publishes is not covered.

Deviations: with `clip` given, the denoiser is PFDM's own client model (clipped and unclipped mixture), sampled from
pure noise with flag "unclipped": then both methods share the very same client models. "Centralised" is this method on
one pooled client.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raydiff.data.datasets import Records
from raydiff.diffusion.gaussian import DDPM, Sampling
from raydiff.diffusion.local import Training, fit, fit_mixture, with_clipped_flag
from raydiff.method import Deployed, LocalResult, Metrics, Round, Upload
from raydiff.privacy.release import Event, nothing
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class LocalOnly:
    """Each client alone."""

    model: DDPM = DDPM()
    """Network and schedule of each client's denoiser."""
    local: Training = Training()
    """Its training."""
    clip: float | None = None
    """Train on PFDM's mixture with images clipped to this norm; None trains on the images alone."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    rounds: ClassVar[int] = 1
    participating_rounds: ClassVar[int] = 1
    delta: ClassVar[float] = 1e-5
    accountant: ClassVar[str] = "exact"

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be a positive number or none, got {self.clip}")

    @property
    def init_key(self) -> Hashable:
        """Equal to PFDM's where the client models are equal."""
        return ("clipped mixture" if self.clip else "plain", self.model, self.local, self.clip)

    def init_server(self, rng: torch.Generator) -> Params:
        """There is nothing to share."""
        return {}

    def init_client(self, data: Records, rng: torch.Generator) -> Params:
        """The whole training."""
        if self.clip is not None:
            return fit_mixture(self.model, data.images, data.labels, clip=self.clip, training=self.local, rng=rng)[0]
        return fit(self.model, self.model.init(rng), data.images, data.labels, training=self.local, rng=rng)[0]

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Send nothing."""
        return LocalResult(state, nothing())

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Nothing was sent."""
        for _ in uploads:
            pass
        return server, {}, []

    def deploy(self, server: Params, state: Params, data: Records, rng: torch.Generator) -> Deployed:
        """Sample the client's own denoiser from pure noise."""
        model = self.model
        own = with_clipped_flag(model).denoiser(state, fixed=(0,)) if self.clip else model.denoiser(state)

        def sample(labels: Tensor, rng: torch.Generator) -> Tensor:
            x = torch.randn(len(labels), *model.shape, generator=rng)
            return self.sampling.run(model, own, x, labels=labels, start=model.timesteps, bound=1.0, rng=rng)

        return Deployed(sample, {"client": own}, model.timesteps, model.abar)
