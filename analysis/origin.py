"""Where a sweep's numbers come from, as a sentence of markdown."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from raydiff.experiment import presets
from raydiff.formats.json_files import dumps, read_lines
from raydiff.report import load
from raydiff.report.sweep_view import SweepView

LOCAL_OPTIONS = ("--name", "--storage", "--runtime.storage", "--runtime.noise-secret")
"""Options of this machine alone."""


def preset_of(sweep: SweepView) -> str | None:
    """The preset that the sweep's command named; None without such a command."""
    words = _words(sweep)
    if words is None:
        return None
    return words[0] if words and not words[0].startswith("-") else presets.MAIN


def origin_of(sweep: SweepView) -> str:
    """Command, finished trials, their time, day, version and code."""
    git = sweep.about.get("git") or ""
    words = _words(sweep)
    digest = hashlib.sha256(dumps(sweep.about.get("code", {}), sort_keys=True).encode()).hexdigest()
    changed = " and uncommitted changes" * git.endswith("-dirty")
    code = f"commit {git[:12]}{changed}" if git else f"code {digest[:8]}"
    command = "Not by `raydiff sweep`" if words is None else f"`{' '.join(['raydiff sweep', *_published(words)])}`"
    minutes = load.column(sweep.finished, "final/time/seconds").sum() / 60
    lines = [line for digest in sweep.runs["digest"] for line in read_lines(sweep.trial(digest) / "metrics.jsonl")]
    last = max((line["time"] for line in lines), default=None)
    day = "an unknown day" if last is None else time.strftime("%Y-%m-%d", time.gmtime(last))
    count = f"{len(sweep.finished)} of {len(sweep.runs)} trials finished, {minutes:.0f} minutes in all"
    return f"{command}: {count}, on {day}, by raydiff {sweep.about.get('version', '(unknown)')}, {code}."


def _words(sweep: SweepView) -> list[str] | None:
    """The command's words after `raydiff sweep`; None where none was recorded, or another command."""
    program, *words = sweep.about.get("command") or [""]
    if Path(program).name == "sweep.py":
        return list(words)
    return words[1:] if words[:1] == ["sweep"] else None


def _published(words: Sequence[str]) -> list[str]:
    """The words without LOCAL_OPTIONS and their values."""
    values = {i + 1 for i, word in enumerate(words) if word in LOCAL_OPTIONS}
    kept = [word for i, word in enumerate(words) if i not in values]
    return [word for word in kept if word != "--resume" and word.partition("=")[0] not in LOCAL_OPTIONS]
