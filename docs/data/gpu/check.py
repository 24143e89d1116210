"""All checks and figures that need a GPU, on the machine that has it: 8 minutes, without Ray and without a network.

    OUT=folder python docs/data/gpu/check.py                     # writes gpu.jsonl and gpu.log there (build/gpu)
    OUT=folder python docs/data/gpu/check.py --only memory       # jobs whose names contain a word, to run them again
    python docs/data/gpu/check.py --page docs/data/gpu/gpu.jsonl # writes docs/results/gpu.md

The checks are `pytest -m gpu tests/device`, split into jobs; the figures are those of `figures.py`. Each job is a
process with a time limit of its own, and each result is a JSON line that is written at once: a run that is cut keeps
what it had. RAYDIFF_GPU_REHEARSAL=1 runs all on the CPU, in small sizes, to see that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PAGE = ROOT / "docs" / "results" / "gpu.md"
ALONE_S, CHECKS_S, ALL_S = 120.0, 240.0, 475.0
"""Seconds from the start by which the checks that fill the GPU, all checks, and all jobs have ended."""
AT_ONCE = 8  # Checks side by side: about two CPU cores for each.
ABOUT = ("card", "driver", "torch", "kind", "what", "ok")
"""What a line has beside its numbers and its error."""
UNSHOWN = ("card_gib", "with_little_gib", "slowest_s", "share", "cpu_s")
"""Numbers that the lines have and the page has not."""
LEAST_S = 3.0  # A job is not started with less time than this.


@dataclass(frozen=True)
class Job:
    """A process with a time limit."""

    name: str
    command: tuple[str, ...]
    limit_s: float


def check(file: str, select: str, limit_s: float) -> Job:
    """The tests of a file in tests/device that `-k` selects."""
    options = ("-q", "-s", "--durations=0", "-p", "no:cacheprovider", "-k", select)
    command = (sys.executable, "-m", "pytest", "-m", "gpu", f"tests/device/test_on_gpu_{file}.py", *options)
    return Job(f"tests of {file}: {select}", command, limit_s)


def figure(name: str, limit_s: float) -> Job:
    """One kind of `figures.py`."""
    return Job(f"figures of {name}", (sys.executable, str(HERE / "figures.py"), name), limit_s)


PRESETS = ("mnist", "cifar10")
TRIAL = "numbers_of_the_cpu"
COMPILED = (
    "pfdm or localonly or dpsgd",
    "(fedavg and not perfedavg) or fedprox or scaffold",
    "moon or sharedrep",
    "spire or perfedavg",
)
TOGETHER = (
    *(check("numbers", f"{TRIAL} and compile and ({methods})", 170) for methods in COMPILED),
    *(
        Job(f"fill the compiler's cache, {n}", (*figure(n, 0).command[:2], f"compiled-{n}", "cold"), 150)
        for n in PRESETS
    ),
    *(check("numbers", f"{TRIAL} and {variant}", 120) for variant in ("bfloat16", "unet", "mlp")),
    check("memory", "preset", 120),
    check("memory", "lost and not cublas", 90),
    check("process", "compiled", 100),
    check("process", "not compiled", 100),
    check("numbers", f"not {TRIAL}", 120),
)
"""Checks that other processes on the GPU do not disturb, the longest first."""
ALONE = (check("memory", "caps", 110), check("memory", "lost and cublas", 40))
"""Checks that fill the GPU."""
FIGURES = (
    *(figure(name, 60) for name in ("mnist", "cifar10", "chain", "processes", "dpsgd", "lockstep", "compiled-mnist")),
    *(figure(name, 45) for name in ("start", "spire-mnist", "latent", "inception", "lira", "compiled-cifar10")),
)
"""Timings, one after the other: the machine has nothing else to do."""


class Results:
    """The lines of a run, each written when it is known, and the log of all that the jobs print."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lines, self.log = folder / "gpu.jsonl", folder / "gpu.log"
        self._lock = threading.Lock()
        self._about = {**machine(), "torch": version("torch")}

    def add(self, what: str, **found: Any) -> None:
        """Append a line. Numbers come before `ok` and `error`."""
        ok, error = found.pop("ok", True), found.pop("error", "")
        line = json.dumps({**self._about, "what": what, **found, "ok": ok, "error": error})
        with self._lock, self.lines.open("a") as file:
            file.write(line + "\n")

    def note(self, text: str) -> None:
        """Append to the log."""
        with self._lock, self.log.open("a") as file:
            file.write(text)


