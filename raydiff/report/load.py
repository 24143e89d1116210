"""A sweep's folder as two tables: `runs` has one row per trial, `rounds` one row per number and round.

Columns of `runs`:

    digest, outcome, reason      outcome: finished, stopped, failed, killed or unfinished
    method, method.epsilon, ...  the config: the class name of each part, then its fields; lists as JSON
    server/epsilon, ...          the guarantee against the server; outsiders/... against everyone else
    final/...                    the final numbers; without them, the privacy and bytes of the last recorded round
    last/validation/...          the last distances on the validation split
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import json_files
from raydiff.formats.json_files import dumps, read_number
from raydiff.formats.metric_records import CUMULATIVE, SECONDS, Metric, read_metrics, sum_over_rounds
from raydiff.storage.file_names import NAMES, strays
from raydiff.storage.storage import storage_at

Row = dict[str, Any]
STORAGE = Path("~/raydiff")  # as `Runtime.storage`

VIEWS = ("server", "outsiders")
"""Whom a guarantee holds against."""
UNRECORDED = "metrics.jsonl lacks rounds in which something was sent"


def runs(sweep: Path) -> pd.DataFrame:
    """One row per trial, by digest. Raises ValueError where there is no trial or a file is damaged."""
    frame = pd.DataFrame([_run(folder) for folder in _trials(sweep)])
    parts = ("server/", "outsiders/", "final/", "last/")
    order = sorted(frame.columns, key=lambda c: next((i for i, p in enumerate(parts) if c.startswith(p)), -1))
    return frame[order].apply(of_one_type)


def metrics(sweep: Path) -> dict[str, Metric]:
    """Column of `runs` -> the metric of some trial that it holds. Raises ValueError as `runs` does."""
    columns: dict[str, Metric] = {}
    for folder in _trials(sweep):
        lines = json_files.read_lines(folder / "metrics.jsonl")
        for column, metric in _metrics(folder, _end(folder), lines).items():
            columns.setdefault(column, metric)
    return columns


def rounds(sweep: Path) -> pd.DataFrame:
    """Long format: digest, step, metric, value. Raises ValueError as `runs` does."""
    rows = [
        (folder.name, line["step"], str(metric), metric.value)
        for folder in _trials(sweep)
        for line in json_files.read_lines(folder / "metrics.jsonl")
        for metric in read_metrics(line["metrics"])
    ]
    frame = pd.DataFrame(rows, columns=["digest", "step", "metric", "value"])
    return frame.astype({"step": "int64", "value": "float64"})


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of trials that finished."""
    return runs[runs["outcome"] == "finished"]


def column(runs: pd.DataFrame, name: str) -> pd.Series:
    """A column of numbers, NaN where no trial has it."""
    return runs[name].astype(float) if name in runs else pd.Series(math.nan, runs.index)


def records(rows: pd.DataFrame) -> list[Row]:
    """A dict per row, with None for what is missing."""
    return [{str(k): None if pd.isna(v) else v for k, v in row.items()} for row in rows.to_dict("records")]


def groups(rows: pd.DataFrame, by: Sequence[str], *, sort: bool = True) -> Iterator[tuple[Row, pd.DataFrame]]:
    """(column -> value, the rows that have these values); a missing value is one too."""
    for key, group in rows.groupby([*by], dropna=False, sort=sort):
        yield dict(zip(by, key, strict=True)), group


