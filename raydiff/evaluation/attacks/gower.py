"""Gower's distance between rows of a table (Biometrics 27, 1971, 857), as a sum over columns.

A text column adds 1 where the rows differ, a column of numbers the difference in bins over the largest possible one; a
missing value has distance 1 from any number. Distances are rounded to 1e-9, so that equal ones are equal to the bit.

Shapes: s rows, N records, n columns, k categories at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.data.tables.encode import Column

DECIMALS = 9


def spans_of(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the largest code of each column of numbers, and 0 for text columns."""
    return tuple(len(column.edges or ()) for column in columns)


def distances(rows: Tensor, records: Tensor, *, spans: Sequence[int], columns: Tensor | None = None) -> Tensor:
    """Return distances from rows (s, n) to records (N, n): (s, N) float64; `columns` (s, n) bool: those that count."""
    k = int(max(rows.max(), records.max())) + 1
    each = torch.stack([_between_codes(span, k) for span in spans])  # (n, k, k)
    from_codes = each[torch.arange(len(spans)), rows]  # (s, n, k): to each code of each column
    if columns is not None:
        from_codes = from_codes * columns.unsqueeze(-1)
    apart: Tensor = from_codes.flatten(1) @ F.one_hot(records, k).flatten(1).double().T
    return apart.round(decimals=DECIMALS)


def nearest(apart: Tensor, rng: torch.Generator) -> Tensor:
    """Return each row's nearest record (s,) from distances (s, N), a random one of ties."""
    tied = apart == apart.amin(1, keepdim=True)
    return torch.where(tied, torch.rand(apart.shape, generator=rng), -1.0).argmax(1)


def _between_codes(span: int, k: int) -> Tensor:
    apart = 1 - torch.eye(k, dtype=torch.float64)
    if span:
        codes = torch.arange(min(span + 1, k), dtype=torch.float64)
        apart[: len(codes), : len(codes)] = (codes[:, None] - codes).abs() / span
    return apart
