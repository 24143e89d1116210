"""When does collaboration help? Paired differences between the arms of a sweep of a `collaboration` preset.

    raydiff collaboration SWEEP [--oracle FILE.csv] [--out DIR]     prints, and writes paired.csv, .md and .png
    raydiff collaboration SWEEP --before SWEEP                      and by how much each arm differs from another sweep

An arm is what a trial does for the minority; a cell is a minority's size, an epsilon and a sampler. Arms of one cell
share seeds and partitions, and the arms of a pair their client models where both have some, so differences are taken
seed by seed: mean and 95 % Student interval, without a correction for the number of cells. Negative: the first arm's
distance is smaller. A prediction of the oracle
(`raydiff theory --out`) agrees where its sign is that of a difference whose interval excludes 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import plots
from raydiff.formats.intervals import shown, student
from raydiff.formats.tables import Table, publish
from raydiff.report import load
from raydiff.report.frontier.rows import SAMPLERS, network_of
from raydiff.report.load import column

PFDM = {"noise": "no-server", "shuffled": "shuffled", "gaussian": "gaussian", "denoiser": "pfdm"}
PAIRS = (
    ("pfdm", "localonly"),
    ("pfdm", "no-server"),
    ("pfdm", "shuffled"),
    ("collafuse", "localonly"),
    ("gaussian", "localonly"),
    ("pfdm", "gaussian"),
    ("centre", "centre-localonly"),
    ("centre-gaussian", "centre-localonly"),
    ("fedavg", "localonly"),
    ("centralised", "localonly"),
)
"""(arm, what it is compared with)."""
CELL = ["minority", "epsilon", "sampler"]
PAIRED = ["arm_mean", "against_mean", "n", "mean", "low", "high"]
NONE = -1.0
"""In a group's key: the epsilon of arms that have none."""


def distances(sweep: Path) -> pd.DataFrame:
    """arm, minority, epsilon (infinite without noise, NaN for arms that have none), seed, sampler, distance.

    Raises ValueError where the sweep is not of such a preset.
    """
    runs = load.finished(load.runs(sweep))
    network = network_of(runs)
    if network is None or "partition.minority" not in runs or runs["partition.minority"].isna().all():
        raise ValueError(f"{sweep} has no finished trials with feature distances and a partition.minority")
    budgets = _budgets(runs, load.rounds(sweep))
    rows = []
    for run in runs.to_dict("records"):
        arm = _arm(run)
        for epsilon, sampler in itertools.product(_epsilons(run, arm, budgets), SAMPLERS):
            names = ("cluster_a", "cluster_b") if arm == "centralised" else ("minor",)
            values = [run.get(f"final/eval/{sampler}/fd_{network}/{name}", math.nan) for name in names]
            rows.append((arm, run["partition.minority"], epsilon, run["seed"], sampler, sum(values) / len(values)))
    return pd.DataFrame(rows, columns=["arm", *CELL[:2], "seed", CELL[2], "distance"]).dropna(subset="distance")


def _budgets(runs: pd.DataFrame, rounds: pd.DataFrame) -> dict[float, list[float]]:
    """Depth -> the epsilons that need it, around no center: CollaFuse is at the depth of each of them."""
    depths = rounds[rounds["metric"] == "t0"].set_index("digest")["value"]
    epsilons = column(runs, "method.epsilon").mask(column(runs, "method.center") == 1).dropna()
    return {depth: list(of.unique()) for depth, of in epsilons.groupby(runs["digest"].map(depths))}


def _epsilons(run: Mapping[Any, Any], arm: str, budgets: dict[float, list[float]]) -> list[float]:
    """The cells of a trial: its epsilon, those of its depth, infinity without noise, NaN where there is no budget."""
    if arm == "collafuse":
        return budgets.get(float(run["method.t0"]), [])
    if not pd.isna(run.get("method.epsilon")):
        return [float(run["method.epsilon"])]
    return [math.inf if arm == "pfdm" else math.nan]


def _arm(run: Mapping[Any, Any]) -> str:
    if run["method"] == "FedAvg":
        return "fedavg"
    if run["partition"] == "Pooled":
        return "centralised"
    centre = "centre-" if run["method.center"] is True else ""
    if run["method"] == "LocalOnly":
        return f"{centre}localonly"
    if pd.isna(run["method.epsilon"]) and not pd.isna(run["method.t0"]):
        return "collafuse"
    name = PFDM[run["method.start"]]
    return "centre" if (centre, name) == ("centre-", "pfdm") else centre + name


