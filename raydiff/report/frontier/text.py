"""The table of the frontier for people: its columns, its cells, and what the numbers mean."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator

import pandas as pd

from raydiff.formats.tables import aligned, number, short, size
from raydiff.report.frontier.kinds import NOTHING, against, epsilons, kinds, shown, stated
from raydiff.report.frontier.rows import DONE, GROUPS, SAMPLERS, floors_of, measures, network_of, ranked_by, swept
from raydiff.report.load import Row, records

Column = tuple[str, str, list[str]]
"""Two header lines, and a cell per row."""
WIDTH = 100
"""Characters in a line that a terminal shows without wrapping."""
INTERVALS = "intervals"
MEANT = {
    "fd_": "Fréchet distance of {} features, mean over clients; floor: real half against real half",
    "fid": "Fréchet distance of Inception's features, mean over clients",
    "kd_": "kernel distance of {} features, mean over clients",
    "kid": "kernel distance of Inception's features, mean over clients",
    "tv_pairs": "total variation between pairs of columns, real and generated, mean over pairs and clients",
    "utility_loss": "1 - accuracy on the test split",
}
"""What the measures mean, by how their names begin."""
SPARE = (INTERVALS, "TPR at 1%", "minor by", "its ceiling", "label accuracy", "seconds", "major", "sent")
"""What goes first where the table is wider: columns, by one of their two headers or by both."""


def text(table: pd.DataFrame) -> str:
    """The table for people, as much as fits a terminal; what its numbers mean; the trials that have no row."""
    done, others = table[table["outcome"].isin(DONE)], table[~table["outcome"].isin(DONE)]
    shown, spared = _narrow(columns_of(done)) if len(done) else ([], [])
    notes = [note for note in (meanings(done) if len(done) else []) if note.partition(":")[0] not in spared]
    notes += [f"not shown, but in the report and in frontier.csv: {', '.join(spared)}"] if spared else []
    lines = [line for note in notes for line in textwrap.wrap(note, WIDTH, subsequent_indent="   ")]
    blocks = [[*_grid(shown, len(done)), "", *lines] if len(done) else [], without_row(others)]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _narrow(columns: list[Column]) -> tuple[list[Column], list[str]]:
    """As many of the columns as fit, and the names of what had to go."""
    spared: list[str] = []
    for name in SPARE:
        if max(map(len, _lines(columns))) <= WIDTH:
            break
        if name == INTERVALS:
            fewer = [(above, head, [re.sub(r" \[.*\]$", "", c) for c in cells]) for above, head, cells in columns]
        else:
            fewer = [column for column in columns if name not in (*column[:2], " ".join(column[:2]))]
        if fewer != columns:
            columns, spared = fewer, [*spared, name]
    return columns, spared


def _lines(columns: list[Column]) -> list[str]:
    """The columns side by side."""
    table = ([above, name, *cells] for above, name, cells in columns)
    return aligned(list(zip(*table, strict=True)), words=2)  # the mark and the method


def _grid(columns: list[Column], count: int) -> list[str]:
    """The header, `count` rows and the floors, ruled off from each other."""
    lines, end = _lines(columns), 2 + count
    rule = "-" * max(map(len, lines))
    return [*lines[:2], rule, *lines[2:end], *([rule, *lines[end:]] if lines[end:] else [])]


def columns_of(rows: pd.DataFrame) -> list[Column]:
    """The columns that any row has something in, with the floors below the rows."""
    columns = [c for c in _columns(rows) if set(c[2]) != {"-"}]
    distances = [f"{above}/{name}" for above, name, _ in columns if above.startswith("fd_")]
    floors = [(words, dict(zip(distances, of, strict=True))) for words, of in floors_of(rows, distances)]

    def below(above: str, name: str) -> Iterator[str]:
        for words, of in floors:
            floor = of.get(f"{above}/{name}")
            yield short(words.get(above + name, "")) if floor is None else number(floor)

    return [(above, name, [*cells, *below(above, name)]) for above, name, cells in columns]


def _columns(rows: pd.DataFrame) -> Iterator[Column]:
    known, network = records(rows), network_of(rows)

    def means(above: str, name: str, column: str) -> Column:
        return above, name, [_mean(r, column) for r in known]

    yield "", "", ["o" if r["outcome"] == "stopped" else "*" if r["pareto"] else "" for r in known]
    yield "", "method", [r["method"] for r in known]
    for name in swept(rows):
        above, dot, last = name.rpartition(".")
        yield above + dot, last, [short(r[name]) for r in known]
    if rows["n"].max() > 1:
        yield "", "n", [str(r["n"]) for r in known]
    yield from _epsilons(rows)
    for group in GROUPS if network else ():
        yield means(f"fd_{network}", group, f"fd_{network}/{group}")
    for sampler in SAMPLERS if network else ():
        yield means("minor by", sampler, f"minor_{sampler}")
    for name in () if network else measures(map(str, rows)):
        above, slash, last = name.rpartition("/")
        yield means(above or name, last if slash else "", name)
    yield means("label", "accuracy", "label_accuracy")
    yield means("attack AUC", "global", "auc_global")
    yield "its", "ceiling", [number(r["auc_ceiling"]) for r in known]
    yield means("attack AUC", "client", "auc_client")
    for name in ("global", "client"):
        if rows[f"tpr_{name}"].notna().any():
            yield "TPR at 1%", name, [_rate(r, name) for r in known]
    yield "", "sent", [size(r["bytes_up"]) for r in known]
    yield "", "seconds", [number(r["seconds"], 3) for r in known]
    names = list(map(str, rows))
    for name in (n for n in names[names.index("digests") + 1 :] if f"{n}_std" in names):  # metrics that others added
        yield means(*name.rpartition("/")[::2], name)


def _epsilons(rows: pd.DataFrame) -> Iterator[Column]:
    """One column; where there are several kinds, one for each, headed by its letter."""
    known, several = records(rows), _letters(rows)
    if len(several) < 2:
        central = any(against(kind).startswith("outsiders") for kind in several)
        yield "epsilon", "outsiders" if central else "server", [shown(r["epsilon"]) for r in known]
        return
    for kind, letter in several.items():
        cells = ["-" if math.isnan(e) else shown(e) for e in epsilons(rows, kind)]
        yield "epsilon", letter, ["?" if r["epsilon"] is None else c for r, c in zip(known, cells, strict=True)]


def _letters(rows: pd.DataFrame) -> dict[str, str]:
    """{kind: letter} of the finite guarantees."""
    return {kind: chr(ord("a") + i) for i, kind in enumerate(kinds(rows))}


def _mean(row: Row, name: str) -> str:
    """`mean±std` over seeds; of a single one `value` or, with its interval, `value [low high]`."""

    def bare(end: str) -> str:
        return re.sub(r"^0\.", ".", number(row[f"{name}_{end}"]))  # .863 for 0.863, since the table is wide

    if row[f"{name}_std"] is not None:
        return f"{number(row[name])}±{bare('std')}"
    return number(row[name]) + (f" [{bare('low')} {bare('high')}]" if row.get(f"{name}_low") is not None else "")


def _rate(row: Row, model: str) -> str:
    """The true positive rate at 1 % false positives, where the model was attacked."""
    if row[f"tpr_{model}"] is None:
        return "-" if row[f"auc_{model}"] is None else "n too small"
    return _mean(row, f"tpr_{model}")


def meanings(rows: pd.DataFrame) -> list[str]:
    """What the numbers mean."""
    letters, network, distance = _letters(rows), network_of(rows), ranked_by(rows)
    several = len(letters) > 1
    notes = [
        f"epsilon{f' {letter}' if several else ''} (against {against(kind)}): {stated(rows, kind)}"
        for kind, letter in letters.items()
    ]
    if several:
        notes.append("epsilons of different kinds are not comparable; -: the row has none of this kind")
    notes += ["epsilon 0: nothing sent"] if (rows["kind"] == NOTHING).any() else []
    bare = {k.removeprefix("no guarantee: ") for k in rows["kind"] if k.startswith("no guarantee")}
    notes += [f"epsilon inf: no guarantee ({'; '.join(sorted(bare))})"] if bare else []
    if distance is not None:
        better = f"an epsilon{' of its kind' if several else ''} and a {distance} that are both as low"
        name = distance.partition("/")[0]
        meant = next(words for start, words in MEANT.items() if name.startswith(start))
        notes.append(f"{name}: {meant.format(name.partition('_')[2])}")
        if network and rows[[f"minor_{sampler}" for sampler in SAMPLERS]].notna().any(axis=None):
            notes.append("minor by: the same for the minority classes, under each sampler of the client's chain")
        notes.append(f"*  Pareto-optimal: no other finished trial has {better}, and one of them lower")
        notes.append("attack AUC [95 % interval]: membership, by the attack that calibrates best")
        notes.append("its ceiling: what the ledger's noise allows any attack on the uploads")
        takes = "it takes 500 non-members in the calibration split and 500 in the test split"
        if rows[["tpr_global", "tpr_client"]].notna().any(axis=None):
            notes.append(f"TPR at 1%: members found at 1 % false positives [95 % interval]; n too small: {takes}")
        elif rows[["auc_global", "auc_client"]].notna().any(axis=None):
            notes.append(f"TPR at 1 % false positives: n too small ({takes})")
    if rows["n"].max() > 1:
        over = "seeds, and splits of the data; mean±standard deviation over them"
        notes.append(f"n: {over}; of epsilon and of the ceiling the largest")
    if (rows["outcome"] == "stopped").any():
        notes.append("o  stopped early: what was spent by then; distances on the validation split, not ranked")
    return notes


def without_row(others: pd.DataFrame) -> list[str]:
    """A line for each setting that failed, was killed or has not finished."""
    lines = []
    for row in records(others):
        setting = "".join(f" {k}={short(row[k])}" for k in swept(others) if row[k] is not None)
        why, spent = row["reason"] or "no reason recorded", shown(row["epsilon"], row["kind"])
        line = f"{row['outcome']}: {row['method']}{setting}: {why} (epsilon spent {spent}; {row['digests']})"
        lines.append(line if len(line) <= 160 else f"{line[:159]}…")
    return lines
