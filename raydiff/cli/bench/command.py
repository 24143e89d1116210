"""What does the orchestration cost, what do more clients cost, larger models, whole sweeps, the audit of a table; what
is gained by training in lock-step?

    raydiff bench overhead [--quick]   raydiff against plain torch (`bench_overhead`), minutes
    raydiff bench first-round          one round on a fresh Ray: what `overhead` times from outside
    raydiff bench scale [--quick]      1,000 clients on two workers, models of 100 MB (`bench_scale`), minutes
    raydiff bench sweep [--quick]      sweeps of 4 and 16 trials (`bench_sweep`), minutes
    raydiff bench cohort [--quick]     clients in lock-step (`bench_cohort`), a minute
    raydiff bench options [--quick]    bfloat16, channels last, torch.compile (`bench_options`), minutes
    raydiff bench audit [--quick]      per-instance bounds (`bench_audit`), minutes, most of them the reference

JSON lines: the machine, then what was measured. With --quick each is short, to see that it runs: no figure counts.
`raydiff bench-picture FILE...` draws what they print.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from raydiff.cli.bench import audit, cohort, options, overhead, scale, sweep

Lines = Iterator[tuple[str, dict[str, Any]]]
MEASUREMENTS: dict[str, Callable[[bool], Lines]] = {
    "overhead": lambda quick: overhead.lines(overhead.QUICK if quick else overhead.Effort()),
    "scale": lambda quick: scale.lines(scale.QUICK if quick else scale.Effort()),
    "sweep": lambda quick: sweep.lines(sweep.QUICK if quick else sweep.Effort()),
    "cohort": lambda quick: cohort.lines(cohort.QUICK if quick else cohort.Effort()),
    "options": lambda quick: options.lines(options.QUICK if quick else options.Effort()),
    "audit": lambda quick: audit.lines(audit.QUICK if quick else audit.Effort()),
}
"""What can be measured -> its lines."""


def main(argv: Sequence[str]) -> int:
    """Run a measurement."""
    if not argv or argv[0] not in ("first-round", *MEASUREMENTS) or set(argv[1:]) - {"--quick"}:
        raise ValueError(
            f"say what to measure: raydiff bench {', '.join(MEASUREMENTS)} [--quick]; got {' '.join(argv)!r}"
        )
    os.environ.pop("RAY_ADDRESS", None)  # the plain processes run on this machine, so Ray does too
    torch.set_num_threads(1)
    if argv[0] == "first-round":
        overhead.first_round()
        return 0
    say("machine", **machine())
    for what, fields in MEASUREMENTS[argv[0]]("--quick" in argv):
        say(what, **fields)
    return 0


def say(what: str, **fields: Any) -> None:
    """One JSON line, floats to four digits."""
    print(json.dumps(short({"what": what, **fields})), flush=True)


def short(value: Any) -> Any:
    """The same, with floats to four digits."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
    }
