"""Norms and pictures of the public split, from which clip norms may be chosen. Shapes: N pictures (C, H, W)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from raydiff.data.records import Center, Records, clip_center, public_mean
from raydiff.formats.plots import panels

CLASSES_SHOWN, PICTURES_SHOWN = 48, 6


@dataclass(frozen=True)
class Norms:
    """L2 norms of flattened pictures on [-1, 1], ascending, (N,) each."""

    around: Tensor  # norms of the pictures less the center
    centred: Tensor  # norms of the pictures less their mean
    center: Center  # what clips are around

    @property
    def suggested_clip(self) -> float:
        """The median: half of the public pictures are clipped."""
        return float(self.around.quantile(0.5))

    def clipped(self, clip: float) -> float:
        """The fraction of pictures with a norm above `clip`."""
        return float((self.around > clip).double().mean())


def norms(public: Records, *, center: Center = "grey") -> Norms:
    """The norms of at least one public record."""
    origins = clip_center(center, public), public_mean(public)
    offsets = (public.images - (0 if origin is None else origin) for origin in origins)
    around, centred = (x.flatten(1).norm(dim=1).sort().values for x in offsets)
    return Norms(around, centred, center)


def draw_pictures(public: Records, class_names: Sequence[str], path: Path) -> None:
    """Write a contact sheet as a PNG: the first pictures of each of at most CLASSES_SHOWN classes, with its name."""
    shown, classes = min(len(class_names), CLASSES_SHOWN), public.labels[:, 0]
    columns = 1 if shown <= 5 else 2 if shown <= 20 else 4
    rows, width = math.ceil(shown / columns), min(PICTURES_SHOWN, int(classes.bincount().max()))
    figure, grid = panels(rows, columns, size=(max(0.87 * width, 1.6) * columns, 0.6 + 0.95 * rows))
    more = f" (the first {shown} of {len(class_names)} classes)" if shown < len(class_names) else ""
    figure.suptitle(f"public pictures of each class{more}")
    for place, axes in enumerate(grid.T.flat):
        axes.axis("off")
        if place < shown:
            mine = public.images[classes == place][:width]
            axes.imshow(_strip(mine, width).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            title = class_names[place] + ("" if len(mine) else ": none is public")
            axes.set_title(title, loc="left", fontsize=9, pad=2)
    figure.savefig(path, dpi=120, metadata={"privacy": "public split"})


def _strip(images: Tensor, count: int) -> Tensor:
    """(n <= count, C, H, W) -> (H, count * (W + 1), C) on [0, 1], in a row with white gaps; no axis C where C = 1."""
    channels, height, width = images.shape[1:]
    strip = torch.ones(count, channels, height, width + 1)
    strip[: len(images), :, :, :width] = (images + 1) / 2
    strip = torch.cat(list(strip), dim=2)
    return strip[0] if channels == 1 else strip.permute(1, 2, 0)