def arguments(
    doc: str | None, argv: Sequence[str], *, several: bool = False, **more: dict[str, Any]
) -> argparse.Namespace:
    """Parse a command line: `sweeps` (the first as `sweep`), `out` (default: SWEEP/report), `more` options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", metavar="SWEEP", help="any name of a sweep", nargs="+" if several else 1)
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: SWEEP/report)")
    parser.add_argument("--storage", "--runtime.storage", type=Path, default=STORAGE, help=f"(default: {STORAGE})")
    options = parser.parse_args(argv)
    options.sweeps = [_sweep(name, options.storage.expanduser()) for name in options.sweeps]
    options.sweep = options.sweeps[0]
    options.out = options.out.expanduser() if options.out else options.sweep / "report"
    return options


def _sweep(name: str, storage: Path) -> Path:
    """The folder of a sweep by any of its names; a file stands for itself. Raises ValueError where there is none."""
    path = Path(name).expanduser()
    if path.is_file() or (path / "trials").is_dir():
        return path
    from raydiff.runtime import sweep_folder  # Imports torch and MLflow, which a folder's name does not need.

    return sweep_folder.sweep_named(name, storage)


def _trials(sweep: Path) -> list[Path]:
    if not sweep.is_dir():
        raise ValueError(f"there is no folder {sweep}")
    folders = json_files.trial_folders(sweep)
    if not folders:
        raise ValueError(f"{sweep} has no trials: nothing matches trials/*/config.json")
    return folders


def _run(folder: Path) -> Row:
    tree = json_files.read_json(folder / "config.json", needs="method")
    config = {k: dumps(v) if isinstance(v, list) else v for k, v in json_files.flatten(tree).items()}
    end = _end(folder)
    lines = json_files.read_lines(folder / "metrics.jsonl")
    row: Row = {"digest": folder.name, "outcome": end["outcome"], "reason": end.get("reason"), **config}
    behind = _is_behind(folder, lines)
    for view in VIEWS:
        guarantee = end.get(view) or _guarantee_so_far(view, lines, config, behind=behind)
        row |= {f"{view}/{k}": ", ".join(v) if isinstance(v, list) else v for k, v in guarantee.items()}
    return row | {column: metric.value for column, metric in _metrics(folder, end, lines).items()}


def _end(folder: Path) -> Row:
    """A trial's outcome.json."""
    return json_files.read_outcome(folder) or {"outcome": "unfinished"}


def _metrics(folder: Path, end: Row, lines: Sequence[Row]) -> dict[str, Metric]:
    """The final metrics by column of `runs`.

    An unfinished trial has those that add up over rounds, and the last of each on the validation split.
    """
    of_rounds = [read_metrics(line["metrics"]) for line in lines]
    final = read_metrics(end.get("final", []))
    if not final and lines and not _is_behind(folder, lines):
        cumulative = {*map(str, CUMULATIVE)}
        final = [metric for metric in of_rounds[-1] if str(metric) in cumulative]
        final.append(SECONDS.with_value(sum_over_rounds(lines, SECONDS)))
    last = [metric for metrics in of_rounds for metric in metrics if metric.split == "validation"]
    return {f"final/{metric}": metric for metric in final} | {f"last/{metric}": metric for metric in last}


def _is_behind(folder: Path, lines: Sequence[Row]) -> bool:
    """Whether the lines lack a round that was committed, or in which something was sent."""
    last = lines[-1]["step"] if lines else -1
    return any(number > last for number in [*_unrecorded(folder), *_rounds(folder, "releases")])


def _guarantee_so_far(view: str, lines: Sequence[Row], config: Row, *, behind: bool) -> Row:
    """The guarantee of the last recorded round; none if the lines are `behind` the commits or stored uploads."""
    last = lines[-1] if lines else {}
    if view in last and not behind:
        return {**last[view], "epsilon": read_number(last[view]["epsilon"])}
    fields: Row = dict.fromkeys(("epsilon", "unit", "relation", "trust", "declared", "unprotected"))
    fields |= {"delta": config.get("method.delta"), "accountant": config.get("method.accountant")}
    return fields | ({"epsilon": math.inf, "unprotected": [UNRECORDED]} if behind else {})


def cut_short(sweep: Path) -> list[str]:
    """A sentence for each trial whose metrics have unreadable lines or lack rounds, and one for files of other names.

    Both tables leave unreadable lines out.
    """
    messages = [*filter(None, [strays(sweep)])]
    for path in (folder / "metrics.jsonl" for folder in json_files.trial_folders(sweep)):
        if numbers := json_files.cut_short(path):
            messages.append(f"line {', '.join(map(str, numbers))} of {path} cannot be read, as after a crash: left out")
        elif numbers := _unrecorded(path.parent):
            messages.append(f"{path} lacks round {', '.join(str(n + 1) for n in numbers)}, which was committed")
    return messages


def _unrecorded(folder: Path) -> list[int]:
    """The committed rounds without a line."""
    recorded = {line["step"] for line in json_files.read_lines(folder / "metrics.jsonl")}
    return sorted({*_rounds(folder, "commit")} - recorded)


def _rounds(folder: Path, kind: str) -> list[int]:
    """The rounds in the names of this kind of file."""
    names = storage_at(folder).list_names("" if kind == "commit" else kind)
    return [int(match["round"]) for match in map(NAMES[kind].fullmatch, names) if match]


def of_one_type(values: pd.Series) -> pd.Series:
    """Text where a field held text in some trials and numbers in others: a parquet column has one type."""
    kinds = {str if isinstance(v, str) else float for v in values.dropna()}
    return values.where(values.isna(), values.astype(str)) if len(kinds) > 1 else values
