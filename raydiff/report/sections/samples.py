"""Section of the report: the trials' sample grids, those of the best settings side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.tables import short
from raydiff.report.gain_over_local import compared, gains
from raydiff.report.html import html
from raydiff.report.sweep_view import Section, SweepView

GRIDS = {"samples": "", "newcomers": ", clients that joined later"}
"""Name of a trial's sample grid -> whose samples it has."""
LARGE, FOLDED = 8, 216  # sample grids that are shown large, and folded
SIDES = (768, 288)  # pixels, the longest side of a large grid and of a thumbnail
NOTE = (
    "The best setting of each method and target epsilon, of the same clients and data, its first seed; a row is a "
    "client. Below each stands the guarantee of these samples, which is not that of what was sent."
)


def samples(sweep: SweepView, out: Path) -> Section:
    """Large grids of the best settings; the grids of the other trials small and folded."""
    trials = zip(sweep.runs["digest"], sweep.settings, sweep.trials["seed"], strict=True)
    grids = {
        (digest, name): (path, setting + ("" if pd.isna(seed) else f", seed {short(seed)}") + whose)
        for digest, setting, seed in sorted(trials, key=lambda trial: (sweep.order.index(trial[1]), str(trial[2])))
        for name, whose in GRIDS.items()
        if (path := sweep.trial(str(digest)) / "artifacts" / f"{name}.png").exists()
    }
    best = [(digest, name) for digest in _best_trials(sweep) for name in GRIDS]
    first = [grid for grid in best if grid in grids] or [*grids][:LARGE]
    parts = (first, SIDES[0]), ([grid for grid in grids if grid not in first][:FOLDED], SIDES[1])
    large, small = ([_picture(*grids[grid], side) for grid in part] for part, side in parts)
    blocks = [html.thumbnails(large, large=True), html.paragraph(NOTE, note=True)] if large else []
    return Section([*blocks, html.folded(f"{len(small)} more", [html.thumbnails(small)])] if small else blocks)


def _best_trials(sweep: SweepView) -> list[str]:
    """Of the first cell the first trial of the best setting of each method and target epsilon: of many, the best."""
    if sweep.measure is None:
        return []
    trials, rows = compared(sweep).drop_duplicates(["cell", "setting"]), gains(sweep)
    in_cell = rows[rows["cell"] == trials["cell"].iloc[0]].assign(method=rows["arm"].str.partition(", ")[0])
    best = in_cell.sort_values("mean").drop_duplicates(["method", "target"])[:LARGE].sort_values("target")
    return [str(digest) for digest in best.merge(trials, on=["cell", "setting"])["digest"]]


def _picture(path: Path, caption: str, side: int) -> Any:
    """The picture made smaller, with the privacy that its file states."""
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
    caption = f"{caption}; privacy: {privacy}"
    return html.picture(buffer.getvalue(), alt=f"samples of {caption}", caption=caption, kind="webp")
