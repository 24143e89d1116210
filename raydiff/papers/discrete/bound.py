"""Per-instance differential privacy (pDP) of rows from a discrete diffusion model: Theorem 1, record by record.

Unit: one record v* of one given table; adversary: sees m generated rows. (epsilon, delta)-pDP holds for a pair
(table, v*), and delta(v*) depends on the other records. It is not differential privacy, bounds nothing for other
tables, and is itself confidential: it never enters the ledger.

The paper's theorem is for an unconditional model. With `labels` it is applied to each label's rows: V_0 are the rows of
label y, on which alone its perfectly trained model depends, and m is m_y, the released rows of y. The labels and m_y
are public: a record's label is not bounded, and m_y must not depend on the number of y's records. The only record of a
label has an infinite bound.

| paper | here |
|---|---|
| V_0, s + 1 rows; V_1 without v* | `table`, or the rows of v*'s label; s = rows - 1 |
| m, T_rl, epsilon | ReleasedRows.samples, .step, .epsilon |
| alpha_t, k | Kernel.alpha, .categories |
| n / s^psi_t; Sim(v*, V_1) | Audit.leak (and .psi); .similarity |
| (1 + c_t) eta_t | Audit.radius |

Deviations, where the paper disagrees with itself (Theorem 1, the appendices and Algorithms 1 and 2):

- The sum runs over t = T_rl + 1 .. T (Lemma A.2), not from T_rl.
- A_t is Eq. 8's; the proof's (Lemma A.5) is smaller by mu+_t.
- The second term is n (1 - 1 / Rbar_{t-1}) / s^2, barred.
- At t = 1 the bound is infinite where no other record shares v*'s value in some column: reported with that column.
- The error terms of a trained model are not included: the bound is for a perfectly trained one.
Those of the radius are listed in `pdp_radius`.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Theorem 1, Algorithms 1 and 2, Appendix B.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raydiff.evaluation.evaluation_settings import Condition
from raydiff.papers.discrete.histograms import Counts, Histograms, distinct, histograms
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel
from raydiff.papers.discrete.radius import radius

CAVEATS = (
    "per-instance bound (pDP): valid for a perfectly trained model, training error not included",
    "data-dependent, confidential to the curator, no replacement for DP",
)
"""Printed with every report of these numbers."""
CONDITIONAL = (
    "of a model that is conditional on the label: a record is bounded among those of its label, against the table "
    "without it; which labels there are, and how many of each are released, is taken as public"
)
UNCONDITIONAL = "of a model that is conditional on nothing: one that is conditional on a label can reveal far more"

Value = TypeVar("Value", bound=np.generic)

SIGNAL = 1e-3  # abar_T above which the schedule counts as one that stops before pure noise


@dataclass(frozen=True, kw_only=True)
class ReleasedRows:
    """The rows that are released, and how their bound is computed."""

    kernel: Kernel
    """The model's noise."""
    epsilon: float = 1.0
    """At which delta is stated; pDP's, not the ledger's."""
    samples: int = 1
    """m, the number of released rows; of a conditional model m_y, the same for every label."""
    by_label: tuple[int, ...] = ()
    """m_y of the labels 0, 1, ..., in place of `samples`; empty: `samples` for every label."""
    step: int = 0
    """T_rl, the step at which the rows are taken; 0 releases clean ones."""
    condition: Condition = "relaxed"
    """Condition of the radius: theorem (Eq. 9) or relaxed (Eq. 27 and Algorithm 2)."""

    def __post_init__(self) -> None:
        if (fewest := min((self.samples, *self.by_label))) < 1:
            raise ValueError(f"samples must be at least 1, got {fewest}")
        if not 0 <= self.step <= self.kernel.steps:
            raise ValueError(f"step must be in 0..{self.kernel.steps}, got {self.step}")

    @property
    def steps(self) -> range:
        """The steps that leak: T_rl + 1 .. T."""
        return range(self.step + 1, self.kernel.steps + 1)

    @property
    def price(self) -> float:
        """delta per nat of one row's symmetric KL divergence (Lemma A.1): m / (eps (1 - e^-eps))."""
        return self.samples / (self.epsilon * -math.expm1(-self.epsilon))

    def of_label(self, label: int) -> "ReleasedRows":
        """The release of one label's rows."""
        return replace(self, samples=self.by_label[label], by_label=()) if self.by_label else self


def caveats(release: ReleasedRows, *, conditional: bool = False) -> tuple[str, ...]:
    """CAVEATS, the model's condition, and a warning where the schedule stops before pure noise."""
    notes = (*CAVEATS, CONDITIONAL if conditional else UNCONDITIONAL)
    left = float(release.kernel.abar[-1])
    if left <= SIGNAL:
        return notes
    return (
        *notes,
        f"the schedule keeps {left:.2g} of the signal at T, but generation starts from pure noise: what the model "
        "leaks because of that is not included, and can exceed the bound",
    )


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The bound of each of u distinct rows, for `ReleasedRows.steps`; `index` maps records to rows."""

    delta: Floats
    """(u,) bound on delta; inf where it is, and useless from 1 on."""
    terms: Floats
    """(u, steps) the term of each step in delta."""
    leak: Floats
    """(u, steps) n / s^psi_t: the largest symmetric KL divergence of the step, wherever the chain may be."""
    psi: Floats
    """(u, steps) psi_t; nan for s = 1."""
    radius: Ints
    """(u, steps) Hamming radius (1 + c_t) eta_t of the ball around the record."""
    similarity: Floats
    """(u, steps) Sim(v*, V_1)."""
    overlap: Floats
    """(u,) mean fraction of columns that agree with another record."""
    alone: Ints
    """(u,) the first column whose value no other record has (of its label, where there are labels), else -1; n where
    no other record has the label."""
    index: Ints
    """(records,) distinct row of each audited record."""

    def of_records(self, values: NDArray[Value]) -> NDArray[Value]:
        """One of the arrays above, per audited record in the table's order."""
        return values[self.index]


