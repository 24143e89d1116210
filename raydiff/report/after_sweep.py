"""A sweep's report at its end, and the description of its run in MLflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydiff.report import load, page
from raydiff.report.frontier import command as frontier
from raydiff.report.sections.conclusion import means, summary
from raydiff.report.sweep_view import open_sweep
from raydiff.runtime.launch import Reporter
from raydiff.runtime.sweep_folder import resume_command


def write(folder: Path, composed: Callable[[Path], str]) -> str:
    """Write table, picture and page, and print where they are; returns the table. An error here fails no sweep."""
    table, out = "", folder / "report"
    for message in load.cut_short(folder):
        print(message)
    try:
        table = frontier.write(folder, out)
        print(f"\n{table}\n{composed(folder)}" + (f"\nplot: {png}" if (png := out / "frontier.png").exists() else ""))
    except (ValueError, OSError) as e:
        print(f"no table: {e}")
    try:
        print(f"report: {page.write(out, folder)}")
    except Exception as e:
        print(f"no report: {type(e).__name__}: {e}")
    return table


def describe(folder: Path, table: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """(Markdown that MLflow shows of the sweep's own run; of each setting its means over seeds)."""
    try:
        view = open_sweep(folder)
        paragraphs, lines = summary(view)
        conclusion, numbers = "\n\n".join([*paragraphs, "\n".join(f"- {line}" for line in lines)]), means(view)
    except Exception as e:  # Its trials are done and recorded.
        conclusion, numbers = f"Nothing to report: {type(e).__name__}: {e}", {}
    blocks = [conclusion, f"```\n{table}\n```" if table else "", f"To continue: `{resume_command(folder.name)}`"]
    return "\n\n".join(filter(None, blocks)), numbers


SUMMARY = Reporter(describe)
FULL = Reporter(describe, write)
