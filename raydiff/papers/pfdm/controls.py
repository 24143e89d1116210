"""Controls for PFDM: another source of x_{t0} in place of its global denoiser.

| `start` | source of x_{t0} |
|---|---|
| denoiser | the global denoiser: the paper, no control |
| shuffled | the same, trained with shuffled labels: what the images alone are worth |
| gaussian | a Gaussian for each class, fitted to the uploads without their noise: what two moments are worth |
| real | a perfect server, not private: pictures, sent as they are, noised to t0: what any server is worth |
| noise | pure noise, and nothing is sent: what the clients' denoisers are worth |

CollaFuse (arXiv 2406.14429) is `epsilon = None`.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Center
from raydiff.federated.method import SERVER_ONLY, Deployed, Sampler
from raydiff.models.ddpm import DDPM
from raydiff.papers.pfdm import class_gaussians
from raydiff.papers.pfdm.noised_copies import NoisedCopies
from raydiff.tree import Params

Start = Literal["denoiser", "gaussian", "noise", "real", "shuffled"]
POOL = f"{SERVER_ONLY}/pool"
"""The uploads of all clients, in the server's state below this prefix."""
PICTURES = "pictures"
"""The same for `real`, where the server hands them to every client."""


def pool_uploads(start: Start, pool: Params, *, noise_std: float, rng: torch.Generator) -> Params:
    """The server's leaves from the pooled uploads x (N, C, H, W) and labels (N, K)."""
    if start == "gaussian":
        return tree.prefixed("classes", class_gaussians.fit_classes(**pool, noise_std=noise_std))
    if start == "real":
        return tree.prefixed(PICTURES, pool)
    if start == "shuffled":
        pool = {**pool, "labels": pool["labels"][torch.randperm(len(pool["labels"]), generator=rng)]}
    return tree.prefixed(POOL, pool)


def x_t0(start: Start, server: Params, labels: Tensor, *, model: DDPM, depth: int, rng: torch.Generator) -> Tensor:
    """x_{t0} for these labels (N, K) where the server has no denoiser: (N, C, H, W)."""
    abar = float(model.abar[depth])
    if start == "gaussian":
        return class_gaussians.draw_noised_records(
            tree.under("classes", server), labels, noise_std=math.sqrt(1 - abar), rng=rng
        )
    z = torch.randn(len(labels), *model.shape, generator=rng)
    if start == "noise":
        return z
    pool = tree.under(PICTURES, server)
    drawn = torch.multinomial(class_gaussians.match_labels(labels, pool["labels"]).float(), 1, generator=rng)[:, 0]
    return math.sqrt(abar) * pool["x"][drawn] + math.sqrt(1 - abar) * z


def deploy_server(start: Start, draw: Sampler, copies: NoisedCopies, *, depth: int, center: Center) -> Deployed:
    """The server's model without any client's: x_{t0}, as noisy as what it was fitted to, scaled into [-1, 1].

    Only a client's denoiser removes the noise: divided by sqrt(abar) the samples are unbiased, and the noisier the
    smaller epsilon is. Raises ValueError where the server has no model.
    """
    if start in ("noise", "real"):
        raise ValueError(f"the server of this run has no model of its own: start is {start}")
    about = "images of the global denoiser"
    around = "" if center == "grey" else f" (center: {center})"
    if copies.abar is not None:
        about = (
            f"x_t0 of the global model at t0 = {depth}, divided by {copies.reach:.6g}: still noised, x_t0 = "
            f"{math.sqrt(1 - copies.std**2):.6g} x + {copies.std:.6g} z of images x clipped{around} to norm "
            f"{copies.clip:g}"
        )
    if start == "shuffled":
        about += "; labels say nothing: they were shuffled"
    return Deployed({"global": lambda labels, rng: (draw(labels, rng) / copies.reach).clamp(-1, 1)}, about=about)