def audit_rows(table: Ints, release: ReleasedRows, *, labels: Ints | None = None, records: Ints | None = None) -> Audit:
    """Theorem 1 for the row numbers `records` (None: all) of a table (s + 1, n) of categories 0 .. k - 1.

    `labels` (s + 1,) int64 are the conditions of the model; None: unconditional, all rows are one group. Raises
    ValueError for fewer than two rows.
    """
    if len(table) < 2:
        raise ValueError(f"the table must have at least two rows, got {len(table)}")
    audited = np.arange(len(table)) if records is None else records
    groups = np.zeros(len(table), dtype=np.int64) if labels is None else labels
    parts: list[Audit] = []
    index = np.empty(len(audited), dtype=np.int64)
    before = 0
    for label in np.unique(groups[audited]):
        rows = np.flatnonzero(groups == label)
        members = np.flatnonzero(groups[audited] == label)
        part = _of_group(table[rows], release.of_label(int(label)), np.searchsorted(rows, audited[members]))
        index[members] = part.index + before
        before += len(part.delta)
        parts.append(part)
    joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Audit)}
    return Audit(**{**joined, "index": index})


def _of_group(table: Ints, release: ReleasedRows, records: Ints) -> Audit:
    """The audit of these row numbers of a table on which a model was trained by itself."""
    if len(table) == 1:
        return _only_record(table.shape[1], release, records)
    data = distinct(table)
    audited, index = np.unique(data.index[records], return_inverse=True)
    return replace(bounds(histograms(data, audited), release), index=index.reshape(-1))


def _only_record(n: int, release: ReleasedRows, records: Ints) -> Audit:
    """The audit of a label's only record: without it there is no model of the label, so every noisy step reveals it."""
    leak = np.array([[math.inf if release.kernel.change(t) else 0.0 for t in release.steps]])
    none = np.zeros_like(leak)
    return Audit(
        delta=leak.sum(axis=1),
        terms=leak,
        leak=leak,
        psi=np.full_like(leak, np.nan),
        radius=np.full(leak.shape, n),
        similarity=none,
        overlap=np.zeros(1),
        alone=np.array([n]),
        index=np.zeros(len(records), dtype=np.int64),
    )


def bounds(counted: Histograms, release: ReleasedRows) -> Audit:
    """Algorithm 1 for records with these histograms."""
    kernel, (u, n) = release.kernel, counted.sharing.shape[:2]
    within = np.cumsum(counted.near, axis=1, dtype=np.int64)
    s = int(within[0, -1])
    shape = (u, len(release.steps))
    terms = np.zeros(shape)
    leak = np.zeros(shape)
    similarity = np.zeros(shape)
    ball = np.zeros(shape, dtype=np.int64)
    for column, t in enumerate(release.steps):
        similarity[:, column] = counted.near @ kernel.blur[t] ** np.arange(n + 1)
        change = kernel.change(t)
        if change == 0:
            continue
        leak[:, column] = change * _logs(counted.sharing, similarity[:, column], kernel, t)
        ball[:, column] = radius(within, leak[:, column], kernel, t, release.condition, change=change)
        inside = np.take_along_axis(within, ball[:, column : column + 1], axis=1)[:, 0]
        rest = n * (1 - kernel.blur[t - 1]) / s**2
        terms[:, column] = release.price * (np.minimum(4 * inside / s, 1) * leak[:, column] + rest)
    with np.errstate(divide="ignore", invalid="ignore"):
        psi = (math.log(n) - np.log(leak)) / np.log(s)
    sharers = counted.sharing.sum(axis=2)
    return Audit(
        delta=terms.sum(axis=1),
        terms=terms,
        leak=leak,
        psi=psi if s > 1 else np.full(shape, np.nan),
        radius=ball,
        similarity=similarity,
        overlap=(counted.near @ np.arange(n, -1, -1)) / (n * s),
        alone=np.where((sharers == 0).any(axis=1), np.argmax(sharers == 0, axis=1), -1),
        index=np.arange(u),
    )


def _logs(sharing: Counts, similarity: Floats, kernel: Kernel, t: int) -> Floats:
    """Eq. 8 without A_t: sum_i ln(1 + B_t / (Rbar_{t-1}^2 Sim_i + Sim + 1)) / (1 + Sim), (u,)."""
    like = sharing @ kernel.blur[t] ** np.arange(sharing.shape[2])
    with np.errstate(divide="ignore"):
        logs = np.log1p(kernel.clear[t - 1] / (like + kernel.blur[t - 1] ** 2 * (similarity[:, None] + 1)))
    return np.asarray(logs.sum(axis=1) / (1 + similarity))
