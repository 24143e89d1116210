"""The table of the frontier for people: its columns, its cells, and what the numbers mean."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from raydiff.report.frontier.kinds import NOTHING, against, epsilons, kinds
from raydiff.report.frontier.table import DONE, GROUPS, SAMPLERS, floors_of, network_of, ranked_by, records, swept
from raydiff.report.load import Row

Column = tuple[str, str, list[str]]
"""Two header lines, and a cell per row."""


def text(table: pd.DataFrame) -> str:
    """The table for people, about 160 columns wide; what its numbers mean; the trials that have no row."""
    done, others = table[table["outcome"].isin(DONE)], table[~table["outcome"].isin(DONE)]
    blocks = [[*_grid(done), "", *meanings(done)] if len(done) else [], without_row(others)]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _grid(rows: pd.DataFrame) -> list[str]:
    """The header, the rows and the floors, ruled off from each other."""
    columns = [column for column in cells_of(rows) if set(column[2]) != {"-"}]
    floors = floor_cells(rows, columns)
    cells = [[above, name, *own, *floor] for (above, name, own), floor in zip(columns, floors, strict=True)]
    widths = [max(map(len, column)) for column in cells]
    sides = [str.ljust] * 2 + [str.rjust] * (len(cells) - 2)  # the mark and the method are words
    lines = [
        "  ".join(side(cell, width) for cell, width, side in zip(line, widths, sides, strict=True)).rstrip()
        for line in zip(*cells, strict=True)
    ]
    rule, end = "-" * max(map(len, lines)), 2 + len(rows)
    below = [rule, *lines[end:]] if lines[end:] else []
    return [*lines[:2], rule, *lines[2:end], *below]


def cells_of(rows: pd.DataFrame) -> Iterator[Column]:
    known, network = records(rows), network_of(rows)
    yield "", "", ["o" if r["outcome"] == "stopped" else "*" if r["pareto"] else "" for r in known]
    yield "", "method", [r["method"] for r in known]
    for name in swept(rows):
        above, dot, last = name.rpartition(".")
        yield above + dot, last, [short(r[name]) for r in known]
    if rows["n"].max() > 1:
        yield "", "n", [str(r["n"]) for r in known]
    yield from _epsilons(rows)
    for group in GROUPS if network else ():
        yield f"fd_{network}", group, [_mean(r, f"fd_{network}/{group}") for r in known]
    for sampler in SAMPLERS if network else ():
        yield "minor by", sampler, [_mean(r, f"minor_{sampler}") for r in known]
    yield "label", "accuracy", [_mean(r, "label_accuracy") for r in known]
    yield "attack AUC", "global", [_mean(r, "auc_global") for r in known]
    yield "its", "ceiling", [number(r["auc_ceiling"]) for r in known]
    yield "attack AUC", "client", [_mean(r, "auc_client") for r in known]
    for name in ("global", "client"):
        if rows[f"tpr_{name}"].notna().any():
            yield "TPR at 1%", name, [_rate(r, name) for r in known]
    yield "", "sent", [size(r["bytes_up"]) for r in known]
    yield "", "seconds", [number(r["seconds"], 3) for r in known]


def _epsilons(rows: pd.DataFrame) -> Iterator[Column]:
    """One column; where there are several kinds, one for each, headed by its letter."""
    known, several = records(rows), _letters(rows)
    if len(several) < 2:
        central = any(against(kind) != "the server" for kind in several)
        yield "epsilon", "outsiders" if central else "server", [shown_epsilon(r["epsilon"], r["kind"]) for r in known]
        return
    for kind, letter in several.items():
        cells = ["-" if math.isnan(e) else shown_epsilon(e) for e in epsilons(rows, kind)]
        yield "epsilon", letter, ["?" if r["epsilon"] is None else c for r, c in zip(known, cells, strict=True)]


def _letters(rows: pd.DataFrame) -> dict[str, str]:
    """{kind: letter} of the finite guarantees."""
    return {kind: chr(ord("a") + i) for i, kind in enumerate(kinds(rows))}


def short(value: Any) -> str:
    """The value of a swept field, 16 characters at most."""
    if value is None or pd.isna(value):
        return "-"
    shown = f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
    return shown if len(shown) <= 16 else f"{shown[:15]}…"


def shown_epsilon(epsilon: float | None, kind: str = "") -> str:
    if epsilon is None:
        return "?"
    if epsilon == 0:
        return f"0 ({NOTHING})" if kind == NOTHING else "0"
    return f"{epsilon:.2f}" if epsilon >= 0.1 else f"{epsilon:.2g}"


def _mean(row: Row, name: str) -> str:
    """`mean±std` over seeds; of a single one `value` or, with its interval, `value [low high]`."""
    if row[f"{name}_std"] is not None:
        return f"{number(row[name])}±{_bare(row[f'{name}_std'])}"
    if row.get(f"{name}_low") is not None:
        return f"{number(row[name])} [{_bare(row[f'{name}_low'])} {_bare(row[f'{name}_high'])}]"
    return number(row[name])


def _rate(row: Row, model: str) -> str:
    """The true positive rate at 1 % false positives, where the model was attacked."""
    if row[f"tpr_{model}"] is None:
        return "-" if row[f"auc_{model}"] is None else "n too small"
    return _mean(row, f"tpr_{model}")


def number(value: float | None, digits: int = 4) -> str:
    """So many digits in all, as far as they are decimals: 0.863, 1.863, 18.63, 186.3, 12345."""
    if value is None or math.isnan(value):
        return "-"
    before = len(str(int(abs(value)))) if math.isfinite(value) else 0
    return f"{value:.{max(0, digits - before)}f}"


def _bare(value: float) -> str:
    """.863 for 0.863, since the table is wide."""
    return re.sub(r"^0\.", ".", number(value))


def size(count: float | None) -> str:
    if count is None:
        return "-"
    power = min(4, int(math.log10(count) / 3)) if count >= 1 else 0
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def floor_cells(rows: pd.DataFrame, columns: Sequence[Column]) -> list[list[str]]:
    """For each column, its cells in the rows that give the floors."""
    distances = [f"{above}/{name}" for above, name, _ in columns if above.startswith("fd_")]
    lines = [(words, dict(zip(distances, of, strict=True))) for words, of in floors_of(rows, distances)]

    def cell(above: str, name: str, words: Row, floors: dict[str, float]) -> str:
        distance = f"{above}/{name}"
        return number(floors[distance]) if distance in floors else short(words.get(above + name, ""))

    return [[cell(above, name, *line) for line in lines] for above, name, _ in columns]


def meanings(rows: pd.DataFrame) -> list[str]:
    """What the numbers mean."""
    letters, network, distance = _letters(rows), network_of(rows), ranked_by(rows)
    several = len(letters) > 1
    notes = [f"epsilon{f' {a}' if several else ''} (against {against(kind)}): {kind}" for kind, a in letters.items()]
    if several:
        notes.append("epsilons of different kinds are not comparable; -: the row has none of this kind")
        notes += ["epsilon 0: nothing sent"] if (rows["kind"] == NOTHING).any() else []
    bare = {k.removeprefix("no guarantee: ") for k in rows["kind"] if k.startswith("no guarantee")}
    notes += [f"epsilon inf: no guarantee ({'; '.join(sorted(bare))})"] if bare else []
    if distance is not None:
        measured = f"fd_{network}: Fréchet distance of {network} features, mean over clients"
        better = f"an epsilon{' of its kind' if several else ''} and a {distance} that are both as low"
        notes.append(f"{measured}; floor: real half against real half")
        if rows[[f"minor_{sampler}" for sampler in SAMPLERS]].notna().any(axis=None):
            notes.append("minor by: the same for the minority classes, under each sampler of the client's chain")
        notes.append(f"*  Pareto-optimal: no other finished trial has {better}, and one of them lower")
        allowed = "its ceiling: what the ledger's noise allows any attack on the uploads"
        notes.append(f"attack AUC [95 % interval]: membership, by the attack that calibrates best; {allowed}")
        notes += _of_rates(rows)
    if rows["n"].max() > 1:
        over = "seeds, and splits of the data; mean±standard deviation over them"
        notes.append(f"n: {over}; of epsilon and of the ceiling the largest")
    if (rows["outcome"] == "stopped").any():
        notes.append("o  stopped early: what was spent by then; distances on the validation split, not ranked")
    return notes


def _of_rates(rows: pd.DataFrame) -> list[str]:
    """What the true positive rates are, or why there are none."""
    takes = "it takes 500 non-members in the calibration split and 500 in the test split"
    if rows[["tpr_global", "tpr_client"]].notna().any(axis=None):
        return [f"TPR at 1%: members found at 1 % false positives [95 % interval]; n too small: {takes}"]
    attacked = rows[["auc_global", "auc_client"]].notna().any(axis=None)
    return [f"TPR at 1 % false positives: n too small ({takes})"] if attacked else []


def without_row(others: pd.DataFrame) -> list[str]:
    """A line for each setting that failed, was killed or has not finished."""
    lines = []
    for row in records(others):
        setting = "".join(f" {k}={short(row[k])}" for k in swept(others) if row[k] is not None)
        why = row["reason"] or "no reason recorded"
        spent = shown_epsilon(row["epsilon"], row["kind"])
        line = f"{row['outcome']}: {row['method']}{setting}: {why} (epsilon spent {spent}; {row['digests']})"
        lines.append(line if len(line) <= 160 else f"{line[:159]}…")
    return lines
