"""Section of the report: which method is best at each epsilon, what carries a guarantee, and what attacks reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from raydiff.formats import rounding
from raydiff.formats.intervals import decided, shown, student
from raydiff.formats.tables import number, span
from raydiff.report.frontier.rows import cell_fields, measure_in_words
from raydiff.report.frontier.scatter import draw
from raydiff.report.gain_over_local import gains
from raydiff.report.guarantees import PrivacyDefinition, guarantees
from raydiff.report.html import html
from raydiff.report.load import Row, groups
from raydiff.report.sections import attacks
from raydiff.report.sections.seeds import by_seed, compared
from raydiff.report.sweep_view import Section, SweepView

MEANS = 30  # settings whose mean is a run in MLflow
OPEN = 8  # lines that are shown unfolded
ENDS = {0.0: "nothing sent", math.inf: "without a guarantee"}
VERDICTS: dict[str, Callable[[float, float], bool]] = {
    "better than": lambda low, high: high < 0,
    "not distinguishable from": lambda low, high: not decided(low, high),
    "worse than": lambda low, high: low > 0,
}
"""What is said of a setting beside local training -> whether the interval (low, high) of the difference says so."""
TARGETS: dict[str, tuple[tuple[str, ...], Callable[[float], bool]]] = {
    "what settings with a guarantee send or make of it": (attacks.WITH_CEILING, lambda epsilon: 0 < epsilon < math.inf),
    "what the others send or make of it": (attacks.WITH_CEILING, lambda epsilon: epsilon == math.inf),
    "clients' own models, which are not sent and which no epsilon covers": (("client",), lambda epsilon: True),
}
"""What was attacked -> its targets and the epsilons of its trials."""


def conclusion(sweep: SweepView, out: Path) -> Section:
    """The conclusion in sentences, the best setting at each epsilon, and the frontier's plot."""
    paragraphs, lines = summary(sweep)
    blocks = [*map(html.paragraph, paragraphs), html.bullets(lines[:OPEN])]
    if lines[OPEN:]:
        blocks.append(html.folded(f"{len(lines) - OPEN} more", [html.bullets(lines[OPEN:])]))
    if draw(sweep.frontier, path := out / "frontier.png", cell=cell_fields(sweep.fields)):
        measure = measure_in_words(str(sweep.measure))
        picture = html.picture(path.read_bytes(), alt=f"{measure} over epsilon; the numbers are in the frontier")
        return Section([html.beside(blocks, [picture])])
    return Section([*blocks, html.paragraph("There is no plot: no setting has a finite epsilon and a measure.")])


def summary(sweep: SweepView) -> tuple[list[str], list[str]]:
    """(sentences, a line for each cell, privacy definition and target epsilon)."""
    seeds = sweep.trials["seed"].nunique()
    first = f"{len(sweep.finished)} of {len(sweep.runs)} trials finished"
    first += (
        f", with {seeds} seeds." if seeds > 1 else "; one seed: no difference below is shown to be more than chance."
    )
    if sweep.measure is None:
        return [f"{first} None has a measure of quality."], []
    best = list(_best(sweep))
    several = {"cell": len({row["cell"] for row in best}) > 1}
    several["definition"] = len({row["definition"] for row in best if row["target"] not in ENDS}) > 1
    quality = f"{first} By {measure_in_words(sweep.measure)}, lower is better, {_verdict(best, several)}"
    return [*filter(None, (quality, _guaranteed(sweep), _attacked(sweep)))], [_line(row, several) for row in best]


def _best(sweep: SweepView) -> Iterator[Row]:
    """Of each cell, privacy definition and target epsilon the row of `gains` with the least mean, with `ties`: the arms
    from which its paired difference is not clear."""
    rows = gains(sweep)
    rows["definition"] = rows["epsilon"].map(ENDS).fillna(rows["definition"])
    seeds = {cell: by_seed(group) for cell, group in compared(sweep).groupby("cell", sort=False)}
    for cell, in_cell in rows.groupby("cell", sort=False):
        for _, group in groups(in_cell.sort_values("target"), ["definition", "target"], sort=False):
            best, *others = group.sort_values("mean").to_dict("records")
            values = {row["arm"]: seeds[cell][row["setting"]] - seeds[cell][best["setting"]] for row in others}
            ties = [arm for arm, of in values.items() if not decided(*student(of.dropna())[1:])]
            yield {**best, "ties": ties}


def _verdict(best: list[Row], several: dict[str, bool]) -> str:
    """How the best private settings compare with local training: where each of VERDICTS holds."""
    private = [row for row in best if row["target"] not in ENDS]
    judged = [row for row in private if not math.isnan(row["low"])]
    if not private:
        return "no setting has a guarantee."
    if not judged:
        return "the best private settings stand below."
    parts = []
    for words, holds in VERDICTS.items():
        where = [_where(row, several) for row in judged if holds(row["low"], row["high"])]
        places = f"in {len(where)} of {len(judged)} cases" if len(where) > 3 else " and ".join(where)
        parts += [f"{words} training alone {places}"] if where else []
    return f"the best private setting is {', '.join(parts)}."


