"""A sweep as one HTML page that opens offline, and its tables as CSV and parquet.

    raydiff report SWEEP [--out DIR]             writes report.html and the tables into DIR (default: SWEEP/report)
    raydiff report SWEEP --section mylab:cost    with a section of your own: a function of the `SweepView` to HTML

A section that returns no text (no attack was run) is left out. A sweep may still be running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from raydiff.formats.csv_files import write_csv
from raydiff.formats.json_files import read_json
from raydiff.lookup import Door, bare_name
from raydiff.report import guarantees, html, load
from raydiff.report.attack_readings import TARGETS, read_attacks
from raydiff.report.conclusion import conclude
from raydiff.report.frontier.rows import DONE
from raydiff.report.frontier.text import cells, explain, list_without_row
from raydiff.report.load import column
from raydiff.report.paired import comparable_trials, pair_settings
from raydiff.report.sweep_view import SweepView, open_sweep

GRIDS = {"samples": "", "unseen": ", clients that joined later"}
"""Name of a trial's sample grid -> whose samples it has."""
MOST = 8  # settings whose sample grids are shown


def write_conclusion(sweep: SweepView) -> str:
    """The conclusion in sentences, the best setting at each epsilon, and the frontier's picture."""
    sentences, lines = conclude(sweep)
    text = "".join(map(html.paragraph, sentences)) + html.bullets(lines)
    if not sweep.picture:
        return text + html.paragraph("There is no plot: no setting has a finite epsilon and a measure.")
    return text + html.picture(sweep.picture, alt="the measure that ranks, over epsilon; its numbers are below")


def show_samples(sweep: SweepView) -> str:
    """Sample grids of the best setting of each method and target epsilon, with the privacy that their files state."""
    pictures = []
    for digest in _best_trials(sweep):
        setting = sweep.settings[sweep.runs["digest"] == digest].iloc[0]
        for name, whose in GRIDS.items():
            path = sweep.trial(digest) / "artifacts" / f"{name}.png"
            if path.exists():
                pictures.append(_embed(path, f"{setting}{whose}"))
    note = "The best setting of each method and target epsilon, its first seed; a row is a client. The guarantee below "
    note += "each picture is that of these samples, not of what was sent."
    return f'<div class="samples">{"".join(pictures)}</div>{html.paragraph(note, note=True)}' if pictures else ""


def _best_trials(sweep: SweepView) -> list[str]:
    """Of the first cell the first trial of the best setting of each method and target epsilon: of many, the best."""
    if sweep.measure is None:
        return [str(digest) for digest in sweep.runs["digest"][:MOST]]
    trials = comparable_trials(sweep).drop_duplicates(["cell", "setting"])
    rows = pair_settings(sweep)
    in_cell = rows[rows["cell"] == trials["cell"].iloc[0]].assign(method=rows["arm"].str.partition(", ")[0])
    best = in_cell.sort_values("mean").drop_duplicates(["method", "target"])[:MOST].sort_values("target")
    return [str(digest) for digest in best.merge(trials, on=["cell", "setting"])["digest"]]


def _embed(path: Path, caption: str) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            caption += f"; privacy: {image.info.get('privacy', 'not recorded')}"
    except (UnidentifiedImageError, OSError):
        return html.paragraph(f"{caption}: the picture cannot be read.")
    return html.picture(path.read_bytes(), alt=f"samples of {caption}", caption=caption)


def show_frontier(sweep: SweepView) -> str:
    """The frontier's table, what its numbers mean, settings without a row, and the epsilon of all trials composed."""
    done = sweep.frontier[sweep.frontier["outcome"].isin(DONE)]
    if done.empty:
        text = html.paragraph("No trial finished or was stopped with results: there is no frontier.")
    else:
        text = html.table(cells(done)) + html.bullets(explain(done))
    text += html.bullets(list_without_row(sweep.frontier))
    composed = sweep.folder / "composed.json"
    if not composed.exists():
        return text + html.paragraph("The epsilon of all trials composed is computed at the end of the sweep.")
    end = read_json(composed)
    missing = len(set(sweep.runs["digest"]) - set(end["trials"]))
    later = [f"That leaves out {missing} of {len(sweep.runs)} trials, which came later."] if missing else []
    return text + html.paragraph("All trials ran on the same records:") + html.bullets([*end["text"], *later])


def show_trials(sweep: SweepView) -> str:
    """How each trial ended, and what it cost."""
    return html.table(_round_up(list_trials(sweep))) + html.bullets(load.cut_short(sweep.folder))


def list_trials(sweep: SweepView) -> pd.DataFrame:
    """A row per trial: how it ended, its epsilon against the server and outsiders, rounds recorded, seconds, bytes."""
    runs = sweep.runs
    out = pd.DataFrame({"digest": runs["digest"], "setting": sweep.settings, "seed": sweep.trials["seed"]})
    running = "still running, or its process died"
    out["outcome"] = runs["outcome"]
    out["reason"] = runs["reason"].mask(runs["outcome"] == "unfinished", running)
    for view in load.VIEWS:
        out[f"epsilon_{view}"] = column(runs, f"{view}/epsilon")
    out["rounds"] = out["digest"].map(sweep.rounds.groupby("digest")["step"].nunique()).fillna(0).astype(int)
    out["seconds"] = column(runs, "final/time/seconds")
    out["bytes_up"] = column(runs, "final/comm/bytes_up")
    out["place"] = out["setting"].map(sweep.order.index)
    return out.sort_values(["place", "seed"], ignore_index=True).drop(columns="place")


