"""What a trial has written: a line per round, and how it ended.

raydiff logs TRIAL                as far as it has got
raydiff logs TRIAL --follow       and go on until it ends

TRIAL is a digest (its first digits will do), SWEEP/DIGEST, a folder, an MLflow run, or a sweep of one trial. Where a
trial failed, its traceback follows. A trial's processes print nothing themselves; what Ray says of them is in
`ray job logs`, and on each node in Ray's own logs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydiff.cli.parser import Parser
from raydiff.formats.json_files import read_lines, read_outcome
from raydiff.runtime import sweep_folder

PERIOD_S = 1.0  # between looks at the files


def main(argv: Sequence[str]) -> int:
    """Find the trial, print, and with --follow wait for more."""
    options = _options().parse_args(argv)
    folder = sweep_folder.trial_folder(options.trial, options.storage)
    try:
        for line in lines(folder, follow=options.follow, clients=options.clients):
            print(line, flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


def _options() -> Parser:
    p = Parser("logs", __doc__).with_storage()
    p.add_argument("trial", help="which trial")
    p.add_argument("--follow", "-f", action="store_true", help="go on until the trial has an outcome")
    p.add_argument("--clients", action="store_true", help="with the numbers of each client")
    return p


def lines(folder: Path, *, follow: bool = False, clients: bool = False) -> Iterator[str]:
    """The log of the trial in this folder; with `follow`, until it has an outcome."""
    yield f"{folder.parents[1].name}/{folder.name}"
    shown: set[int] = set()
    while True:
        outcome = read_outcome(folder)  # before the rounds: those of a trial that has ended are all there
        rounds = read_lines(folder / "metrics.jsonl")
        rejected = {line["step"]: line for line in read_lines(folder / "rejected.jsonl")}  # written before its round
        for line in rounds:
            if line["step"] not in shown:
                shown.add(line["step"])
                yield _round(line, clients=clients)
                why = rejected.get(line["step"], {})
                yield from (f"  rejected {who}: {why[who]}" for who in why if who not in ("step", "time"))
        if outcome is not None or not follow:
            break
        time.sleep(PERIOD_S)
    if outcome is None:
        yield "no outcome yet: it is running, or was cut short and waits for --resume"
        return
    yield f"{outcome['outcome']}" + (f": {outcome['reason']}" if outcome.get("reason") else "")
    if "says" in outcome:
        yield outcome["says"]
    yield from (f"  {k} {v:.4g}" for k, v in sorted(outcome.get("final", {}).items()) if clients or not _of_client(k))
    if outcome["outcome"] == "failed" and (folder / "error.txt").exists():
        yield (folder / "error.txt").read_text().rstrip()


def _round(line: Mapping[str, Any], *, clients: bool) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["time"]))
    numbers = {k: v for k, v in line.items() if k not in ("step", "time") and not isinstance(v, dict)}
    metrics = {k: v for k, v in numbers.items() if clients or not _of_client(k)}
    return f"{at} round {line['step'] + 1}: " + ", ".join(f"{k} {v:.4g}" for k, v in metrics.items())


def _of_client(name: str) -> bool:
    return name.startswith("client/")
