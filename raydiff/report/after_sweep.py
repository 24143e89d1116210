"""A sweep's report at its end, and the description of its run in MLflow."""

from collections.abc import Callable
from pathlib import Path

from raydiff.formats.tables import Table, number
from raydiff.report import load, page
from raydiff.report.conclusion import conclude, means
from raydiff.report.frontier.text import brief, text
from raydiff.report.guarantees import shown
from raydiff.report.sweep_view import SweepView, open_sweep
from raydiff.runtime.finish import Reporter
from raydiff.runtime.sweep_folder import resume_command
from raydiff.tracking.mlflow_writer import SweepSummary


def print_report(folder: Path, composed: Callable[[Path], str]) -> None:
    """Print the table, write the page, and print where it is. An error here fails no sweep."""
    for message in load.describe_cut_short(folder):
        print(message)
    try:
        view = open_sweep(folder)
        print(f"\n{text(view)}\n{composed(folder)}")
    except (ValueError, OSError) as e:
        print(f"no table: {e}")
        return
    try:
        path = page.write_page(folder / "report", view)
        if view.picture:
            print(f"plot: {path.with_name('frontier.png')}")
        print(f"report: {path}")
    except Exception as e:
        print(f"no report: {type(e).__name__}: {e}")


def summarize_sweep(folder: Path) -> SweepSummary:
    """What MLflow shows of the sweep's own run: conclusions, the frontier, the best trial, means over seeds."""
    again = f"To continue: `{resume_command(folder)}`"
    try:
        view = open_sweep(folder)
        paragraphs, lines = conclude(view)
        conclusion = "\n\n".join([*paragraphs, *(f"- {line}" for line in lines)])
        if view.measure is None or len(view.runs) < 2:
            return SweepSummary(conclusion, again, means(view))
        digest, column, value = view.best
        measure = f"{view.metrics[column].shown or column} ({number(value)})"
        return SweepSummary(conclusion, f"{_list_brief(view)}\n\n{again}", means(view), digest, measure)
    except Exception as e:  # Its trials are done and recorded.
        return SweepSummary(f"Nothing to report: {type(e).__name__}: {e}", again)


def _list_brief(view: SweepView) -> Table:
    """The frontier's six columns."""
    table = brief(view)
    table["epsilon"] = table["epsilon"].map(shown)
    cells = [[value if isinstance(value, str) else number(value) for value in row] for row in table.to_numpy()]
    return Table([*table], cells)


SUMMARY = Reporter(summarize_sweep)
FULL = Reporter(summarize_sweep, print_report)
