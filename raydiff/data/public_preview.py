"""The public split in words and pictures, from which clip norms may be chosen. Shapes: N pictures (C, H, W)."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from raydiff.data.picture_files import sample_grid
from raydiff.data.records import Center, Records, clip_center, codes_of
from raydiff.data.tables.encode import Column
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
    text = (
        f"suggested clip: {suggest_clip(public, center):.2f}, the median norm of the {len(public)} public "
        f"pictures{centered}"
    )
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
    return "\n".join(
        [f"columns, what each was taken for, and the {len(public)} public rows by category:", *aligned(lines)]
    )


def draw_pictures(public: Records, class_names: Sequence[str], path: Path) -> None:
    """Write the first pictures of each of at most CLASSES_SHOWN classes as a PNG, a row for each class."""
    rows: dict[str, Tensor] = {}
    for c, name in enumerate(class_names[:CLASSES_SHOWN]):
        images = public.images[public.labels[:, 0] == c][:PICTURES_SHOWN]
        rows[name if len(images) else f"{name}: none is public"] = images
    sample_grid(list(rows.values()), path, privacy="public split", most=len(rows), names=list(rows))