def _round_up(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its epsilons as text, which is never below them."""
    columns = [name for name in map(str, table) if name.startswith("epsilon")]
    return table.assign(**{name: table[name].map(guarantees.shown) for name in columns})


def show_guarantees(sweep: SweepView) -> str:
    """What each setting guarantees against the server and against outsiders."""
    note = (
        "Epsilon is computed from the ledger of what was sent, the largest over seeds. Samples of a client's own model "
    )
    note += "carry no guarantee. Who sent what, round by round: ledger.json of each trial."
    return html.table(_round_up(list_guarantees(sweep))) + html.paragraph(note, note=True)


def list_guarantees(sweep: SweepView) -> pd.DataFrame:
    """A row per setting and statement: trials, and the largest epsilon, against the server and against outsiders."""
    out = pd.DataFrame({"setting": sweep.settings})
    rows = load.records(sweep.runs)
    for view in load.VIEWS:
        stated = [guarantees.guarantee_of(row, view) for row in rows]
        out[f"against the {view}"] = [guarantee.statement for guarantee in stated]
        out[f"epsilon, {view}"] = [guarantee.epsilon for guarantee in stated]
    statements = ["setting", *(f"against the {view}" for view in load.VIEWS)]
    largest = {f"epsilon, {view}": (f"epsilon, {view}", "max") for view in load.VIEWS}
    return out.groupby(statements, sort=False).agg(trials=("setting", "size"), **largest).reset_index()


def show_attacks(sweep: SweepView) -> str:
    """Membership attacks beside the ceiling that no attack on the uploads can exceed."""
    table = read_attacks(sweep)
    if table.empty:
        return ""
    above = int(table["above_ceiling"].sum())
    text = html.paragraph(
        f"Above their ceiling with their whole interval: {above}; by chance one of forty sound attacks is."
    )
    described = [f"{target}: {TARGETS.get(target, 'not described here.')}" for target in table["target"].unique()]
    return text + html.table(table) + html.bullets(described)


SECTIONS: Door[Callable[[SweepView], str]] = Door(
    "report section",
    {
        "What came out": write_conclusion,
        "Samples": show_samples,
        "Frontier": show_frontier,
        "What released rows reveal": "raydiff.papers.discrete.row_bounds:show_row_bounds",
        "Trials": show_trials,
        "Guarantees": show_guarantees,
        "Attacks": show_attacks,
    },
)
"""Title -> function that returns the section's HTML, "" to leave it out. In the order of the page."""
TABLES: dict[str, Callable[[SweepView], pd.DataFrame]] = {
    "frontier": lambda sweep: guarantees.flat(sweep.frontier),
    "trials": list_trials,
    "guarantees": list_guarantees,
    "attacks": read_attacks,
    "paired": pair_settings,
    "runs": lambda sweep: sweep.runs,
    "rounds": lambda sweep: sweep.rounds,
}
"""File name without its ending -> what is written as CSV and parquet."""


def write(out: Path, sweep: SweepView, *, sections: Sequence[str] = ()) -> Path:
    """Write report.html, the picture and the tables of a sweep into `out`; `sections` are more of them, `module:name`.

    An error in one section or table leaves the others. Returns the page. Raises ValueError for an unknown section.
    """
    makers = {**SECTIONS, **{bare_name(name): SECTIONS.resolve(name) for name in sections}}
    out.mkdir(parents=True, exist_ok=True)
    for name, make in TABLES.items():
        try:
            table = make(sweep)
        except ValueError:  # nothing to compare
            continue
        write_csv(out / f"{name}.csv", table)
        table.apply(load.of_one_type).to_parquet(out / f"{name}.parquet", index=False)
    texts = {title: _make_section(make, sweep) for title, make in makers.items()}
    if sweep.picture:
        (out / "frontier.png").write_bytes(sweep.picture)
    page = out / "report.html"
    page.write_text(html.page(f"Sweep {sweep.name}", [part for part in texts.items() if part[1]], _footer(sweep)))
    return page


def _make_section(make: Callable[[SweepView], str], sweep: SweepView) -> str:
    try:
        return make(sweep)
    except Exception as e:
        kind = "" if isinstance(e, ValueError) else f"{type(e).__name__}: "
        return html.paragraph(f"This section could not be made: {kind}{e}")


def _footer(sweep: SweepView) -> str:
    version = sweep.about.get("version")
    code = sweep.about.get("git")
    lines = [f"Written by raydiff {version}, code {code}." if version else "", *sweep.about.get("tuned", ())]
    address = sweep.about.get("opened_by")
    lines += [f"All runs in MLflow: {address}" if address else ""]
    lines += [f"Beside this page, as CSV and parquet: {', '.join(TABLES)}; raydiff paired compares any other number."]
    return html.bullets(filter(None, lines))


def main(argv: Sequence[str]) -> None:
    """Write the report and print its path."""
    section = {"nargs": "*", "default": (), "metavar": "MODULE:NAME", "help": "sections of your own"}
    options = load.arguments(__doc__, argv, section=section)
    print(write(options.out, open_sweep(options.sweep), sections=options.section))
