"""A sweep's folder as two tables: `runs` has one row per trial, `read_rounds` one row per number and round.

Columns of `runs`:

    digest, outcome, reason      outcome: finished, stopped, failed, killed or unfinished
    method, method.epsilon, ...  the config: the class name of each part, then its fields; lists as JSON
    server/epsilon, ...          the guarantee against the server; outsiders/... against everyone else
    final/...                    the final numbers; without them, the privacy and bytes of the last recorded round
    last/validation/...          the last distances on the validation split
"""

import itertools
import math
from collections import ChainMap
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

VIEWS = ("server", "outsiders")
"""Whom a guarantee holds against."""
UNRECORDED = "metrics.jsonl lacks rounds in which something was sent"


def runs(sweep: Path) -> pd.DataFrame:
    """One row per trial, by digest. Raises ValueError where there is no trial or a file is damaged."""
    parts = zip(*map(_read_trial, _trials(sweep)), strict=True)
    return pd.concat([pd.DataFrame(rows) for rows in parts], axis=1).apply(of_one_type)


def metrics(sweep: Path) -> dict[str, Metric]:
    """Column of `runs` -> the metric of some trial that it holds. Raises ValueError as `runs` does."""
    return dict(ChainMap(*map(_read_final, _trials(sweep))))


def read_rounds(sweep: Path) -> pd.DataFrame:
    """Long format: digest, step, metric, value. Raises ValueError as `runs` does."""
    rows = []
    for folder in _trials(sweep):
        for line in json_files.read_lines(folder / "metrics.jsonl"):
            metrics = read_metrics(line["metrics"])
            rows += [(folder.name, line["step"], str(metric), metric.value) for metric in metrics]
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


def group_rows(rows: pd.DataFrame, by: Sequence[str], *, sort: bool = True) -> Iterator[tuple[Row, pd.DataFrame]]:
    """(column -> value, the rows that have these values); a missing value is one too."""
    for key, group in rows.groupby([*by], dropna=False, sort=sort):
        yield dict(zip(by, key, strict=True)), group


def _trials(sweep: Path) -> list[Path]:
    if not sweep.is_dir():
        raise ValueError(f"there is no folder {sweep}")
    folders = json_files.trial_folders(sweep)
    if not folders:
        raise ValueError(f"{sweep} has no trials: nothing matches trials/*/config.json")
    return folders


def _read_trial(folder: Path) -> tuple[Row, Row, Row]:
    """(how it ended, with its config; its guarantees; its final numbers), each by column of `runs`."""
    tree = json_files.read_json(folder / "config.json", needs="method")
    config = {k: dumps(v) if isinstance(v, list) else v for k, v in json_files.flatten_tree(tree).items()}
    end = _read_end(folder)
    lines = json_files.read_lines(folder / "metrics.jsonl")
    guarantees: Row = {}
    for view in VIEWS:
        guarantee = end.get(view) or _guarantee_so_far(view, folder, lines, config)
        guarantees |= {f"{view}/{k}": ", ".join(v) if isinstance(v, list) else v for k, v in guarantee.items()}
    numbers = {column: metric.value for column, metric in _read_final(folder).items()}
    return (
        {"digest": folder.name, "outcome": end["outcome"], "reason": end.get("reason"), **config},
        guarantees,
        numbers,
    )


def _read_end(folder: Path) -> Row:
    """A trial's outcome.json."""
    return json_files.read_outcome(folder) or {"outcome": "unfinished"}


def _read_final(folder: Path) -> dict[str, Metric]:
    """The final metrics by column of `runs`.

    An unfinished trial has those that add up over rounds, and the last of each on the validation split.
    """
    lines = json_files.read_lines(folder / "metrics.jsonl")
    of_rounds = [read_metrics(line["metrics"]) for line in lines]
    final = read_metrics(_read_end(folder).get("final", []))
    if not final and lines and not _is_behind(folder, lines):
        cumulative = {*map(str, CUMULATIVE)}
        final = [metric for metric in of_rounds[-1] if str(metric) in cumulative]
        final.append(SECONDS.with_value(sum_over_rounds(lines, SECONDS)))
    last = [metric for metric in itertools.chain.from_iterable(of_rounds) if metric.split == "validation"]
    return {f"final/{metric}": metric for metric in final} | {f"last/{metric}": metric for metric in last}


def _is_behind(folder: Path, lines: Sequence[Row]) -> bool:
    """Whether the lines lack the last round that was committed, or in which something was sent."""
    last = lines[-1]["step"] if lines else -1
    return max([*_rounds(folder, "commit"), *_rounds(folder, "releases")], default=-1) > last


def _guarantee_so_far(view: str, folder: Path, lines: Sequence[Row], config: Row) -> Row:
    """The guarantee of the last recorded round; none if the lines are behind the commits or stored uploads."""
    fields: Row = dict.fromkeys(("epsilon", "unit", "relation", "trust", "declared", "unprotected"))
    fields |= {"delta": config.get("method.delta"), "accountant": config.get("method.accountant")}
    if _is_behind(folder, lines):
        return {**fields, "epsilon": math.inf, "unprotected": [UNRECORDED]}
    last = lines[-1].get(view) if lines else None
    return {**last, "epsilon": read_number(last["epsilon"])} if last else fields


def describe_cut_short(sweep: Path) -> list[str]:
    """A sentence for each trial whose metrics have unreadable lines or lack rounds, and one for files of other names.

    Both tables leave unreadable lines out.
    """
    messages = [strays(sweep)]
    for folder in json_files.trial_folders(sweep):
        path = folder / "metrics.jsonl"
        recorded = {line["step"] for line in json_files.read_lines(path)}
        missing = sorted({*_rounds(folder, "commit")} - recorded)
        if numbers := json_files.unreadable_lines(path):
            messages.append(f"line {', '.join(map(str, numbers))} of {path} cannot be read, as after a crash: left out")
        elif missing:
            messages.append(f"{path} lacks round {', '.join(str(n + 1) for n in missing)}, which was committed")
    return [*filter(None, messages)]


def _rounds(folder: Path, kind: str) -> list[int]:
    """The rounds in the names of this kind of file."""
    names = storage_at(folder).list_names("" if kind == "commit" else kind)
    return [int(match["round"]) for match in map(NAMES[kind].fullmatch, names) if match]


def of_one_type(values: pd.Series) -> pd.Series:
    """Text where a field held text in some trials and numbers in others: a parquet column has one type."""
    kinds = {str if isinstance(v, str) else float for v in values.dropna()}
    return values.where(values.isna(), values.astype(str)) if len(kinds) > 1 else values
