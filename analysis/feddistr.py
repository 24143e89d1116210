"""One round of prompts against many rounds of weights: FedDistr's Figures 4, 5 and 8 and its Table 2, from a sweep.

    python -m analysis.feddistr SWEEP [--out DIR]

Prints the tables and writes them as markdown and CSV, and pictures. The paper: arXiv 2410.12530. Differences are
FedDistr's loss without noise minus another arm's, seed by seed. An arm is a method with its rounds and its target
epsilon; a cell is an entanglement xi and a number of clients K. Pooled trials have no xi and count in every cell.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.loss_plots import CELL, CENTRAL, FEDDISTR, LATENTS, LEVELS, PUBLIC, draw
from raydiff.__main__ import leave
from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.formats import rounding
from raydiff.formats.intervals import excludes_zero, format_interval, interval
from raydiff.formats.tables import Table, publish, span
from raydiff.report.frontier.rows import settings
from raydiff.report.guarantees import guarantee_of
from raydiff.report.load import Row, column, finished, group_rows, records
from raydiff.report.paired import pair_by_seed

ARM = ["base", "name", "rounds", "target"]
AXES = ("clients", "partition", "partition.xi", "method.rounds", "method.upload", "method.epsilon")
PRIVACY = "method.averaging.privacy"
PARTITION = ("entanglement_mean", "entanglement_max", "theorem2")
TOLERANCE = 0.01
"""Utility loss above the last one that counts as converged."""
PARAMETER_BYTES = 4
PAPER: dict[Any, tuple[int, str]] = {
    **{("FedAvg", xi): (rounds, "11.7M") for xi, rounds in ((0.0, 150), (0.003, 100), (0.057, 80))},
    **{(FEDDISTR, xi): (1, "30K") for xi in (0.0, 0.003, 0.057)},
}
"""(method, xi) -> rounds and parameters of the paper's Table 2."""


