"""What does one round of prompts cost? The axes of FedDistr's Figures 4, 5, 7 and 8 and of its Table 2, from a sweep.

    raydiff feddistr SWEEP [--out DIR]

Prints the tables and writes feddistr.md, three tables as CSV (feddistr-losses, -paired, -convergence) and a picture per
question (feddistr-rounds, -bytes, -epsilon, -clients), those that the sweep has an answer to. The paper: arXiv
2410.12530. Utility loss is 1 - accuracy on real test records; epsilon is the ledger's, against the server. Paired
differences are FedDistr's without noise minus another arm's, seed by seed.

An arm is a method with its rounds and its budget; a cell is an entanglement xi and a number of clients K. Pooled trials
have no cell of their own: they count in each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import plots
from raydiff.formats import rounding as bounds
from raydiff.formats.intervals import decided, interval, shown
from raydiff.formats.plots import COLOURS, LINES, MARKERS
from raydiff.formats.tables import Table, publish, span
from raydiff.report import load
from raydiff.report.frontier.kinds import kind_of
from raydiff.report.frontier.rows import settings
from raydiff.report.load import Row, column, finished, groups, records

CELL = ["xi", "clients"]
ARM = ["base", "name", "rounds", "asked"]
FEDDISTR = "FedDistr"
LATENTS = "FedDistr, decoded latents"
POOLED = {"LocalOnly": "centralised", FEDDISTR: "one pooled client", LATENTS: "one pooled client, decoded latents"}
"""What a method is on pooled data."""
LEVELS: dict[str, Row] = {
    "centralised": {"color": "black", "linestyle": (0, (6, 2)), "marker": ""},
    "one pooled client": {"color": "0.55", "linestyle": (0, (6, 2)), "marker": ""},
    "one pooled client, decoded latents": {"color": "0.7", "linestyle": (0, (3, 2)), "marker": ""},
    LATENTS: {"color": "#8C510A", "linestyle": (0, (3, 2)), "marker": ""},
    "LocalOnly": {"color": "0.35", "linestyle": (0, (1, 2)), "marker": ""},
}
"""Look of an arm that is a level of the pictures: the bounds from above that no federation can be, dashed, and each
client alone, which sends nothing, dotted. In the tables they follow FedDistr, and the others follow by name."""
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

    Columns: digest; base, the method as it is called here, and name, which tells its variants apart; rounds (0: nothing
    travels); asked (the budget's epsilon, NaN without one); ours (whether it is FedDistr without noise); xi, clients,
    seed; loss; epsilon (the ledger's, against the server), its kind and what is declared public; bytes (all clients,
    all rounds), per_client; entanglement_mean, entanglement_max, theorem2.
    Raises ValueError where no trial has an accuracy and an xi.
    """
    of = finished(runs)
    of = of[column(of, "final/eval/accuracy").notna()]
    if column(of, "partition.xi").isna().all():
        raise ValueError("there are no finished trials with a final eval/accuracy and a partition.xi")
    of = of[of["partition.xi"].notna() | (of["partition"] == "Pooled")]
    known = records(of)
    sent = column(of, "final/comm/bytes_up")
    asked = column(of, "method.epsilon").fillna(column(of, f"{PRIVACY}.epsilon"))
    out = pd.DataFrame({"digest": of["digest"], "base": [_name(run) for run in known]})
    out["rounds"] = column(of, "method.rounds").fillna(1).mask(sent == 0, 0).astype(int)
    out["asked"] = asked.mask(asked == math.inf)
    out["ours"] = (out["base"] == FEDDISTR) & out["asked"].isna()
    out = out.assign(xi=column(of, "partition.xi"), clients=of["clients"], seed=of["seed"])
    out["name"] = _told_apart(out, of)
    out["loss"] = 1 - of["final/eval/accuracy"]
    out["epsilon"] = column(of, "final/privacy/epsilon_server")
    out[["kind", "declared"]] = [_kind(run) for run in known]
    out["bytes"], out["per_client"] = sent, sent / of["clients"]
    for name in PARTITION:
        out[name] = column(of, f"final/partition/{name}")
    pooled = out["xi"].isna()
    cells = out.loc[~pooled, CELL].drop_duplicates()
    spread = out[pooled].drop(columns=CELL).merge(cells, how="cross")
    return pd.concat([out[~pooled], spread], ignore_index=True) if len(spread) else out


def _kind(run: Row) -> tuple[str, str]:
    """What a finite epsilon speaks of, but its accountant (two of them bound the same epsilon); what is declared."""
    about, _, declared = kind_of(run, "server").partition("; public by declaration: ")
    return (about.rpartition(", ")[0], declared) if 0 < run["server/epsilon"] < math.inf else ("", "")


