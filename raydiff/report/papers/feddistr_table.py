"""The numbers behind FedDistr's figures and Table 2: utility loss, what travels, and paired differences.

An arm is a method with its rounds and its budget; a cell is an entanglement xi and a number of clients K. Pooled trials
have no cell of their own: they count in each. Utility loss is 1 - accuracy on the real test split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from raydiff.report.frontier.kinds import kind_of
from raydiff.report.frontier.table import column, records, settings
from raydiff.report.intervals import student
from raydiff.report.load import Row

CELL = ["xi", "clients"]
ARM = ["base", "name", "rounds", "asked"]
FEDDISTR = "FedDistr"
LATENTS = "FedDistr, decoded latents"
POOLED = {"LocalOnly": "centralised", FEDDISTR: "one pooled client", LATENTS: "one pooled client, decoded latents"}
"""What a method is on pooled data."""
BOUNDS = (*POOLED.values(), LATENTS)
"""Arms that no federation can be: they bound the others from above."""
ALONE = "LocalOnly"
FIRST = (FEDDISTR, *BOUNDS, ALONE)
"""The first arms of a table; the others follow by name."""
AXES = ("clients", "partition", "partition.xi", "method.rounds", "method.upload", "method.epsilon")
PRIVACY = "method.averaging.privacy"
PARTITION = ("entanglement_mean", "entanglement_max", "theorem2")
TOLERANCE = 0.01
"""Of a utility loss that has converged, above its last."""
PARAMETER_BYTES = 4
PAPER: dict[Any, tuple[int | None, str | None]] = {
    ("FedAvg", 0.0): (150, "11.7M"),
    ("FedAvg", 0.003): (100, "11.7M"),
    ("FedAvg", 0.057): (80, "11.7M"),
}
PAPER |= {(FEDDISTR, xi): (1, "30K") for xi in (0.0, 0.003, 0.057)}
"""(method, xi) -> rounds and parameters of the paper's Table 2."""


