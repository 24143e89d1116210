"""Section of the report: the trials' sample grids, made small."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.tables import short
from raydiff.report.html import html
from raydiff.report.sweep_view import Section, SweepView

Grid = tuple[Path, str, str]
"""A picture, its caption, its setting."""

THUMBNAILS = 24
"""Sample grids that are shown unfolded: one of each setting first."""
FOLDED = 240
"""Sample grids in the page altogether."""
SIDE, LARGE_SIDE = 288, 1400
"""Longest side of a thumbnail, and of a picture that stands by itself, pixels."""
LARGE = 4
"""Settings up to which each one's picture stands by itself."""


def samples(sweep: SweepView, out: Path) -> Section:
    """Thumbnails of the sample grids: the first seed of each setting, the others folded."""
    grids: list[Grid] = [
        (path, setting if pd.isna(seed) else f"{setting}, seed {short(seed)}", setting)
        for digest, setting, seed in zip(sweep.runs["digest"], sweep.settings, sweep.trials["seed"], strict=True)
        if (path := sweep.trial(str(digest)) / "artifacts" / "samples.png").exists()
    ]
    if not grids:
        return Section([])
    grids.sort(key=lambda grid: (sweep.order.index(grid[2]), grid[1]))
    firsts = {grid[2]: grid for grid in reversed(grids)}
    first = [grid for grid in grids if grid in firsts.values()][:THUMBNAILS]
    rest = [grid for grid in grids if grid not in first][: FOLDED - len(first)]
    side = SIDE if len(first) > LARGE else LARGE_SIDE
    pictures = [_thumbnail(*grid, side=side) for grid in first]
    blocks = pictures if len(first) <= LARGE else [html.thumbnails(pictures)]
    if rest:
        folded = html.thumbnails([_thumbnail(*grid, side=SIDE) for grid in rest])
        blocks.append(html.folded(f"{len(rest)} more", [folded]))
    if left := len(grids) - len(first) - len(rest):
        blocks.append(html.paragraph(f"{left} more are in the trials' folders, as artifacts/samples.png."))
    return Section(blocks)


def _thumbnail(path: Path, caption: str, _: str, *, side: int) -> Any:
    """The picture made smaller, with what its file says of privacy."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            privacy = image.info.get("privacy", "not recorded")
            small = image.convert("RGB")
            small.thumbnail((side, side))
            buffer = io.BytesIO()
            small.save(buffer, "WEBP", quality=80, method=4)
    except (UnidentifiedImageError, OSError):
        return html.paragraph(f"{caption}: the picture cannot be read.")
    words = f"{caption}; privacy: {privacy}"
    return html.picture(buffer.getvalue(), alt=f"samples of {caption}", caption=words, kind="webp")
