"""What a sweep has shown, once it is over: its report, and the description of its run in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydiff.report import load, page
from raydiff.report.frontier import command as frontier
from raydiff.report.sections.conclusion import means, sentences
from raydiff.report.sweep_view import open_sweep
from raydiff.runtime.callbacks import Reporter
from raydiff.runtime.sweep_folder import resume_command


def write(folder: Path, composed: str) -> str:
    """The table, the picture and the page: the trials are done and recorded, so nothing here can fail the sweep. Gives
    the table."""
    table, out = "", folder / "report"
    for unread in load.cut_short(folder):
        print(unread)
    try:
        table = frontier.write(folder, out)
        print(f"\n{table}\n{composed}" + (f"\nplot: {png}" if (png := out / "frontier.png").exists() else ""))
    except (ValueError, OSError) as e:
        print(f"no table: {e}")
    try:
        print(f"report: {page.write(out, folder)}")
    except Exception as e:
        print(f"no report: {type(e).__name__}: {e}")
    return table


def describe(folder: Path, table: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """(what MLflow shows of the sweep's own run, as Markdown; of each setting its means over seeds)."""
    command = f"To go on: `{resume_command(folder.name)}`"
    try:
        view = open_sweep(folder)
        said, *lines = sentences(view)
        says, numbers = "\n".join([said, "", *(f"- {line}" for line in lines)]), means(view)
    except Exception as e:  # As of the page: nothing here can fail a sweep that is done and recorded.
        says, numbers = f"Nothing to report: {type(e).__name__}: {e}", {}
    return "\n\n".join([says, *[f"```\n{table}\n```"] * bool(table), command]), numbers


SUMMARY = Reporter(describe)
FULL = Reporter(describe, write)
