"""A sweep's report at its end, and the description of its run in MLflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydiff.formats.tables import Table, number
from raydiff.report import load, page
from raydiff.report.conclusion import conclude, means
from raydiff.report.frontier import command as frontier
from raydiff.report.frontier.text import brief
from raydiff.report.guarantees import shown
from raydiff.report.sweep_view import open_sweep
from raydiff.runtime.finish import Reporter
from raydiff.runtime.sweep_folder import resume_command
from raydiff.tracking.mlflow_writer import SweepSummary


def write(folder: Path, composed: Callable[[Path], str]) -> None:
    """Write table, picture and page, and print where they are. An error here fails no sweep."""
    out = folder / "report"
    for message in load.cut_short(folder):
        print(message)
    try:
        view = open_sweep(folder)
        table = frontier.write(view, out)
        print(f"\n{table}\n{composed(folder)}")
        if view.picture:
            print(f"plot: {out / 'frontier.png'}")
    except (ValueError, OSError) as e:
        print(f"no table: {e}")
        return
    try:
        print(f"report: {page.write(out, view)}")
    except Exception as e:
        print(f"no report: {type(e).__name__}: {e}")


def describe(folder: Path) -> SweepSummary:
    """What MLflow shows of the sweep's own run: conclusions, the frontier, the best trial, means over seeds."""
    numbers = dict[str, dict[str, Any]]()
    best = ""
    measure = ""
    markdown = ""
    try:
        view = open_sweep(folder)
        paragraphs, lines = conclude(view)
        conclusion = "\n\n".join([*paragraphs, *(f"- {line}" for line in lines)])
        numbers = means(view)
        if view.measure and len(view.runs) > 1:
            table = view.frontier
            table = brief(table).assign(epsilon=table["epsilon"].map(shown))
            cells = [[v if isinstance(v, str) else number(v) for v in row] for row in table.to_numpy()]
            markdown = str(Table([*table], cells))
            best, column, value = view.best
            name = view.metrics[column].shown or column
            measure = f"{name} ({number(value)})"
    except Exception as e:  # Its trials are done and recorded.
        conclusion = f"Nothing to report: {type(e).__name__}: {e}"
    details = f"{markdown}\n\nTo continue: `{resume_command(folder)}`".strip()
    return SweepSummary(conclusion, details, numbers, best, measure)


SUMMARY = Reporter(describe)
FULL = Reporter(describe, write)
