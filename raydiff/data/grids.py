"""Sample grids as PNG files with the guarantee for the records behind them in their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from raydiff.data.picture_files import picture, to_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

ROWS = 8  # clients shown
SCALE = 4  # small pictures are enlarged by this


def sample_grid(
    pictures: Sequence[Tensor], path: Path, *, privacy: str, most: int = ROWS, names: Sequence[str] = ()
) -> None:
    """Write one row per client (the first `most`), one column per picture; pictures (n, C, H, W) on [-1, 1].

    `names` are written before the rows, `privacy` into the PNG's metadata.
    """
    from PIL import PngImagePlugin
    from PIL.Image import Resampling

    columns, (c, h, w) = max(len(p) for p in pictures), pictures[0].shape[1:]
    grid = torch.full((len(pictures[:most]), columns, c, h + 1, w + 1), -1.0)  # with lines between pictures
    for row, p in zip(grid, pictures, strict=False):
        row[: len(p), :, :h, :w] = p
    image = picture(to_bytes(grid.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)))
    scale = max(1, SCALE * 8 // w)
    image = image.resize((image.width * scale, image.height * scale), Resampling.NEAREST)
    if names:
        image = _write_names(image, names[:most])
    text = PngImagePlugin.PngInfo()
    text.add_text("privacy", privacy)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, pnginfo=text)


def _write_names(image: Image, names: Sequence[str]) -> Image:
    """The picture with the rows' names in a left margin."""
    from PIL import Image as images, ImageDraw, ImageFont

    font = ImageFont.load_default(size=12)
    row = image.height // len(names)
    margin = 8 + max(round(font.getlength(name)) for name in names)
    wide = images.new(image.mode, (margin + image.width, image.height))
    wide.paste(image, (margin, 0))
    for i, name in enumerate(names):
        ImageDraw.Draw(wide).text((4, i * row + row // 2), name, font=font, anchor="lm", fill="white")
    return wide
