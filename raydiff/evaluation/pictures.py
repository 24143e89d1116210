"""Sample grids as PNG files that say what is guaranteed for the records behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

ROWS = 8  # clients shown
SCALE = 4  # small pictures are enlarged by this


def sample_grid(pictures: Sequence[Tensor], path: Path, *, privacy: str) -> None:
    """One row per client (the first ROWS), one column per picture; pictures (n, C, H, W) on [-1, 1].

    `privacy` goes into the PNG's text, so that the file carries its guarantee wherever it is copied.
    """
    from PIL import Image, PngImagePlugin

    columns = max(len(p) for p in pictures)
    rows = [_row(p, columns) for p in pictures[:ROWS]]
    grid = torch.cat(rows, dim=1)  # (C, rows * (H + 1), columns * (W + 1))
    pixels = ((grid.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    scale = max(1, SCALE * 8 // pictures[0].shape[-1])
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    text = PngImagePlugin.PngInfo()
    text.add_text("privacy", privacy)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, pnginfo=text)


def _row(pictures: Tensor, columns: int) -> Tensor:
    n, c, h, w = pictures.shape
    row = torch.full((columns, c, h + 1, w + 1), -1.0)
    row[:n, :, :h, :w] = pictures
    return torch.cat(list(row), dim=2)
