"""Can an upload be turned back into the record behind it? The reconstruction attack on PFDM.

Patel et al., CVPR 2026 (arXiv 2504.00952), appendix D.2: the attacker takes a noised record for x_{t0} and runs a
denoiser from t0 to 0, be it the global one or one that was trained on related public data.

A reconstruction always resembles something of its class. So it is compared with its original and with the nearest other
original, of the same class where there is one: the attack succeeds where the first is nearer.

Shapes: n records, images (n, C, H, W) on [-1, 1].
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from raydiff.federated.method import Metrics

DATA_RANGE = 2.0  # of [-1, 1]
LEAST_MSE = 1e-10  # so that the PSNR of an exact copy is a number, 106 dB

Denoise = Callable[[Tensor, Tensor], Tensor]
"""(uploads (n, C, H, W), labels (n, K)) -> images (n, C, H, W): the attacker's chain from t0 to 0."""


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """How like the originals reconstructions are: means over records.

    `_wrong`: beside the nearest wrong original; `_random`: of reconstructions that know nothing, or no more than the
    class.
    """

    mse: float  # squared error of a pixel, on [-1, 1]: two pictures of opposite pixels have 4
    mse_wrong: float
    psnr: float  # dB: 10 log10(4 / mse) of each record
    psnr_wrong: float
    ssim: float  # structural similarity (Wang et al. 2004), of 1 for equal pictures
    ssim_wrong: float
    closest: float  # fraction of the reconstructions whose nearest original, of all n, is the right one
    closest_random: float
    closest_in_class: float  # the same among the originals of its class, which is public
    closest_in_class_random: float

    def metrics(self, prefix: str) -> Metrics:
        """Flat numbers under `prefix/`."""
        return {f"{prefix}/{name}": float(value) for name, value in asdict(self).items()}


def reconstruct(denoise: Denoise, uploads: Tensor, labels: Tensor) -> Tensor:
    """What the attacker makes of uploads (n, C, H, W) with labels (n, K), clamped to the range of pictures."""
    return denoise(uploads, labels).clamp(-1, 1)


def compare(images: Tensor, originals: Tensor, classes: Tensor) -> Reconstruction:
    """Reconstructions beside the originals (n, C, H, W), row by row; classes (n,).

    Nearest is by squared error; a reconstruction as near to its original as to another counts as right. Raises
    ValueError for fewer than 2 records, other shapes, or pictures that SSIM has no window for.
    """
    n = len(originals)
    if images.shape != originals.shape or len(classes) != n or n < 2:
        raise ValueError(
            f"there must be 2 or more reconstructions, with an original and a class each, got {tuple(images.shape)}, "
            f"{tuple(originals.shape)} and {tuple(classes.shape)}"
        )
    errors = _errors(images, originals)
    right = errors.diagonal()
    same = classes[:, None] == classes[None]
    alone = same.sum(1) == 1
    others = (same | alone[:, None]) & ~torch.eye(n, dtype=torch.bool)
    mse_wrong, wrong = errors.masked_fill(~others, math.inf).min(1)
    in_class = errors.masked_fill(~same, math.inf).min(1).values
    return Reconstruction(
        mse=float(right.mean()),
        mse_wrong=float(mse_wrong.mean()),
        psnr=_psnr(right),
        psnr_wrong=_psnr(mse_wrong),
        ssim=_ssim(images, originals),
        ssim_wrong=_ssim(images, originals[wrong]),
        closest=float((right <= errors.min(1).values).double().mean()),
        closest_random=1 / n,
        closest_in_class=float((right <= in_class).double().mean()),
        closest_in_class_random=float((1 / same.sum(1)).double().mean()),
    )


def _errors(images: Tensor, originals: Tensor) -> Tensor:
    """Mean squared error of every reconstruction and every original: (n, n) float64."""
    x = images.flatten(1).double()
    y = originals.flatten(1).double()
    exact = "donot_use_mm_for_euclid_dist"  # equal distances must come out equal
    return torch.cdist(x, y, compute_mode=exact).square() / x.shape[1]


def _psnr(errors: Tensor) -> float:
    return float((10 * torch.log10(DATA_RANGE**2 / errors.clamp_min(LEAST_MSE))).mean())


def _ssim(images: Tensor, originals: Tensor) -> float:
    from skimage.metrics import structural_similarity

    side = min(images.shape[2:])
    if side < 3:
        raise ValueError(f"SSIM needs pictures of at least 3 pixels a side, got {tuple(images.shape[2:])}")
    how: dict[str, Any] = {"data_range": DATA_RANGE, "channel_axis": 0, "win_size": min(7, side - (side + 1) % 2)}
    pairs = zip(images.double().numpy(), originals.double().numpy(), strict=True)
    return sum(float(structural_similarity(a, b, **how)) for a, b in pairs) / len(images)
