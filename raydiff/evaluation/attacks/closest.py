"""Distance to the closest record (DCR) and nearest-neighbour distance ratio (NNDR) of synthetic rows, of members
against as many records that nobody trained on (Platzer & Reutterer 2021, arXiv 2104.00635).

- `dcr`: the share of the made rows that are nearer to a member than to any non-member, ties counting half.
- `nndr`: the share whose ratio d1 / d2 of the distances to the two nearest members is below that of the two nearest
  non-members: a row that lies by one record and far from all others has a small one.

Of rows that remember nothing, members and non-members are exchangeable and both shares are 0.5 on average. How far from
that chance alone takes them is found by drawing by lot who is a member: made rows are not independent of each other,
for many may be near the same record, and an interval for a share of independent rows would be too narrow. The interval
is the share give or take what chance alone does: exact where nothing is remembered, an approximation elsewhere.

**What it does not say.** Nothing of one record: a share of 0.5 is compatible with a model that repeats a few of its
rows among many, and rows that a membership attack tells apart often pass (Yao et al. 2025, "The DCR Delusion", arXiv
2505.01524). A share above 0.5 shows that something was learned by heart, one of 0.5 shows nothing, and neither is a
guarantee.

Shapes: s made rows, m members, m non-members, n columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff.evaluation.attacks.gower import distances
from raydiff.evaluation.attacks.membership import Interval

DRAWS = 400
"""How often it is drawn by lot who is a member."""
BATCH = 512
"""Made rows whose distances are held at a time."""
NEAREST = 64
"""Records that a draw looks at: that one of 2^58 draws has not two of either kind among them is put up with."""


@dataclass(frozen=True, kw_only=True)
class Closest:
    """What the distances say; 0.5 where nothing is remembered."""

    dcr: float
    """Share of the made rows that are nearer to a member than to any non-member."""
    dcr_interval: Interval
    """95 %, for members and non-members drawn anew, the made rows as they are."""
    nndr: float
    """Share whose distance ratio is smaller among the members."""
    nndr_interval: Interval
    """As `dcr_interval`."""


def attack(made: Tensor, *, members: Tensor, nonmembers: Tensor, spans: Sequence[int], rng: torch.Generator) -> Closest:
    """Of codes (s, n), (m, n), (m, n), with `spans` as from `gower.spans_of`.

    Raises ValueError unless there are as many non-members as members, two at least, and a made row.
    """
    m = len(members)
    if len(nonmembers) != m or m < 2 or not len(made):
        raise ValueError(
            "members and nonmembers must be equally many, 2 at least, and made 1 at least, "
            f"got {m}, {len(nonmembers)} and {len(made)}"
        )
    found = [_distances(part, members, nonmembers, spans) for part in made.split(BATCH)]
    of_members, of_others, near, who = (torch.cat(each) for each in zip(*found, strict=True))
    shares = _shares(of_members, of_others)
    lots = []
    for _ in range(DRAWS):
        inside = torch.randperm(2 * m, generator=rng)[who] < m
        lots.append(_shares(_two_nearest(near, inside), _two_nearest(near, ~inside)))
    low, high = torch.tensor(lots, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double(), dim=0)
    dcr, nndr = (
        (max(0.0, share - (float(most) - 0.5)), min(1.0, share + (0.5 - float(least))))
        for share, least, most in zip(shares, low, high, strict=True)
    )
    return Closest(dcr=shares[0], dcr_interval=dcr, nndr=shares[1], nndr_interval=nndr)


def _distances(made: Tensor, members: Tensor, nonmembers: Tensor, spans: Sequence[int]) -> tuple[Tensor, ...]:
    """Of made rows (b, n): to the two nearest members and non-members, (b, 2) each; to the nearest of both, ascending,
    and which these are, (b, NEAREST) each."""
    apart = distances(made, torch.cat([members, nonmembers]), spans=spans)
    of_each = (kind.topk(2, largest=False).values for kind in apart.split(len(members), dim=1))
    return *of_each, *apart.topk(min(NEAREST, apart.shape[1]), largest=False)


def _shares(of_members: Tensor, of_others: Tensor) -> tuple[float, float]:
    """(dcr, nndr) from the distances (s, 2) to the two nearest of each kind."""
    ratios = (torch.where(d[:, 1] > 0, d[:, 0] / d[:, 1], 1.0).round(decimals=6) for d in (of_members, of_others))
    return _share_below(of_members[:, 0], of_others[:, 0]), _share_below(*ratios)


def _two_nearest(near: Tensor, which: Tensor) -> Tensor:
    """The distances (s, 2) to the nearest and the second nearest of those records, of ascending ones."""
    first = which.int().argmax(1, keepdim=True)
    second = which.scatter(1, first, False).int().argmax(1, keepdim=True)
    return near.gather(1, torch.cat([first, second], dim=1))


def _share_below(one: Tensor, other: Tensor) -> float:
    """The share of pairs in which the one is smaller, equals counting half."""
    return float(((one < other).double() + (one <= other).double()).mean()) / 2
