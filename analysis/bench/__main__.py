"""What does the orchestration cost, and what do more clients and larger models cost?

    python -m analysis.bench overhead [--quick] [--plot FILE.png] [--peers FOLDER]   beside FedAvg in plain torch
    python -m analysis.bench scale [--quick]      10,000 clients, 1,000 clients of 10 MB, 2,000 rounds, 10 minutes
    python -m analysis.bench sweep [--quick]      a sweep of 2,000 trials of one round each
    python -m analysis.bench first-round          one round on a fresh Ray: what `overhead` times from outside

JSON lines: the machine, then what was measured; `overhead` ends with its cases as a table, and draws them with --plot.
With --quick each is short, to see that it runs: no figure counts.

`overhead`: each way of doing the work is an iterator over the server's weights after every round. Its first round is
not timed, for processes are warm and clients hosted by its end. The ways are interleaved, and the best repetition of
each counts. Compare ratios of one run only. FOLDER has virtual environments named pfl, flower or fedjax, each with that
framework (and torch: `pip install "pfl[pytorch]"`, `pip install "flwr[simulation]" torch`, `pip install fedjax`).

`scale`: seconds per round are those of a whole trial, from its data to its outcome, over its rounds; each round is
committed. Lines `scale` are training of a tiny network. `packed` trains the first of them once more without Ray, one
client after the other, and compares the server's weights bit for bit. `size` are rounds without training, so that only
weights move: down to every client, up again, and to the disk. In lines `idle` some or all of 32 clients take part, and
`floor_s` is what a plain loop takes for them. `soak` is many short rounds: by how much a hundred more of them make the
driver grow. `coordinator` is its own part of a round alone, on messages that are there already.

`sweep`: seconds between the ends of two trials; by how many MB the
driver grew in a hundred trials, and by how many seconds a trial became slower, both by least squares over the last
three quarters; how many runs MLflow has as finished, each with its round.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from analysis.bench.overhead import draw, first_round, overhead, table
from analysis.bench.scale import scale
from analysis.bench.sweep import sweep
from analysis.bench.ways import Fields
from raydiff.__main__ import leave
from raydiff.cli.options import parse_options, positional

MEASURES = {"scale": scale, "sweep": sweep}


@dataclass(frozen=True, kw_only=True)
class Options:
    what: Literal["overhead", "scale", "sweep", "first-round"] = positional()
    """What to measure."""
    quick: bool = False
    """A short run, to see that it works."""
    plot: Path | None = None
    """A file for a picture of the cases of overhead."""
    peers: Path | None = None
    """A folder with the virtual environments of other frameworks, for overhead."""

    def __post_init__(self) -> None:
        for name in ("plot", "peers"):
            if getattr(self, name) and self.what != "overhead":
                raise ValueError(f"--{name} is for overhead, not for {self.what}")


def main(argv: Sequence[str]) -> int:
    """Run a measurement."""
    given = parse_options(Options, argv, __doc__)
    os.environ.pop("RAY_ADDRESS", None)  # the plain processes run on this machine, so Ray does too
    torch.set_num_threads(1)
    if given.what == "first-round":
        first_round()
        return 0
    say("machine", **machine())
    cases: list[Fields] = []
    lines = overhead(given.quick, given.peers) if given.what == "overhead" else MEASURES[given.what](given.quick)
    for what, fields in lines:
        say(what, **fields)
        cases += [fields] if what == "overhead" else []
    if cases:
        print(f"\n{table(cases)}")
    if given.plot:
        draw(cases, given.plot)
        print(f"\npicture: {given.plot}")
    return 0


def say(what: str, **fields: Any) -> None:
    """One JSON line, floats to four digits."""
    line = json.dumps({"what": what, **fields})
    print(json.dumps(json.loads(line, parse_float=lambda text: float(f"{float(text):.4g}"))), flush=True)


def machine() -> Fields:
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


if __name__ == "__main__":
    leave(main, sys.argv[1:])
