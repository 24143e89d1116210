"""The table of the frontier for people: its columns, its cells, and what the numbers mean."""

from __future__ import annotations

import math
import textwrap

import pandas as pd

from raydiff.formats.tables import aligned, number, short, size, span, with_deviation
from raydiff.report.frontier.rows import (
    DONE,
    is_target_epsilon,
    measure_in_words,
    noise_floor,
    quality_of,
    ranked_by,
    swept,
)
from raydiff.report.guarantees import adversary, definitions, described, epsilons, shown
from raydiff.report.load import Row, records
from raydiff.report.sweep_view import setting_name

WIDTH = 100  # characters of a line of notes in a terminal
RELEASED = (
    "epsilon bounds what clients send. Published samples of the server's model have the epsilon against outsiders, "
    "those of a client's own model have no guarantee; the card of `raydiff generate` states it"
)
NOTHING_SENT = "epsilon 0: nothing sent; samples of these models carry no guarantee: no star and no ceiling"
NOT_IN_TERMINAL = ("AUC's ceiling", "label accuracy", "sent", "seconds")
AVERAGED = {"label accuracy": "label_accuracy", "AUC global": "auc_global", "AUC client": "auc_client"}
LETTERS = "abcdefghijkl"  # of privacy definitions, where there are several


def text(table: pd.DataFrame) -> str:
    """The table for a terminal, what its numbers mean, and the trials that have no row."""
    done = table[table["outcome"].isin(DONE)]
    blocks = [list_without_row(table)]
    if len(done):
        shown_cells = cells(done)
        names = [n for n in map(str, shown_cells) if n not in NOT_IN_TERMINAL and not n.endswith("/major")]
        plain = shown_cells[names].map(lambda cell: cell.partition(" [")[0])
        notes = [*explain(done), "95 % intervals and more columns are in the report and in frontier.csv"]
        wrapped = [line for note in notes for line in textwrap.wrap(note, WIDTH, subsequent_indent="   ")]
        blocks.insert(0, [*aligned([names, *plain.to_numpy().tolist()], words=2), "", *wrapped])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def brief(table: pd.DataFrame) -> pd.DataFrame:
    """Six columns of the frontier.

    They are what was compared, target epsilon, epsilon, the measure that ranks with its standard deviation over seeds,
    and the AUC of the attack on the server's model.
    """
    targets = [name for name in swept(table) if is_target_epsilon(name)]
    names = [name for name in swept(table) if name not in targets]
    measure = ranked_by(table)
    columns = {
        "setting": [setting_name(row, names) for row in records(table)],
        "target epsilon": table[targets[0]] if targets else None,
        "epsilon": table["epsilon"],
        **({measure: table[measure], "std": table[f"{measure}_std"]} if measure else {}),
        "AUC global": table["auc_global"],
    }
    return pd.DataFrame(columns, index=table.index)


def cells(rows: pd.DataFrame) -> pd.DataFrame:
    """The table as text, without columns in which no row has anything."""
    items = records(rows)
    names = list(map(str, rows))
    out = pd.DataFrame({"": ["o" if row["outcome"] == "stopped" else "*" * row["pareto"] for row in items]}, rows.index)
    out["method"] = rows["method"]
    for name in swept(rows):
        out[name] = rows[name].map(short)
    if rows["n"].max() > 1:
        out["n"] = rows["n"].map(str)
    all_definitions = definitions(rows)
    if len(all_definitions) < 2:
        out["epsilon"] = rows["epsilon"].map(shown)
    else:
        for letter, definition in zip(LETTERS, all_definitions, strict=False):
            own = epsilons(rows, definition).map(lambda epsilon: "-" if math.isnan(epsilon) else shown(epsilon))
            out[f"epsilon {letter}"] = own.mask(rows["epsilon"].isna(), "?")
    for name in quality_of(rows):
        out[name] = [_mean(row, name) for row in items]
    for header, name in AVERAGED.items():
        out[header] = [_mean(row, name) for row in items]
    out["AUC's ceiling"] = rows["auc_ceiling"].map(number)
    out["sent"] = [size(row["bytes_up"]) for row in items]
    out["seconds"] = [number(row["seconds"], 3) for row in items]
    for name in (n for n in names[names.index("digests") + 1 :] if f"{n}_std" in names):  # of other packages
        out[name] = [_mean(row, name) for row in items]
    return out[[name for name in out if (out[name] != "-").any()]]


def _mean(row: Row, name: str) -> str:
    """`mean±std` over seeds; of a single one `0.512 [0.470 0.554]`, or without an interval `0.512`."""
    low = row.get(f"{name}_low") if name in AVERAGED.values() else None
    if row[f"{name}_std"] is not None or low is None:
        return with_deviation(row[name], row[f"{name}_std"])
    return f"{number(row[name])} [{number(low)} {number(row[f'{name}_high'])}]"


def explain(rows: pd.DataFrame) -> list[str]:
    """What the numbers mean."""
    all_definitions = definitions(rows)
    letters = [f" {letter}" for letter in LETTERS] if len(all_definitions) > 1 else [""]
    notes = [
        f"epsilon{letter} (against {adversary(rows, definition)}): {described(rows, definition)}"
        for letter, definition in zip(letters, all_definitions, strict=False)
    ]
    if len(all_definitions) > 1:
        notes.append("epsilons of different privacy definitions do not compare; -: the row has none of this definition")
    if any(g.nothing_sent for g in rows["guarantee"]):
        notes.append(NOTHING_SENT)
    notes.append(RELEASED)
    reasons = {g.statement.removeprefix("no guarantee: ") for g in rows["guarantee"] if g.epsilon == math.inf}
    if reasons:
        notes.append(f"epsilon inf: no guarantee ({'; '.join(sorted(reasons))})")
    distance = ranked_by(rows)
    if distance is not None:
        floor = noise_floor(rows, distance)
        real = f"; real half against real half: {span(floor, number)}" if floor else ""
        notes.append(f"{distance}: {measure_in_words(quality_of(rows)[distance])}, mean over clients{real}")
        better = f"has less epsilon and less {distance}"
        notes.append(f"*  Pareto-optimal: with a guarantee, and no setting beside it {better}")
    if rows[["auc_global", "auc_client"]].notna().any(axis=None):
        notes.append("AUC: of membership inference, by the attack that calibrates best, beside what the noise allows")
    if rows["n"].max() > 1:
        notes.append("n: seeds and splits of the data; mean±standard deviation; the largest epsilon and ceiling")
    if (rows["outcome"] == "stopped").any():
        notes.append("o  stopped early: epsilon until then; distances on the validation split, not ranked")
    return notes


def list_without_row(table: pd.DataFrame) -> list[str]:
    """A line for each setting that failed, was killed or has not finished."""
    lines = []
    for row in records(table[~table["outcome"].isin(DONE)]):
        setting = "".join(f" {k}={short(row[k])}" for k in swept(table) if row[k] is not None)
        end = f"{row['reason'] or 'no reason recorded'} (epsilon {shown(row['epsilon'])}; {row['digests']})"
        lines.append(textwrap.shorten(f"{row['outcome']}: {row['method']}{setting}: {end}", 160, placeholder="…"))
    return lines
