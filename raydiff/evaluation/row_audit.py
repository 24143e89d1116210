"""Settings of the per-instance audit (pDP) of a table's rows; computed in `papers/discrete`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from torch import Tensor

from raydiff.data.records import Records
from raydiff.lookup import check_one_of, check_value, imported

if TYPE_CHECKING:
    from raydiff.models.d3pm import DiscreteDiffusion

Condition = Literal["theorem", "relaxed"]
"""Condition of the radius: see `papers.discrete.radius`."""
AUDIT = "raydiff.papers.discrete.client_audit"


@dataclass(frozen=True, kw_only=True)
class RowAudit:
    """Bounds on delta (pDP, Theorem 1) for rows of the model, at the step that it releases."""

    remove: float = 0.0
    """Fraction of each client's records that is left out of training, those with the largest bound first."""
    batch: float = 0.01
    """Fraction of the records removed at a time; the rest is audited again before each batch. 1: one pass."""
    epsilon: float = 1.0
    """pDP's, at which delta is stated; not the ledger's."""
    samples: int = 1
    """m, rows that are released, of a conditional model each perhaps of the record's label; delta is linear in it."""
    condition: Condition = "relaxed"
    """Condition of the radius."""

    def __post_init__(self) -> None:
        check_value("remove", self.remove, 0 <= self.remove < 1, "a fraction in [0, 1)")
        check_value("batch", self.batch, 0 < self.batch <= 1, "a fraction in (0, 1]")
        check_value("epsilon", self.epsilon, 0 < self.epsilon < float("inf"), "a positive number")
        check_value("samples", self.samples, self.samples >= 1, "at least 1")
        check_one_of("condition", self.condition, get_args(Condition))

    def kept(self, records: Records, model: DiscreteDiffusion) -> Tensor:
        """Return positions (n,) of the records to train on, ascending. Raises ValueError for fewer than two."""
        positions: Tensor = imported(f"{AUDIT}:kept")(self, records, model)
        return positions
