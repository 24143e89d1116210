"""What a sweep has shown: which method is best at each epsilon, what carries a guarantee, what attacks reached."""

import math
from collections.abc import Iterator

import pandas as pd

from raydiff.experiment.study import trial_name
from raydiff.formats import rounding
from raydiff.formats.intervals import excludes_zero, format_interval, student
from raydiff.formats.metric_records import select_shown
from raydiff.formats.tables import number, span
from raydiff.lookup import bare_name
from raydiff.report.attack_readings import WITH_CEILING, read_attacks
from raydiff.report.frontier.rows import measure_in_words
from raydiff.report.guarantees import adversary, by_definition, tabulate_guarantees
from raydiff.report.load import Row, group_rows, records
from raydiff.report.paired import ENDS, comparable_trials, mean_by_seed, pair_by_seed, pair_settings
from raydiff.report.sweep_view import SweepView

MEANS = 30  # settings whose mean is a run in MLflow


def conclude(sweep: SweepView) -> tuple[list[str], list[str]]:
    """(sentences, a line for each cell, privacy definition and target epsilon)."""
    seeds = sweep.seeds.nunique()
    repeated = f", with {seeds} seeds." if seeds > 1 else "; one seed: differences may be chance."
    first = f"{len(sweep.finished)} of {len(sweep.runs)} trials finished{repeated}"
    if sweep.measure is None:
        return [f"{first} None has a measure of quality."], []
    quality = (
        f"{first} By {measure_in_words(sweep.measure)}, lower is better. The best of each line is chosen on the "
        "same numbers; differences have paired 95 % intervals."
    )
    sentences = [quality, _describe_guarantees(sweep), _describe_attacks(sweep)]
    return [*filter(None, sentences)], list(_best_settings(sweep))


def _best_settings(sweep: SweepView) -> Iterator[str]:
    """A line for each cell, privacy definition and target epsilon.

    It names the setting with the least mean, how that compares with the cell's base over several seeds, and the
    settings that cannot be told from it.
    """
    rows = pair_settings(sweep).sort_values("target", kind="stable")
    seeds = mean_by_seed(comparable_trials(sweep))
    several = rows[~rows["target"].isin([*ENDS])]["definition"].nunique() > 1
    for of, group in group_rows(rows, ["cell", "definition", "target"], sort=False):
        best, *others = records(group.sort_values("mean"))
        where = ENDS.get(of["target"], f"at epsilon {of['target']:g}" + f" {of['definition']}" * several)
        where += "" if of["cell"] == "all trials" else f" ({of['cell']})"
        line = f"{where}: {best['arm']}, {number(best['mean'])}"
        if best["low"] is not None:
            sign = "better than" if best["high"] < 0 else "worse than"
            verdict = sign if excludes_zero(best["low"], best["high"]) else "not distinguishable from"
            gain = format_interval(best["difference"], best["low"], best["high"], "+.3f")
            line += f", {verdict} {best['base']} ({gain})"
        by_setting = dict(list(seeds[seeds["cell"] == of["cell"]].groupby("setting")))
        ties = [row["arm"] for row in others if _is_tie(by_setting[row["setting"]], by_setting[best["setting"]])]
        if ties:
            names = " and ".join(ties) if len(ties) < 3 else f"{len(ties)} other settings"
            line += f"; not distinguishable from {names}"
        yield line


def _is_tie(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether the 95 % interval of the difference of two settings holds 0; not for a single seed."""
    _, low, high = student(pair_by_seed(one, other, ["seed"], "value")["difference"])
    return low <= 0 <= high


def _describe_guarantees(sweep: SweepView) -> str:
    """Which methods carry a guarantee, against whom; which send nothing, and which have none."""
    stated = tabulate_guarantees(sweep.finished).assign(method=sweep.finished["method"])
    definitions = stated["guarantee"].map(lambda guarantee: guarantee.definition)
    kinds = definitions.fillna(stated["epsilon"].map(ENDS)).fillna("not recorded")
    parts = []
    for kind, group in stated.groupby(kinds, sort=False):
        counts = group["method"].value_counts(sort=False).items()
        methods = ", ".join(f"{method} ({n} trial{'s' * (n > 1)})" for method, n in counts)
        same = by_definition(group).get(str(kind))
        if same is None:
            parts.append(f"{str(kind).capitalize()}: {methods}.")
        else:
            parts.insert(0, f"With a guarantee: {methods}, {kind}; against {adversary(same)}.")
    return " ".join([*parts, "Samples of a client's own model carry no guarantee."])


def _describe_attacks(sweep: SweepView) -> str:
    """The largest AUC of the attack that calibrates best, on what is shared and on clients' own models."""
    table = read_attacks(sweep)
    if table.empty:
        return ""
    epsilon = table["digest"].map(tabulate_guarantees(sweep.runs)["epsilon"].set_axis(sweep.runs["digest"]))
    shared = table["target"].isin(WITH_CEILING)
    attacked = {
        "what settings with a guarantee send or make of it": shared & (epsilon < math.inf),
        "what the others send or make of it": shared & (epsilon == math.inf),
        "clients' own models, which are not sent and which no epsilon covers": table["target"] == "client",
    }
    best = {words: table[which & (table["attack"] == "best")] for words, which in attacked.items()}
    parts = [f"{_largest_auc(rows)} on {words}" for words, rows in best.items() if len(rows)]
    return f"Membership attacks reached an AUC (0.5: guessing) of {', '.join(parts)}." if parts else ""


def _largest_auc(rows: pd.DataFrame) -> str:
    """Of the setting and target with the largest mean: over seeds, or of the one seed; and its ceiling, if below 1."""
    worst = max((group for _, group in group_rows(rows, ["setting", "target"])), key=lambda group: group["auc"].mean())
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
    rows: dict[str, Row] = {}
    trials = comparable_trials(sweep)
    trials["mean"] = trials.groupby(["cell", "setting"])["value"].transform("mean")
    for _, group in trials.sort_values("mean", ascending=False).groupby(["mean", "cell", "setting"], sort=False):
        seeds = group["seed"].nunique()
        if seeds < 2:
            continue
        runs = sweep.runs.loc[group.index]
        config = {path: value for path, value in records(runs)[0].items() if path in ("method", *sweep.fields)}
        config = {path: value for path, value in config.items() if value is not None}
        final = runs.filter(like="final/").select_dtypes("number").mean().dropna()
        numbers = select_shown(sweep.metrics[str(column)].with_value(value) for column, value in final.items())
        ends = span(student(group["value"])[1:], number)
        name = trial_name(config, {bare_name(config["method"]): [*sweep.fields]})
        params = {path: str(value) for path, value in config.items()}
        row = {**params, "seeds": str(seeds), "interval": ends, **numbers, "epsilon": float(group["epsilon"].max())}
        rows[f"{name} (mean of {seeds} seeds)"] = row
    return dict([*rows.items()][-MEANS:])
