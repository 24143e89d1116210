"""A sweep as one HTML page that opens offline, and its tables as CSV and parquet.

A section that returns no text (no attack was run) is left out. A sweep may still be running.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from raydiff.formats.csv_files import write_csv
from raydiff.formats.json_files import read_json
from raydiff.lookup import Door, bare_name
from raydiff.report import html, load
from raydiff.report.attack_readings import read_attacks
from raydiff.report.conclusion import conclude
from raydiff.report.frontier.text import cells, explain, list_without_row
from raydiff.report.guarantees import flatten_guarantees, guarantee_of, shown
from raydiff.report.load import VIEWS, column, records
from raydiff.report.paired import comparable_trials, pair_settings
from raydiff.report.sweep_view import SweepView

GRIDS = {"samples": "", "unseen": ", clients that joined later"}
"""Name of a trial's sample grid -> whose samples it has."""
MOST = 8  # sample grids that are shown


def write_conclusion(sweep: SweepView) -> str:
    """The conclusion in sentences, the best setting at each epsilon, and the frontier's picture."""
    sentences, lines = conclude(sweep)
    text = "".join(map(html.paragraph, sentences)) + html.bullets(lines)
    if not sweep.picture:
        return text + html.paragraph("There is no plot: no setting has a finite epsilon and a measure.")
    return text + html.embed_picture(sweep.picture, alt="the measure that ranks, over epsilon; its numbers are below")


def show_samples(sweep: SweepView) -> str:
    """Sample grids of the best setting of each method and target epsilon, with the privacy that their files state."""
    pictures = []
    for digest in _best_trials(sweep):
        setting = sweep.settings[sweep.runs["digest"] == digest].iloc[0]
        for name, whose in GRIDS.items():
            path = sweep.trial(digest) / "artifacts" / f"{name}.png"
            if path.exists():
                pictures.append(_embed(path, f"{setting}{whose}"))
    note = (
        "The best setting of each method and target epsilon, its first seed; a row is a client. The guarantee below "
        "each picture is that of these samples, not of what was sent."
    )
    return f'<div class="samples">{"".join(pictures)}</div>{html.paragraph(note)}' if pictures else ""


def _best_trials(sweep: SweepView) -> list[str]:
    """The first trial of the best setting of each method and target epsilon; without a measure the first trials."""
    if sweep.measure is None:
        return [*sweep.runs["digest"][:MOST]]
    first = comparable_trials(sweep).drop_duplicates(["cell", "setting"])
    settings = pair_settings(sweep).merge(first[["cell", "setting", "method", "digest"]]).sort_values("mean")
    return [*settings.drop_duplicates(["method", "target"])[:MOST].sort_values("target")["digest"]]


def _embed(path: Path, caption: str) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            caption += f"; privacy: {image.info.get('privacy', 'not recorded')}"
    except (UnidentifiedImageError, OSError):
        return html.paragraph(f"{caption}: the picture cannot be read.")
    return html.embed_picture(path.read_bytes(), alt=f"samples of {caption}", caption=caption)


def show_frontier(sweep: SweepView) -> str:
    """The frontier's table, what its numbers mean, settings without a row, and the epsilon of all trials composed."""
    table = cells(sweep)
    if table.empty:
        text = html.paragraph("No trial finished or was stopped with results: there is no frontier.")
    else:
        text = html.render_table(table) + html.bullets(explain(sweep))
    text += html.bullets(list_without_row(sweep))
    path = sweep.folder / "composed.json"
    if not path.exists():
        return text + html.paragraph("The epsilon of all trials composed is computed at the end of the sweep.")
    composed = read_json(path)
    missing = len(set(sweep.runs["digest"]) - set(composed["trials"]))
    later = [f"That leaves out {missing} of {len(sweep.runs)} trials, which came later."] if missing else []
    return text + html.paragraph("All trials ran on the same records:") + html.bullets([*composed["text"], *later])


def show_trials(sweep: SweepView) -> str:
    """How each trial ended, and what it cost."""
    return html.render_table(_round_up(list_trials(sweep))) + html.bullets(load.describe_cut_short(sweep.folder))


def list_trials(sweep: SweepView) -> pd.DataFrame:
    """A row per trial: how it ended, its epsilon against the server and outsiders, rounds recorded, seconds, bytes."""
    runs = sweep.runs
    recorded = sweep.rounds.groupby("digest")["step"].nunique()
    columns = {
        "digest": runs["digest"],
        "setting": sweep.settings,
        "seed": sweep.seeds,
        "outcome": runs["outcome"],
        "reason": runs["reason"].mask(runs["outcome"] == "unfinished", "still running, or its process died"),
        **{f"epsilon_{view}": column(runs, f"{view}/epsilon") for view in VIEWS},
        "rounds": runs["digest"].map(recorded).fillna(0).astype(int),
        "seconds": column(runs, "final/time/seconds"),
        "bytes_up": column(runs, "final/comm/bytes_up"),
    }
    return pd.DataFrame(columns)


def _round_up(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its epsilons as text, which is never below them."""
    epsilons = [name for name in map(str, table) if name.startswith("epsilon")]
    return table.assign(**{name: table[name].map(shown) for name in epsilons})


def show_guarantees(sweep: SweepView) -> str:
    """What each setting guarantees against the server and against outsiders."""
    note = (
        "Epsilon is computed from the ledger of what was sent, the largest over seeds. Samples of a client's own "
        "model carry no guarantee. Who sent what, round by round: ledger.json of each trial."
    )
    return html.render_table(_round_up(list_guarantees(sweep))) + html.paragraph(note)


def list_guarantees(sweep: SweepView) -> pd.DataFrame:
    """A row per setting and statement: the largest epsilon against the server and against outsiders, and trials."""
    out = sweep.settings.to_frame("setting")
    for view in VIEWS:
        stated = [guarantee_of(row, view) for row in records(sweep.runs)]
        out[f"against the {view}"] = [guarantee.statement for guarantee in stated]
        out[f"epsilon, {view}"] = [guarantee.epsilon for guarantee in stated]
    alike = out.groupby(["setting", *(f"against the {view}" for view in VIEWS)], sort=False)
    return alike.max().assign(trials=alike.size()).reset_index()


def show_attacks(sweep: SweepView) -> str:
    """Membership attacks beside the ceiling that no attack on the uploads can exceed."""
    table = read_attacks(sweep)
    return "" if table.empty else html.render_table(table)


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
    "frontier": lambda sweep: flatten_guarantees(sweep.frontier),
    "trials": list_trials,
    "guarantees": list_guarantees,
    "attacks": read_attacks,
    "paired": pair_settings,
    "runs": lambda sweep: sweep.runs,
    "rounds": lambda sweep: sweep.rounds,
}
"""File name without its ending -> what is written as CSV and parquet."""


def write_page(out: Path, sweep: SweepView, *, sections: Sequence[str] = ()) -> Path:
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
        return html.paragraph(f"This section could not be made: {type(e).__name__}: {e}")


def _footer(sweep: SweepView) -> str:
    about = sweep.about
    lines = [
        f"Written by raydiff {about['version']}, code {about.get('git')}." if "version" in about else "",
        *about.get("tuned", ()),
        f"All runs in MLflow: {about['opened_by']}" if "opened_by" in about else "",
        f"Beside this page, as CSV and parquet: {', '.join(TABLES)}; raydiff paired compares any other number.",
    ]
    return html.bullets(filter(None, lines))
