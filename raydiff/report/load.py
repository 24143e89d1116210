"""A sweep's folder as two tables: `runs` has one row per trial, `rounds` one row per number and round.

    raydiff tables SWEEP [--out DIR]        writes runs.parquet, rounds.parquet and runs.csv

Columns of `runs`:

    digest, outcome, reason      outcome: finished, stopped, failed, killed; unfinished where none is recorded
    method, method.epsilon, ...  the config: a part gives its class name, then its fields; lists as JSON
    server/epsilon, ...          the guarantee against the server; outsiders/... against everyone else
    final/...                    the final numbers; without them, what was spent by the last recorded round
    last/validation/...          the last distances on the validation split, where they were measured
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import json_files as files

Row = dict[str, Any]

VIEWS = ("server", "outsiders")
SENT = re.compile(r"\d+-(\d+)\.safetensors|(\d+)-.*\.jsonl")
"""What is stored of a client's upload, or of a node's: their rounds (`federated.checkpoint`)."""
UNTOLD = "metrics.jsonl does not tell of all that was sent"
SPENT = (*(f"privacy/epsilon_{view}" for view in VIEWS), "privacy/auc_ceiling", "comm/bytes_up")
"""Metrics that count from the start of a trial, so that the last round's value stands for the whole."""


def runs(sweep: Path) -> pd.DataFrame:
    """One row per trial, by digest. Raises ValueError where there is no trial or a file is damaged."""
    frame = pd.DataFrame([_run(folder) for folder in _trials(sweep)])
    parts = ("server/", "outsiders/", "final/", "last/")
    order = sorted(frame.columns, key=lambda c: next((i for i, p in enumerate(parts) if c.startswith(p)), -1))
    return frame[order].apply(of_one_type)


def rounds(sweep: Path) -> pd.DataFrame:
    """Long format: digest, step, metric, value. Raises ValueError as `runs` does."""
    rows = [
        (folder.name, line["step"], metric, float(value))
        for folder in _trials(sweep)
        for line in files.read_lines(folder / "metrics.jsonl")
        for metric, value in line.items()
        if metric not in ("step", "time") and isinstance(value, (int, float))
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
    for key, own in rows.groupby([*by], dropna=False, sort=sort):
        yield dict(zip(by, key, strict=True)), own


def arguments(
    doc: str | None, argv: Sequence[str], *, several: bool = False, **more: dict[str, Any]
) -> argparse.Namespace:
    """`sweep` and `out` (SWEEP/report unless given) from a command line, and what else it takes: name -> how argparse
    is to read it. With `several`, `sweeps` are all that were given, the first of them `sweep`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    says = "a sweep's folder, the one that holds trials/"
    parser.add_argument("sweeps", metavar="SWEEP", type=Path, help=says, nargs="+" if several else 1)
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: SWEEP/report)")
    given = parser.parse_args(argv)
    given.sweeps = [path.expanduser() for path in given.sweeps]
    given.sweep, given.own_out = given.sweeps[0], given.out is not None
    given.out = given.out.expanduser() if given.out else given.sweep / "report"
    return given


def main(argv: Sequence[str]) -> None:
    """Write the tables and say where."""
    given = arguments(__doc__, argv)
    tables = {"runs": runs(given.sweep), "rounds": rounds(given.sweep)}
    given.out.mkdir(parents=True, exist_ok=True)
    for name, frame in tables.items():
        frame.to_parquet(given.out / f"{name}.parquet", index=False)
    tables["runs"].to_csv(given.out / "runs.csv", index=False)
    print("\n".join(str(given.out / name) for name in ("runs.parquet", "rounds.parquet", "runs.csv")))


# -------------------------------------------------------------------------------------------------- one trial


def _trials(sweep: Path) -> list[Path]:
    if not sweep.is_dir():
        raise ValueError(f"there is no folder {sweep}")
    folders = sorted(path.parent for path in (sweep / "trials").glob("*/config.json"))
    if not folders:
        raise ValueError(f"{sweep} has no trials: nothing matches trials/*/config.json")
    return folders


def _run(folder: Path) -> Row:
    tree = files.read_json(folder / "config.json", needs="method")
    config = {k: json.dumps(v) if isinstance(v, list) else v for k, v in files.flatten(tree).items()}
    end: Row = files.read_outcome(folder) or {"outcome": "unfinished"}
    lines = files.read_lines(folder / "metrics.jsonl")
    row: Row = {"digest": folder.name, "outcome": end["outcome"], "reason": end.get("reason"), **config}
    behind = any(number > (lines[-1]["step"] if lines else -1) for number in [*_untold(folder), *_sent(folder)])
    for view in VIEWS:
        guarantee = end.get(view) or _so_far(view, lines, config, behind=behind)
        row |= {f"{view}/{k}": ", ".join(v) if isinstance(v, list) else v for k, v in guarantee.items()}
    row |= {f"final/{k}": v for k, v in (end.get("final") or ({} if behind else _spent(lines))).items()}
    return row | {f"last/{k}": v for line in lines for k, v in line.items() if k.startswith("validation/")}


def _spent(lines: Sequence[Row]) -> Row:
    """What a trial without final numbers had spent by its last recorded round; empty before the first."""
    if not lines:
        return {}
    last = {k: lines[-1][k] for k in SPENT if k in lines[-1]}
    return {**last, "time/seconds": sum(line.get("time/seconds", 0.0) for line in lines)}


def _so_far(view: str, lines: Sequence[Row], config: Row, *, behind: bool) -> Row:
    """Of a trial that recorded none at its end: what its last round says; where its lines are `behind` its commits, or
    behind what was sent in a round that does not count yet, nothing is guaranteed."""
    last = lines[-1] if lines else {}
    if view in last and not behind:
        return dict(last[view])
    of = dict.fromkeys(("unit", "relation", "trust", "declared", "unprotected"))
    about = {"delta": config.get("method.delta"), "accountant": config.get("method.accountant")}
    return {"epsilon": math.inf if behind else None, **about, **of, **({"unprotected": [UNTOLD]} if behind else {})}


# -------------------------------------------------------------------------------------------------- the files


def cut_short(sweep: Path) -> list[str]:
    """A sentence for each trial whose metrics have lines that cannot be read, and are left out of both tables."""
    said = []
    for folder in sorted(path.parent for path in (sweep / "trials").glob("*/config.json")):
        path = folder / "metrics.jsonl"
        if numbers := files.cut_short(path):
            said.append(f"line {', '.join(map(str, numbers))} of {path} cannot be read, as after a crash: left out")
        elif numbers := _untold(folder):
            said.append(f"{path} does not tell of round {', '.join(str(n + 1) for n in numbers)}, though it counts")
    return said


def _untold(folder: Path) -> list[int]:
    """The rounds that count and of which no line tells."""
    told = {line["step"] for line in files.read_lines(folder / "metrics.jsonl")}
    return sorted({int(path.stem[7:]) for path in folder.glob("commit-*.json")} - told)


def _sent(folder: Path) -> Iterator[int]:
    """The rounds in which something was sent, or was about to be, and which did not count when it was last looked."""
    for path in (folder / "releases").glob("*"):
        if match := SENT.fullmatch(path.name):
            yield int(match[1] or match[2])


def of_one_type(values: pd.Series) -> pd.Series:
    """Text where a field held text in some trials and numbers in others: a parquet column has one type."""
    kinds = {str if isinstance(v, str) else float for v in values.dropna()}
    return values.where(values.isna(), values.astype(str)) if len(kinds) > 1 else values
