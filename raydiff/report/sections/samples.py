"""Section of the report: the trials' sample grids, made small."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.tables import short
from raydiff.report.html import html
from raydiff.report.sweep_view import Section, SweepView

THUMBNAILS, FOLDED = 24, 216  # sample grids that are shown unfolded, one of each setting first, and folded
SIDE = 288  # pixels, the longest side of a thumbnail


def samples(sweep: SweepView, out: Path) -> Section:
    """Thumbnails of the sample grids: the first seed of each setting, the others folded."""
    grids = [
        (path, setting if pd.isna(seed) else f"{setting}, seed {short(seed)}", setting)
        for digest, setting, seed in zip(sweep.runs["digest"], sweep.settings, sweep.trials["seed"], strict=True)
        if (path := sweep.trial(str(digest)) / "artifacts" / "samples.png").exists()
    ]
    grids.sort(key=lambda grid: (sweep.order.index(grid[2]), grid[1]))
    first = [grid for i, grid in enumerate(grids) if grid[2] not in {g[2] for g in grids[:i]}][:THUMBNAILS]
    rest = [grid for grid in grids if grid not in first][:FOLDED]
    shown, folded = (html.thumbnails([_thumbnail(path, text) for path, text, _ in part]) for part in (first, rest))
    blocks = [shown] if first else []
    return Section([*blocks, html.folded(f"{len(rest)} more", [folded])] if rest else blocks)


def _thumbnail(path: Path, caption: str) -> Any:
    """The picture made smaller, with the privacy that its file states."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            privacy = image.info.get("privacy", "not recorded")
            small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            buffer = io.BytesIO()
            small.save(buffer, "WEBP", quality=80, method=4)
    except (UnidentifiedImageError, OSError):
        return html.paragraph(f"{caption}: the picture cannot be read.")
    caption = f"{caption}; privacy: {privacy}"
    return html.picture(buffer.getvalue(), alt=f"samples of {caption}", caption=caption, kind="webp")
