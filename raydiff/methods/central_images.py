"""Central images: DP-FETA's first stage (Li et al., IEEE S&P 2025, arXiv 2504.01395), for `DPSGD.central`.

In round 0 each client sends the sketch's noised sums of its pictures for each row of labels (`methods.sketch`). The
server trains the denoiser on pictures drawn from them, and DP-SGD goes on from there. Both releases speak of the same
records: the noise of DP-SGD's steps is the smallest at which the composition of all keeps to the budget.

| DP-FETA | here |
|---|---|
| central images, noised means of random samples | the noised mean of each row of labels, over all records |
| sigma of their noise | `share` of the budget |
| pre-training on central images | `training` |

Deviations: one mean of all records for each row, at full resolution, where DP-FETA has several of Poisson samples, at
half the resolution, sharpened and randomly distorted. With `moment` at most 1 the second moment is sent too, for at
most 1.42 times the noise, and the pictures are the sketch's Gaussians; that is not in the paper. Labels and their
counts are public by declaration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from raydiff.lookup import check_positive, check_value
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.moments import Gaussians
from raydiff.models.training import Training, fit
from raydiff.privacy import accountants
from raydiff.privacy.private_gradient import Neighbours
from raydiff.privacy.release import Gaussian
from raydiff.tree import Params

EACH = 1000  # pictures of each row of labels that the server draws to train on, if they differ


@dataclass(frozen=True, kw_only=True)
class CentralImages:
    """What round 0 sends, and what the server makes of it."""

    share: float = 0.05
    """Fraction of the budget, in squared mu of Gaussian DP, that pays for the sums; at most a half."""
    clip: float = 20.0
    """L2 norm to which each flattened picture is clipped, around `origin`. A public number."""
    origin: float = -1.0
    """Value of every pixel around which pictures are clipped, a public number: -1 is black."""
    moment: float = 0.0
    """The sketch's: weight of the second moment; 0: DP-FETA's means alone."""
    training: Training = Training(steps=2000, batch=50)
    """The server's, on pictures drawn from the sums."""

    def __post_init__(self) -> None:
        check_value("share", self.share, 0 < self.share <= 0.5, "in (0, 0.5]")
        check_value("moment", self.moment, 0 <= self.moment < math.inf, "a number >= 0")
        check_positive(self, "clip")

    def sketch(self, model: DDPM, *, epsilon: float | None, delta: float, relation: Neighbours) -> Sketch:
        """Return the method of round 0, whose budget is `share` of this one."""
        if epsilon is not None and epsilon < math.inf:
            mu = math.sqrt(self.share) * accountants.mu_for(epsilon, delta)
            epsilon = accountants.exact([Gaussian(1 / mu, "example", relation, "local")], delta)
        shaped = Gaussians(shape=model.shape, labels=model.labels)
        how = {"clip": self.clip, "origin": self.origin, "moment": self.moment}
        return Sketch(model=shaped, epsilon=epsilon, delta=delta, relation=relation, **how)

    def pretrained(self, model: DDPM, params: Params, sums: Params, rng: torch.Generator) -> tuple[Params, float]:
        """Return (`params` after the server's training, mean loss) on pictures drawn from the sketch's state `sums`."""
        labels = torch.cartesian_prod(*(torch.arange(n) for n in model.labels)).view(-1, len(model.labels))
        labels = labels.repeat(EACH if self.moment else 1, 1)
        pictures = Sketch(model=Gaussians(shape=model.shape, labels=model.labels)).deploy(sums).sample(labels, rng)
        trained, _, loss = fit(model, params, pictures, labels, training=self.training, rng=rng)
        return trained, loss
