"""Membership from synthetic rows by a density ratio: DOMIAS, van Breugel et al., AISTATS 2023 (arXiv 2302.12580).

The attacker has the synthetic rows and reference rows that nobody trained on, and calls a record x a member where
p_synthetic(x) / p_reference(x) is large: a generator that overfits has a higher density near its training records than
the population. An AUC near 0.5 is that of this density estimate, averaged over records, and no guarantee.

Deviations: kernels exp(-d / h) of Gower's distance d, since columns are categorical, without normalisation, which
cancels for text columns and nearly cancels for numbers. The bandwidth h is chosen on calibration records
(`membership.attack_membership`), where the paper takes Scott's rule.

Shapes: N records, s synthetic rows, r reference rows, n columns, S bandwidths.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from raydiff.evaluation.attacks.closest import row_distances

BANDWIDTHS = (0.1, 0.2, 0.4, 0.8)  # h: a row that differs in one text column has a weight of exp(-1 / h)
BATCH = 512


def domias_scores(records: Tensor, *, made: Tensor, reference: Tensor, spans: Sequence[int]) -> Tensor:
    """Return log p_reference(x) - log p_synthetic(x) of codes (N, n), (s, n), (r, n) for each bandwidth: (N, S)."""
    of_reference, of_made = (
        torch.cat([_log_densities(part, rows, spans) for part in records.split(BATCH)]) for rows in (reference, made)
    )
    return of_reference - of_made


def _log_densities(records: Tensor, rows: Tensor, spans: Sequence[int]) -> Tensor:
    """(N, S), up to a constant per record and bandwidth."""
    apart = row_distances(records, rows, spans=spans)
    return torch.stack([(-apart / h).logsumexp(1) - math.log(len(rows)) for h in BANDWIDTHS], dim=1)
