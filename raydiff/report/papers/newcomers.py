"""How well does each method serve clients that join later? A sweep of a `spire-...` preset as a table and a picture.

    raydiff newcomers SWEEP [--sampler ddim] [--out DIR]     prints, and writes newcomers.csv, .md and .png

A row is a method: the kernel distance of its samples to real held-out records, mean over clients and seeds, for the
clients of the federation and for those that joined; what the first method's distance is less than its own, seed by seed
(mean and 95 % Student interval; bold where it excludes 0; negative: the first method is nearer to the data); and how
many parameters a new client trains. The floor is real records against real records. The picture shows samples of one
seed, drawn from the same noise by every method.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.report import load
from raydiff.report.intervals import student

GROUPS = {"eval": "clients", "new": "newcomers"}
"""Prefix of a reading -> whom it is of."""


def readings(sweep: Path, sampler: str | None = None) -> pd.DataFrame:
    """One row per finished trial: digest, method, seed, clients, newcomers, their floors, parameters, share, seconds.

    `sampler` names the chain (ddim or ancestral); None: the configured one. Raises ValueError where nobody joined.
    """
    runs = load.runs(sweep)
    runs = runs[runs["outcome"] == "finished"]
    named = f"{sampler}/kd_cnn/all" if sampler else "kd_cnn/all"
    if f"final/new/{named}" not in runs or not len(runs):
        raise ValueError(f"{sweep} has no finished trials that measured clients which joined later")
    out = pd.DataFrame({"digest": runs["digest"], "method": [_name(r) for r in runs.to_dict("records")]})
    out["seed"] = runs["seed"]
    for prefix, group in GROUPS.items():
        out[group] = runs[f"final/{prefix}/{named}"]
        out[f"{group}_floor"] = runs[f"final/{prefix}/kd_cnn/all_floor"]
    for column, name in (("parameters", "new/parameters"), ("share", "new/parameters_share")):
        out[column] = runs.get(f"final/{name}", pd.Series(math.nan, runs.index))
    return out.assign(seconds=runs["final/time/seconds"])


def _name(run: Mapping[Any, Any]) -> str:
    """The method, and whether it fine-tunes."""
    tuned = not pd.isna(run.get("method.finetune.steps"))
    return f"{run['method']} + fine-tuning" if tuned else str(run["method"])


def table(found: pd.DataFrame, first: str) -> pd.DataFrame:
    """A row per method, `first` on top: n, means, and for each group the paired difference `first` - method."""
    mine = found[found["method"] == first]
    if mine.empty:
        raise ValueError(f"there is no {first} in this sweep: it has {', '.join(sorted(found['method'].unique()))}")
    rows = []
    for method, own in found.groupby("method", sort=False):
        row: dict[str, Any] = {"method": method, "n": len(own)}
        row |= {c: own[c].mean() for c in (*GROUPS.values(), "parameters", "share", "seconds")}
        both = mine.merge(own, on="seed", suffixes=("_first", ""))
        for group in GROUPS.values():
            gap = both[f"{group}_first"] - both[group]
            row |= dict(zip((f"{group}_{k}" for k in ("gap", "low", "high")), student(gap), strict=True))
        rows.append(row)
    rows.sort(key=lambda row: (row["method"] != first, row["newcomers"]))
    return pd.DataFrame(rows)


def markdown(rows: pd.DataFrame, floors: Sequence[float]) -> str:
    """The table for people, and the floors below it."""
    first = rows["method"].iloc[0]
    header = ["method", "clients", f"{first} - method", "newcomers", f"{first} - method", "newcomer trains", "seconds"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows.to_dict("records"):
        own = [cell for g in GROUPS.values() for cell in (f"{row[g]:.3f}", _gap(row, g, first))]
        trains = "all" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f} ({row['share']:.3%})"
        lines.append(f"| {' | '.join([row['method'], *own, trains, format(row['seconds'], '.0f')])} |")
    words = "; ".join(f"{group} {floor:.3f}" for group, floor in zip(GROUPS.values(), floors, strict=True))
    return "\n".join([*lines, "", f"{rows['n'].min()} seeds; floors (real against real): {words}"])


def _gap(row: Mapping[Any, Any], group: str, first: str) -> str:
    if row["method"] == first:
        return ""
    low, high = row[f"{group}_low"], row[f"{group}_high"]
    words = f"{row[f'{group}_gap']:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"**{words}**" if low > 0 or high < 0 else words


def draw(sweep: Path, found: pd.DataFrame, methods: Sequence[str], path: Path) -> None:
    """Samples of the smallest seed, a row per method: clients of the federation on the left, newcomers on the right."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    one = found[found["seed"] == found["seed"].min()].set_index("method")
    figure = Figure(figsize=(9, 2.6 * len(methods)), dpi=150, layout="constrained")
    grids = figure.subplots(len(methods), 2, squeeze=False)
    for (left, right), method in zip(grids, methods, strict=True):
        for axes, name, group in ((left, "samples", "clients"), (right, "newcomers", "newcomers")):
            axes.imshow(imread(sweep / "trials" / one.loc[method, "digest"] / "artifacts" / f"{name}.png"), cmap="gray")
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{method}, {group}: {one.loc[method, group]:.2f}", fontsize=9)
    figure.savefig(path, metadata={"Software": None})


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files and say where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", metavar="SWEEP", type=Path, help="a sweep's folder, the one that holds trials/")
    parser.add_argument("--sampler", choices=("ddim", "ancestral"), help="the chain (default: the configured one)")
    parser.add_argument("--first", default="SPIRE", help="the method that the others are compared with")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: SWEEP/report)")
    given = parser.parse_args(argv)
    sweep = given.sweep.expanduser()
    out = given.out.expanduser() if given.out else sweep / "report"
    found = readings(sweep, given.sampler)
    rows = table(found, given.first)
    text = markdown(rows, [found[f"{group}_floor"].mean() for group in GROUPS.values()])
    out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(out / "newcomers.csv", index=False)
    (out / "newcomers.md").write_text(text + "\n")
    draw(sweep, found, list(rows["method"]), out / "newcomers.png")
    print(f"{text}\n\n{out}")
