"""A sweep's folder as two tables: `runs` has one row per trial, `rounds` one row per number and round.

    python analysis/load.py SWEEP [--out DIR]        writes runs.parquet, rounds.parquet and runs.csv

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
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

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
        for line in logged(folder / "metrics.jsonl")
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


def one_sentence(main: Callable[[Sequence[str]], None]) -> None:
    """Run a command: bad input becomes one sentence on stderr and exit code 2."""
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)


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
    config = flatten(_json(folder / "config.json", needs="method"))
    path = folder / "outcome.json"
    end: Row = _json(path, needs="outcome") if path.exists() else {"outcome": "unfinished"}
    lines = logged(folder / "metrics.jsonl")
    final = end.get("final") or _spent(lines)
    row: Row = {"digest": folder.name, "outcome": end["outcome"], "reason": end.get("reason"), **config}
    for view in VIEWS:
        guarantee = end.get(view) or _guarantee(folder, view, final, config)
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


def _guarantee(folder: Path, view: str, spent: Row, config: Row) -> Row:
    """Of a trial that recorded none: epsilon from its last round, what it is about from the ledger."""
    events = _events(folder, view)
    kinds = {(e["unit"], e["relation"], e["trust"]) for e in events if e["kind"] == "Gaussian"}
    unit, relation, trust = kinds.pop() if len(kinds) == 1 else (None, None, None)
    return {
        "epsilon": spent.get(f"privacy/epsilon_{view}"),
        "delta": config.get("method.delta"),
        "accountant": config.get("method.accountant"),
        "unit": unit,
        "relation": relation,
        "trust": trust,
        "declared": list(dict.fromkeys(d for e in events for d in e.get("declared", ()))),
        "unprotected": list(dict.fromkeys(e["what"] for e in events if e["kind"] == "NonPrivate")),
    }


def _events(folder: Path, view: str) -> list[Row]:
    """In the ledgers of all commits: the uploads' or, for outsiders, the published ones if any."""
    commits = sorted(folder.glob("commit-*.json"))
    entries = [e for commit in commits for e in json.loads(_json(commit, needs="ledger")["ledger"])]
    published = [e["event"] for e in entries if e["client"] < 0]
    return published if view == "outsiders" and published else [e["event"] for e in entries if e["client"] >= 0]


# -------------------------------------------------------------------------------------------------- the files


def _json(path: Path, *, needs: str) -> Row:
    try:
        tree = json.loads(path.read_text())
    except ValueError as e:  # JSONDecodeError and UnicodeDecodeError are both
        raise ValueError(f"{path} is not valid JSON: {e}") from None
    if not isinstance(tree, dict) or needs not in tree:
        raise ValueError(f"{path} has no field {needs!r}")
    return tree


def logged(path: Path) -> list[Row]:
    """The rounds of a metrics.jsonl. Raises ValueError for a damaged line that no crash explains."""
    lines = []
    texts = path.read_text(errors="replace").splitlines() if path.exists() else []
    for number, text in enumerate(texts, 1):
        line = _line(text)
        if line is not None:
            lines.append(line)
        elif number < len(texts):
            raise ValueError(f"line {number} of {path} is not valid JSON")
    return lines  # a last line that a crash cut short is left out


def _line(text: str) -> Row | None:
    """One round; where a crash cut the line short and the writer resumed on it, the round after the cut."""
    for start in (0, max(text.rfind('{"step"'), 0)):
        try:
            line = json.loads(text[start:])
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line:
            return line
    return None


def of_one_type(column: pd.Series) -> pd.Series:
    """Text where a field held text in some trials and numbers in others: a parquet column has one type."""
    kinds = {str if isinstance(v, str) else float for v in column.dropna()}
    return column.where(column.isna(), column.astype(str)) if len(kinds) > 1 else column


if __name__ == "__main__":
    one_sentence(main)
