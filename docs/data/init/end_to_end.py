"""From a data set to a judged result, in three commands: how long, and how good.

    RAYDIFF_DATA=path/to/data python docs/data/init/end_to_end.py FOLDER DATA [DATA ...]

`DATA` is what raydiff init takes, options and all: "mnist --data.size 14". Runs init, run and report of each, one after
the other, in FOLDER, and writes this folder's init.csv: of every data set that FOLDER has a result of.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import raydiff as rd

HERE = Path(__file__).parent


def seconds(command: list[str], log: Path) -> float:
    """How long it takes; its output stays in `log`."""
    begun = time.monotonic()
    with log.open("w") as out:
        subprocess.run([sys.executable, "-m", "raydiff", *command], stdout=out, stderr=out, check=True)
    return time.monotonic() - begun


def said(text: str) -> float:
    """The seconds in a file's line "about 1:02 min on the machine"."""
    (left,) = re.findall(r"about ([\d:]+) (?:s|min|h) on the machine", text)
    total = 0
    for part in left.split(":"):
        total = total * 60 + int(part)
    return float(total)


def reached(run: rd.Run) -> dict[str, object]:
    """What a record is, and how good the samples are: pictures and rows of a table by measures of their own."""
    if "eval/tv_pairs" in run.all_metrics:
        values = f"{len(run.experiment.method.model.counts)} columns"
        distance, right = "tv_pairs", ("accuracy", "accuracy/real")
    else:
        values = "x".join(map(str, run.experiment.method.model.shape))
        distance, right = "fd_cnn/all", ("label_accuracy/all", "label_accuracy/real")
    names = (distance, f"{distance}_floor", *right)
    d, floor, samples, real = (run.all_metrics[f"eval/{name}"] for name in names)
    return {"values": values, "distance": d, "floor": floor, "accuracy": samples, "real": real, "floors": d / floor}


def end_to_end(folder: Path, data: str) -> None:
    """The three commands; what came out stays in FOLDER as a row."""
    shown = re.sub(r"\S*/", "", data)  # Of a path its last part.
    name = re.sub(r"\W+", "-", shown).strip("-")
    file = folder / f"{name}.toml"
    given = ["--runtime.storage", str(folder)]
    row: dict[str, object] = {"raydiff init": shown}
    row["init_s"] = seconds(["init", *shlex.split(data), "--out", str(file)], folder / f"{name}-init.log")
    row["said_s"] = said(file.read_text())
    row["run_s"] = seconds(["run", str(file), "--name", name, *given], folder / f"{name}-run.log")
    sweep = folder / "sweeps" / name
    row["report_s"] = seconds(["report", str(sweep)], folder / f"{name}-report.log")
    (run,) = rd.open(sweep).trials
    row |= reached(run)
    (folder / f"{name}.json").write_text(json.dumps(row))


def main() -> None:
    """Run every data set, then write the table."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for data in sys.argv[2:]:
        end_to_end(folder, data)
    rows = sorted((json.loads(f.read_text()) for f in folder.glob("*.json")), key=lambda row: float(row["run_s"]))
    with (HERE / "init.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
