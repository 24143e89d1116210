"""What becomes of a sweep when something breaks at a random moment: each fault is tried some times, and each try is
compared with the same sweep undisturbed.

    python docs/data/reliability/tries.py                    all faults that reliability.csv has not enough tries of
    python docs/data/reliability/tries.py ROW ...            those whose names have this in them, again
    python docs/data/reliability/tries.py ROW --seed SEED    one try again, by its draws; it is only printed

Writes reliability.csv (a line per try) and faults.csv (a line per fault) beside itself. A try ends as
    same        server states, ledgers, the report's table and MLflow's runs are those of the undisturbed sweep
    refused     the command, or the trial, ended with one sentence that names the damaged file; with the file put back
                as it was, the sweep is then the same
    FAILED      anything else: another number, a lost epsilon, a traceback, a hang (two minutes without a commit; five
                where a network is cut)
Four sweeps run at a time, up to three of them each on a cluster of three nodes that is started for it. Networks can be
cut by root alone.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests" / "survival"), str(ROOT)]  # what starts nodes and finds their processes is there
os.environ["RAYDIFF_NOISE_SECRET"] = "00112233445566778899aabbccddeeff"  # so that sweeps can be compared bit for bit
os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "MPLBACKEND": "Agg"}
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.pop("RAY_ADDRESS", None)

from faults import FAULTS  # noqa: E402
from networks import Parted  # noqa: E402
from nodes import Nodes  # noqa: E402
from sweeps import COMMITS, KINDS, Cluster, Tried, Try  # noqa: E402

CSV, TABLE = HERE / "reliability.csv", HERE / "faults.csv"
CLUSTERS, SIDE = 2, 2  # sweeps at a time: on a cluster each, and in processes of their own
RESULTS = ("same", "refused", "FAILED")
COLUMNS = ("fault", "seed", "commits", "result", "seconds", "says")
PRELOADED = ["torch", "torch._dynamo", "sklearn.datasets", "pandas", "matplotlib.pyplot", "jinja2", "safetensors.torch"]
PRELOADED += ["mlflow.store.tracking.sqlalchemy_store", "raydiff.runtime.launch", "raydiff.cli.sweep"]


def undisturbed(folder: Path, kind: str) -> tuple[Any, str, float]:
    """(states, table, seconds of a round) of the sweep that nothing happens to."""
    this = Try(folder / f"undisturbed-{kind}" / "storage", kind, 0, None, None)
    code, output = this.end(this.start())
    assert code == 0, output
    return this.sweep.state(), this.sweep.table(), this.sweep.round_s()


def tried(fault: str, seed: int, expected: dict[str, Any], folder: Path, nodes: Cluster) -> dict[str, Any]:
    """One try, as a row of the table."""
    does, kind, _ = FAULTS[fault]
    at, begun = Path(tempfile.mkdtemp(dir=folder)), time.monotonic()
    this, says = Try(at / "storage", kind, seed, expected[kind], nodes), ""
    try:
        does(this)
        if not this.checked:
            this.check()
        result, says = ("refused", this.refusal) if this.refusal else ("same", this.failed)
    except Exception as e:
        result, says = "FAILED", str(e) or type(e).__name__
        if not isinstance(e, AssertionError):
            traceback.print_exc()
    this.close()
    if nodes is not None:
        nodes.complete()
    says = re.sub(r"(sweeps/survivor/trials/)\w+", r"\1TRIAL", says.replace(str(at / "storage"), "STORAGE"))
    if result != "FAILED":
        shutil.rmtree(at)
    else:
        print(f"its files: {at}", flush=True)
    seconds = f"{time.monotonic() - begun:.1f}"
    return dict(zip(COLUMNS, (fault, seed, this.committed, result, seconds, says.replace(str(at), "")), strict=True))


def read() -> list[dict[str, Any]]:
    """The tries so far."""
    if not CSV.exists():
        return []
    with CSV.open(newline="") as lines:
        return list(csv.DictReader(lines))


def keep(fault: str, rows: list[dict[str, Any]]) -> None:
    """Put the tries of a fault in place of those that there were, and write the table anew."""
    with (HERE / "tries.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        order = list(FAULTS)
        every = sorted(
            [r for r in read() if r["fault"] != fault and r["fault"] in FAULTS] + rows,
            key=lambda r: order.index(r["fault"]),
        )
        with CSV.open("w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=COLUMNS)
            writer.writeheader()
            writer.writerows(every)
        with TABLE.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(table(every))


def table(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """One row per fault: its tries, how many ended in which way, and one of the sentences printed."""
    lines: list[tuple[object, ...]] = [("fault", "tries", *RESULTS, "says")]
    for fault in dict.fromkeys(r["fault"] for r in rows):
        of = [r for r in rows if r["fault"] == fault]
        counts = Counter(r["result"] for r in of)
        says = next((r["says"] for r in sorted(of, key=lambda r: r["result"]) if r["says"]), "")
        lines.append((fault, len(of), *(counts[result] for result in RESULTS), says))
    return lines


def tries(faults: list[str], count: int, expected: dict[str, Any], folder: Path, nodes: Cluster) -> None:
    """All tries of these, one after the other."""
    for fault in faults:
        rows = []
        for number in range(count):
            row = tried(fault, secrets.randbits(32), expected, folder, nodes)
            while row["result"] == "same" and row["commits"] == COMMITS:  # The sweep was faster than its fault.
                row = tried(fault, secrets.randbits(32), expected, folder, nodes)
            rows.append(row)
            told = ", ".join(f"{k} {rows[-1][k]}" for k in ("seed", "commits", "result", "seconds"))
            print(f"{fault} [{number + 1}/{count}]: {told} {rows[-1]['says']}", flush=True)
        keep(fault, rows)


def main() -> None:
    """The undisturbed sweeps, then the faults."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", nargs="*", metavar="ROW")
    p.add_argument("--tries", type=int, default=5)
    p.add_argument("--seed", type=int, help="of one try")
    given = p.parse_args()
    done = Counter(r["fault"] for r in read())
    wanted = [f for f in FAULTS if (any(r in f for r in given.rows) if given.rows else done[f] < given.tries)]
    begun = time.monotonic()
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", *PRELOADED])
    with ExitStack() as stack:
        from mlflow import MlflowClient

        folder = Path(tempfile.mkdtemp(prefix="raydiff-tries-"))
        Tried.tables = folder / "tables.db"
        MlflowClient(f"sqlite:///{Tried.tables}").search_experiments()
        expected = {kind: undisturbed(folder, kind) for kind in KINDS}
        print(f"undisturbed after {time.monotonic() - begun:.0f} s; {len(wanted)} faults", flush=True)
        spread = [[f for f in wanted if FAULTS[f][2] is Nodes][i::CLUSTERS] for i in range(CLUSTERS)]
        spread = [faults for faults in (*spread, [f for f in wanted if FAULTS[f][2] is Parted]) if faults]
        clusters: list[Nodes | Parted] = []
        for faults in spread:
            clusters.append(Parted() if FAULTS[faults[0]][2] is Parted else Nodes(at_exit=False))
            stack.callback(clusters[-1].stop)
            clusters[-1].complete()
        placed = {fault: nodes for faults, nodes in zip(spread, clusters, strict=True) for fault in faults}
        if given.seed is not None:
            for fault in wanted:
                print(tried(fault, given.seed, expected, folder, placed.get(fault)))
            return
        with ThreadPoolExecutor(CLUSTERS + SIDE) as pool:
            rest = given.tries, expected, folder
            tasks = [pool.submit(tries, faults, *rest, nodes) for faults, nodes in zip(spread, clusters, strict=True)]
            tasks += [pool.submit(tries, [fault], *rest, None) for fault in wanted if fault not in placed]
            for task in tasks:
                task.result()
    print(f"whole run: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
