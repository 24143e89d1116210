"""Sketch: sums of pictures in place of pictures. Two moments of all clients' records, noised once; Gaussians from them.

Each client clips its pictures around a public center and sends their noised sums for each row of labels and the noised
sum of their outer products, once. The server fits a Gaussian for each row of labels with one covariance
(`models.moments`). It is the Gaussian mechanism on sufficient statistics (for second moments Dwork et al. 2014,
"Analyze Gauss"; for both Biswas et al. 2020, arXiv 2006.06618).

Adversary: an honest-but-curious server that sees every upload. Unit of privacy: one record (`relation`, local trust).
Covered: the upload and every sample, except samples that a client's personal denoiser refines (`refine`). Not covered:
labels and numbers of records, which are public by declaration, so that a replaced record keeps its label.

| symbol | here |
|---|---|
| u = CLIP(x - c, C) | `clip`, and the mean of the public records as c where `center` is public |
| S_k = sum of u over row k of labels | the upload's `sums` (R, d) |
| w M = w sum of u u^T | the upload's `second`, with w = `moment` / C |
| n_k | the upload's `counts` (R,), public |
| sigma | sensitivity / mu(`epsilon`, `delta`), by the exact accountant |

**Sensitivity.** A record adds (u to its row's sum, w u u^T to M), M measured by its Frobenius norm, which is what
`moments.pack_outer_products` keeps. Replaced by v of the same label, with s = <u, v>:

    ||u - v||^2 + w^2 ||u u^T - v v^T||^2 = |u|^2 + |v|^2 - 2 s + w^2 (|u|^4 + |v|^4 - 2 s^2)

rises with |u| and |v| at a given s, so that both are C; then it is concave in s, with its peak at s = -1 / (2 w^2).
With m = w C (`moment`) the greatest value is C^2 (2 + 2 m^2 + 1 / (2 m^2)) where m^2 >= 1/2, for u and v at the cosine
-1 / (2 m^2), and else that of antipodes, 4 C^2: up to m^2 = 1/2 the second moment costs nothing, for u and -u have the
same. Its square root is the sensitivity; noise of one sigma on every entry is a Gaussian event of each record. Under
zero-out nothing takes u's place: the move is |u|^2 + w^2 |u|^4 <= C^2 (1 + m^2). With m = 0 only sums are sent.

Choices: one second moment for all rows of labels (R of them would have R times the noise, each over fewer records);
`moment` was chosen on validation records of digits. Only a public center takes the mean out of the second moment.
`refine` is PFDM with the sketch in place of its global denoiser, at any depth, since samples carry no noise of uploads.
"""

import math
from collections.abc import Hashable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Center, Records, clip_center
from raydiff.federated.method import Deployed, Mean, Metrics, Round, Target
from raydiff.methods._noised_sums import NoisedSums, sum_by_row
from raydiff.models import moments
from raydiff.models.ddpm import DDPM
from raydiff.models.moments import Gaussians
from raydiff.models.samplers import Sampling
from raydiff.models.schedules import add_noise
from raydiff.models.training import Training, fit_part, with_clipped_copies, with_clipped_flag
from raydiff.privacy.private_gradient import Neighbours
from raydiff.privacy.release import ROUNDING, Event
from raydiff.settings import Fraction, NonNegative, Positive, settings
from raydiff.tree import Params

SUMS = "sums"
SECOND = "second"