def _where(row: Row, several: dict[str, bool]) -> str:
    """`at epsilon 10`, with the cell and the privacy definition where there are several."""
    where = ENDS.get(row["target"], f"at epsilon {row['target']:g}")
    where += f" {row['definition']}" if several["definition"] and row["target"] not in ENDS else ""
    return f"{where} ({row['cell']})" if several["cell"] else where


def _line(row: Row, several: dict[str, bool]) -> str:
    """The best setting of a cell, definition and target epsilon, beside local training and those that are as good."""
    text = f"{_where(row, several)}: {row['arm']}, {number(row['mean'])}"
    if row["target"] > 0 and not math.isnan(row["low"]):
        verdict = next(words for words, holds in VERDICTS.items() if holds(row["low"], row["high"]))
        text += f", {verdict} {row['base']} ({shown(row['difference'], row['low'], row['high'], '+.3f')})"
    return f"{text}; not distinguishable from {', '.join(row['ties'])}" if row["ties"] and row["n"] > 1 else text


def _guaranteed(sweep: SweepView) -> str:
    """Which methods carry a guarantee, against whom; which send nothing, and which have none."""
    done = sweep.finished
    stated = guarantees(done).assign(method=done["method"])
    silent = stated["guarantee"].map(lambda guarantee: guarantee.nothing_sent)
    protected: dict[PrivacyDefinition, pd.DataFrame] = {}
    for definition, group in stated.groupby(stated["guarantee"].map(lambda guarantee: guarantee.definition)):
        protected[definition] = group
    parts = [
        f"With a guarantee: {_methods(group)}, epsilon {span(group['epsilon'], rounding.up)} ({definition}; against "
        f"{definition.against}). It bounds what is sent: samples of a client's own model carry none."
        for definition, group in protected.items()
    ]
    parts += [f"Nothing sent: {_methods(stated[silent])}; samples carry no guarantee."] if silent.any() else []
    bare = stated[stated["epsilon"] == math.inf]
    return " ".join([*parts, *([f"Without a guarantee: {_methods(bare)}."] if len(bare) else [])])


def _methods(trials: pd.DataFrame) -> str:
    return ", ".join(f"{method} ({n} trials)" for method, n in trials["method"].value_counts(sort=False).items())


def _attacked(sweep: SweepView) -> str:
    """The largest AUC of the attack that calibrates best, on what is shared and on clients' own models."""
    table = attacks.readings(sweep)
    if table.empty:
        return ""
    table = table[table["attack"] == "best"].merge(
        guarantees(sweep.runs).assign(digest=sweep.runs["digest"]), on="digest"
    )
    parts = []
    for words, (targets, holds) in TARGETS.items():
        rows = table[table["target"].isin(targets) & table["epsilon"].map(holds)]
        each = [group for _, group in groups(rows, ["setting", "target"])]
        if not each:
            continue
        worst = max(each, key=lambda group: group["auc"].mean())
        mean, low, high = student(worst["auc"]) if len(worst) > 1 else worst[["auc", "auc_low", "auc_high"]].iloc[0]
        most = worst["auc_ceiling"].max()
        ceiling = f" (ceiling {rounding.up(most)})" if most < 0.995 else ""
        parts.append(f"{shown(mean, low, high, '.2f')} on {words}{ceiling}")
    return f"Membership attacks reached an AUC (0.5: guessing) of {', '.join(parts)}." if parts else ""


def means(sweep: SweepView) -> dict[str, Row]:
    """Rows of the runs in MLflow, best last: of each setting with several seeds the mean of its final numbers."""
    if sweep.measure is None:
        return {}
    rows: dict[str, tuple[float, Row]] = {}
    trials = compared(sweep)
    for (cell, name), group in trials.groupby(["cell", "setting"], sort=False):
        by_seed = group.groupby("seed")["value"].mean()
        if len(by_seed) < 2:
            continue
        mean, low, high = student(by_seed)
        row: Row = {"epsilon": rounding.up(group["epsilon"].max()), "method": str(group["method"].iloc[0])}
        row |= {"seeds": str(len(by_seed)), sweep.measure: mean}
        runs = sweep.runs.loc[group.index]
        final = runs[[c for c in map(str, runs) if c.startswith("final/")]].select_dtypes("number").mean().dropna()
        where = f", {cell}" if trials["cell"].nunique() > 1 else ""
        row |= {str(k): float(v) for k, v in final.items()}
        row |= {f"{sweep.measure}/low": low, f"{sweep.measure}/high": high}
        rows[f"mean: {name}{where} ({len(by_seed)} seeds)"] = (mean, row)
    return {name: row for name, (_, row) in sorted(rows.items(), key=lambda item: -item[1][0])[-MEANS:]}
