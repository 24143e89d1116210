"""The public split in words and pictures, from which clip norms may be chosen. Shapes: N pictures (C, H, W)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from raydiff.data.records import Center, Records, clip_center, codes_of
from raydiff.data.tables.encode import Column
from raydiff.formats.plots import panels
from raydiff.formats.tables import aligned

CLASSES_SHOWN = 48
PICTURES_SHOWN = 6


def measure_norms(public: Records, center: Tensor | None) -> Tensor:
    """Return the L2 norms (N,) of the flattened pictures on [-1, 1], less the center (None: grey, 0)."""
    offsets = public.images if center is None else public.images - center
    norms: Tensor = offsets.flatten(1).norm(dim=1)
    return norms


def suggest_clip(public: Records, center: Center) -> float:
    """Return the median norm of at least one public record: half of the public pictures are clipped."""
    return float(measure_norms(public, clip_center(center, public)).quantile(0.5))


def describe_norms(public: Records, *, center: Center, clip: float | None) -> str:
    """Return clips by the L2 norms of the flattened public pictures."""
    if not len(public):
        return "suggested clip: none, since data.public is 0; norms of private pictures are not shown"
    centered = "" if center == "public" else f"; {suggest_clip(public, 'public'):.2f} with --method.center public"
    about = f"the median norm of the {len(public)} public pictures{centered}"
    text = f"suggested clip: {suggest_clip(public, center):.2f}, {about}"
    if clip is None:
        return text
    clipped = (measure_norms(public, clip_center(center, public)) > clip).double().mean()
    return f"{text}\nclip {clip:g} clips {clipped:.1%} of the public pictures"


def describe_columns(columns: Sequence[Column], public: Records) -> str:
    """Return what each column was taken for, and public rows by category."""
    lines = []
    for column, codes in zip(columns, codes_of(public.images).T, strict=True):
        counts = codes.bincount(minlength=len(column.categories)).tolist()
        named = (f"{name}: {n}" if len(public) else name for name, n in zip(column.categories, counts, strict=True))
        lines.append((f"  {column.name}", column.kind, textwrap.shorten(", ".join(named), 160, placeholder=" ...")))
    title = f"columns, what each was taken for, and the {len(public)} public rows by category:"
    return "\n".join([title, *aligned(lines)])


def draw_pictures(public: Records, class_names: Sequence[str], path: Path) -> None:
    """Write a contact sheet as a PNG: the first pictures of each of at most CLASSES_SHOWN classes, with its name."""
    shown = min(len(class_names), CLASSES_SHOWN)
    classes = public.labels[:, 0]
    columns = next(count for most, count in ((5, 1), (20, 2), (CLASSES_SHOWN, 4)) if shown <= most)
    rows = math.ceil(shown / columns)
    width = min(PICTURES_SHOWN, int(classes.bincount().max()))
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