@settings(frozen=True, kw_only=True)
class Sketch(NoisedSums):
    """One noised sum of each client, and Gaussians from all of them.

    Examples:
        >>> rd.Sketch(epsilon=10.0, clip=8.0, moment=0.0).sensitivity
        16.0
    """

    model: Gaussians = Gaussians()
    """Shape of the pictures, and the rows of labels."""
    clip: Positive = 15.0
    """C: L2 norm to which each flattened image is clipped. A public number: never take it from private data."""
    center: Center = "grey"
    """Clip around grey (0 on [-1, 1]), around black (-1) or around the mean of the public records."""
    moment: NonNegative = 1.5
    """w C: weight of the second moment beside the sums when the noise is divided; 0: only the sums are sent, and every
    sample is the mean of its row of labels."""
    relation: Neighbours = "replace_one"
    """What the epsilon speaks of: a record in another's place, or one that counts or not (zero_out)."""

    refine: Fraction = 0.0
    """Depth, as a fraction of T, from which the client's personal denoiser refines a drawn picture; 0: none."""
    denoiser: DDPM = DDPM()
    """Network and schedule of the client's personal denoiser."""
    local: Training = Training()
    """Its training, on the client's images and their clipped copies, as PFDM has it."""
    client_sampling: Sampling = Sampling()
    """The client's chain."""

    what: ClassVar[str] = "sums of images and of their products"
    rounds: ClassVar[int] = 1

    @property
    def sensitivity(self) -> float:
        square = self.moment**2
        replaced = 4.0 if square <= 0.5 else 2 + 2 * square + 1 / (2 * square)
        return self.clip * math.sqrt(1 + square if self.relation == "zero_out" else replaced)

    @property
    def largest(self) -> float:
        # Of u at most C, of w u u^T, times sqrt(2) off the diagonal, at most sqrt(2) w C^2.
        return self.clip * max(1.0, math.sqrt(2) * self.moment)

    @property
    def init_key(self) -> Hashable:
        return (self._personal, self.local, 1, self.clip, self.center, False) if self.refine else None  # LocalOnly's

    @property
    def _personal(self) -> DDPM:
        return self.denoiser.for_data(self.model.shape, self.model.labels)

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """The center of the clipping."""
        center = clip_center(self.center, public)
        return {"center": torch.zeros(self.model.shape) + (0.0 if center is None else center)}

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        """PFDM's personal denoiser, with `refine`."""
        if not self.refine:
            return {}
        center = clip_center(self.center, public)
        copies = with_clipped_copies(data.images, data.labels, clip=self.clip, center=center)
        flagged = with_clipped_flag(self._personal)
        return fit_part(flagged, {}, copies, training=self.local, rng=rnd.rng, part=0, parts=1)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.model.pixels
        return {SUMS: (self.model.rows, d), **({SECOND: (d * (d + 1) // 2,)} if self.moment else {})}

    def add_up(self, server: Params, data: Records) -> tuple[Params, Metrics]:
        """Sums (R, d) and the weighted second moment, packed."""
        offsets = data.images - server["center"]
        clipped = float((tree.norms(offsets) > self.clip).double().mean())
        u = tree.clip_records(offsets, self.clip * (1 - ROUNDING)).flatten(1)
        sums = {SUMS: sum_by_row(u, self.rows_of(data), self.model.rows)}
        if self.moment:
            sums[SECOND] = self.moment / self.clip * moments.pack_outer_products(u)
        return sums, {"upload/clipped_fraction": clipped}

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Gaussians from the sums over all clients, which have M clients' noise."""
        total, counts, std = self.total(uploads)
        weight = self.moment / self.clip
        d = self.model.pixels
        means = total[SUMS] / counts[:, None].clamp_min(1)
        vectors = torch.eye(d)
        scales = torch.zeros(d)
        if weight:
            second = moments.unpack_matrix(total[SECOND] / weight, d)
            means, vectors, scales = moments.estimate_gaussians(
                total[SUMS], second, counts, std=std, second_std=std / weight
            )
        mean = means.float().view(-1, *self.model.shape) + server["center"]
        fitted = {"mean": mean, "vectors": vectors.float(), "scales": scales.float()}
        return {**server, **tree.prefixed("gaussians", fitted)}, {}, []

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """The Gaussians; refined by the client's personal denoiser, if any."""
        about = "images of a Gaussian for each class, fitted to noised sums"
        shared = self.deploy_sampler("gaussian", tree.under("gaussians", server), about)
        if not state:
            return shared
        personal = self._personal
        z_m = with_clipped_flag(self._personal).denoiser(state, fixed=(0,))
        depth = max(1, round(self.refine * personal.timesteps))

        def sample(chain: Sampling, labels: Tensor, rng: torch.Generator) -> Tensor:
            x = shared.samplers["gaussian"](labels, rng)
            x = add_noise(x, torch.randn(x.shape, generator=rng), personal.abar, torch.full((len(x),), depth))
            return chain.run(personal, z_m, x, labels=labels, start=depth, bound=1.0, rng=rng)

        samplers = {name: partial(sample, chain) for name, chain in self.client_sampling.variants().items()}
        return Deployed(samplers, targets={**shared.targets, "client": Target((z_m,), personal.abar)})
