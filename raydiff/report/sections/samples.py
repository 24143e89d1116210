"""Section of the report: the trials' sample grids, a few methods side by side."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.tables import short
from raydiff.report.frontier.rows import is_target_epsilon
from raydiff.report.html import html
from raydiff.report.sections.seeds import compared
from raydiff.report.sweep_view import Section, SweepView

LARGE, FOLDED = 8, 216  # sample grids that are shown large, and folded
SIDES = (768, 288)  # pixels, the longest side of a large grid and of a thumbnail
NOTE = (
    "One grid of each method and target epsilon, of the same clients and data: the best setting by the mean over seeds, "
    "its first seed. A row is a client. Below each the guarantee of these samples, which is not that of the uploads."
)


def samples(sweep: SweepView, out: Path) -> Section:
    """A large grid of each method and target epsilon; the grids of the other trials small and folded."""
    grids = {
        str(digest): (path, setting if pd.isna(seed) else f"{setting}, seed {short(seed)}", sweep.order.index(setting))
        for digest, setting, seed in zip(sweep.runs["digest"], sweep.settings, sweep.trials["seed"], strict=True)
        if (path := sweep.trial(str(digest)) / "artifacts" / "samples.png").exists()
    }
    order = sorted(grids, key=lambda digest: (grids[digest][2], grids[digest][1]))
    best = _best_of_each(sweep)
    first = [digest for digest in order if digest in best or not best][:LARGE]
    parts = (first, SIDES[0]), ([digest for digest in order if digest not in first][:FOLDED], SIDES[1])
    large, small = ([_picture(*grids[digest][:2], side) for digest in part] for part, side in parts)
    blocks = [html.thumbnails(large, large=True), html.paragraph(NOTE, note=True)] if large else []
    return Section([*blocks, html.folded(f"{len(small)} more", [html.thumbnails(small)])] if small else blocks)


def _best_of_each(sweep: SweepView) -> set[str]:
    """Of the first cell, of each method and target epsilon the best setting's first trial."""
    if sweep.measure is None:
        return set()
    trials = compared(sweep)
    trials = trials[trials["cell"] == trials["cell"].iloc[0]]
    targets = [name for name in sweep.fields.values() if is_target_epsilon(name)]
    best = set()
    for _, group in trials.groupby(["method", *targets], dropna=False):
        setting = group.groupby("setting")["value"].mean().idxmin()
        best.add(str(group[group["setting"] == setting].sort_values("seed")["digest"].iloc[0]))
    return best


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
