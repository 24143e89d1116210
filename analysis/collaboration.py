"""When does collaboration help? Paired differences between the arms of a sweep of a `collaboration` preset.

    python -m analysis.collaboration SWEEP [--out DIR]     prints, and writes paired.csv and .md

A cell is a minority's size, an epsilon and a sampler; differences are taken seed by seed: mean and 95 % Student
interval, without a correction for the number of cells. Negative: the first arm's distance is smaller. Share: PFDM's
gain over local training as a part of the perfect server's (`real`), with Fieller's 95 % interval; empty where that
server's gain is not clear.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from raydiff.__main__ import leave
from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.formats.intervals import format_interval, interval, ratio
from raydiff.formats.tables import Table, publish
from raydiff.models.samplers import SAMPLERS
from raydiff.report import load
from raydiff.report.load import column
from raydiff.report.paired import pair_by_seed

PAIRS = (
    ("pfdm", "localonly"),
    ("pfdm", "no-server"),
    ("pfdm", "shuffled"),
    ("collafuse", "localonly"),
    ("gaussian", "localonly"),
    ("pfdm", "gaussian"),
    ("real", "localonly"),
    ("centre", "centre-localonly"),
    ("centre-real", "centre-localonly"),
    ("centre-gaussian", "centre-localonly"),
    ("fedavg", "localonly"),
    ("centralised", "localonly"),
)
"""(arm, what it is compared with)."""
PERFECT = {("pfdm", "localonly"): "real", ("centre", "centre-localonly"): "centre-real"}
"""Pair -> the perfect server at its depths."""
SHARE = ("share", "share_low", "share_high")
CELL = ["minority", "epsilon", "sampler"]
NONE = -1.0  # epsilon of arms that have none, in the key of a group


def distances(runs: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """arm, minority, epsilon (infinite without noise, NaN for arms that have none), seed, sampler, distance.

    From `load.runs` and `load.read_rounds`. Raises ValueError where the sweep is not of such a preset.
    """
    runs = load.finished(runs)
    measured = any(f"final/eval/{sampler}/fd_cnn/minor" in runs for sampler in SAMPLERS)
    if not measured or "partition.minority" not in runs or runs["partition.minority"].isna().all():
        raise ValueError("there are no finished trials with feature distances and a partition.minority")
    of_depths = _epsilons_of_depths(runs, rounds)
    rows = []
    for run in runs.to_dict("records"):
        arm = _arm(run)
        groups = ("cluster_a", "cluster_b") if arm == "centralised" else ("minor",)
        for epsilon, sampler in itertools.product(_epsilons(run, arm, of_depths), SAMPLERS):
            values = [run.get(f"final/eval/{sampler}/fd_cnn/{group}", math.nan) for group in groups]
            rows.append((arm, run["partition.minority"], epsilon, run["seed"], sampler, sum(values) / len(values)))
    return pd.DataFrame(rows, columns=["arm", *CELL[:2], "seed", CELL[2], "distance"]).dropna(subset="distance")


def _epsilons_of_depths(runs: pd.DataFrame, rounds: pd.DataFrame) -> dict[Any, list[float]]:
    """(Around the public mean or not, depth t0) -> the epsilons that need it: what has no noise is compared at each."""
    depths = runs["digest"].map(rounds[rounds["metric"] == "t0"].set_index("digest")["value"])
    epsilons = column(runs, "method.epsilon").dropna()
    return {key: list(e.unique()) for key, e in epsilons.groupby([runs["method.center"].eq("public"), depths])}


def _epsilons(run: Mapping[Any, Any], arm: str, of_depths: dict[Any, list[float]]) -> list[float]:
    """The epsilons of a trial's cells: its own, its depth's, infinity without noise, NaN without a budget."""
    if arm in ("collafuse", *PERFECT.values()):
        return of_depths.get((run["method.center"] == "public", float(run["method.t0"])), [])
    if not pd.isna(run.get("method.epsilon")):
        return [float(run["method.epsilon"])]
    return [math.inf if arm == "pfdm" else math.nan]


def _arm(run: Mapping[Any, Any]) -> str:
    if run["method"] == "FedAvg":
        return "fedavg"
    if run["partition"] == "Pooled":
        return "centralised"
    centre = run["method.center"] == "public"
    if run["method"] == "LocalOnly":
        return "centre-localonly" if centre else "localonly"
    if run["method.start"] == "denoiser":
        if pd.isna(run["method.epsilon"]) and not pd.isna(run["method.t0"]):
            return "collafuse"
        return "centre" if centre else "pfdm"
    name = {"noise": "no-server"}.get(run["method.start"], run["method.start"])
    return f"centre-{name}" if centre else str(name)


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and pair: CELL, arm, against, their means, n, and the paired mean, low, high."""
    rows = []
    for arm, against in PAIRS:
        mine = table[table["arm"] == arm]
        theirs = table[table["arm"] == against]
        on = [name for name in CELL[:2] if mine[name].notna().any() and theirs[name].notna().any()]
        both = pair_by_seed(mine, theirs, ["seed", "sampler", *on], "distance")
        for name in CELL[:2]:
            if f"{name}_base" in both:  # An arm without this field is the same in every cell.
                both[name] = both[name].fillna(both[f"{name}_base"])
        for row, pairs in load.group_rows(both, CELL):
            row |= {"arm": arm, "against": against, "n": len(pairs)}
            row |= {"arm_mean": pairs["distance"].mean(), "against_mean": pairs["distance_base"].mean()}
            row |= interval(pairs["difference"])
            best = table[table["arm"] == PERFECT.get((arm, against))]
            best = pairs.merge(best, on=[*CELL, "seed"], suffixes=("", "_best"))
            share = ratio(best["difference"], best["distance_best"] - best["distance_base"])
            rows.append(row | dict(zip(SHARE, share, strict=True)))
    names = [*CELL, "arm", "against", "arm_mean", "against_mean", "n", "mean", "low", "high", *SHARE]
    return pd.DataFrame(rows, columns=names)


