"""What does one round of prompts cost? The axes of FedDistr's Figures 4, 5 and 8 and its Table 2, from a sweep.

    raydiff feddistr SWEEP [--out DIR]

Prints the tables and writes feddistr.md, three tables as CSV (feddistr-losses, -paired, -convergence) and pictures
(feddistr-rounds, -bytes). The paper: arXiv 2410.12530. Utility loss is 1 - accuracy on real test records;
epsilon is the ledger's, against the server. Paired differences are FedDistr's without noise minus another arm's, seed
by seed.

An arm is a method with its rounds and its target epsilon; a cell is an entanglement xi and a number of clients K.
Pooled trials have no cell of their own: they count in each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import plots, rounding
from raydiff.formats.intervals import decided, interval, shown
from raydiff.formats.tables import Table, publish, span
from raydiff.report import load
from raydiff.report.frontier.rows import settings
from raydiff.report.guarantees import Guarantee
from raydiff.report.load import Row, column, finished, groups, records

CELL = ["xi", "clients"]
ARM = ["base", "name", "rounds", "target"]
FEDDISTR = "FedDistr"
LATENTS = "FedDistr, decoded latents"
POOLED = {"LocalOnly": "centralised", FEDDISTR: "one pooled client", LATENTS: "one pooled client, decoded latents"}
"""What a method is on pooled data."""
LEVELS = {**dict.fromkeys(POOLED.values(), "--"), LATENTS: "-.", "LocalOnly": ":"}
"""Arms that are horizontal lines of the pictures: bounds that no federation can pass, and local training."""
AXES = ("clients", "partition", "partition.xi", "method.rounds", "method.upload", "method.epsilon")
PRIVACY = "method.averaging.privacy"
PARTITION = ("entanglement_mean", "entanglement_max", "theorem2")
TOLERANCE = 0.01
"""Of a utility loss that has converged, above its last."""
PARAMETER_BYTES = 4
PAPER: dict[Any, tuple[int, str]] = {
    **{("FedAvg", xi): (rounds, "11.7M") for xi, rounds in ((0.0, 150), (0.003, 100), (0.057, 80))},
    **{(FEDDISTR, xi): (1, "30K") for xi in (0.0, 0.003, 0.057)},
}
"""(method, xi) -> rounds and parameters of the paper's Table 2."""


