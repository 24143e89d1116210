"""Distance to the closest record (DCR) and nearest-neighbour distance ratio (NNDR) of synthetic rows.

Members are compared with as many records that nobody trained on (Platzer & Reutterer 2021, arXiv 2104.00635).

Without memorisation both fractions are 0.5 on average. The interval is the fraction give or take its spread when
membership is permuted, since many synthetic rows may be near the same record. A fraction of 0.5 is no guarantee: rows
that a membership attack tells apart often pass (Yao et al. 2025, "The DCR Delusion", arXiv 2505.01524).

Distances are Gower's (Biometrics 27, 1971, 857), as sums over columns: a text column adds 1 where the rows differ, a
column of numbers the difference in bins over the largest possible one; a missing value has distance 1 from any number.

Shapes: s synthetic rows, N records, m members, m non-members, n columns, k categories at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.data.tables.encode import Column
from raydiff.evaluation.attacks.membership import Interval

DECIMALS = 9  # of distances, so that equal ones are equal to the bit
DRAWS = 400  # permutations of membership
BATCH = 512  # synthetic rows whose distances are in memory at a time
NEAREST = 64  # records kept per row; fewer than two of a side are among them in one of 2^58 permutations


@dataclass(frozen=True, kw_only=True)
class Closest:
    """Fractions that are 0.5 without memorisation."""

    dcr: float  # fraction of synthetic rows that are nearer to a member than to any non-member, ties counting half
    dcr_interval: Interval  # 95 %, for resampled members and non-members and fixed synthetic rows
    nndr: float  # fraction whose ratio of the distances to the two nearest is smaller among the members
    nndr_interval: Interval  # as `dcr_interval`


def measure_closeness(
    synthetic: Tensor, *, members: Tensor, nonmembers: Tensor, spans: Sequence[int], rng: torch.Generator
) -> Closest:
    """Measure codes (s, n) against as many members (m, n) as non-members, 2 at least, with `spans_of` their columns."""
    m = len(members)
    parts = []
    for part in synthetic.split(BATCH):
        apart = row_distances(part, torch.cat([members, nonmembers]), spans=spans)
        of_each = [side.topk(2, largest=False).values for side in apart.split(m, dim=1)]
        parts.append((*of_each, *apart.topk(min(NEAREST, 2 * m), largest=False)))
    of_members, of_others, near, indices = (torch.cat(each) for each in zip(*parts, strict=True))
    fractions = _fractions(of_members, of_others)
    permuted = []
    for _ in range(DRAWS):
        inside = torch.randperm(2 * m, generator=rng)[indices] < m
        permuted.append(_fractions(_two_nearest(near, inside), _two_nearest(near, ~inside)))
    low, high = torch.tensor(permuted, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double(), dim=0)
    dcr, nndr = (
        (max(0.0, value - (float(most) - 0.5)), min(1.0, value + (0.5 - float(least))))
        for value, least, most in zip(fractions, low, high, strict=True)
    )
    return Closest(dcr=fractions[0], dcr_interval=dcr, nndr=fractions[1], nndr_interval=nndr)


def _fractions(of_members: Tensor, of_others: Tensor) -> tuple[float, float]:
    """(dcr, nndr) from the distances (s, 2) to the two nearest of each side."""
    ratios = (torch.where(d[:, 1] > 0, d[:, 0] / d[:, 1], 1.0).round(decimals=6) for d in (of_members, of_others))
    return _fraction_below(of_members[:, 0], of_others[:, 0]), _fraction_below(*ratios)


def _two_nearest(near: Tensor, which: Tensor) -> Tensor:
    """The two smallest (s, 2) of ascending distances where `which`."""
    first = which.int().argmax(1, keepdim=True)
    second = which.scatter(1, first, False).int().argmax(1, keepdim=True)
    return near.gather(1, torch.cat([first, second], dim=1))


def _fraction_below(one: Tensor, other: Tensor) -> float:
    return float(((one < other).double() + (one <= other).double()).mean()) / 2


def spans_of(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the largest code of each column of numbers, and 0 for text columns."""
    return tuple(len(column.edges or ()) for column in columns)


def row_distances(rows: Tensor, records: Tensor, *, spans: Sequence[int], columns: Tensor | None = None) -> Tensor:
    """Return distances from rows (s, n) to records (N, n): (s, N) float64; `columns` (s, n) bool: those that count."""
    k = int(max(rows.max(), records.max())) + 1
    each = torch.stack([_between_codes(span, k) for span in spans])  # (n, k, k)
    from_codes = each[torch.arange(len(spans)), rows]  # (s, n, k): to each code of each column
    if columns is not None:
        from_codes = from_codes * columns.unsqueeze(-1)
    apart: Tensor = from_codes.flatten(1) @ F.one_hot(records, k).flatten(1).double().T
    return apart.round(decimals=DECIMALS)


def nearest_records(apart: Tensor, rng: torch.Generator) -> Tensor:
    """Return each row's nearest record (s,) from distances (s, N), a random one of ties."""
    return torch.where(apart == apart.amin(1, keepdim=True), torch.rand(apart.shape, generator=rng), -1.0).argmax(1)


def _between_codes(span: int, k: int) -> Tensor:
    apart = 1 - torch.eye(k, dtype=torch.float64)
    if span:
        codes = torch.arange(min(span + 1, k), dtype=torch.float64)
        apart[: len(codes), : len(codes)] = (codes[:, None] - codes).abs() / span
    return apart
