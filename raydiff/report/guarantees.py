"""Guarantees of a sweep's trials, and the privacy definitions within which their epsilons compare."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd

from raydiff.formats import rounding
from raydiff.privacy.ledger import Guarantee
from raydiff.report.load import VIEWS, Row, column, records

ADVERSARIES = {
    "local": "the server",
    "aggregate": "the server, which sees sums of updates alone",
    "central": "outsiders only; the server sees the updates",
}
"""Trust model -> whom a guarantee holds against."""


def guarantee_of(run: Row, view: str) -> Guarantee:
    """Return a trial's guarantee from a row of `load.runs`, with epsilon NaN where none was recorded.

    `view` is server or outsiders.
    """
    fields = {field.name: run.get(f"{view}/{field.name}") for field in dataclasses.fields(Guarantee)}
    texts = {name: [fields[name]] if fields[name] else [] for name in ("declared", "unprotected")}
    epsilon = math.nan if fields["epsilon"] is None else fields["epsilon"]
    return Guarantee.from_dict({**fields, **texts, "epsilon": epsilon})


def guarantees(runs: pd.DataFrame) -> pd.DataFrame:
    """Per trial epsilon and guarantee, of outsiders where only they have a finite one; then those of outsiders."""
    rows = records(runs)
    server, outsiders = ([guarantee_of(row, view) for row in rows] for view in VIEWS)
    pairs = zip(server, outsiders, strict=True)
    stated = [b if a.epsilon == math.inf and b.epsilon < math.inf else a for a, b in pairs]
    out = pd.DataFrame({"epsilon": [g.epsilon for g in stated]}, index=runs.index)
    out["guarantee"] = pd.Series(stated, runs.index, dtype=object)
    out["epsilon_outsiders"] = column(runs, "outsiders/epsilon")
    return out.assign(guarantee_outsiders=pd.Series(outsiders, runs.index, dtype=object))


def definitions(rows: pd.DataFrame) -> list[str]:
    """The definitions of the finite epsilons of a table with the columns of `guarantees`."""
    every = {g.definition for name in ("guarantee", "guarantee_outsiders") for g in rows[name]}
    return sorted(definition for definition in every if definition is not None)


def adversary(rows: pd.DataFrame, definition: str) -> str:
    """Whom the guarantees of this definition hold against."""
    every = [*rows["guarantee"], *rows["guarantee_outsiders"]]
    return ADVERSARIES[next(g.trust for g in every if g.definition == definition)]


def described(rows: pd.DataFrame, definition: str) -> str:
    """The definition with the accountants and what is public by declaration in these rows."""
    every = [g for name in ("guarantee", "guarantee_outsiders") for g in rows[name] if g.definition == definition]
    return ", ".join(filter(None, (definition, " or ".join(sorted({g.details for g in every})))))


def epsilons(rows: pd.DataFrame, definition: str) -> pd.Series:
    """Each row's epsilon under this definition, NaN if it has none; inf without a guarantee, 0 if nothing was sent."""

    def of_row(stated: Guarantee, outsiders: Guarantee) -> float:
        if outsiders.definition == definition:
            return outsiders.epsilon
        holds = stated.definition == definition or stated.epsilon == math.inf or stated.nothing_sent
        return stated.epsilon if holds else math.nan

    pairs = zip(rows["guarantee"], rows["guarantee_outsiders"], strict=True)
    return pd.Series([of_row(*pair) for pair in pairs], rows.index, dtype=float)


def flat(rows: pd.DataFrame) -> pd.DataFrame:
    """The table for a file: guarantees as text, a column per definition in place of epsilon if there are several."""
    out = rows.assign(**{name: rows[name].map(lambda g: g.statement) for name in ("guarantee", "guarantee_outsiders")})
    all_definitions = definitions(rows)
    if len(all_definitions) < 2:
        return out
    place = list(out).index("epsilon")
    out = out.drop(columns=["epsilon", "epsilon_outsiders"])
    for i, definition in enumerate(all_definitions):
        out.insert(place + i, f"epsilon [{definition}]", epsilons(rows, definition))
    return out


def shown(epsilon: float | None) -> str:
    """`9.77`, `inf`, `0`, `?` where it was not recorded."""
    return "?" if epsilon is None or math.isnan(epsilon) else rounding.up(epsilon)
