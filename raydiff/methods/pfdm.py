"""PFDM: personalised federated diffusion with local differential privacy (Patel et al., CVPR 2026, arXiv 2504.00952).

Each client trains its own denoiser, and sends its images once, clipped and noised to depth t0 of the forward process.
The server trains a global denoiser on these noisy images as if they were clean. To sample, the global denoiser makes
an x_{t0}, and the client's own denoiser takes it from t0 to 0.

Adversary: an honest-but-curious server that sees every upload. Unit of privacy: one record (replace-one, local trust).
Covered: the upload and all that is computed from it, the global denoiser above all. Not covered: the client's own
denoiser and what it samples; labels and the number of records, which are public by declaration.

| paper | here |
|---|---|
| z_{theta_m}, Algorithm 1 stage 1 | `init_client`, `local` |
| CLIP(x, C), t_0 | `clip`, `depth` (given as `t0`, or solved from `epsilon`, `delta`) |
| Dtilde, z_w, stage 2 | the server's `held/pool/` and `model/`; `server`, `server_rounds` |
| Algorithm 2 | `deploy`; `sampling` for the server's chain, `client_sampling` for the client's |

Deviations and choices where the paper is silent:
- The client's denoiser trains on all T timesteps (as Algorithm 1 has it), so sampling it from pure noise is the
  non-collaborative baseline.
- Clipped and unclipped images are mixed half and half, and the flag says "unclipped" in all t0 refinement steps
  (appendix D).
- The published depths follow from Theorem 5.1 only when rounded down, which overspends; here the depth is the smallest
  whose epsilon under `accountant` stays within the budget.
- sigma_t^2 = beta_t. The predicted x_0 is clamped to the range of the data (for the noisy images: the range plus 4
  standard deviations).
- The server's training is cut into `server_rounds` rounds of equal length, so that it can be resumed.
- `epsilon=None` sends the images as they are and cuts one chain at t0 (CollaFuse, arXiv 2406.14429): the non-private
  limit; t0 is then 1 unless given.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.datasets import Records
from raydiff.diffusion.gaussian import DDPM, Sampling
from raydiff.diffusion.local import Training, fit, fit_mixture, span, with_clipped_flag
from raydiff.method import HELD, Deployed, LocalResult, Metrics, Round, Shared, Upload
from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Release, disclose, gaussian_records, nothing
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class PFDM:
    """Algorithm 1 (training) and Algorithm 2 (sampling)."""

    model: DDPM = DDPM()
    """Network and schedule of both denoisers; the client's has one condition more, the clipped flag."""
    epsilon: float | None = 10.0
    """Privacy budget of one record's upload; None sends the images without protection."""
    delta: float = 1e-5
    """The delta that goes with it."""
    clip: float = 15.0
    """C: L2 norm to which each flattened image is clipped. A public number: never take it from private data."""
    t0: int | None = None
    """Depth of the noise and of the hand-over. Default: the smallest within the budget; a given one must be too."""
    accountant: accountants.Accountant = "exact"
    """Which bound turns the noise into an epsilon: exact, rdp or theorem."""
    local: Training = Training()
    """Training of each client's denoiser."""
    server: Training = Training()
    """Training of the global denoiser."""
    server_rounds: int = 4
    """Rounds into which the server's training is cut."""
    sampling: Sampling = Sampling()
    """The server's chain, T to 0 (or to t0 when epsilon is None)."""
    client_sampling: Sampling = Sampling()
    """The client's chain, t0 to 0."""

    def __post_init__(self) -> None:
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise ValueError(f"clip must be a positive number, got {self.clip}")
        if self.t0 is not None and not 1 <= self.t0 <= self.model.timesteps:
            raise ValueError(f"t0 must be in 1..{self.model.timesteps} (the model's timesteps), got {self.t0}")
        accountants.check_budget(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.server_rounds < 1:
            raise ValueError(f"server_rounds must be at least 1, got {self.server_rounds}")
        _ = self.depth

    @cached_property
    def depth(self) -> int:
        """t_0. Raises ValueError when no depth, or not the given one, keeps to the budget."""
        if self.epsilon is None:
            return self.t0 or 1
        needed = accountants.depth(
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            alphas_bar=self.model.abar,
            accountant=self.accountant,
        )
        if self.t0 is not None and self.t0 < needed:
            raise ValueError(
                f"t0 = {self.t0} spends more than epsilon = {self.epsilon:g} at clip {self.clip:g}, "
                f"delta {self.delta:g} ({self.accountant} accountant): it must be at least {needed}"
            )
        return self.t0 or needed

    @property
    def rounds(self) -> int:
        """One upload, then the server alone."""
        return 1 + self.server_rounds

    @property
    def participating_rounds(self) -> int:
        """Clients take part once."""
        return 1

    @property
    def init_key(self) -> Hashable:
        """Client models depend on neither epsilon nor t0."""
        return ("clipped mixture", self.model, self.local, self.clip)

    def init_server(self, rng: torch.Generator) -> Params:
        """w."""
        return tree.prefixed("model", self.model.init(rng))

    def init_client(self, data: Records, rng: torch.Generator) -> Params:
        """Stage 1, line 1: z_{theta_m} = T-DDPM(D_m, T, beta, theta_m)."""
        return fit_mixture(self.model, data.images, data.labels, clip=self.clip, training=self.local, rng=rng)[0]

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Stage 1, the rest: one clipped and noised copy of each record, with its labels."""
        if rnd.number > 0:
            return LocalResult(state, nothing())
        norms = data.images.flatten(1).norm(dim=1)
        metrics = {"upload/clipped_fraction": float((norms > self.clip).float().mean())}
        return LocalResult(state, self._release(data, rnd), metrics)

    def _release(self, data: Records, rnd: Round) -> Release:
        public = {"labels": data.labels}
        if self.epsilon is None:
            return disclose({"x": data.images, **public}, "images sent as they are")
        if rnd.noise is None:
            raise ValueError("PFDM's upload needs the round's noise stream")
        abar = float(self.model.abar[self.depth])
        return gaussian_records(
            data.images,
            clip=self.clip,
            scale=math.sqrt(abar),
            std=math.sqrt(1 - abar),
            noise=rnd.noise,
            records=range(len(data)),
            public=public,
        )

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Round 0: Dtilde = union of the uploads. Later: z_w trains on Dtilde as if it were clean (stage 2)."""
        if rnd.number == 0:
            sent = [u.release.value for u in uploads]
            pool = {k: torch.cat([value[k] for value in sent]) for k in ("x", "labels")}
            return {**server, **tree.prefixed(f"{HELD}/pool", pool)}, {"server/pooled": float(len(pool["x"]))}, []
        first, steps = span(self.server.steps, self.server_rounds, rnd.number - 1)
        params, moments, loss = fit(
            self.model,
            tree.under("model", server),
            server[f"{HELD}/pool/x"],
            server[f"{HELD}/pool/labels"],
            training=self.server,
            rng=rnd.rng,
            first=first,
            steps=steps,
            moments=tree.under(f"{HELD}/moments", server),
        )
        after = {**tree.prefixed("model", params), **tree.prefixed(f"{HELD}/moments", moments)}
        return {**server, **after}, {"server/loss": loss}, []

    def deploy(self, server: Params, state: Params, data: Records, rng: torch.Generator) -> Deployed:
        """Algorithm 2: the global chain gives x_{t0}, the client's own chain takes it to x_0, flag = unclipped."""
        model, t0 = self.model, self.depth
        z_w = model.denoiser(tree.under("model", server))
        z_m = with_clipped_flag(model).denoiser(state, fixed=(0,))
        stop, reach = t0 if self.epsilon is None else 0, self._reach

        def sample(labels: Tensor, rng: torch.Generator) -> Tensor:
            x = torch.randn(len(labels), *model.shape, generator=rng)
            x = self.sampling.run(model, z_w, x, labels=labels, start=model.timesteps, stop=stop, bound=reach, rng=rng)
            return self.client_sampling.run(model, z_m, x, labels=labels, start=t0, bound=1.0, rng=rng)

        return Deployed(sample, {"client": z_m, "global": z_w}, model.timesteps, model.abar)

    def shared(self, server: Params) -> Shared:
        """The global denoiser's own samples: x_{t0}, as noisy as what it was trained on, scaled into [-1, 1].

        Nothing but a client's denoiser takes the noise off; divided by `sqrt(abar)` they are unbiased, and the noisier
        the smaller epsilon is.
        """
        model, abar, reach = self.model, self._abar, self._reach
        z_w = model.denoiser(tree.under("model", server))

        def sample(labels: Tensor, rng: torch.Generator) -> Tensor:
            x = torch.randn(len(labels), *model.shape, generator=rng)
            return self.sampling.run(model, z_w, x, labels=labels, start=model.timesteps, bound=reach, rng=rng) / reach

        about = "images of the global denoiser"
        if self.epsilon is not None:
            about = (
                f"x_t0 of the global denoiser at t0 = {self.depth}, divided by {reach:.6g}: still noised, x_t0 = "
                f"{math.sqrt(abar):.6g} x + {math.sqrt(1 - abar):.6g} z of images x clipped to norm {self.clip:g}"
            )
        return Shared(sample, about)

    @property
    def _abar(self) -> float:
        """abar of what the server trains on: 1 where the images are sent as they are."""
        return 1.0 if self.epsilon is None else float(self.model.abar[self.depth])

    @property
    def _reach(self) -> float:
        """The range of what the server trains on: the data's range plus 4 standard deviations of the noise."""
        return math.sqrt(self._abar) + 4 * math.sqrt(1 - self._abar)