def readings(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per finished trial with an accuracy, and cell, from `load.runs`.

    Columns: digest; base, the arm's method, and name, with what distinguishes its variants; rounds (0: nothing
    travels); target (epsilon, NaN without one); ours (FedDistr without noise); xi, clients, seed; loss; epsilon (the
    ledger's, against the server), its definition and what is declared public; bytes (all clients, all rounds),
    per_client; PARTITION. Raises ValueError where no trial has an accuracy and an xi.
    """
    done = finished(runs)
    done = done[column(done, "final/eval/accuracy").notna()]
    if column(done, "partition.xi").isna().all():
        raise ValueError("there are no finished trials with a final eval/accuracy and a partition.xi")
    done = done[done["partition.xi"].notna() | (done["partition"] == "Pooled")]
    rows, sent = records(done), column(done, "final/comm/bytes_up")
    target = column(done, "method.epsilon").fillna(column(done, f"{PRIVACY}.epsilon"))
    out = pd.DataFrame({"digest": done["digest"], "base": [_base_name(row) for row in rows]})
    out["rounds"] = column(done, "method.rounds").fillna(1).mask(sent == 0, 0).astype(int)
    out["target"] = target.mask(target == math.inf)
    out["ours"] = (out["base"] == FEDDISTR) & out["target"].isna()
    out = out.assign(xi=column(done, "partition.xi"), clients=done["clients"], seed=done["seed"])
    out["name"] = _names(out, done)
    out["loss"] = 1 - done["final/eval/accuracy"]
    out["epsilon"] = column(done, "final/privacy/epsilon_server")
    guarantees = [Guarantee.of_run(row, "server") for row in rows]
    out["definition"] = [str(g.definition) if g.definition and g.epsilon > 0 else "" for g in guarantees]
    out["declared"] = [g.declared or "" if g.definition and g.epsilon > 0 else "" for g in guarantees]
    out["bytes"], out["per_client"] = sent, sent / done["clients"]
    for name in PARTITION:
        out[name] = column(done, f"final/partition/{name}")
    pooled = out["xi"].isna()
    cells = out.loc[~pooled, CELL].drop_duplicates()
    return pd.concat([out[~pooled], out[pooled].drop(columns=CELL).merge(cells, how="cross")], ignore_index=True)


def _base_name(run: Row) -> str:
    name = LATENTS if run.get("method.upload") == "latents" else str(run["method"])
    if run["partition"] == "Pooled":
        return POOLED.get(name, f"{name}, pooled")
    if run.get(f"{PRIVACY}.trust") == "central":  # Its epsilon against the server is infinite.
        return f"{name}, central trust, target {run[f'{PRIVACY}.epsilon']:g}"
    return name


def _names(table: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """The base names; where one arm has two trials of a cell and seed, with the fields that differ among its trials.

    Raises ValueError where none does.
    """
    names, by = table["base"].copy(), ["base", "rounds", "target"]
    for _, own in table.groupby(by, dropna=False):
        if own.duplicated([*CELL, "seed"]).any():
            trials = runs.loc[own.index]
            fields = {path: short for path, short in settings(trials).items() if path not in AXES}
            for index, run in zip(own.index, records(trials), strict=True):
                values = (f"{short} {'none' if run[path] is None else run[path]}" for path, short in fields.items())
                names[index] = ", ".join([names[index], *values])
    twice = table[table.assign(base=names).duplicated([*by, *CELL, "seed"])]
    if len(twice):
        raise ValueError(f"trial {twice['digest'].iloc[0]} has the settings and the seed of another one: remove one")
    return names


def curves(rounds: pd.DataFrame) -> pd.DataFrame:
    """digest, round (from 1), loss on the validation split, bytes so far; from `load.rounds`."""
    names = {"validation/accuracy": "accuracy", "comm/bytes_up": "bytes"}
    own = rounds[rounds["metric"].isin(names)].assign(metric=lambda frame: frame["metric"].map(names))
    wide = own.pivot_table(index=["digest", "step"], columns="metric", values="value")
    wide = wide.reindex(columns=[*names.values()]).dropna(subset="accuracy").reset_index()
    wide = wide.assign(round=wide["step"].astype(int) + 1, loss=1 - wide["accuracy"])
    return wide[["digest", "round", "loss", "bytes"]]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and cell: n, loss with its 95 % interval, epsilon (the largest over seeds) and its definition, mean
    bytes of all clients and per client, parameters (bytes / 4)."""
    rows: list[Row] = []
    for arm, own in groups(table, [*ARM, *CELL]):
        row = arm | {"n": len(own), **interval(own["loss"], "loss")}
        row |= {"epsilon": own["epsilon"].max(skipna=False), "definition": own["definition"].iloc[0]}
        row |= {name: own[name].mean() for name in ("bytes", "per_client")}
        rows.append({**row, "parameters": row["bytes"] / PARAMETER_BYTES})
    rows.sort(key=order)
    return pd.DataFrame(rows)


def order(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The place of a row: FedDistr, the bounds, local training, then the others; without noise before with it."""
    place = [FEDDISTR, *LEVELS, row["base"]].index(row["base"])
    return not pd.isna(row["target"]), place, row["name"], row["rounds"], row["target"], row["xi"], row["clients"]


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """FedDistr without noise minus each other arm, seed by seed: ours, ARM, epsilon, CELL, n, mean, low, high.

    Negative: FedDistr loses less. An arm without a seed in common has no row.
    """
    rows = []
    for name, mine in table[table["ours"]].groupby("name"):
        for arm, other in groups(table.drop(index=mine.index), [*ARM, *CELL]):
            both = mine.merge(other, on=[*CELL, "seed"], suffixes=("", "_other"))
            if len(both):
                row = arm | {"ours": name, "epsilon": other["epsilon"].max(skipna=False), "n": len(both)}
                rows.append(row | interval(both["loss"] - both["loss_other"]))
    rows.sort(key=lambda row: (row["ours"], *order(row)))
    return pd.DataFrame(rows, columns=["ours", *ARM, "epsilon", *CELL, "n", "mean", "low", "high"])


def convergence(table: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Table 2: per method without noise and cell, the first round whose utility loss is at most 0.01 above its last.

    Rounds are those of the validation curve of the trials with most rounds; without one, the round counts that were
    run, by their loss on the test split. Columns: base, name, xi, clients, rounds, last, split, points (of the curve),
    parameters (of all clients until then), per_message (of one client and round), paper_rounds, paper_parameters.
    """
    rows = []
    federated = table[table["target"].isna() & ~table["base"].isin(POOLED.values())]
    for row, own in groups(federated, ["base", "name", *CELL]):
        longest = own[own["rounds"] == own["rounds"].max()]
        selected = curve[curve["digest"].isin(longest["digest"])]
        split, points = ("validation", selected) if len(selected) else ("test", own.assign(round=own["rounds"]))
        means = points.groupby("round")[["loss", "bytes"]].mean()
        at = int(means.index[means["loss"] <= means["loss"].iloc[-1] + TOLERANCE + 1e-9][0])
        senders = (longest["bytes"] / longest["per_client"]).iloc[0]
        parameters = float(means["bytes"].loc[at]) / PARAMETER_BYTES
        row |= {"rounds": at, "last": int(means.index[-1]), "split": split, "points": len(means)}
        row |= {"parameters": parameters, "per_message": parameters / senders / at if parameters else parameters}
        row["paper_rounds"], row["paper_parameters"] = PAPER.get((row["base"], row["xi"]), (None, None))
        rows.append(row)
    rows.sort(key=lambda row: (row["xi"], row["clients"], order({**row, "target": math.nan})))
    return pd.DataFrame(rows)


def tables(table: pd.DataFrame, rows: pd.DataFrame, pairs: pd.DataFrame, table2: pd.DataFrame) -> Iterator[Table]:
    """All tables, with what their numbers mean."""
    notes = [
        f"Utility loss: 1 - accuracy on the test split; mean and 95 % Student interval over {span(rows['n'])} seeds.",
        "Bytes and parameters (bytes / 4) are of all rounds, and but for the first of all clients.",
        "Pooled trials have no xi and no K: the same ones stand in every column.",
    ]
    if selected := [definition for definition in dict.fromkeys(rows["definition"]) if definition]:
        notes.append(f"Epsilon: from the ledger, against the server, the largest over seeds; {'; or '.join(selected)}.")
    for declared, own in table[table["declared"] != ""].groupby("declared"):
        notes.append(f"Public by declaration ({', '.join(sorted(own['base'].unique()))}): {declared}.")
    sent = {"bytes per client": "per_client", "bytes in all": "bytes", "parameters": "parameters"}
    yield _by_cell(rows, _loss, "Utility loss, and what travels", "\n".join(notes), sent)
    cells = [[f"{xi:g}", str(k), *(_number(own[p].mean()) for p in PARTITION)] for (xi, k), own in table.groupby(CELL)]
    yield Table(["xi", "K", *(f"partition/{name}" for name in PARTITION)], cells, "How entangled the clients are")
    for ours, own in pairs.groupby("ours"):
        note = f"Difference of utility losses, seed by seed, over {span(own['n'])} seeds; negative: {ours} loses less."
        note += "\nBold: the 95 % interval excludes 0. No correction for the number of cells."
        yield _by_cell(own, _gap, f"{ours} minus each other arm", note)
    yield _convergence_table(table2)


def _by_cell(
    rows: pd.DataFrame,
    cell_text: Callable[[pd.Series], str],
    title: str,
    note: str,
    more: Mapping[str, str] | None = None,
) -> Table:
    """A row per arm, a column per cell and for `more` (title -> column, whose range over the cells is shown)."""
    cells = sorted(set(rows[CELL].itertuples(index=False, name=None)))
    header = ["method", "rounds", "epsilon", *(f"xi {xi:g}, K {clients}" for xi, clients in cells), *(more or ())]
    lines = []
    for arm, own in groups(rows, ARM, sort=False):  # The rows are sorted already.
        at, epsilon = own.set_index(CELL), own["epsilon"].max(skipna=False)
        first = [arm["name"], str(arm["rounds"] or "none"), "" if math.isnan(epsilon) else rounding.up(epsilon)]
        values = [cell_text(at.loc[cell]) if cell in at.index else "" for cell in cells]
        lines.append([*first, *values, *(span(own[c], _number) for c in (more or {}).values())])
    return Table(header, lines, title, note)


def _convergence_table(table: pd.DataFrame) -> Table:
    lines = []
    for row in table.to_dict("records"):
        points = f"{row['split']}, {row['points']} point{'s' if row['points'] > 1 else ''}"
        published = pd.notna(row["paper_parameters"])
        paper = [f"{row['paper_rounds']:.0f}", row["paper_parameters"]] if published else ["", ""]
        first = [f"{row['xi']:g}", str(row["clients"]), row["name"], str(row["rounds"]), str(row["last"]), points]
        lines.append([*first, _number(row["parameters"]), _number(row["per_message"]), *paper])
    header = ["xi", "K", "method", "rounds", "of", "curve", "parameters", "per client and round", "paper: rounds"]
    note = (
        "Rounds: the first of the curve whose utility loss is at most 0.01 above its last. Parameters: of all clients "
        "until then. The paper's 11.7M is one model, to be compared with `per client and round`; its 30K may be of one "
        "client or of all."
    )
    return Table([*header, "paper: parameters"], lines, "Rounds and parameters until convergence (Table 2)", note)


def _loss(row: pd.Series) -> str:
    return shown(row["loss"], row["low"], row["high"], ".3f")


def _gap(row: pd.Series) -> str:
    """`**-0.200 [-0.250, -0.150]**`, `+0.010 [-0.020, +0.040] tie`, or `-0.100 (1 seed)`, which has no interval."""
    text = shown(row["mean"], row["low"], row["high"], "+.3f", bold=True)
    if row["n"] == 1:
        return f"{text} (1 seed)"
    return text if decided(row["low"], row["high"]) else f"{text} tie"


def _number(value: float) -> str:
    """`30,720`, `0.0568`, or nothing for NaN."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.3g}"


def main(argv: Sequence[str]) -> None:
    """Print the tables and write the files."""
    options = load.arguments(__doc__, argv)
    runs = load.runs(options.sweep)
    try:
        table = readings(runs)
    except ValueError as e:
        raise ValueError(f"{options.sweep} cannot be read as a sweep of FedDistr: {e}") from None
    rows, pairs = summary(table), differences(table)
    table2 = convergence(table, curves(load.rounds(options.sweep)))
    parts = [str(part) for part in tables(table, rows, pairs, table2)]
    if left := len(runs) - table["digest"].nunique():
        parts.append(f"Left out: {left} of {len(runs)} trials, not finished, without an accuracy or without an xi.")
    files = {"feddistr-losses": rows, "feddistr-paired": pairs, "feddistr-convergence": table2}
    publish(options.out, "feddistr", "\n\n".join(parts), files)
    draw(rows, options.out)


# -------------------------------------------------------------------------------------------------------- pictures


def draw(rows: pd.DataFrame, out: Path) -> list[Path]:
    """Utility loss over rounds and over bytes, without noise, from the rows of `summary`: a PNG each."""
    plain = rows[rows["target"].isna()]
    series, levels = plain[~plain["base"].isin(LEVELS)], plain[plain["base"].isin(LEVELS)]
    paths = []
    for x, title in (("rounds", "rounds of communication"), ("bytes", "bytes sent by all clients in all rounds")):
        if (series[x] > 0).any():
            paths.append(out / f"feddistr-{x}.png")
            _picture(series[series[x] > 0], levels, x, title, paths[-1])
    return paths


def _picture(series: pd.DataFrame, levels: pd.DataFrame, x: str, title: str, path: Path) -> None:
    """One panel per xi (columns) and K (rows); mean over seeds, bars the 95 % interval."""
    names, (xis, clients) = list(series["name"].unique()), (sorted(series[c].unique()) for c in CELL)
    size = (3.1 * len(xis) + 2.6, 2.7 * len(clients) + 0.6)
    figure, grid = plots.panels(len(clients), len(xis), size=size, sharex=True, sharey=True)
    for axes, (k, xi) in zip(grid.flat, itertools.product(clients, xis), strict=True):
        own, flat = (of[(of["xi"] == xi) & (of["clients"] == k)] for of in (series, levels))
        for name, line in LEVELS.items():
            for loss in flat.loc[flat["base"] == name, "loss"]:
                axes.axhline(loss, linewidth=1.1, label=name, linestyle=line, color="0.35")
        for i, name in enumerate(names):
            arm = own[own["name"] == name].sort_values(x)
            look = {"color": plots.COLOURS[i % len(plots.COLOURS)], "marker": plots.MARKERS[i % len(plots.MARKERS)]}
            plots.points(axes, arm[x], arm["loss"], (arm["low"], arm["high"]), ms=4, label=name, **look)
        axes.set_title(f"xi {xi:g}, K {k}", fontsize=9)
        axes.set(xscale="log", ylim=(max(axes.get_ylim()[0], 0), min(axes.get_ylim()[1], 1)))
    figure.supxlabel(title, fontsize=9)
    figure.supylabel("utility loss (1 - accuracy)", fontsize=9)
    plots.legend(figure, grid.flat, first=names)
    plots.save(figure, path)
