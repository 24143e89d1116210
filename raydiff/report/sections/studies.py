"""Sections of the report that only some sweeps have: paired arms, FedDistr's tables, newcomers, the papers' numbers.

The first three are what `paired`, `feddistr` and `newcomers` make of a sweep of their presets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.report import html
from raydiff.report.frontier.table import column
from raydiff.report.papers import collaboration, collaboration_plot, feddistr_table, feddistr_text, newcomers, published
from raydiff.report.papers.claims import judged, text
from raydiff.report.papers.claims_made import of as claims_of
from raydiff.report.papers.feddistr_plot import plot
from raydiff.report.sweep import Section, Sweep, spoken

REPRODUCE = "reproduce-"
"""How the names of presets begin that reproduce a paper."""
FEDDISTR_PRESET = "feddistr-cifar100"
"""The preset whose data are those of FedDistr's Table 2."""


def studies(sweep: Sweep, out: Path) -> Section:
    """What `paired`, `feddistr` and `newcomers` print of such a sweep."""
    blocks = [*_paired(sweep, out), *_feddistr(sweep, out), *_newcomers(sweep, out)]
    none = (
        "This is no sweep of a collaboration, FedDistr or newcomers preset: there are no paired tables of their arms."
    )
    return Section("Paired comparisons of the presets", blocks or [html.paragraph(none)])


def _paired(sweep: Sweep, out: Path) -> Iterator[str]:
    if "collaboration" not in (sweep.preset or ""):
        return
    found = collaboration.distances(sweep.folder)
    table = collaboration.differences(found)
    table.to_csv(out / "paired.csv", index=False)
    says = "Distance of the minority classes: paired differences, seed by seed, mean and 95 % Student interval, bold "
    says += "where it excludes 0; negative: the first arm is closer to real records. No correction for the number of "
    says += "cells."
    yield html.heading("When does collaboration help?")
    yield html.paragraph(says, note=True)
    yield from html.from_markdown(collaboration.markdown(table), name="paired differences")
    collaboration_plot.plot(found, out / "paired.png")
    yield html.picture_of(out / "paired.png", alt="distance of the minority classes over epsilon, by arm")


def _feddistr(sweep: Sweep, out: Path) -> Iterator[str]:
    if (
        "partition.xi" not in sweep.runs
        or sweep.finished.get("final/eval/accuracy", pd.Series(dtype=float)).isna().all()
    ):
        return
    found = feddistr_table.readings(sweep.runs)
    rows, curve = feddistr_table.summary(found), feddistr_table.curves(sweep.rounds)
    table2 = feddistr_table.convergence(found, curve)
    if sweep.preset != FEDDISTR_PRESET:  # on other data the paper's numbers are not of the same thing
        table2 = table2.assign(paper_rounds=None, paper_parameters=None)
    says = feddistr_text.text(found, rows, feddistr_table.differences(found), table2)
    yield from html.from_markdown(says, name="FedDistr's tables")
    plot(rows, found, curve, out)
    for path in sorted(out.glob("feddistr-*.png")):
        yield html.picture_of(path, alt=f"utility loss: {path.stem}")


def _newcomers(sweep: Sweep, out: Path) -> Iterator[str]:
    if "final/new/kd_cnn/all" not in sweep.finished:
        return
    found = newcomers.readings(sweep.folder)
    first = "SPIRE" if "SPIRE" in set(found["method"]) else str(found["method"].iloc[0])
    rows = newcomers.table(found, first)
    floors = [found[f"{group}_floor"].mean() for group in newcomers.GROUPS.values()]
    yield html.heading("Clients that joined later")
    yield from html.from_markdown(newcomers.markdown(rows, floors), name="newcomers")


def claims(sweep: Sweep, out: Path) -> Section:
    """Of a sweep that reproduces a paper: a verdict for each of its claims."""
    title = "The paper's claims"
    if not (sweep.preset or "").startswith(REPRODUCE):
        return Section(title, [html.paragraph("This is no sweep of `raydiff sweep reproduce`.")])
    table = judged(sweep.runs, claims_of(sweep.runs))
    says = "Stated apart from any result. Intervals: Student's at 95 %, paired. Not tested at this scale: the interval "
    says += "holds 0 and its half-width is above the paper's own relative gain."
    blocks = [html.paragraph(says, note=True), *html.from_markdown(text(table), name="claims")]
    return Section(title, blocks, {"claims": table})


def papers(sweep: Sweep, out: Path) -> Section:
    """The papers' own numbers beside ours, where preset and data are theirs, with what differs."""
    title, rows = "Beside the papers", []
    for entry in published.NUMBERS:
        for setting, own in _settings_of(sweep, entry):
            values = column(own, f"final/{entry.ours}").dropna()
            if len(values):
                shown = f"{html.mean_and_deviation(float(values.mean()), float(values.std()))} (n = {len(values)})"
                rows.append([entry.source, entry.data, entry.method, entry.measure, entry.value, setting,
                             spoken(entry.ours), shown, entry.differs])  # fmt: skip
    if not rows:
        none = (
            f"No published number is of preset {sweep.preset} with these data, or no trial that matches one finished."
        )
        return Section(title, [html.paragraph(none)])
    header = ["source", "data", "the paper's method", "its measure", "its number", "ours", "our measure", "our number",
              "what differs"]  # fmt: skip
    says = (
        "A paper's number stands beside ours only where preset and data are those it speaks of. None of the pairs is "
    )
    says += "the same experiment: read the last column first."
    names = ["source", "data", "method", "measure", "value", "setting", "our_measure", "our_value", "differs"]
    table = pd.DataFrame(rows, columns=names)
    grid = html.table(header, rows, name="the papers' numbers")
    return Section(title, [html.paragraph(says, note=True), grid], {"published": table})


def _settings_of(sweep: Sweep, entry: published.Number) -> Iterator[tuple[str, pd.DataFrame]]:
    """(setting, its finished trials) of those whose preset and config are the entry's."""
    if sweep.preset != entry.preset:
        return
    own = sweep.finished
    for path, wanted in entry.config.items():
        known = own.get(path, pd.Series(None, own.index, dtype=object))
        own = own[known.isna() if wanted is None else known == wanted]
    for setting, of in own.groupby(sweep.settings.loc[own.index]):
        yield str(setting), of
