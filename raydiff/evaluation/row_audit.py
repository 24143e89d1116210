"""Settings of the per-instance audit (pDP) of a table's rows; computed in `papers/discrete`."""

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from raydiff.settings import Count, Positive, settings

Condition = Literal["theorem", "relaxed"]
"""Condition of the radius: see `papers.discrete.radius`."""
AUDIT = "raydiff.papers.discrete.client_audit"


@settings(frozen=True, kw_only=True)
class RowAudit:
    """Bounds on delta (pDP, Theorem 1) for rows of the model, at the step that it releases."""

    remove: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Fraction of each client's records that is left out of training, those with the largest bound first."""
    batch: Annotated[float, Gt(0), Le(1)] = 0.01
    """Fraction of the records removed at a time; the rest is audited again before each batch. 1: one pass."""
    epsilon: Positive = 1.0
    """pDP's, at which delta is stated; not the ledger's."""
    samples: Count = 1
    """m, rows that are released, of a conditional model each perhaps of the record's label; delta is linear in it."""
    condition: Condition = "relaxed"
    """Condition of the radius."""