def differences(found: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and pair: minority, epsilon, sampler, arm, against, their means, n, and the paired mean, low,
    high."""
    rows = []
    for arm, against in PAIRS:
        mine, theirs = found[found["arm"] == arm], found[found["arm"] == against]
        on = [c for c in CELL[:2] if mine[c].notna().any() and theirs[c].notna().any()]
        both = mine.merge(theirs, on=["seed", "sampler", *on], suffixes=("", "_other"))
        for name in CELL[:2]:
            if f"{name}_other" in both:  # the arm that has none is the same in every cell
                both[name] = both[name].fillna(both[f"{name}_other"])
        rows += [(*cell, arm, against, *_paired(pairs)) for cell, pairs in both.groupby(CELL, dropna=False)]
    return pd.DataFrame(rows, columns=[*CELL, "arm", "against", *PAIRED])


def since(found: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """One row per arm and cell of two sweeps: the distance here less that in the other one, as in `differences`. Raises
    ValueError where they have none in common."""
    both = found.merge(before, on=["arm", "seed", *CELL], suffixes=("", "_other"))
    if both.empty:
        raise ValueError("the two sweeps have no arm, minority, epsilon, sampler and seed in common")
    by = ["arm", *CELL]
    rows = [(*cell, *_paired(pairs)) for cell, pairs in both.groupby(by, dropna=False, sort=False)]
    return pd.DataFrame(rows, columns=[*by, *PAIRED])


def _paired(pairs: pd.DataFrame) -> tuple[float, ...]:
    """`PAIRED` of rows of one pair, a seed each."""
    gap = pairs["distance"] - pairs["distance_other"]
    return pairs["distance"].mean(), pairs["distance_other"].mean(), len(gap), *student(gap)


def with_oracle(table: pd.DataFrame, oracle: pd.DataFrame) -> pd.DataFrame:
    """The table with the oracle's difference of squared Wasserstein distances, and whether the directions agree.

    `agrees` is empty where the interval includes 0 or the oracle says nothing.
    """
    if missing := {*CELL, "arm", "w2_squared"} - {*oracle}:
        raise ValueError(f"the oracle's file has no column {min(missing)}: make it with raydiff theory")
    oracle = oracle.assign(epsilon=oracle["epsilon"].replace("none", "inf").astype(float))
    w2 = oracle.set_index([*CELL, "arm"])["w2_squared"]
    against = table["against"].replace({"centre-localonly": "localonly"})  # its client models do not depend on the clip
    cells = (pd.MultiIndex.from_frame(table[CELL].assign(arm=arm)) for arm in (table["arm"], against))
    mine, theirs = (w2.reindex(cell).to_numpy() for cell in cells)
    known = table.assign(oracle=mine - theirs)
    clear = (known["low"] > 0) | (known["high"] < 0)
    agrees = (known["oracle"] * known["mean"] > 0).astype(object)
    return known.assign(agrees=agrees.where(clear & known["oracle"].notna()))


# ------------------------------------------------------------------------------------------------------- for people


def shown_table(table: pd.DataFrame) -> Table:
    """A row per cell, a column per pair: the difference, its interval, the oracle's sign beside it."""
    known = set(zip(table["arm"], table["against"], strict=True))
    pairs = [pair for pair in PAIRS if pair in known]
    short = {"localonly": "local", "centre-localonly": "its local"}
    header = ["minority", "epsilon", "sampler", "local", *(f"{a} - {short.get(b, b)}" for a, b in pairs)]
    lines = []
    # Arms without an epsilon are the same in every cell of a minority and a sampler: they stand below the others.
    groups = table.fillna({"epsilon": NONE}).groupby(CELL)
    for (minority, epsilon, sampler), rows in sorted(groups, key=lambda group: group[0][1] == NONE):
        local = rows[rows["against"] == "localonly"] if epsilon != NONE else rows
        first = f"{local['against_mean'].iloc[0]:.2f}" if len(local) else ""
        of = {(row["arm"], row["against"]): _cell(row) for row in rows.to_dict("records")}
        cell = [f"{minority:g}", _level(math.nan if epsilon == NONE else epsilon), str(sampler), first]
        lines.append([*cell, *(of.get(pair, "") for pair in pairs)])
    return Table(header, lines)


def shown_since(table: pd.DataFrame) -> Table:
    """A row per arm and cell."""
    header = ["arm", *CELL, "before", "here", "here - before"]
    rows = [
        [
            row["arm"],
            _level(row["minority"]),
            _level(row["epsilon"]),
            row["sampler"],
            f"{row['against_mean']:.2f}",
            f"{row['arm_mean']:.2f}",
            _cell(row),
        ]
        for row in table.to_dict("records")
    ]
    return Table(header, rows)


def _level(value: Any) -> str:
    return "none" if math.isinf(value) else "-" if math.isnan(value) else f"{value:g}"


def _cell(row: Mapping[Any, Any]) -> str:
    """`-0.68 [-0.91, -0.45]`, bold where the interval excludes 0; then the oracle's sign, where there is one."""
    says = shown(row["mean"], row["low"], row["high"], "+.2f", bold=True)
    oracle = row.get("oracle", math.nan)
    return says if math.isnan(oracle) else says + f" ({'+' if oracle > 0 else '-'})"


def disagreements(table: pd.DataFrame) -> Iterator[str]:
    """The cells whose interval excludes 0 and whose direction the oracle gets wrong, a sentence each."""
    for row in table[table["agrees"] == False].to_dict("records"):  # noqa: E712
        cell = f"minority {row['minority']:g}, epsilon {_level(row['epsilon'])}, {row['sampler']}"
        yield f"{cell}: {row['arm']} - {row['against']} is {row['mean']:+.2f}, the oracle has {row['oracle']:+.3g}"


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files and say where."""
    oracle = {"metavar": "FILE.csv", "type": Path, "help": "predictions to put beside the differences"}
    before = {"metavar": "SWEEP", "type": Path, "help": "a sweep of the same arms and seeds under other settings"}
    given = load.arguments(__doc__, argv, oracle=oracle, before=before)
    found = distances(given.sweep)
    table, notes = differences(found), []
    if given.oracle:
        table = with_oracle(table, pd.read_csv(given.oracle, na_values="", keep_default_na=False))
        counted = table["agrees"].dropna()
        notes = [f"the oracle agrees in {int(counted.sum())} of {len(counted)} decided cells", *disagreements(table)]
    files = {"paired": table}
    if given.before:
        files["since"] = since(found, distances(given.before.expanduser()))
        notes += [f"Beside {given.before.name}:", "", str(shown_since(files["since"]))]
    publish(given.out, "paired", "\n".join([str(shown_table(table)), "", *notes]), files)
    draw(found, given.out / "paired.png")


# --------------------------------------------------------------------------------------------------------- picture

LOOKS = {
    "localonly": ("0.35", "--"),
    "no-server": ("#E69F00", ":"),
    "shuffled": ("#CC79A7", ":"),
    "collafuse": ("#56B4E9", "-."),
    "pfdm": ("#0072B2", "-"),
    "gaussian": ("#009E73", "-"),
    "centre-localonly": ("0.35", ":"),
    "centre": ("#D55E00", "-"),
    "centre-gaussian": ("#F0E442", "-"),
    "fedavg": ("#000000", "-."),
    "centralised": ("0.6", "-."),
}
"""Arm -> colour (Okabe and Ito's, which the colour-blind tell apart) and line; grey and black have no epsilon."""


def draw(found: pd.DataFrame, path: Path) -> None:
    """Distance over epsilon, a panel per minority's size (columns) and sampler (rows); mean over seeds, bars from least
    to greatest."""
    minorities = sorted(found["minority"].dropna().unique())
    samplers = list(dict.fromkeys(found["sampler"]))
    levels = sorted(found["epsilon"].dropna().unique())
    size = (3.6 * len(minorities) + 1.6, 3.0 * len(samplers))
    figure, panels = plots.panels(len(samplers), len(minorities), size=size, sharex=True)
    for axes, (sampler, minority) in zip(panels.flat, itertools.product(samplers, minorities), strict=True):
        here = found[(found["sampler"] == sampler) & ((found["minority"] == minority) | found["minority"].isna())]
        _panel(axes, here, levels)
        axes.set_title(f"{minority:g} records a minority class, {sampler}", fontsize=9)
    figure.supxlabel("epsilon of an upload", fontsize=9)
    figure.supylabel("Fréchet distance, minority classes", fontsize=9)
    plots.legend(figure, panels.flat)
    plots.save(figure, path)


def _panel(axes: Any, found: pd.DataFrame, levels: list[float]) -> None:
    for arm, (colour, line) in LOOKS.items():
        rows = found[found["arm"] == arm]
        if rows.empty:
            continue
        if rows["epsilon"].isna().all():
            axes.axhline(rows["distance"].mean(), color=colour, linestyle=line, linewidth=1.2, label=arm)
            continue
        at = rows.groupby("epsilon")["distance"].agg(["mean", "min", "max"])
        look = {"color": colour, "linestyle": line, "marker": "o", "ms": 3, "capsize": 2, "label": arm}
        plots.points(axes, [levels.index(e) for e in at.index], at["mean"], (at["min"], at["max"]), **look)
    axes.set_xticks(range(len(levels)), [_level(e) for e in levels])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=8)