def readings(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per finished trial with an accuracy, and cell, from `load.runs`.

    Columns: digest; base, the method as it is called here, and name, which tells its variants apart; rounds (0: nothing
    travels); asked (the budget's epsilon, NaN without one); ours (whether it is FedDistr without noise); xi, clients,
    seed; loss; epsilon (the ledger's, against the server), its kind and what is declared public; bytes (all clients,
    all rounds), per_client; entanglement_mean, entanglement_max, theorem2.
    Raises ValueError where no trial has an accuracy and an xi.
    """
    of = runs[(runs["outcome"] == "finished") & column(runs, "final/eval/accuracy").notna()]
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
    return _in_every_cell(out)


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
        if not own.duplicated([*CELL, "seed"]).any():
            continue
        trials = runs.loc[own.index]
        fields = {path: short for path, short in settings(trials).items() if path not in AXES}
        for index, run in zip(own.index, records(trials), strict=True):
            says = (f"{short} {'none' if run[path] is None else run[path]}" for path, short in fields.items())
            names[index] = ", ".join([names[index], *says])
    twice = found[found.assign(base=names).duplicated([*by, *CELL, "seed"])]
    if len(twice):
        raise ValueError(f"trial {twice['digest'].iloc[0]} has the settings and the seed of another one: remove one")
    return names


def _in_every_cell(found: pd.DataFrame) -> pd.DataFrame:
    pooled = found["xi"].isna()
    cells = found.loc[~pooled, CELL].drop_duplicates()
    spread = found[pooled].drop(columns=CELL).merge(cells, how="cross")
    return pd.concat([found[~pooled], spread], ignore_index=True) if len(spread) else found


def curves(rounds: pd.DataFrame) -> pd.DataFrame:
    """digest, round (from 1), loss on the validation split, bytes so far; from `load.rounds`."""
    named = {"validation/accuracy": "accuracy", "comm/bytes_up": "bytes"}
    found = rounds[rounds["metric"].isin(named)].assign(metric=lambda f: f["metric"].map(named))
    wide = found.pivot_table(index=["digest", "step"], columns="metric", values="value").reset_index()
    wide = wide.reindex(columns=["digest", "step", *named.values()]).dropna(subset="accuracy")
    wide = wide.assign(round=wide["step"].astype(int) + 1, loss=1 - wide["accuracy"])
    return wide[["digest", "round", "loss", "bytes"]].reset_index(drop=True)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """A row per arm and cell: n, loss with its 95 % interval, epsilon (the largest over seeds) and its kind, mean bytes
    of all clients and per client, parameters (bytes / 4)."""
    rows = []
    for key, own in found.groupby([*ARM, *CELL], dropna=False):
        row: Row = dict(zip([*ARM, *CELL], key, strict=True))
        row |= {"n": len(own), **dict(zip(("loss", "low", "high"), student(own["loss"]), strict=True))}
        row |= {"epsilon": own["epsilon"].max(skipna=False), "kind": own["kind"].iloc[0]}
        row |= {"bytes": own["bytes"].mean(), "per_client": own["per_client"].mean()}
        rows.append({**row, "parameters": row["bytes"] / PARAMETER_BYTES})
    ordered: list[Row] = sorted(rows, key=order)
    return pd.DataFrame(ordered)


def order(row: Mapping[Any, Any]) -> tuple[object, ...]:
    """Where a row stands: FedDistr, the bounds, each client alone, then the others; without noise before with it."""
    first = FIRST.index(row["base"]) if row["base"] in FIRST else len(FIRST)
    private = not pd.isna(row["asked"])
    return private, first, row["name"], row["rounds"], row["asked"], row["xi"], row["clients"]


def differences(found: pd.DataFrame) -> pd.DataFrame:
    """FedDistr without noise minus each other arm, seed by seed: ours, name, rounds, asked, epsilon, xi, clients, n,
    mean, low, high.

    Negative: FedDistr loses less. An arm without a seed in common has no row.
    """
    rows = []
    for name, mine in found[found["ours"]].groupby("name"):
        others = found.drop(index=mine.index)
        for key, other in others.groupby([*ARM, *CELL], dropna=False):
            both = mine.merge(other, on=[*CELL, "seed"], suffixes=("_ours", ""))
            if both.empty:
                continue
            row: Row = {"ours": name, **dict(zip([*ARM, *CELL], key, strict=True))}
            row |= {"epsilon": other["epsilon"].max(skipna=False), "n": len(both)}
            gap = student(both["loss_ours"] - both["loss"])
            rows.append(row | dict(zip(("mean", "low", "high"), gap, strict=True)))
    columns = ["ours", *ARM, "epsilon", *CELL, "n", "mean", "low", "high"]
    ordered: list[Row] = sorted(rows, key=lambda row: (row["ours"], *order(row)))
    return pd.DataFrame(ordered, columns=columns)


def convergence(found: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Table 2: per method without noise and cell, the first round whose utility loss is at most 0.01 above its last.

    Rounds are those of the validation curve of the trials with most rounds; without one, the round counts that were
    run, by their loss on the test split. Columns: base, name, xi, clients, rounds, last, split, points (of the curve),
    parameters (of all clients until then), per_message (of one client and round), paper_rounds, paper_parameters.
    """
    rows = []
    own_cell = found[found["asked"].isna() & ~found["base"].isin(POOLED.values())]
    for (base, name, xi, clients), own in own_cell.groupby(["base", "name", *CELL]):
        longest = own[own["rounds"] == own["rounds"].max()]
        known = curve[curve["digest"].isin(longest["digest"])]
        split, points = ("validation", known) if len(known) else ("test", own.assign(round=own["rounds"]))
        means = points.groupby("round")[["loss", "bytes"]].mean()
        near = means["loss"] <= means["loss"].iloc[-1] + TOLERANCE + 1e-9
        at = int(means.index[near][0])
        senders = (longest["bytes"] / longest["per_client"]).iloc[0]
        parameters = float(means["bytes"].loc[at]) / PARAMETER_BYTES
        row: Row = {
            "base": base,
            "name": name,
            "xi": xi,
            "clients": clients,
            "rounds": at,
            "last": int(means.index[-1]),
        }
        row |= {"split": split, "points": len(means), "parameters": parameters}
        row["per_message"] = parameters / senders / at if parameters else parameters
        row["paper_rounds"], row["paper_parameters"] = PAPER.get((base, xi), (None, None))
        rows.append(row | {"asked": math.nan})
    ordered: list[Row] = sorted(rows, key=lambda row: (row["xi"], row["clients"], order(row)))
    return pd.DataFrame(ordered).drop(columns="asked")
