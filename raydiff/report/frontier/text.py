"""The table of the frontier for people: its columns, its cells, and what the numbers mean."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

import pandas as pd

from raydiff.formats.tables import aligned, number, short, size, span, with_deviation
from raydiff.report.frontier.rows import (
    DONE,
    GROUPS,
    is_target_epsilon,
    measure_in_words,
    measures,
    network_of,
    noise_floor,
    ranked_by,
    swept,
)
from raydiff.report.guarantees import adversary, definitions, described, epsilons, shown
from raydiff.report.load import Row, records
from raydiff.report.sweep_view import setting_name

Column = tuple[str, list[str]]  # a header, and a cell per row
WIDTH = 100  # characters of a line of notes in a terminal
RELEASED = (
    "epsilon bounds what clients send. Published samples of the server's model have the epsilon against outsiders, "
    "those of a client's own model have no guarantee; the card of `raydiff generate` states it"
)
NOTHING_SENT = "epsilon 0: nothing sent; samples of these models carry no guarantee: no star and no ceiling"
NOT_IN_TERMINAL = ("AUC's ceiling", "label accuracy", "sent", "seconds")
LETTERS = "abcdefghijkl"  # of privacy definitions, where there are several


def text(table: pd.DataFrame) -> str:
    """The table for a terminal, what its numbers mean, and the trials that have no row."""
    done, others = table[table["outcome"].isin(DONE)], table[~table["outcome"].isin(DONE)]
    blocks = [without_row(others)]
    if len(done):
        columns = [c for c in columns_of(done) if c[0] not in NOT_IN_TERMINAL and not c[0].endswith("/major")]
        short_cells = {"AUC global": "±", "AUC client": "±"}  # Intervals and these deviations are left out.
        cells = [
            [h, *(c.partition(" [")[0].partition(short_cells.get(h, " ["))[0] for c in values)] for h, values in columns
        ]
        head, *lines = aligned(list(zip(*cells, strict=True)), words=2)  # the mark and the method
        rule = "-" * max(map(len, [head, *lines]))
        notes = [*meanings(done), "95 % intervals and more columns are in the report and in frontier.csv"]
        wrapped = [line for note in notes for line in textwrap.wrap(note, WIDTH, subsequent_indent="   ")]
        blocks.insert(0, [head, rule, *lines, "", *wrapped])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def brief(table: pd.DataFrame) -> pd.DataFrame:
    """Six columns of the frontier: what was compared, target epsilon, epsilon, the measure that ranks with its standard
    deviation over seeds, and the AUC of the attack on the server's model."""
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


def columns_of(rows: pd.DataFrame) -> list[Column]:
    """The columns that any row has something in, with the noise floors below the rows."""
    columns = [(header, cells) for header, cells in _columns(rows) if set(cells) != {"-"}]
    floors = {header: floor for header, _ in columns if (floor := noise_floor(rows, header))}
    if not floors:
        return columns
    last = {header: span(floor, number) for header, floor in floors.items()} | {"method": "noise floor"}
    return [(header, [*cells, last.get(header, "")]) for header, cells in columns]


def _columns(rows: pd.DataFrame) -> Iterator[Column]:
    items, network, names = records(rows), network_of(rows), list(map(str, rows))
    yield "", ["o" if r["outcome"] == "stopped" else "*" if r["pareto"] else "" for r in items]
    yield "method", [r["method"] for r in items]
    for name in swept(rows):
        yield name, [short(r[name]) for r in items]
    if rows["n"].max() > 1:
        yield "n", [str(r["n"]) for r in items]
    yield from _epsilons(rows)
    means = {name: name for name in ([f"fd_{network}/{group}" for group in GROUPS] if network else measures(names))}
    means |= {"label accuracy": "label_accuracy", "AUC global": "auc_global", "AUC client": "auc_client"}
    for header, name in means.items():
        yield header, [_mean(r, name) for r in items]
    yield "AUC's ceiling", [number(r["auc_ceiling"]) for r in items]
    yield "sent", [size(r["bytes_up"]) for r in items]
    yield "seconds", [number(r["seconds"], 3) for r in items]
    for name in (n for n in names[names.index("digests") + 1 :] if f"{n}_std" in names):  # of other packages
        yield name, [_mean(r, name) for r in items]


def _epsilons(rows: pd.DataFrame) -> Iterator[Column]:
    """One column; under several privacy definitions one for each, headed by its letter."""
    all_definitions = definitions(rows)
    if len(all_definitions) < 2:
        yield "epsilon", list(map(shown, rows["epsilon"]))
        return
    for letter, definition in zip(LETTERS, all_definitions, strict=False):
        pairs = zip(rows["epsilon"], epsilons(rows, definition), strict=True)
        yield f"epsilon {letter}", ["?" if math.isnan(e) else "-" if math.isnan(of) else shown(of) for e, of in pairs]


def _mean(row: Row, name: str) -> str:
    """`mean±std` over seeds; of a single one as `with_interval`."""
    deviation = row[f"{name}_std"]
    return with_interval(row, name) if deviation is None else with_deviation(row[name], deviation)


def with_interval(row: Row, name: str) -> str:
    """`0.512 [0.470 0.554]`; without an interval `0.512`."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return number(row[name]) + ("" if low is None or high is None else f" [{number(low)} {number(high)}]")


def meanings(rows: pd.DataFrame) -> list[str]:
    """What the numbers mean."""
    all_definitions, distance = definitions(rows), ranked_by(rows)
    letters = [f" {letter}" for letter in LETTERS] if len(all_definitions) > 1 else [""]
    notes = [
        f"epsilon{letter} (against {adversary(rows, definition)}): {described(rows, definition)}"
        for letter, definition in zip(letters, all_definitions, strict=False)
    ]
    if len(all_definitions) > 1:
        notes.append("epsilons of different privacy definitions do not compare; -: the row has none of this definition")
    notes += [NOTHING_SENT] if any(g.nothing_sent for g in rows["guarantee"]) else []
    notes.append(RELEASED)
    reasons = sorted({g.statement.removeprefix("no guarantee: ") for g in rows["guarantee"] if g.epsilon == math.inf})
    notes += [f"epsilon inf: no guarantee ({'; '.join(reasons)})"] if reasons else []
    if distance is not None:
        floor = "; noise floor: real half against real half" if noise_floor(rows, distance) else ""
        name = distance.partition("/")[0]
        notes.append(f"{name}: {measure_in_words(name)}, mean over clients{floor}")
        notes.append(
            f"*  Pareto-optimal: with a guarantee, and no setting beside it has less epsilon and less {distance}"
        )
    if rows[["auc_global", "auc_client"]].notna().any(axis=None):
        notes.append("AUC: of membership inference, by the attack that calibrates best, beside what the noise allows")
    if rows["n"].max() > 1:
        notes.append("n: seeds and splits of the data; mean±standard deviation; the largest epsilon and ceiling")
    if (rows["outcome"] == "stopped").any():
        notes.append("o  stopped early: epsilon until then; distances on the validation split, not ranked")
    return notes


def without_row(others: pd.DataFrame) -> list[str]:
    """A line for each setting that failed, was killed or has not finished."""
    lines = []
    for row in records(others):
        setting = "".join(f" {k}={short(row[k])}" for k in swept(others) if row[k] is not None)
        reason, epsilon = row["reason"] or "no reason recorded", shown(row["epsilon"])
        line = f"{row['outcome']}: {row['method']}{setting}: {reason} (epsilon {epsilon}; {row['digests']})"
        lines.append(line if len(line) <= 160 else f"{line[:159]}…")
    return lines