def readings(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and finished trial with an accuracy, from `load.runs`.

    Columns: digest; base, the arm's method, and name, which also tells variants apart; rounds (0: nothing is sent);
    target (epsilon, NaN without one); ours (FedDistr without noise); xi, clients, seed; loss; epsilon (the ledger's,
    against the server), its definition and declared public values; bytes (all clients, all rounds), per_client;
    PARTITION. Raises ValueError where no trial has an accuracy and an xi.
    """
    done = finished(runs)
    done = done[column(done, "final/eval/accuracy").notna()]
    if column(done, "partition.xi").isna().all():
        raise ValueError("there are no finished trials with a final eval/accuracy and a partition.xi")
    done = done[done["partition.xi"].notna() | (done["partition"] == "Pooled")]
    rows = records(done)
    sent = column(done, "final/comm/bytes_up")
    target = column(done, "method.epsilon").fillna(column(done, f"{PRIVACY}.epsilon"))
    out = pd.DataFrame({"digest": done["digest"], "base": [_base_name(row) for row in rows]})
    out["rounds"] = column(done, "method.rounds").fillna(1).mask(sent == 0, 0).astype(int)
    out["target"] = target.mask(target == math.inf)
    out["ours"] = (out["base"] == FEDDISTR) & out["target"].isna()
    out = out.assign(xi=column(done, "partition.xi"), clients=done["clients"], seed=done["seed"])
    out["name"] = _names(out, done)
    out["loss"] = 1 - done["final/eval/accuracy"]
    out["epsilon"] = column(done, "final/privacy/epsilon_server")
    guarantees = [guarantee_of(row, "server") for row in rows]
    out["definition"] = [g.definition if g.definition and g.epsilon > 0 else "" for g in guarantees]
    out["declared"] = [", ".join(g.declared) if g.definition and g.epsilon > 0 else "" for g in guarantees]
    out["bytes"], out["per_client"] = sent, sent / done["clients"]
    for name in PARTITION:
        out[name] = column(done, f"final/partition/{name}")
    pooled = out["xi"].isna()
    cells = out.loc[~pooled, CELL].drop_duplicates()
    return pd.concat([out[~pooled], out[pooled].drop(columns=CELL).merge(cells, how="cross")], ignore_index=True)


def _base_name(run: Row) -> str:
    if run.get("method.public_only") is True:
        return PUBLIC
    name = LATENTS if run.get("method.upload") == "latents" else str(run["method"])
    name += ", public start" if isinstance(run.get("method.pretrain"), str) else ""
    if run["partition"] == "Pooled":
        return CENTRAL if name == "LocalOnly" else f"{name}, pooled"
    if run.get(f"{PRIVACY}.trust") == "central":  # Its epsilon against the server is infinite.
        return f"{name}, central trust, target {run[f'{PRIVACY}.epsilon']:g}"
    return name


def _names(table: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """The base names; for an arm with two trials of a cell and seed, with the fields in which its trials differ.

    Raises ValueError for two trials with equal settings.
    """
    names = table["base"].copy()
    by = ["base", "rounds", "target"]
    for _, arm in table.groupby(by, dropna=False):
        if arm.duplicated([*CELL, "seed"]).any():
            trials = runs.loc[arm.index]
            fields = {path: short for path, short in settings(trials).items() if path not in AXES}
            for index, run in zip(arm.index, records(trials), strict=True):
                values = (f"{short} {'none' if run[path] is None else run[path]}" for path, short in fields.items())
                names[index] = ", ".join([names[index], *values])
    twice = table[table.assign(base=names).duplicated([*by, *CELL, "seed"])]
    if len(twice):
        raise ValueError(f"trial {twice['digest'].iloc[0]} has the settings and the seed of another one: remove one")
    return names


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and cell.

    Columns: n, loss with its 95 % interval, epsilon (the largest over seeds) and its definition, mean bytes of all
    clients and per client, parameters (bytes / 4).
    """
    rows: list[Row] = []
    for arm, trials in group_rows(table, [*ARM, *CELL]):
        row = arm | {"n": len(trials), **interval(trials["loss"], "loss")}
        row |= {"epsilon": trials["epsilon"].max(skipna=False), "definition": trials["definition"].iloc[0]}
        row |= {name: trials[name].mean() for name in ("bytes", "per_client")}
        rows.append({**row, "parameters": row["bytes"] / PARAMETER_BYTES})
    rows.sort(key=order)
    return pd.DataFrame(rows)


def order(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Sort key of a row: FedDistr, the bounds, local training, then the others; without noise before with it."""
    place = [FEDDISTR, *LEVELS, row["base"]].index(row["base"])
    return not pd.isna(row["target"]), place, row["name"], row["rounds"], row["target"], row["xi"], row["clients"]


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """FedDistr without noise minus each other arm, seed by seed: ours, ARM, epsilon, CELL, n, mean, low, high.

    Negative: FedDistr loses less. An arm without a seed in common has no row.
    """
    rows = []
    for name, mine in table[table["ours"]].groupby("name"):
        for arm, other in group_rows(table.drop(index=mine.index), [*ARM, *CELL]):
            both = pair_by_seed(mine, other, [*CELL, "seed"], "loss")
            if len(both):
                row = arm | {"ours": name, "epsilon": other["epsilon"].max(skipna=False), "n": len(both)}
                rows.append(row | interval(both["difference"]))
    rows.sort(key=lambda row: (row["ours"], *order(row)))
    return pd.DataFrame(rows, columns=["ours", *ARM, "epsilon", *CELL, "n", "mean", "low", "high"])


def convergence(table: pd.DataFrame) -> pd.DataFrame:
    """Table 2: per method without noise and cell, the fewest rounds with a loss at most 0.01 above that of the most.

    Columns: base, name, xi, clients, rounds, last, points (round counts that were run), parameters (of all clients in
    these rounds), per_message (of one client and round), paper_rounds, paper_parameters.
    """
    rows = []
    federated = table[table["target"].isna() & ~table["base"].isin([PUBLIC, CENTRAL])]
    for row, trials in group_rows(federated, ["base", "name", *CELL]):
        means = trials.groupby("rounds")[["loss", "bytes", "per_client"]].mean()
        at = int(means.index[means["loss"] <= means["loss"].iloc[-1] + TOLERANCE + 1e-9][0])
        senders = means["bytes"].iloc[-1] / means["per_client"].iloc[-1]
        parameters = float(means["bytes"].loc[at]) / PARAMETER_BYTES
        row |= {"rounds": at, "last": int(means.index[-1]), "points": len(means)}
        row |= {"parameters": parameters, "per_message": parameters / senders / at if parameters else parameters}
        row["paper_rounds"], row["paper_parameters"] = PAPER.get((row["base"], row["xi"]), (None, None))
        rows.append(row)
    rows.sort(key=lambda row: (row["xi"], row["clients"], order({**row, "target": math.nan})))
    return pd.DataFrame(rows)


def tables(table: pd.DataFrame, rows: pd.DataFrame, pairs: pd.DataFrame, table2: pd.DataFrame) -> Iterator[Table]:
    """All tables, with notes on their numbers."""
    notes = [
        f"Utility loss: 1 - accuracy on the test split; mean and 95 % Student interval over {span(rows['n'])} seeds.",
        "Bytes and parameters (bytes / 4) are of all rounds, and but for the first of all clients.",
        "Pooled trials have no xi and no K: the same ones stand in every column.",
    ]
    if selected := [definition for definition in dict.fromkeys(rows["definition"]) if definition]:
        notes.append(f"Epsilon: from the ledger, against the server, the largest over seeds; {'; or '.join(selected)}.")
    for declared, trials in table[table["declared"] != ""].groupby("declared"):
        notes.append(f"Public by declaration ({', '.join(sorted(trials['base'].unique()))}): {declared}.")
    sent = {"bytes per client": "per_client", "bytes in all": "bytes", "parameters": "parameters"}
    yield _by_cell(rows, _loss, "Utility loss, and what travels", "\n".join(notes), sent)
    parts = table.groupby(CELL)
    cells = [[f"{xi:g}", str(k), *(_number(part[p].mean()) for p in PARTITION)] for (xi, k), part in parts]
    yield Table(["xi", "K", *(f"partition/{name}" for name in PARTITION)], cells, "How entangled the clients are")
    for ours, part in pairs.groupby("ours"):
        note = f"Difference of utility losses, seed by seed, over {span(part['n'])} seeds; negative: {ours} loses less."
        note += "\nBold: the 95 % interval excludes 0. No correction for the number of cells."
        yield _by_cell(part, _gap, f"{ours} minus each other arm", note, {})
    yield _convergence_table(table2)


def _by_cell(
    rows: pd.DataFrame, cell_text: Callable[[pd.Series], str], title: str, note: str, more: Mapping[str, str]
) -> Table:
    """A row per arm, a column per cell and for `more` (title -> column, whose range over the cells is shown)."""
    cells = sorted(set(rows[CELL].itertuples(index=False, name=None)))
    header = ["method", "rounds", "epsilon", *(f"xi {xi:g}, K {clients}" for xi, clients in cells), *more]
    lines = []
    for arm, part in group_rows(rows, ARM, sort=False):  # The rows are sorted already.
        at = part.set_index(CELL)
        epsilon = part["epsilon"].max(skipna=False)
        first = [arm["name"], str(arm["rounds"] or "none"), "" if math.isnan(epsilon) else rounding.up(epsilon)]
        values = [cell_text(at.loc[cell]) if cell in at.index else "" for cell in cells]
        lines.append([*first, *values, *(span(part[c], _number) for c in more.values())])
    return Table(header, lines, title, note)


def _convergence_table(table: pd.DataFrame) -> Table:
    lines = []
    for row in table.to_dict("records"):
        published = pd.notna(row["paper_parameters"])
        paper = [f"{row['paper_rounds']:.0f}", row["paper_parameters"]] if published else ["", ""]
        counts = (row["clients"], row["name"], row["rounds"], row["last"], row["points"])
        sent = (_number(row["parameters"]), _number(row["per_message"]))
        lines.append([f"{row['xi']:g}", *map(str, counts), *sent, *paper])
    header = ["xi", "K", "method", "rounds", "of", "counts run", "parameters", "per client and round", "paper: rounds"]
    note = (
        "Rounds: the fewest that were run with a utility loss at most 0.01 above that of the most. Parameters: of all "
        "clients in these rounds. The paper's 11.7M is one model, to be compared with `per client and round`; its 30K "
        "may be of one client or of all."
    )
    return Table([*header, "paper: parameters"], lines, "Rounds and parameters until convergence (Table 2)", note)


def _loss(row: pd.Series) -> str:
    return format_interval(row["loss"], row["low"], row["high"], ".3f")


def _gap(row: pd.Series) -> str:
    """`**-0.200 [-0.250, -0.150]**`, `+0.010 [-0.020, +0.040] tie`, or `-0.100 (1 seed)`, which has no interval."""
    text = format_interval(row["mean"], row["low"], row["high"], "+.3f", bold=True)
    if row["n"] == 1:
        return f"{text} (1 seed)"
    return text if excludes_zero(row["low"], row["high"]) else f"{text} tie"


def _number(value: float) -> str:
    """`30,720`, `0.0568`, or nothing for NaN."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.3g}"


def main(argv: Sequence[str]) -> None:
    """Print the tables and write the files."""
    sweep, out = parse_options(FinishedSweepOptions, argv, __doc__).open()
    runs = sweep.runs
    try:
        table = readings(runs)
    except ValueError as e:
        raise ValueError(f"{sweep.folder} cannot be read as a sweep of FedDistr: {e}") from None
    rows = summary(table)
    pairs = differences(table)
    table2 = convergence(table)
    parts = [str(part) for part in tables(table, rows, pairs, table2)]
    if left := len(runs) - table["digest"].nunique():
        parts.append(f"Left out: {left} of {len(runs)} trials, not finished, without an accuracy or without an xi.")
    files = {"feddistr-losses": rows, "feddistr-paired": pairs, "feddistr-convergence": table2}
    publish(out, "feddistr", "\n\n".join(parts), files)
    draw(rows, out)


if __name__ == "__main__":
    leave(main, sys.argv[1:])