def _name(run: Row) -> str:
    name = LATENTS if run.get("method.upload") == "latents" else str(run["method"])
    if run["partition"] == "Pooled":
        return POOLED.get(name, f"{name}, pooled")
    if run.get(f"{PRIVACY}.trust") == "central":  # infinite against the server, whatever was asked for
        return f"{name}, central trust, {run[f'{PRIVACY}.epsilon']:g} asked for"
    return name


def _told_apart(found: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """The names; where one arm has two trials of a cell and seed, with the fields that differ among its trials.

    Raises ValueError where none does.
    """
    names, by = found["base"].copy(), ["base", "rounds", "asked"]
    for _, own in found.groupby(by, dropna=False):
        if own.duplicated([*CELL, "seed"]).any():
            trials = runs.loc[own.index]
            fields = {path: short for path, short in settings(trials).items() if path not in AXES}
            for index, run in zip(own.index, records(trials), strict=True):
                says = (f"{short} {'none' if run[path] is None else run[path]}" for path, short in fields.items())
                names[index] = ", ".join([names[index], *says])
    twice = found[found.assign(base=names).duplicated([*by, *CELL, "seed"])]
    if len(twice):
        raise ValueError(f"trial {twice['digest'].iloc[0]} has the settings and the seed of another one: remove one")
    return names


def curves(rounds: pd.DataFrame) -> pd.DataFrame:
    """digest, round (from 1), loss on the validation split, bytes so far; from `load.rounds`."""
    named = {"validation/accuracy": "accuracy", "comm/bytes_up": "bytes"}
    found = rounds[rounds["metric"].isin(named)].assign(metric=lambda f: f["metric"].map(named))
    wide = found.pivot_table(index=["digest", "step"], columns="metric", values="value")
    wide = wide.reindex(columns=[*named.values()]).dropna(subset="accuracy").reset_index()
    wide = wide.assign(round=wide["step"].astype(int) + 1, loss=1 - wide["accuracy"])
    return wide[["digest", "round", "loss", "bytes"]]


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and cell: n, loss with its 95 % interval, epsilon (the largest over seeds) and its kind, mean bytes
    of all clients and per client, parameters (bytes / 4)."""
    rows: list[Row] = []
    for arm, own in groups(found, [*ARM, *CELL]):
        row = arm | {"n": len(own), **interval(own["loss"], "loss")}
        row |= {"epsilon": own["epsilon"].max(skipna=False), "kind": own["kind"].iloc[0]}
        row |= {name: own[name].mean() for name in ("bytes", "per_client")}
        rows.append({**row, "parameters": row["bytes"] / PARAMETER_BYTES})
    rows.sort(key=order)
    return pd.DataFrame(rows)


def order(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Where a row stands: FedDistr, the bounds, each client alone, then the others; without noise before with it."""
    place = [FEDDISTR, *LEVELS, row["base"]].index(row["base"])
    return not pd.isna(row["asked"]), place, row["name"], row["rounds"], row["asked"], row["xi"], row["clients"]


def differences(found: pd.DataFrame) -> pd.DataFrame:
    """FedDistr without noise minus each other arm, seed by seed: ours, name, rounds, asked, epsilon, xi, clients, n,
    mean, low, high.

    Negative: FedDistr loses less. An arm without a seed in common has no row.
    """
    rows = []
    for name, mine in found[found["ours"]].groupby("name"):
        for arm, other in groups(found.drop(index=mine.index), [*ARM, *CELL]):
            both = mine.merge(other, on=[*CELL, "seed"], suffixes=("_ours", ""))
            if len(both):
                about = {"ours": name, "epsilon": other["epsilon"].max(skipna=False), "n": len(both)}
                rows.append(arm | about | interval(both["loss_ours"] - both["loss"]))
    rows.sort(key=lambda row: (row["ours"], *order(row)))
    return pd.DataFrame(rows, columns=["ours", *ARM, "epsilon", *CELL, "n", "mean", "low", "high"])


def convergence(found: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Table 2: per method without noise and cell, the first round whose utility loss is at most 0.01 above its last.

    Rounds are those of the validation curve of the trials with most rounds; without one, the round counts that were
    run, by their loss on the test split. Columns: base, name, xi, clients, rounds, last, split, points (of the curve),
    parameters (of all clients until then), per_message (of one client and round), paper_rounds, paper_parameters.
    """
    rows = []
    own_cell = found[found["asked"].isna() & ~found["base"].isin(POOLED.values())]
    for row, own in groups(own_cell, ["base", "name", *CELL]):
        longest = own[own["rounds"] == own["rounds"].max()]
        known = curve[curve["digest"].isin(longest["digest"])]
        split, points = ("validation", known) if len(known) else ("test", own.assign(round=own["rounds"]))
        means = points.groupby("round")[["loss", "bytes"]].mean()
        at = int(means.index[means["loss"] <= means["loss"].iloc[-1] + TOLERANCE + 1e-9][0])
        senders = (longest["bytes"] / longest["per_client"]).iloc[0]
        parameters = float(means["bytes"].loc[at]) / PARAMETER_BYTES
        row |= {"rounds": at, "last": int(means.index[-1]), "split": split, "points": len(means)}
        row |= {"parameters": parameters, "per_message": parameters / senders / at if parameters else parameters}
        row["paper_rounds"], row["paper_parameters"] = PAPER.get((row["base"], row["xi"]), (None, None))
        rows.append(row)
    rows.sort(key=lambda row: (row["xi"], row["clients"], order({**row, "asked": math.nan})))
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------------- for people


def tables(found: pd.DataFrame, rows: pd.DataFrame, pairs: pd.DataFrame, table2: pd.DataFrame) -> Iterator[Table]:
    """All tables, with what their numbers mean."""
    yield _losses(found, rows)
    cells = [[f"{xi:g}", str(k), *(_number(own[p].mean()) for p in PARTITION)] for (xi, k), own in found.groupby(CELL)]
    yield Table(["xi", "K", *(f"partition/{name}" for name in PARTITION)], cells, "How entangled the clients are")
    for ours, own in pairs.groupby("ours"):
        note = f"Difference of utility losses, seed by seed, over {span(own['n'])} seeds; negative: {ours} loses less."
        note += "\nBold: the 95 % interval excludes 0. No correction for the number of cells."
        yield _by_cell(own, _gap, f"{ours} minus each other arm", note)
    yield _convergence(table2)


def _losses(found: pd.DataFrame, rows: pd.DataFrame) -> Table:
    notes = [
        f"Utility loss: 1 - accuracy on the test split; mean and 95 % Student interval over {span(rows['n'])} seeds.",
        "Bytes and parameters (bytes / 4): of all rounds; bytes in all and parameters of all clients together.",
        "Pooled trials have no xi and no K: the same ones stand in every column.",
    ]
    if kinds := [k for k in dict.fromkeys(rows["kind"]) if k]:
        notes.append(f"Epsilon: from the ledger, against the server, the largest over seeds; {'; or '.join(kinds)}.")
    for declared, own in found[found["declared"] != ""].groupby("declared"):
        notes.append(f"Public by declaration ({', '.join(sorted(own['base'].unique()))}): {declared}.")
    sent = {"bytes per client": "per_client", "bytes in all": "bytes", "parameters": "parameters"}
    return _by_cell(rows, _loss, "Utility loss, and what travels", "\n".join(notes), sent)


def _by_cell(rows: pd.DataFrame, shown: Any, title: str, note: str, more: Mapping[str, str] | None = None) -> Table:
    """A row per arm, a column per cell and for `more` (title -> column, whose range over the cells is given)."""
    cells = sorted(set(rows[CELL].itertuples(index=False, name=None)))
    header = ["method", "rounds", "epsilon", *(f"xi {xi:g}, K {clients}" for xi, clients in cells), *(more or ())]
    lines = []
    for arm, own in groups(rows, ARM, sort=False):  # the rows stand in their order already
        at, epsilon = own.set_index(CELL), own["epsilon"].max(skipna=False)
        first = [arm["name"], str(arm["rounds"] or "none"), "" if math.isnan(epsilon) else bounds.up(epsilon)]
        values = [shown(at.loc[cell]) if cell in at.index else "" for cell in cells]
        lines.append([*first, *values, *(_range(own[c]) for c in (more or {}).values())])
    return Table(header, lines, title, note)


def _convergence(table: pd.DataFrame) -> Table:
    header = ["xi", "K", "method", "rounds", "of", "curve", "parameters", "per client and round", "paper: rounds"]
    lines = []
    for row in table.to_dict("records"):
        points = f"{row['split']}, {row['points']} point{'s' if row['points'] > 1 else ''}"
        known = pd.notna(row["paper_parameters"])
        paper = [f"{row['paper_rounds']:.0f}", str(row["paper_parameters"])] if known else ["", ""]
        of = [f"{row['xi']:g}", str(row["clients"]), row["name"], str(row["rounds"]), str(row["last"]), points]
        lines.append([*of, _number(row["parameters"]), _number(row["per_message"]), *paper])
    note = "Rounds: the first of the curve whose utility loss is at most 0.01 above its last (a curve of one point has "
    note += "no\nother). Parameters: of all clients until then. The paper's 11.7M is one model, so compare it with "
    note += "`per client\nand round`; of its 30K it does not say whether they are of one client or of all."
    title = "Rounds and parameters until convergence (Table 2)"
    return Table([*header, "paper: parameters"], lines, title, note)


def _loss(row: pd.Series) -> str:
    """`0.400 [0.390, 0.410]`; without an interval for a single seed."""
    return shown(row["loss"], row["low"], row["high"], ".3f")


def _gap(row: pd.Series) -> str:
    """`**-0.200 [-0.250, -0.150]**`, `+0.010 [-0.020, +0.040] tie`, or `-0.100 (1 seed)`, which has no interval."""
    if row["n"] == 1:
        return f"{row['mean']:+.3f} (1 seed)"
    words = shown(row["mean"], row["low"], row["high"], "+.3f", bold=True)
    return words if decided(row["low"], row["high"]) else f"{words} tie"


def _number(value: float) -> str:
    """`30,720`, `0.0568`, or nothing where it is not known."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.3g}"


def _range(values: pd.Series) -> str:
    """A number; the least and the greatest where cells differ."""
    return " to ".join(dict.fromkeys(_number(v) for v in (values.min(), values.max())))


def main(argv: Sequence[str]) -> None:
    """Print the tables, write the files and say where."""
    given = load.arguments(__doc__, argv)
    runs = load.runs(given.sweep)
    try:
        found = readings(runs)
    except ValueError as e:
        raise ValueError(f"{given.sweep} cannot be read as a sweep of FedDistr: {e}") from None
    rows, pairs, curve = summary(found), differences(found), curves(load.rounds(given.sweep))
    table2 = convergence(found, curve)
    says = [str(table) for table in tables(found, rows, pairs, table2)]
    if left := len(runs) - found["digest"].nunique():
        says.append(f"Left out: {left} of {len(runs)} trials, not finished, without an accuracy or without an xi.")
    files = {"feddistr-losses": rows, "feddistr-paired": pairs, "feddistr-convergence": table2}
    publish(given.out, "feddistr", "\n\n".join(says), files)
    draw(rows, found, curve, given.out)


# -------------------------------------------------------------------------------------------------------- pictures

APART = 1.04
"""Factor by which series at one place of a logarithmic axis stand apart."""


def draw(rows: pd.DataFrame, found: pd.DataFrame, curve: pd.DataFrame, out: Path) -> list[Path]:
    """A PNG per question that the rows of `summary` answer, into `out`; returns them."""
    numbers = pd.Categorical(rows["name"], rows.loc[~rows["base"].isin(LEVELS), "name"].unique()).codes
    full = [f"{n}, {r} round{'s' if r > 1 else ''}" for n, r in zip(rows["name"], rows["rounds"], strict=True)]
    rows = rows.assign(series=rows["name"], full=full, number=numbers)
    rows["kind"] = rows["kind"].where(rows["asked"].notna(), "")
    plain, noisy = rows[rows["asked"].isna()], rows[(rows["epsilon"] > 0) & (rows["epsilon"] < math.inf)]
    is_level = plain["base"].isin(LEVELS)
    levels, lines = plain[is_level], plain[~is_level]
    noisy = noisy[~noisy["base"].isin(LEVELS)].assign(series=noisy["full"])
    same = lines[lines["full"].isin(noisy["full"])].assign(series=lines["full"] + ", without noise")
    pictures = {
        "rounds": (lines, levels, "rounds of communication"),
        "bytes": (lines[lines["bytes"] > 0], levels, "bytes sent by all clients in all rounds"),
        "epsilon": (noisy, pd.concat([levels, same]), "epsilon against the server"),
    }
    if rows["clients"].nunique() > 1:
        pooled = levels["base"].isin(POOLED.values())
        each = pd.concat([_longest(lines), levels[~pooled]])
        pictures["clients"] = (each, levels[pooled], "clients K; each method at its most rounds")
    pictures = {name: of for name, of in pictures.items() if len(of[0])}
    for name, (series, flat, title) in pictures.items():
        thin = _validation(found, curve) if name == "rounds" else None
        _picture(series, flat, name, title, thin, out / f"feddistr-{name}.png")
    return [out / f"feddistr-{name}.png" for name in pictures]


def _longest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["rounds"] == rows.groupby(["name", *CELL])["rounds"].transform("max")]


def _validation(found: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """name, xi, clients, rounds, loss: the mean validation curve of the arms with most rounds, without noise."""
    own = _longest(found[found["asked"].isna() & ~found["base"].isin(LEVELS)])
    both = own[["digest", "name", *CELL]].merge(curve.rename(columns={"round": "rounds"}), on="digest")
    return both.groupby(["name", *CELL, "rounds"], as_index=False)[["loss"]].mean()


def _looks(series: pd.DataFrame, flat: pd.DataFrame) -> dict[str, Row]:
    """{series: look}: a colour and a marker per method, a line per series of one method; of a level, its own."""
    every = pd.concat([series, flat]).drop_duplicates("series")
    out: dict[str, Row] = {}
    for row, variant in zip(every.to_dict("records"), every.groupby("name").cumcount(), strict=True):
        i, line = row["number"], LINES[variant % len(LINES)]
        look = {"marker": MARKERS[i % len(MARKERS)], "linestyle": line, "color": COLOURS[(i + 1) % len(COLOURS)]}
        out[row["series"]] = LEVELS.get(row["base"], look)  # FedDistr is red, as in the paper
    return out


def _picture(
    series: pd.DataFrame, flat: pd.DataFrame, x: str, title: str, thin: pd.DataFrame | None, path: Path
) -> None:
    """One panel per xi (columns), and per K and kind of epsilon (rows); mean over seeds, bars the 95 % interval."""
    looks, (kinds, xis) = _looks(series, flat), (sorted(series[c].unique()) for c in ("kind", "xi"))
    rows = list(itertools.product(kinds, [None] if x == "clients" else sorted(series["clients"].unique())))
    size = (3.1 * len(xis) + 2.6, 2.7 * len(rows) + 0.6)
    figure, grid = plots.panels(len(rows), len(xis), size=size, sharex=True, sharey=True)
    for axes, ((kind, clients), xi) in zip(grid.flat, itertools.product(rows, xis), strict=True):
        _panel(axes, _cell(series[series["kind"] == kind], xi, clients), _cell(flat, xi, clients), x, looks)
        if thin is not None and len(curves := _cell(thin, xi, clients)):
            for name, own in curves.groupby("name"):
                axes.plot(own["rounds"], own["loss"], color=looks[str(name)]["color"], linewidth=0.6, alpha=0.6)
            axes.plot([], [], color="0.5", linewidth=0.6, label="thin: validation split, most rounds")
        says = f"xi {xi:g}" if clients is None else f"xi {xi:g}, K {clients}"
        axes.set_title(f"{says}\n{kind}" if len(kinds) > 1 else says, fontsize=9)
    _axes(grid[0, 0], series, x)
    figure.supxlabel(title + (f" ({kinds[0]})" if len(kinds) == 1 and kinds[0] else ""), fontsize=9)
    figure.supylabel("utility loss (1 - accuracy)", fontsize=9)
    plots.legend(figure, grid.flat, first=list(looks), handlelength=3)
    plots.save(figure, path)


def _cell(rows: pd.DataFrame, xi: float, clients: int | None) -> pd.DataFrame:
    """The rows of a panel, with any number of clients for None."""
    return rows[(rows["xi"] == xi) & (True if clients is None else rows["clients"] == clients)]


def _panel(axes: Any, series: pd.DataFrame, flat: pd.DataFrame, x: str, looks: dict[str, Row]) -> None:
    for name, own in flat.groupby("series"):
        axes.axhline(own["loss"].iloc[0], linewidth=1.1, label=name, **looks[str(name)] | {"marker": ""})
    drawn = [name for name in looks if name in set(series["series"])]
    for i, name in enumerate(drawn):
        own = series[series["series"] == name].sort_values(x)
        places = own[x] if x == "bytes" else own[x] * APART ** (i - (len(drawn) - 1) / 2)
        look = {"ms": 4, "linewidth": 1.3, "elinewidth": 0.9, "label": name, **looks[name]}
        plots.points(axes, places, own["loss"], (own["low"], own["high"]), **look)


def _axes(axes: Any, series: pd.DataFrame, x: str) -> None:
    """Of all panels, which share theirs: a logarithmic x; losses between 0 and 1, although intervals may end beyond."""
    axes.set_xscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0), min(high, 1))
    if x in ("rounds", "clients"):
        run = sorted(series[x].unique())
        axes.set_xticks(run, [str(v) for v in run])
        axes.minorticks_off()
    axes.set_xlim(series[x].min() / 1.5, series[x].max() * 1.5)
