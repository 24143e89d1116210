"""The tables of FedDistr's sweep for people: markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from raydiff.report.markdown import grid
from raydiff.report.papers.feddistr_table import ARM, CELL, PARTITION, order


def text(found: pd.DataFrame, rows: pd.DataFrame, pairs: pd.DataFrame, table2: pd.DataFrame) -> str:
    """All tables with their headings and what their numbers mean; a table without rows is left out."""
    blocks = [
        ("Utility loss, and what travels", [*_losses(rows), "", *_notes(found, rows)]),
        ("How entangled the clients are", list(_entangled(found))),
        *((f"{ours} minus each other arm", _paired(own)) for ours, own in pairs.groupby("ours")),
        ("Rounds and parameters until convergence (Table 2)", _table2(table2)),
    ]
    return "\n\n".join(f"## {heading}\n\n" + "\n".join(lines) for heading, lines in blocks)


def _losses(rows: pd.DataFrame) -> Iterator[str]:
    """A row per arm, a column per cell."""
    cells = _cells(rows)
    header = ["method", "rounds", "epsilon", *map(_cell, cells), "bytes per client", "bytes in all", "parameters"]

    def lines() -> Iterator[list[str]]:
        for own in _by_arm(rows):
            at = own.set_index(CELL)
            losses = [_loss(at.loc[cell]) if cell in at.index else "" for cell in cells]
            yield [*_arm(own), *losses, *(_range(own[c]) for c in ("per_client", "bytes", "parameters"))]

    return grid(header, lines())


def _notes(found: pd.DataFrame, rows: pd.DataFrame) -> Iterator[str]:
    seeds = sorted(rows["n"].unique())
    yield f"Utility loss: 1 - accuracy on the test split; mean and 95 % Student interval over {_span(seeds)} seeds."
    yield "Bytes and parameters (bytes / 4): of all rounds; bytes in all and parameters of all clients together."
    yield "Pooled trials have no xi and no K: the same ones stand in every column."
    if kinds := [k for k in dict.fromkeys(rows["kind"]) if k]:
        yield f"Epsilon: from the ledger, against the server, the largest over seeds; {'; or '.join(kinds)}."
    for declared, own in found[found["declared"] != ""].groupby("declared"):
        yield f"Public by declaration ({', '.join(sorted(own['base'].unique()))}): {declared}."


def _entangled(found: pd.DataFrame) -> Iterator[str]:
    def lines() -> Iterator[list[str]]:
        for (xi, clients), own in found.groupby(CELL):
            yield [f"{xi:g}", str(clients), *(_number(own[name].mean()) for name in PARTITION)]

    return grid(["xi", "K", *(f"partition/{name}" for name in PARTITION)], lines())


def _paired(pairs: pd.DataFrame) -> list[str]:
    cells = _cells(pairs)

    def lines() -> Iterator[list[str]]:
        for own in _by_arm(pairs):
            at = own.set_index(CELL)
            yield [*_arm(own), *(_gap(at.loc[cell]) if cell in at.index else "" for cell in cells)]

    table = grid(["method", "rounds", "epsilon", *map(_cell, cells)], lines())
    words = f"Difference of utility losses, seed by seed, over {_span(sorted(pairs['n'].unique()))} seeds; negative:"
    meaning = [f"{words} {pairs['ours'].iloc[0]} loses less.", "Bold: the 95 % interval excludes 0. No correction for"]
    return [*table, "", *meaning[:1], meaning[1] + " the number of cells."]


def _table2(table: pd.DataFrame) -> list[str]:
    header = ["xi", "K", "method", "rounds", "of", "curve", "parameters", "per client and round"]

    def lines() -> Iterator[list[str]]:
        for row in table.to_dict("records"):
            curve = f"{row['split']}, {row['points']} point{'s' if row['points'] > 1 else ''}"
            sent = [_number(row[c]) for c in ("parameters", "per_message")]
            known = pd.notna(row["paper_parameters"])
            paper = [f"{row['paper_rounds']:.0f}", str(row["paper_parameters"])] if known else ["", ""]
            yield [f"{row['xi']:g}", str(row["clients"]), row["name"], str(row["rounds"]), str(row["last"]), curve,
                   *sent, *paper]  # fmt: skip

    notes = [
        "Rounds: the first of the curve whose utility loss is at most 0.01 above its last (a curve of one point has no",
        "other). Parameters: of all clients until then. The paper's 11.7M is one model, so compare it with `per client",
        "and round`; of its 30K it does not say whether they are of one client or of all.",
    ]
    return [*grid([*header, "paper: rounds", "paper: parameters"], lines()), "", *notes]


def _by_arm(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    groups = [own for _, own in rows.groupby(ARM, dropna=False)]
    return iter(sorted(groups, key=lambda own: order(own.iloc[0].to_dict())))


def _arm(own: pd.DataFrame) -> list[str]:
    first = own.iloc[0]
    rounds = str(first["rounds"]) if first["rounds"] else "none"
    return [first["name"], rounds, epsilon(own["epsilon"].max(skipna=False))]


def epsilon(value: float) -> str:
    """`9.98`, `inf`, or nothing where it was not recorded."""
    return "" if math.isnan(value) else f"{value:.3g}"


def _cells(rows: pd.DataFrame) -> list[Any]:
    """(xi, clients) of every cell."""
    return sorted(set(rows[CELL].itertuples(index=False, name=None)))


def _cell(cell: tuple[float, int]) -> str:
    return f"xi {cell[0]:g}, K {cell[1]}"


def _loss(row: pd.Series) -> str:
    """`0.400 [0.390, 0.410]`; without an interval for a single seed."""
    mean = f"{row['loss']:.3f}"
    return mean if row["n"] == 1 else f"{mean} [{row['low']:.3f}, {row['high']:.3f}]"


def _gap(row: pd.Series) -> str:
    """`**-0.200 [-0.250, -0.150]**`, `+0.010 [-0.020, +0.040] tie`, or `-0.100 (1 seed)`, which has no interval."""
    if row["n"] == 1:
        return f"{row['mean']:+.3f} (1 seed)"
    words = f"{row['mean']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    return f"**{words}**" if row["low"] > 0 or row["high"] < 0 else f"{words} tie"


def _number(value: float) -> str:
    """`30,720`, `0.0568`, or nothing where it is not known."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.3g}"


def _range(values: pd.Series) -> str:
    """A number; the least and the greatest where cells differ."""
    return " to ".join(dict.fromkeys(_number(v) for v in (values.min(), values.max())))


def _span(values: Sequence[int]) -> str:
    return " to ".join(str(v) for v in dict.fromkeys((values[0], values[-1])))
