"""Membership from synthetic rows by a density ratio: DOMIAS, van Breugel et al., AISTATS 2023 (arXiv 2302.12580).

A generator that overfits puts more of its rows near its training records than the population has there. The attacker
has the made rows and reference rows of the population that nobody trained on, and calls a record x a member where
p_made(x) / p_reference(x) is large.

Deviations: densities are of kernels exp(-d / h) of Gower's distance d, in place of Gaussian kernels or flows, since
columns are categories. What a kernel sums to is left out: of columns of texts it is the same for all rows and cancels
in the ratio, of columns of numbers it differs a little between the outer and the inner bins. The bandwidth h is chosen,
as the threshold is, on calibration records (`membership.attack`), where the paper takes Scott's rule.

**What it does not say.** An AUC near 0.5 is that of this density estimate with these reference rows, over all records
together: fewer records than can be seen in it may be exposed, more rows may tell more, and it is no guarantee.

Shapes: N records, s made rows, r reference rows, n columns, S bandwidths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from raydiff.evaluation.attacks.gower import distances

BANDWIDTHS = (0.1, 0.2, 0.4, 0.8)
"""h that are tried: a row that differs in one column of texts weighs exp(-1 / h) of one that does not."""
BATCH = 512


def scores(records: Tensor, *, made: Tensor, reference: Tensor, spans: Sequence[int]) -> Tensor:
    """log p_reference(x) - log p_made(x) for each bandwidth: (N, S) float64, low for members.

    Of codes (N, n), (s, n), (r, n), with `spans` as from `gower.spans_of`. Raises ValueError without made or reference
    rows.
    """
    if not len(made) or not len(reference):
        raise ValueError(f"made and reference must have rows, got {len(made)} and {len(reference)}")
    of_reference, of_made = (
        torch.cat([_log_densities(part, rows, spans) for part in records.split(BATCH)]) for rows in (reference, made)
    )
    return of_reference - of_made


def _log_densities(records: Tensor, rows: Tensor, spans: Sequence[int]) -> Tensor:
    """(N, S), but for a constant of each record and bandwidth."""
    apart = distances(records, rows, spans=spans)
    return torch.stack([(-apart / h).logsumexp(1) - math.log(len(rows)) for h in BANDWIDTHS], dim=1)