def machine() -> dict[str, str]:
    """The card and its driver, "none" where there is no NVIDIA GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        card, driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split(",")
    except (OSError, subprocess.SubprocessError, ValueError):
        return {"card": "none", "driver": "none"}
    return {"card": card.strip(), "driver": driver.strip()}


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def run(job: Job, results: Results, until: float) -> None:
    """Run a job to its end, its limit or `until` (monotonic seconds), whichever is first; write what it tells."""
    left = min(job.limit_s, until - time.monotonic())
    if left < min(LEAST_S, job.limit_s):
        results.add(job.name, seconds=0.0, ok=False, error="not started: no time was left")
        return
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = {"PYTHONPATH": path, "RAYDIFF_GPU_LINES": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    begun, killed, last = time.monotonic(), threading.Event(), ""
    process = subprocess.Popen(
        job.command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Its own children end with it.
        env={"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ, **given},
    )

    def kill() -> None:
        killed.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(left, kill)
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        results.note(f"[{job.name}] {line}")
        try:
            told = json.loads(line.removeprefix("figure ")) if line.startswith("figure {") else None
        except ValueError:
            told = None
        if told is not None:
            kind = {} if "::" in str(told.get("what")) else {"kind": "figure"}
            results.add(**{"what": job.name, **kind, **told})
        elif line.strip():
            last = line.strip()
    code = process.wait()
    timer.cancel()
    ok = code in (0, 5) and not killed.is_set()  # pytest's 5: no test was selected.
    why = f"ended at its limit of {left:.0f} s" if killed.is_set() else f"exit code {code}: {last}"[:500]
    results.add(job.name, seconds=round(time.monotonic() - begun, 1), ok=ok, error="" if ok else why)


def run_all(jobs: Iterable[Job], results: Results, until: float, *, at_once: int = 1) -> None:
    """Run these jobs, so many side by side."""
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(lambda job: run(job, results, until), jobs))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a run; none where there is no file. A line that a cut has left unfinished is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def page(lines: Sequence[dict[str, Any]], source: str) -> str:
    """The page of results: the figures, then which checks failed and why."""
    head = "# On a GPU\n\n    OUT=folder python docs/data/gpu/check.py    # 8 minutes on one GPU, without Ray\n\n"
    if not lines:
        return head + "not run on a GPU\n"
    checks, failed = [line for line in lines if "::" in line["what"]], [line for line in lines if line["ok"] is False]
    passed, skipped = (sum(line["ok"] is kind for line in checks) for kind in (True, None))
    text = f"{head}{lines[0]['card']}, torch {lines[0]['torch']}: {passed} checks passed, {skipped} were skipped, "
    text += f"{len(failed)} lines tell of a failure ([all lines](../data/gpu/{source})). Times in seconds.\n\n"
    text += "| what | figures |\n|---|---|\n"
    for line in (line for line in lines if line.get("kind") == "figure"):
        numbers = [f"{k} {v}" for k, v in line.items() if k not in ABOUT and isinstance(v, float) and k not in UNSHOWN]
        text += f"| {line['what']} | {', '.join(numbers)} |\n" if numbers else ""
    return text + "".join(f"\n- {line['what']}: {line['error']}" for line in failed) + "\n" * bool(failed)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="run the jobs whose names contain this")
    parser.add_argument("--page", type=Path, help="write docs/results/gpu.md from these lines, and run nothing")
    asked = parser.parse_args(arguments)
    if asked.page:
        PAGE.write_text(page(read(asked.page), asked.page.name))
        return
    folder, begun = Path(os.environ.get("OUT", "build/gpu")), time.monotonic()
    results = Results(folder)
    for jobs, seconds, at_once in ((ALONE, ALONE_S, 1), (TOGETHER, CHECKS_S, AT_ONCE), (FIGURES, ALL_S, 1)):
        run_all([j for j in jobs if asked.only in j.name], results, begun + seconds, at_once=at_once)
    for line in read(results.lines):  # The table is short: figures and failures.
        if line["ok"] is False or line.get("kind"):
            told = {k: v for k, v in line.items() if k not in ABOUT and v != ""}
            print(f"{'ok' if line['ok'] else 'FAILED':<8}{line['what']:<60}{told}"[:300])


if __name__ == "__main__":
    main()
