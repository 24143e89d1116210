"""The per-instance bound (`privacy.pdp`) on random tables: what it does with t, s, the schedule, m and p.

Columns are independent: value 0 with probability p, the k - 1 others alike (Wei et al., TMLR 2024, arXiv 2310.15524,
Appendix H).
"""

from __future__ import annotations

import numpy as np
import torch

from raydiff.privacy.pdp_kernel import Ints


def skewed(rows: int, columns: int, categories: int, *, p: float, rng: torch.Generator) -> Ints:
    """A (rows, columns) table. Raises ValueError for a p that is not in 0..1."""
    if not 0 <= p <= 1:
        raise ValueError(f"p must be in 0..1, got {p}")
    major = torch.rand(rows, columns, dtype=torch.float64, generator=rng) < p
    others = torch.randint(1, categories, (rows, columns), generator=rng)
    return np.asarray(torch.where(major, 0, others).numpy(), dtype=np.int64)
