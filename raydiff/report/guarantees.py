"""Guarantees of a sweep's trials, and the privacy definitions within which their epsilons compare."""

import dataclasses
import math
from collections.abc import Sequence

import pandas as pd

from raydiff.formats import rounding
from raydiff.privacy.ledger import Guarantee
from raydiff.report.load import VIEWS, Row, records

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


def tabulate_guarantees(runs: pd.DataFrame) -> pd.DataFrame:
    """Per trial epsilon and guarantee, of outsiders where only they have a finite one; then those of outsiders."""
    server, outsiders = ([guarantee_of(row, view) for row in records(runs)] for view in VIEWS)
    pairs = zip(server, outsiders, strict=True)
    stated = [b if a.epsilon == math.inf and b.epsilon < math.inf else a for a, b in pairs]
    columns = {"epsilon": [g.epsilon for g in stated], "guarantee": stated}
    columns |= {"epsilon_outsiders": [g.epsilon for g in outsiders], "guarantee_outsiders": outsiders}
    return pd.DataFrame(columns, runs.index)


def by_definition(rows: pd.DataFrame) -> dict[str, list[Guarantee]]:
    """Privacy definition -> the guarantees that have it, of a table with the columns of `tabulate_guarantees`."""
    every = pd.concat([rows["guarantee"], rows["guarantee_outsiders"]], ignore_index=True)
    definitions = every.map(lambda guarantee: guarantee.definition)
    return {str(definition): list(group) for definition, group in every.groupby(definitions)}


def adversary(same: Sequence[Guarantee]) -> str:
    """Whom guarantees of one definition hold against."""
    return ADVERSARIES[same[0].trust]


def described(same: Sequence[Guarantee]) -> str:
    """Their definition with the accountants and what is public by declaration."""
    return f"{same[0].definition}, {' or '.join(sorted({guarantee.details for guarantee in same}))}"


def epsilons(rows: pd.DataFrame, definition: str) -> pd.Series:
    """Each row's epsilon under this definition, NaN if it has none; inf without a guarantee, 0 if nothing was sent."""

    def choose_epsilon(stated: Guarantee, outsiders: Guarantee) -> float:
        if outsiders.definition == definition:
            return outsiders.epsilon
        holds = stated.definition == definition or stated.epsilon == math.inf or stated.nothing_sent
        return stated.epsilon if holds else math.nan

    pairs = zip(rows["guarantee"], rows["guarantee_outsiders"], strict=True)
    return pd.Series([choose_epsilon(*pair) for pair in pairs], rows.index, dtype=float)


def flatten_guarantees(rows: pd.DataFrame) -> pd.DataFrame:
    """The table for a file: guarantees as text, a column per definition in place of epsilon if there are several."""
    out = rows.assign(**{name: rows[name].map(lambda g: g.statement) for name in ("guarantee", "guarantee_outsiders")})
    definitions = by_definition(rows)
    if len(definitions) < 2:
        return out
    own = {f"epsilon [{definition}]": epsilons(rows, definition) for definition in definitions}
    return out.drop(columns=["epsilon", "epsilon_outsiders"]).assign(**own)


def shown(epsilon: float | None) -> str:
    """`9.77`, `inf`, `0`, `?` where it was not recorded."""
    return "?" if epsilon is None or math.isnan(epsilon) else rounding.up(epsilon)
