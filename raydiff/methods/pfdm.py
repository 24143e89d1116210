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

`start` replaces the global denoiser: by another model of the same uploads, or by a control that a comparison needs.

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
- `center` clips around the mean of the public records: a smaller clip norm, so a smaller depth for the same epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, get_args

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records, public_mean
from raydiff.federated.method import HELD, Denoiser, Deployed, LocalResult, Metrics, Round, Sampler, Shared, Upload
from raydiff.models import class_gaussians
from raydiff.models.ddpm import DDPM, Sampling
from raydiff.models.training import Training, fit, fit_part, span, with_clipped_copies, with_clipped_flag
from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing, Release, disclose, gaussian_records, nothing
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

Start = Literal["denoiser", "gaussian", "noise", "shuffled"]
AS_THEY_ARE = "images sent as they are"


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
    center: bool = False
    """Clip around the mean of the public records instead of around 0."""
    t0: int | None = None
    """Depth of the noise and of the hand-over. Default: the smallest within the budget; a given one must be too."""
    accountant: accountants.Accountant = "exact"
    """Which bound turns the noise into an epsilon: exact, rdp or theorem."""
    local: Training = Training()
    """Training of each client's denoiser."""
    server: Training = Training()
    """Training of the global denoiser."""
    start: Start = "denoiser"
    """What gives x_{t0}. denoiser: the global denoiser; gaussian: a Gaussian for each class, fitted to the uploads and
    freed of their noise; noise: pure noise, nothing is sent; shuffled: a global denoiser trained with labels that say
    nothing."""
    local_parts: int = 1
    """Pieces into which a client's training is cut; each is kept, so that a crash loses one at most."""
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
        if self.local_parts < 1:
            raise ValueError(f"local_parts must be at least 1, got {self.local_parts}")
        if self.start not in get_args(Start):
            raise ValueError(f"start must be one of {', '.join(get_args(Start))}, got {self.start!r}")
        if self.start == "gaussian" and self.epsilon is None:
            raise ValueError("start = gaussian takes the noise out of the uploads: it needs an epsilon")
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
        """One upload, then the server alone, if it has something to train."""
        return 1 + self.server_rounds * self._trains

    @property
    def _trains(self) -> bool:
        return self.start in ("denoiser", "shuffled")

    @property
    def participating_rounds(self) -> int:
        """Clients take part once."""
        return 1

    @property
    def init_key(self) -> Hashable:
        """Client models depend on neither epsilon nor t0."""
        return (self.model, self.local, self.local_parts, self.clip, self.center)

    @property
    def init_parts(self) -> int:
        """Pieces of a client's training."""
        return self.local_parts

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """w, and the center of the clipping where there is one."""
        model = tree.prefixed("model", self.model.init(rng)) if self._trains else {}
        return {**model, "center": public_mean(public)} if self.center else model

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """Stage 1, line 1: z_{theta_m} = T-DDPM(D_m, T, beta, theta_m)."""
        center = public_mean(public) if self.center else None
        images, labels = with_clipped_copies(data.images, data.labels, clip=self.clip, center=center)
        flagged, part = with_clipped_flag(self.model), {"part": rnd.number, "parts": self.local_parts}
        return fit_part(flagged, state, images, labels, training=self.local, rng=rnd.rng, **part)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Stage 1, the rest: one clipped and noised copy of each record, with its labels."""
        if rnd.number > 0 or self.start == "noise":
            return LocalResult(state, nothing(), {"t0": float(self.depth)})
        center = server.get("center")
        norms = (data.images if center is None else data.images - center).flatten(1).norm(dim=1)
        clipped = float((norms > self.clip).float().mean())
        metrics = {"t0": float(self.depth), "upload/clipped_fraction": clipped}
        return LocalResult(state, self._release(data, center, rnd.noise), metrics)

    def _release(self, data: Records, center: Tensor | None, noise: NoiseStream | None) -> Release:
        public = {"labels": data.labels}
        if self.epsilon is None:
            return disclose({"x": data.images, **public}, AS_THEY_ARE)
        if noise is None:
            raise ValueError("PFDM's upload needs the round's noise stream")
        abar = float(self.model.abar[self.depth])
        return gaussian_records(
            data.images,
            clip=self.clip,
            scale=math.sqrt(abar),
            std=math.sqrt(1 - abar),
            noise=noise,
            records=range(len(data)),
            public=public,
            center=center,
        )

    def upload_event(self, records: int, number: int) -> Event:
        """One upload, in round 0."""
        if number > 0 or self.start == "noise":
            return Nothing()
        if self.epsilon is None:
            return NonPrivate(AS_THEY_ARE)
        abar = float(self.model.abar[self.depth])
        ratio = math.sqrt(1 - abar) / (2 * self.clip * math.sqrt(abar))
        return Gaussian(ratio, "example", "replace_one", "local", declared=("labels",))

    def objection(self, server: Params, upload: Upload, number: int) -> str | None:
        """An image and its labels for each record, or nothing."""
        value = upload.release.value
        if self.start == "noise":
            return tree.unlike(value, {})
        rows, known = upload.examples, self.model.labels if self.model.conditional else None
        columns = len(known) if known is not None else value["labels"].shape[-1] if "labels" in value else 0
        wanted = {"x": ((rows, *self.model.shape), torch.float32), "labels": ((rows, columns), torch.int64)}
        if (unlike := tree.unlike(value, wanted)) or known is None:
            return unlike
        labels = value["labels"]
        inside = bool(((labels >= 0) & (labels < torch.tensor(known))).all())
        return None if inside else "it has labels that there are not"

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Round 0: Dtilde = union of the uploads. Later: z_w trains on Dtilde as if it were clean (stage 2)."""
        if rnd.number == 0:
            sent = [u.release.value for u in uploads]
            if self.start == "noise":
                return server, {}, []
            pool = {k: torch.cat([value[k] for value in sent]) for k in ("x", "labels")}
            if self.start == "shuffled":
                pool["labels"] = pool["labels"][torch.randperm(len(pool["labels"]), generator=rnd.rng)]
            after = tree.prefixed(f"{HELD}/pool", pool)
            if self.start == "gaussian":
                after = tree.prefixed("classes", class_gaussians.fit_classes(**pool, noise_std=self._noise_std))
            return {**server, **after}, {"server/pooled": float(len(pool["x"]))}, []
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
        model = self.model
        z_m = with_clipped_flag(model).denoiser(state, fixed=(0,))
        denoisers = {"client": z_m}
        if self._trains:
            denoisers["global"] = model.denoiser(tree.under("model", server))
        stop = self.depth if self.epsilon is None else 0
        hand_over = self._server_chain(server, denoisers.get("global"), stop=stop)

        def sample(chain: Sampling, labels: Tensor, rng: torch.Generator) -> Tensor:
            x = hand_over(labels, rng)
            return chain.run(model, z_m, x, labels=labels, start=self.depth, bound=1.0, rng=rng)

        samplers = {name: partial(sample, chain) for name, chain in self.client_sampling.variants().items()}
        return Deployed(
            samplers,
            denoisers,
            model.timesteps,
            model.abar,
            conditional=model.conditional,
            upload=None if self.start == "noise" else partial(self._uploaded, server.get("center")),
        )

    def _uploaded(self, center: Tensor | None, records: Records, noise: NoiseStream | None) -> Records:
        """Records as a client sends them; without noise, sqrt(abar_{t0}) CLIP(x)."""
        if noise is None and self.epsilon is not None:
            abar = float(self.model.abar[self.depth])
            images = math.sqrt(abar) * tree.clip_records(records.images, self.clip, center)
        else:
            images = self._release(records, center, noise).value["x"]
        return replace(records, images=images)

    def shared(self, server: Params) -> Shared:
        """The global model's own samples: x_{t0}, as noisy as what it was fitted to, scaled into [-1, 1].

        Nothing but a client's denoiser takes the noise off; divided by `sqrt(abar)` they are unbiased, and the noisier
        the smaller epsilon is. Raises ValueError where there is no global model.
        """
        if self.start == "noise":
            raise ValueError("the clients of this run were on their own: the server has no model")
        z_w = self.model.denoiser(tree.under("model", server)) if self._trains else None
        draw, reach = self._server_chain(server, z_w, stop=0), self._reach
        about = "images of the global denoiser"
        if self.epsilon is not None:
            std, around = self._noise_std, " around the public mean" if self.center else ""
            about = (
                f"x_t0 of the global model at t0 = {self.depth}, divided by {reach:.6g}: still noised, x_t0 = "
                f"{math.sqrt(1 - std**2):.6g} x + {std:.6g} z of images x clipped{around} to norm {self.clip:g}"
            )
        about += "; labels say nothing: they were shuffled" if self.start == "shuffled" else ""
        return Shared(lambda labels, rng: (draw(labels, rng) / reach).clamp(-1, 1), about)

    def _server_chain(self, server: Params, z_w: Denoiser | None, *, stop: int) -> Sampler:
        """What gives x_{t0}."""
        model, std, reach = self.model, self._noise_std, self._reach

        def draw(labels: Tensor, rng: torch.Generator) -> Tensor:
            if self.start == "gaussian":
                return class_gaussians.draw(tree.under("classes", server), labels, noise_std=std, rng=rng)
            x, T = torch.randn(len(labels), *model.shape, generator=rng), model.timesteps
            if z_w is None:
                return x
            return self.sampling.run(model, z_w, x, labels=labels, start=T, stop=stop, bound=reach, rng=rng)

        return draw

    @property
    def _noise_std(self) -> float:
        """Of the uploads: what the server's model is fitted to."""
        return 0.0 if self.epsilon is None else math.sqrt(1 - float(self.model.abar[self.depth]))

    @property
    def _reach(self) -> float:
        """The uploads' range: the data's plus 4 standard deviations of the noise."""
        return math.sqrt(1 - self._noise_std**2) + 4 * self._noise_std
