"""What a sweep has shown: which method is best at each epsilon, what carries a guarantee, what attacks reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from raydiff.experiment.study import trial_name
from raydiff.formats import rounding
from raydiff.formats.intervals import format_interval, student
from raydiff.formats.json_files import flatten, read_json
from raydiff.formats.metric_records import select_shown
from raydiff.formats.tables import number, span
from raydiff.lookup import bare_name
from raydiff.report.attack_readings import WITH_CEILING, read_attacks
from raydiff.report.frontier.rows import measure_in_words
from raydiff.report.guarantees import adversary, guarantees
from raydiff.report.load import Row, groups, records
from raydiff.report.paired import ENDS, comparable_trials, mean_by_seed, pair_settings
from raydiff.report.sweep_view import SweepView

MEANS = 30  # settings whose mean is a run in MLflow


def conclude(sweep: SweepView) -> tuple[list[str], list[str]]:
    """(sentences, a line for each cell, privacy definition and target epsilon)."""
    seeds = sweep.trials["seed"].nunique()
    first = f"{len(sweep.finished)} of {len(sweep.runs)} trials finished"
    first += f", with {seeds} seeds." if seeds > 1 else "; one seed: differences may be chance."
    if sweep.measure is None:
        return [f"{first} None has a measure of quality."], []
    measure = measure_in_words(sweep.metrics[sweep.measure])
    quality = f"{first} By {measure}, lower is better. The best of each line is chosen on the same numbers; "
    quality += "differences have paired 95 % intervals."
    return [text for text in (quality, _guaranteed(sweep), _attacked(sweep)) if text], list(_best_settings(sweep))


def _best_settings(sweep: SweepView) -> Iterator[str]:
    """A line for each cell, privacy definition and target epsilon.

    It names the setting with the least mean, how that compares with the cell's base over several seeds, and the
    settings that cannot be told from it.
    """
    rows = pair_settings(sweep).sort_values("target", kind="stable")
    seeds = {cell: mean_by_seed(group) for cell, group in comparable_trials(sweep).groupby("cell", sort=False)}
    several = rows[~rows["target"].isin([*ENDS])]["definition"].nunique() > 1
    for of, group in groups(rows, ["cell", "definition", "target"], sort=False):
        best, *others = records(group.sort_values("mean"))
        where = ENDS.get(of["target"], f"at epsilon {of['target']:g}" + f" {of['definition']}" * several)
        where += "" if of["cell"] == "all trials" else f" ({of['cell']})"
        line = f"{where}: {best['arm']}, {number(best['mean'])}"
        if best["low"] is not None:
            clear = "better than" if best["high"] < 0 else "worse than" if best["low"] > 0 else ""
            gain = format_interval(best["difference"], best["low"], best["high"], "+.3f")
            line += f", {clear or 'not distinguishable from'} {best['base']} ({gain})"
        ties = [row["arm"] for row in others if _is_tie(seeds[of["cell"]], row["setting"], best["setting"])]
        if ties:
            names = " and ".join(ties) if len(ties) < 3 else f"{len(ties)} other settings"
            line += f"; not distinguishable from {names}"
        yield line


def _is_tie(by_seed: Mapping[str, pd.Series], one: str, other: str) -> bool:
    """Whether the 95 % interval of the difference of two settings holds 0; not for a single seed."""
    _, low, high = student((by_seed[one] - by_seed[other]).dropna())
    return low <= 0 <= high


def _guaranteed(sweep: SweepView) -> str:
    """Which methods carry a guarantee, against whom; which send nothing, and which have none."""
    stated = guarantees(sweep.finished).assign(method=sweep.finished["method"])
    kinds = stated.apply(lambda row: row["guarantee"].definition or ENDS.get(row["epsilon"], "not recorded"), axis=1)
    parts = []
    for kind, group in stated.groupby(kinds, sort=False):
        counts = group["method"].value_counts(sort=False).items()
        methods = ", ".join(f"{method} ({n} trial{'s' * (n > 1)})" for method, n in counts)
        if group["guarantee"].iloc[0].definition is None:
            parts.append(f"{kind.capitalize()}: {methods}.")
        else:
            parts.insert(0, f"With a guarantee: {methods}, {kind}; against {adversary(group, kind)}.")
    return " ".join([*parts, "Samples of a client's own model carry no guarantee."])


def _attacked(sweep: SweepView) -> str:
    """The largest AUC of the attack that calibrates best, on what is shared and on clients' own models."""
    table = read_attacks(sweep)
    if table.empty:
        return ""
    epsilon = table["digest"].map(guarantees(sweep.runs)["epsilon"].set_axis(sweep.runs["digest"]))
    shared = table["target"].isin(WITH_CEILING)
    attacked = {
        "what settings with a guarantee send or make of it": shared & (epsilon < math.inf),
        "what the others send or make of it": shared & (epsilon == math.inf),
        "clients' own models, which are not sent and which no epsilon covers": table["target"] == "client",
    }
    parts = []
    for words, which in attacked.items():
        rows = table[which & (table["attack"] == "best")]
        if len(rows):
            parts.append(f"{_largest_auc(rows)} on {words}")
    return f"Membership attacks reached an AUC (0.5: guessing) of {', '.join(parts)}." if parts else ""


def _largest_auc(rows: pd.DataFrame) -> str:
    """Of the setting and target with the largest mean: over seeds, or of the one seed; and its ceiling, if below 1."""
    worst = max((group for _, group in groups(rows, ["setting", "target"])), key=lambda group: group["auc"].mean())
    ends = student(worst["auc"]) if len(worst) > 1 else worst[["auc", "auc_low", "auc_high"]].iloc[0]
    mean, low, high = pd.Series(list(ends), dtype=float).clip(0, 1)
    most = worst["auc_ceiling"].max()
    return format_interval(mean, low, high, ".2f") + (f" (ceiling {rounding.up(most)})" if most < 0.995 else "")


def means(sweep: SweepView) -> dict[str, Row]:
    """Rows of the runs in MLflow, best last, by name: one per setting with several seeds.

    A row has what was swept, the interval of the measure that ranks, and the means of the final numbers; epsilon is the
    largest.
    """
    if sweep.measure is None:
        return {}
    rows: dict[str, tuple[float, Row]] = {}
    for _, group in comparable_trials(sweep).groupby(["cell", "setting"], sort=False):
        by_seed = group.groupby("seed")["value"].mean()
        if len(by_seed) < 2:
            continue
        mean, low, high = student(by_seed)
        runs = sweep.runs.loc[group.index]
        config = flatten(read_json(sweep.trial(runs["digest"].iloc[0]) / "config.json"))
        params = {path: str(config[path]) for path in ("method", *sweep.fields) if path in config}
        final = runs.filter(like="final/").select_dtypes("number").mean().dropna()
        numbers = select_shown(sweep.metrics[str(column)].with_value(value) for column, value in final.items())
        row = {**params, "seeds": str(len(by_seed)), "interval": span((low, high), number), **numbers}
        row["epsilon"] = float(group["epsilon"].max())
        name = trial_name(config, {bare_name(config["method"]): [*sweep.fields]})
        rows[f"{name} (mean of {len(by_seed)} seeds)"] = (mean, row)
    return {name: row for name, (_, row) in sorted(rows.items(), key=lambda item: -item[1][0])[-MEANS:]}
