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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.experiment import tracking

Row = dict[str, Any]

VIEWS = ("server", "outsiders")
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
        for line in tracking.read_lines(folder / "metrics.jsonl")
        for metric, value in line.items()
        if metric not in ("step", "time") and isinstance(value, (int, float))
    ]
    frame = pd.DataFrame(rows, columns=["digest", "step", "metric", "value"])
    return frame.astype({"step": "int64", "value": "float64"})


def write(sweep: Path, out: Path) -> list[Path]:
    """Write both tables into `out`; returns the files."""
    tables = {"runs": runs(sweep), "rounds": rounds(sweep)}
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.parquet" for name in tables]
    for path, frame in zip(paths, tables.values(), strict=True):
        frame.to_parquet(path, index=False)
    tables["runs"].to_csv(out / "runs.csv", index=False)
    return [*paths, out / "runs.csv"]


def arguments(doc: str | None, argv: Sequence[str]) -> tuple[Path, Path]:
    """(SWEEP, DIR) from a command line; DIR is SWEEP/report unless given."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", metavar="SWEEP", type=Path, help="a sweep's folder, the one that holds trials/")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: SWEEP/report)")
    given = parser.parse_args(argv)
    sweep = given.sweep.expanduser()
    return sweep, given.out.expanduser() if given.out else sweep / "report"


def main(argv: Sequence[str]) -> None:
    """Write the tables and say where."""
    for path in write(*arguments(__doc__, argv)):
        print(path)


# -------------------------------------------------------------------------------------------------- one trial


def _trials(sweep: Path) -> list[Path]:
    if not sweep.is_dir():
        raise ValueError(f"there is no folder {sweep}")
    folders = sorted(path.parent for path in (sweep / "trials").glob("*/config.json"))
    if not folders:
        raise ValueError(f"{sweep} has no trials: nothing matches trials/*/config.json")
    return folders


def _run(folder: Path) -> Row:
    config = flatten(tracking.published(tracking.read_json(folder / "config.json", needs="method")))
    if "data" in config:
        config.setdefault("data.fitted_on", "all")  # a trial from before 2026-11-23 had no choice
    path = folder / "outcome.json"
    end: Row = tracking.read_json(path, needs="outcome") if path.exists() else {"outcome": "unfinished"}
    lines = tracking.read_lines(folder / "metrics.jsonl")
    final = end.get("final") or _spent(lines)
    row: Row = {"digest": folder.name, "outcome": end["outcome"], "reason": end.get("reason"), **config}
    for view in VIEWS:
        guarantee = end.get(view) or _so_far(view, lines, config)
        row.update({f"{view}/{k}": ", ".join(v) if isinstance(v, list) else v for k, v in guarantee.items()})
    row.update({f"final/{k}": v for k, v in final.items()})
    row.update({"outcome/remark": end["remark"]} if "remark" in end else {})
    validation = {k: v for line in lines for k, v in line.items() if k.startswith("validation/")}
    return {**row, **{f"last/{k}": v for k, v in validation.items()}}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Row:
    """{"method": "PFDM", "method.epsilon": 10.0} from the nested JSON of a config."""
    out: Row = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out[prefix + key] = value.get("kind")
            out.update(flatten(value, f"{prefix}{key}."))
        elif key != "kind":
            out[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return out


def _spent(lines: Sequence[Row]) -> Row:
    """What a trial without final numbers had spent by its last recorded round; empty before the first."""
    if not lines:
        return {}
    last = {k: lines[-1][k] for k in SPENT if k in lines[-1]}
    return {**last, "time/seconds": sum(line.get("time/seconds", 0.0) for line in lines)}


def _so_far(view: str, lines: Sequence[Row], config: Row) -> Row:
    """Of a trial that recorded none at its end: what its last round says."""
    last = lines[-1] if lines else {}
    if view in last:
        return dict(last[view])
    of = dict.fromkeys(("unit", "relation", "trust", "declared", "unprotected"))  # lines before 2026-11-22 do not say
    about = {"delta": config.get("method.delta"), "accountant": config.get("method.accountant")}
    return {"epsilon": last.get(f"privacy/epsilon_{view}"), **about, **of}


# -------------------------------------------------------------------------------------------------- the files


def cut_short(sweep: Path) -> list[str]:
    """A sentence for each trial whose metrics have lines that cannot be read, and are left out of both tables."""
    found = ((path, tracking.cut_short(path)) for path in sorted((sweep / "trials").glob("*/metrics.jsonl")))
    why = "cannot be read, as after a crash: left out"
    return [f"line {', '.join(map(str, numbers))} of {path} {why}" for path, numbers in found if numbers]


def of_one_type(column: pd.Series) -> pd.Series:
    """Text where a field held text in some trials and numbers in others: a parquet column has one type."""
    kinds = {str if isinstance(v, str) else float for v in column.dropna()}
    return column.where(column.isna(), column.astype(str)) if len(kinds) > 1 else column
