"""Section of the report: quality by setting, by class and by client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.tables import number, with_deviation
from raydiff.report.frontier.rows import DONE
from raydiff.report.html import html
from raydiff.report.sweep_view import Section, SweepView, spoken

APART = re.compile(r"/(ddim|ancestral|dpmsolver)/|(_low|_high|_floor|_spread)$|/n_\w+$")
"""Readings that qualify another one."""
PART = r"^(?:(.+)/)?(class|client(?=/\d+(?:/|$)))/([^/]+)(?:/(.+))?$"
"""The name of a reading that is of one class, or of one client."""
LAST = " (last round)"
WIDE = 24
"""Classes or clients that have a column each; of more, the table has the least, the mean and the greatest."""


def quality(sweep: SweepView, out: Path) -> Section:
    """Means over seeds of all that the evaluation read, with floors; then by class and by client where it was read."""
    long = _readings(sweep)
    one = long[long["which"].isna()]
    blocks: list[str] = []
    tables = {}
    if len(one):
        says = "Mean over seeds, ± standard deviation; in square brackets the floor, real against real, if it has one."
        blocks += [html.paragraph(says, note=True), _by_setting(sweep, one)]
        tables["quality"] = one.drop(columns=["kind", "which"])
    for kind in ("class", "client"):
        own = long[long["kind"] == kind]
        late = own["measure"].str.endswith(LAST)
        if len(own):
            blocks.append(html.heading(f"By {kind}"))
        if len(own[~late]):
            blocks.append(_each(sweep, own[~late], kind))
        if late.any():
            blocks.append(html.folded(f"What each {kind} reported in its last round", [_each(sweep, own[late], kind)]))
        if len(own):
            tables[f"quality-{kind}"] = own.drop(columns="kind").rename(columns={"which": kind})
    return Section(blocks, tables)


def _readings(sweep: SweepView) -> pd.DataFrame:
    """setting, digest, seed, kind (class, client or empty), which, measure, value: from the final numbers, and a
    client's from the last round where it has no final ones."""
    found = re.compile(r"final/(?!.*attack/)(eval/|.*\b(class|client)/)")
    names = [c for c in map(str, sweep.runs) if found.match(c)]
    done = sweep.runs[sweep.runs["outcome"].isin(DONE)]
    final = done.melt(id_vars="digest", value_vars=names, var_name="metric").dropna(subset="value")
    of_client = sweep.rounds["metric"].str.match(r"(?:.+/)?client/\d+(?:/|$)")
    last = sweep.rounds[of_client & sweep.rounds["digest"].isin(done["digest"])]
    last = last.sort_values("step").groupby(["digest", "metric"], as_index=False).last()
    last = last.assign(metric=last["metric"] + LAST)
    both = pd.concat([final.assign(metric=final["metric"].map(spoken)), last[["digest", "metric", "value"]]])
    late = both["metric"].str.endswith(LAST)
    parts = both["metric"].str.removesuffix(LAST).str.extract(PART)
    name = (parts[0].fillna("") + "/" + parts[3].fillna("")).str.strip("/") + late.map({True: LAST, False: ""})
    both = both.assign(kind=parts[1], which=parts[2], measure=name.where(parts[1].notna(), both["metric"]))
    of = pd.DataFrame({"digest": sweep.runs["digest"], "setting": sweep.settings, "seed": sweep.trials["seed"]})
    long = of.merge(both, on="digest")[["setting", "digest", "seed", "kind", "which", "measure", "value"]]
    return long.astype({"value": float}).reset_index(drop=True)


def _by_setting(sweep: SweepView, one: pd.DataFrame) -> Any:
    measures = [m for m in dict.fromkeys(one["measure"]) if not APART.search(f"/{m}")]
    wide = one.groupby(["setting", "measure"])["value"].agg(["mean", "std", "count"])
    rows = []
    for setting in (s for s in sweep.order if s in set(one["setting"])):
        cells = []
        for name in measures:
            at, floor = (setting, name), (setting, f"{name}_floor")
            shown = with_deviation(*wide.loc[at, ["mean", "std"]]) if at in wide.index else "-"
            cells.append(f"{shown} [{number(float(wide['mean'].loc[floor]))}]" if floor in wide.index else shown)
        count = one[one["setting"] == setting]["digest"].nunique()
        rows.append([setting, str(count), *cells])
    return html.table(["setting", "n", *measures], rows, name="quality by setting")


def _each(sweep: SweepView, own: pd.DataFrame, kind: str) -> Any:
    """A row per measure and setting, means over seeds: a column per class or client, or their range."""
    which = sorted(own["which"].unique(), key=lambda w: (not w.isdigit(), int(w) if w.isdigit() else 0, w))
    wide = own.pivot_table(index=["measure", "setting"], columns="which", values="value")[which]
    few = len(which) <= WIDE
    header = ["measure", "setting", *([f"{kind} {w}" for w in which] if few else ["of", "least", "mean", "greatest"])]
    rows = []
    for measure, setting in sorted(wide.index, key=lambda at: (at[0], sweep.order.index(at[1]))):
        values = wide.loc[(measure, setting)].dropna()
        spread = [str(len(values)), *(number(v) for v in (values.min(), values.mean(), values.max()))]
        each = [number(v) for v in wide.loc[(measure, setting)]]
        rows.append([measure, setting, *(each if few else spread)])
    return html.table(header, rows, name=f"quality by {kind}")
