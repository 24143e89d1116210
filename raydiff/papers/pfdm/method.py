"""PFDM: personalised federated diffusion with local differential privacy (Patel et al., CVPR 2026, arXiv 2504.00952).

Each client trains a denoiser, and sends its images once, clipped and noised to depth t0 of the forward process.
The server trains a global denoiser on these noisy images as if they were clean. To sample, the global denoiser makes
an x_{t0}, and the client's denoiser takes it from t0 to 0.

Adversary: an honest-but-curious server that sees every upload. Unit of privacy: one record (replace-one, local trust).
Covered: the upload and all that is computed from it, the global denoiser above all. Not covered: the client's
denoiser and what it samples; labels and the number of records, which are public by declaration.

| paper | here |
|---|---|
| z_{theta_m}, Algorithm 1 stage 1 | `init_client`, `local` |
| CLIP(x, C), t_0 | `clip`, `depth` (`t0`, or solved from `epsilon`, `delta`) |
| Dtilde, z_w, stage 2 | the server's `server_only/pool/` and `model/`; `server`, `server_rounds` |
| Algorithm 2 | `deploy`; `sampling` for the server's chain, `client_sampling` for the client's |

`start` replaces the global denoiser by another model of the same uploads, or by a control (`controls`).

Deviations and choices where the paper is silent:

- The client's denoiser trains on all T timesteps (as Algorithm 1 has it), so sampling it from pure noise is the
  non-collaborative baseline.
- Clipped and unclipped images are mixed half and half; all t0 refinement steps have the flag "unclipped" (appendix D).
- The published depths follow from Theorem 5.1 only when rounded down, which overspends; here the depth is the smallest
  whose epsilon under `accountant` stays within the budget.
- sigma_t^2 = beta_t. The predicted x_0 is clamped to the range of the data (noisy images: plus 4 standard deviations).
- On noisy images log-normal levels of the global denoiser have another mean, chosen on validation records
  (docs/results/recipe.md): those of clean pictures are at noise that these images have already.
- `epsilon=None` sends the images as they are and cuts one chain at t0, by default 1: CollaFuse (arXiv 2406.14429), the
  non-private limit.
- The paper's pixels are on [0, 1]: its clip C is 2 C around black (`center black`) on [-1, 1]. `center public` clips
  around the mean of the public records: a smaller norm, so a smaller depth for the same epsilon.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Center, Records, clip_center
from raydiff.federated.method import SERVER_ONLY, Deployed, LocalResult, Method, Metrics, Round, Target, Upload, Uploads
from raydiff.federated.upload_spec import TensorSpec, UploadSpec
from raydiff.methods.localonly import LocalOnly
from raydiff.models.ddpm import DDPM
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training, fit, with_clipped_flag
from raydiff.papers.pfdm import controls
from raydiff.papers.pfdm.depth import depth_for
from raydiff.papers.pfdm.noised_copies import NoisedCopies
from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Nothing, nothing
from raydiff.settings import Count, Positive, settings
from raydiff.tree import Params

MOMENTS = f"{SERVER_ONLY}/moments"
"""The optimiser's, in the server's state below this prefix."""
NOISY_MEAN = 0.9  # of ln(sigma) in training on noisy images


@settings(frozen=True, kw_only=True)
class PFDM(Method):
    """Algorithm 1 (training) and Algorithm 2 (sampling).

    Raises:
        ValueError: If no depth keeps to the budget, or `start` and `epsilon` exclude each other.

    Examples:
        >>> method = rd.PFDM(epsilon=10.0, clip=15.0)
        >>> method.depth  # t_0: the smallest within the budget, of T = 1000
        732
        >>> method.upload_event(records=100, round_number=0).unit
        'example'
    """

    model: DDPM = DDPM()
    """Network and schedule of both denoisers; the client's has one condition more, the clipped flag."""
    epsilon: accountants.Epsilon | None = 10.0
    """Privacy budget of one record's upload; None sends the images without protection."""
    delta: accountants.Delta = 1e-5
    """The delta that goes with it."""
    clip: Positive = 15.0
    """C: L2 norm to which each flattened image is clipped. A public number: never take it from private data."""
    center: Center = "grey"
    """Clip around grey (0 on [-1, 1]), around black (-1) or around the mean of the public records."""
    t0: Count | None = None
    """Depth of the noise and of the hand-over. Default, and minimum: the smallest within the budget."""
    accountant: accountants.Accountant = "exact"
    """Which bound turns the noise into an epsilon: exact, rdp or theorem."""
    local: Training = Training()
    """Training of each client's denoiser, on its images and their clipped copies."""
    server: Training = Training()
    """Training of the global denoiser."""
    start: controls.Start = "denoiser"
    """What gives x_{t0}: denoiser, the global denoiser; gaussian, noise, real, shuffled: a control."""
    local_parts: Count = 1
    """Pieces into which a client's training is cut; each is kept, so that a crash loses one at most."""
    server_rounds: Count = 4
    """Rounds of equal length into which the server's training is cut, so that it can be resumed."""
    sampling: Sampling = Sampling()
    """The server's chain, T to 0 (or to t0 when epsilon is None)."""
    client_sampling: Sampling = Sampling()
    """The client's chain, t0 to 0."""

    participating_rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.t0 is not None and self.t0 > self.model.timesteps:
            raise ValueError(f"t0 must be in 1..{self.model.timesteps} (the model's timesteps), got {self.t0}")
        if self.start == "gaussian" and self.epsilon is None:
            raise ValueError("start = gaussian takes the noise out of the uploads: it needs an epsilon")
        if self.start == "real" and self.epsilon is not None:
            raise ValueError("start = real sends the pictures as they are: epsilon must be none, and t0 the depth")
        _ = self._alone, self.depth

    @cached_property
    def depth(self) -> int:
        """t_0. Raises ValueError when no depth, or not `t0`, keeps to the budget."""
        if self.epsilon is None:
            return self.t0 or 1
        budget = {"epsilon": self.epsilon, "delta": self.delta, "clip": self.clip}
        return depth_for(**budget, alphas_bar=self.model.abar, accountant=self.accountant, t0=self.t0)

    @cached_property
    def _copies(self) -> NoisedCopies:
        return NoisedCopies(self.clip, None if self.epsilon is None else float(self.model.abar[self.depth]))

    @cached_property
    def _alone(self) -> LocalOnly:
        fields = ("model", "local", "local_parts", "clip", "center")
        return LocalOnly(**{name: getattr(self, name) for name in fields})

    @property
    def _trains(self) -> bool:
        """Whether the server trains a denoiser."""
        return self.start in ("denoiser", "shuffled")

    @property
    def global_model(self) -> DDPM:
        """What the server trains: at higher noise where its images are noisy."""
        return self.model if self.epsilon is None else replace(self.model, lognormal_mean=NOISY_MEAN)

    @property
    def rounds(self) -> int:
        """One upload, then the server's training."""
        return 1 + self.server_rounds * self._trains

    @property
    def init_key(self) -> Hashable:
        """Client models depend on neither epsilon nor t0."""
        return self._alone.init_key

    @property
    def init_parts(self) -> int:
        """Pieces of a client's training."""
        return self.local_parts

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """w, and the center of the clipping where there is one."""
        model = tree.prefixed("model", self.model.init(rng)) if self._trains else {}
        center = clip_center(self.center, public)
        return model if center is None else {**model, "center": center}

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """Stage 1, line 1: z_{theta_m} = T-DDPM(D_m, T, beta, theta_m)."""
        return self._alone.init_client(state, data, public, rnd)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Stage 1, the rest: one clipped and noised copy of each record, with its labels."""
        center = server.get("center")
        metrics = {"t0": float(self.depth)}
        if rnd.number > 0 or self.start == "noise":
            return LocalResult(state, nothing(), metrics)
        norms = (data.images if center is None else data.images - center).flatten(1).norm(dim=1)
        metrics["upload/clipped_fraction"] = float((norms > self.clip).float().mean())
        return LocalResult(state, self._copies.release(data, center, rnd.noise), metrics)

    def upload_event(self, records: int, round_number: int) -> Event:
        """One upload, in round 0."""
        return Nothing() if round_number > 0 or self.start == "noise" else self._copies.event

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        """An image and its labels for each record, or nothing."""
        if self.start == "noise":
            return UploadSpec()
        values = tuple(map(range, self.model.labels)) if self.model.conditional else ()
        labels = TensorSpec((examples, len(values) if self.model.conditional else "columns"), torch.int64, values)
        return UploadSpec({"x": TensorSpec((examples, *self.model.shape), torch.float32), "labels": labels})

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Round 0: Dtilde = union of the uploads. Later: z_w trains on Dtilde as if it were clean (stage 2)."""
        if rnd.number == 0:
            sent = [u.release.value for u in uploads]
            if self.start == "noise":
                return server, {}, []
            pool = {k: torch.cat([value[k] for value in sent]) for k in ("x", "labels")}
            after = controls.pool_uploads(self.start, pool, noise_std=self._copies.std, rng=rnd.rng)
            return {**server, **after}, {"server/pooled": float(len(pool["x"]))}, []
        w, moments, pool = (tree.under(name, server) for name in ("model", MOMENTS, controls.POOL))
        x = pool["x"]
        y = pool["labels"]
        steps = self.server.of(len(pool["x"])).part(rnd.number - 1, self.server_rounds)
        w, moments, loss = fit(
            self.global_model, w, x, y, training=self.server, rng=rnd.rng, steps=steps, moments=moments
        )
        return {**server, **tree.prefixed("model", w), **tree.prefixed(MOMENTS, moments)}, {"server/loss": loss}, []

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """Algorithm 2: the global chain gives x_{t0}, the client's chain takes it to x_0, flag = unclipped."""
        model = self.model
        t0 = self.depth
        copies = self._copies
        z_w = model.denoiser(tree.under("model", server)) if self._trains else None
        stop = t0 if state is not None and self.epsilon is None else 0

        def x_t0(labels: Tensor, rng: torch.Generator) -> Tensor:
            if z_w is None:
                return controls.x_t0(self.start, server, labels, model=model, depth=t0, rng=rng)
            x = torch.randn(len(labels), *model.shape, generator=rng)
            T = model.timesteps
            return self.sampling.run(model, z_w, x, labels=labels, start=T, stop=stop, bound=copies.reach, rng=rng)

        if state is None:
            return controls.deploy_server(self.start, x_t0, copies, depth=t0, center=self.center)
        z_m = with_clipped_flag(model).denoiser(state, fixed=(0,))

        def sample(chain: Sampling, labels: Tensor, rng: torch.Generator) -> Tensor:
            return chain.run(model, z_m, x_t0(labels, rng), labels=labels, start=t0, bound=1.0, rng=rng)

        samplers = {name: partial(sample, chain) for name, chain in self.client_sampling.variants().items()}
        targets = {name: Target((z,), model.abar) for name, z in (("client", z_m), ("global", z_w)) if z is not None}
        uploads = None if self.start == "noise" else Uploads(partial(copies.make, server.get("center")))
        return Deployed(samplers, conditional=model.conditional, targets=targets, uploads=uploads)