def shown_table(table: pd.DataFrame) -> Table:
    """A row per cell, a column per pair: the difference, its interval, the oracle's sign beside it."""
    compared = set(zip(table["arm"], table["against"], strict=True))
    pairs = [pair for pair in PAIRS if pair in compared]
    short = {"localonly": "local", "centre-localonly": "its local"}
    header = ["minority", "epsilon", "sampler", "local", *(f"{a} - {short.get(b, b)}" for a, b in pairs)]
    lines = []
    # Arms without an epsilon are the same in every cell of a minority and a sampler: they stand below the others.
    cells = table.fillna({"epsilon": NONE}).groupby(CELL)
    for (minority, epsilon, sampler), rows in sorted(cells, key=lambda cell: cell[0][1] == NONE):
        local = rows[rows["against"] == "localonly"] if epsilon != NONE else rows
        first = f"{local['against_mean'].iloc[0]:.2f}" if len(local) else ""
        of_pair = {(row["arm"], row["against"]): _cell(row) for row in rows.to_dict("records")}
        compared_cells = (of_pair.get(pair, "") for pair in pairs)
        lines.append([f"{minority:g}", _level(epsilon), str(sampler), first, *compared_cells])
    return Table(header, lines)


def _level(epsilon: Any) -> str:
    return "none" if math.isinf(epsilon) else "-" if math.isnan(epsilon) or epsilon == NONE else f"{epsilon:g}"


def _cell(row: Mapping[Any, Any]) -> str:
    """`-0.68 [-0.91, -0.45]`, bold where the interval excludes 0; then the share of the perfect server's gain."""
    difference = format_interval(row["mean"], row["low"], row["high"], "+.2f", bold=True)
    share = format_interval(row["share"], row["share_low"], row["share_high"], ".0%")
    return difference if math.isnan(row["share"]) else f"{difference}; share {share}"


def main(argv: Sequence[str]) -> None:
    """Print the table and write the files."""
    sweep, out = parse_options(FinishedSweepOptions, argv, __doc__).open()
    table = differences(distances(sweep.runs, sweep.rounds))
    publish(out, "paired", str(shown_table(table)), {"paired": table})


if __name__ == "__main__":
    leave(main, sys.argv[1:])
