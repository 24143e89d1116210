"""Log of a trial: a line per round, and how it ended.

    raydiff logs TRIAL                so far
    raydiff logs TRIAL --follow       until it ends

Where a trial failed, its traceback follows. What Ray writes about its processes is in `ray job logs`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.cli.options import StorageOptions, parse_options, positional
from raydiff.formats.json_files import read_lines, read_outcome
from raydiff.formats.metric_records import read_metrics
from raydiff.runtime import sweep_folder

PERIOD_S = 1.0  # between looks at the files


@dataclass(frozen=True, kw_only=True)
class LogsOptions(StorageOptions):
    trial: str = positional()
    """A digest (its first digits suffice), SWEEP/DIGEST, a folder, an MLflow run, or a sweep of one trial."""
    follow: bool = False
    """Wait until the trial has an outcome."""


def main(argv: Sequence[str]) -> int:
    """Find the trial and print its log."""
    options = parse_options(LogsOptions, argv, __doc__)
    folder = sweep_folder.trial_named(options.trial, options.storage)
    for line in log_lines(folder, follow=options.follow):
        print(line, flush=True)
    return 0


def log_lines(folder: Path, *, follow: bool = False) -> Iterator[str]:
    """The log of the trial in this folder, without the clients' numbers; with `follow`, until it has an outcome."""
    yield f"{folder.parents[1].name}/{folder.name}"
    shown: set[int] = set()
    while True:
        outcome = read_outcome(folder)  # Before the rounds, which are complete once there is an outcome.
        rounds = read_lines(folder / "metrics.jsonl")
        rejected = {line["step"]: line for line in read_lines(folder / "rejected.jsonl")}  # written before its round
        for line in (line for line in rounds if line["step"] not in shown):
            shown.add(line["step"])
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["time"]))
            yield f"{at} round {line['step'] + 1}: {', '.join(_numbers(line['metrics']))}"
            reasons = rejected.get(line["step"], {})
            yield from (f"  rejected {who}: {reasons[who]}" for who in reasons if who not in ("step", "time"))
        if outcome is not None or not follow:
            break
        time.sleep(PERIOD_S)
    if outcome is None:
        yield "no outcome yet: it is running, or was interrupted and waits for --resume"
        return
    yield f"{outcome['outcome']}" + (f": {outcome['reason']}" if outcome.get("reason") else "")
    yield from (outcome[name] for name in ("text", "released") if name in outcome)
    yield from (f"  {number}" for number in sorted(_numbers(outcome.get("final", []))))
    if outcome["outcome"] == "failed" and (folder / "error.txt").exists():
        yield (folder / "error.txt").read_text().rstrip()


def _numbers(written: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{metric} {metric.value:.4g}" for metric in read_metrics(written) if metric.part is None]
