"""Guarantees of a sweep's trials, and the privacy definitions within which their epsilons compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raydiff.formats import rounding
from raydiff.report.load import VIEWS, Row, column, records


@dataclass(frozen=True)
class PrivacyDefinition:
    """What an epsilon is about. Two epsilons of one definition compare, whichever accountant bounds them."""

    unit: str
    relation: str
    trust: str
    delta: float | None

    def __str__(self) -> str:
        delta = "not recorded" if self.delta is None else f"{self.delta:g}"
        return f"per {self.unit}, {self.relation.replace('_', '-')}, {self.trust} trust, delta {delta}"

    @property
    def against(self) -> str:
        """Whom it holds against."""
        if self.trust == "central":
            return "outsiders only; the server sees the updates"
        return "the server, which sees sums of updates alone" if self.trust == "aggregate" else "the server"


@dataclass(frozen=True)
class StatedGuarantee:
    """A trial's guarantee against the server or against outsiders, from the fields of its outcome.json."""

    epsilon: float
    """NaN: not recorded."""
    definition: PrivacyDefinition | None
    """None where nothing was sent, nothing is guaranteed or the definition was not recorded."""
    accountant: str | None = None
    declared: str | None = None
    unprotected: str | None = None
    caution: str | None = None
    """Fields that are public by declaration, why epsilon is infinite, and whether delta is too large."""

    @classmethod
    def of_run(cls, run: Row, view: str) -> StatedGuarantee:
        """From a row of `load.runs`, None where empty; `view` is server or outsiders."""
        names = ("epsilon", "unit", "relation", "trust", "delta", "accountant", "declared", "unprotected", "caution")
        fields: list[Any] = [run.get(f"{view}/{name}") for name in names]
        epsilon = math.nan if fields[0] is None else fields[0]
        has_definition = epsilon < math.inf and fields[1] is not None
        return cls(epsilon, PrivacyDefinition(*fields[1:5]) if has_definition else None, *fields[5:])

    def __str__(self) -> str:
        if self.definition is not None:
            return ", ".join(filter(None, (str(self.definition), self.details)))
        if self.epsilon == math.inf:
            return f"no guarantee: {self.unprotected or 'noise of scale 0'}"
        return "nothing sent" if self.epsilon == 0 else "not recorded"

    @property
    def details(self) -> str:
        """What does not matter for comparing."""
        declared = self.declared and f"public by declaration: {self.declared}"
        return "; ".join(filter(None, (self.accountant and f"{self.accountant} accountant", declared, self.caution)))

    @property
    def nothing_sent(self) -> bool:
        """Whether epsilon is 0 since the trial sends nothing."""
        return self.epsilon == 0 and self.definition is None


def guarantees(runs: pd.DataFrame) -> pd.DataFrame:
    """Per trial epsilon and guarantee, of outsiders where only they have a finite one; then those of outsiders."""
    rows = records(runs)
    server, outsiders = ([StatedGuarantee.of_run(row, view) for row in rows] for view in VIEWS)
    pairs = zip(server, outsiders, strict=True)
    stated = [b if a.epsilon == math.inf and b.epsilon < math.inf else a for a, b in pairs]
    out = pd.DataFrame({"epsilon": [g.epsilon for g in stated]}, index=runs.index)
    out["guarantee"] = pd.Series(stated, runs.index, dtype=object)
    out["epsilon_outsiders"] = column(runs, "outsiders/epsilon")
    return out.assign(guarantee_outsiders=pd.Series(outsiders, runs.index, dtype=object))


def definitions(rows: pd.DataFrame) -> list[PrivacyDefinition]:
    """The definitions of the finite epsilons of a table with the columns of `guarantees`."""
    every = {g.definition for name in ("guarantee", "guarantee_outsiders") for g in rows[name]}
    return sorted((definition for definition in every if definition is not None), key=str)


def described(rows: pd.DataFrame, definition: PrivacyDefinition) -> str:
    """The definition with the accountants and what is public by declaration in these rows."""
    every = [g for name in ("guarantee", "guarantee_outsiders") for g in rows[name] if g.definition == definition]
    return ", ".join(filter(None, (str(definition), " or ".join(sorted({g.details for g in every})))))


def epsilons(rows: pd.DataFrame, definition: PrivacyDefinition) -> pd.Series:
    """Each row's epsilon under this definition, NaN if it has none; inf without a guarantee, 0 if nothing was sent."""

    def of_row(stated: StatedGuarantee, outsiders: StatedGuarantee) -> float:
        if outsiders.definition == definition:
            return outsiders.epsilon
        holds = stated.definition == definition or stated.epsilon == math.inf or stated.nothing_sent
        return stated.epsilon if holds else math.nan

    pairs = zip(rows["guarantee"], rows["guarantee_outsiders"], strict=True)
    return pd.Series([of_row(*pair) for pair in pairs], rows.index, dtype=float)


def flat(rows: pd.DataFrame) -> pd.DataFrame:
    """The table for a file: guarantees as text, a column per definition in place of epsilon if there are several."""
    out = rows.assign(**{name: rows[name].map(str) for name in ("guarantee", "guarantee_outsiders")})
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
