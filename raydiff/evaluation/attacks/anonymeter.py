"""Singling out, linkability and attribute inference from synthetic rows: the three risks of the Article 29 Working
Party's Opinion 05/2014 on anonymisation, attacked as in Anonymeter (Giomi et al., PoPETs 2023, arXiv 2211.10459).

The attacker has the made rows, all of them, and nothing else:

- `singling_out`: some columns' values that one made row alone has are guessed to be one record's alone;
- `linkability`: of a record in two halves the nearest made row to each half is the same row;
- `inference`: a record's value in one column is guessed to be that of the made row nearest to it in all others.

What succeeds with members because the rows tell how people are in general succeeds with records that nobody trained on
just as often. So the same attack is tried on both, and the risk is what members have beyond: (r_members -
r_nonmembers) / (1 - r_nonmembers), 0 where nothing is remembered. An attack that finds no more members than random
guesses do says nothing in either direction.

| Anonymeter | here |
|---|---|
| predicates of 3 columns; of numbers: at most, at least | of as many columns as is drawn by lot; a bin is a category |
| a guess of each value uniform among those that there are | as often as made rows have it |
| the user names the linked columns | every record has halves of its own, drawn by lot |
| nearest neighbour, the first of equals | one of equals by lot |
| a number is inferred if within 5 % | if its bin is |
| risks and intervals are cut at 0 and 1 | not at 0: else none could lie around it |

**What it does not say.** A risk near 0 is that of this attacker with these rows, on average over records: a cleverer
one may find more, one record may be exposed where most are not, and none of it is a guarantee. Intervals take attempts
as independent, which those that single out the same record are not: for singling out they are a little too narrow.

Shapes: s made rows, m members, m non-members, n columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.evaluation.attacks.gower import distances, nearest
from raydiff.evaluation.attacks.membership import Interval, wilson

ATTEMPTS = 2000
"""Records of either kind that are attacked, and predicates that are guessed, at most; of these no more than records."""
BATCH = 512
TRIES = 10
"""So many predicates are drawn for each that is wanted: most are true of several made rows."""


@dataclass(frozen=True, kw_only=True)
class Risk:
    """What an attack achieves."""

    members: float
    """Share of the attempts on members that succeed."""
    nonmembers: float
    """The same on records that nobody trained on: the control."""
    guesses: float
    """The same of random guesses on members: the baseline."""
    attempts: int
    """Of each of the three."""
    risk: float
    """(r_members - r_nonmembers) / (1 - r_nonmembers), of the centres of the rates' Wilson intervals, as in Anonymeter:
    these never reach 1."""
    risk_interval: Interval
    """95 %: both rates' Wilson intervals, propagated to first order as in Anonymeter."""

    @property
    def intervals(self) -> dict[str, Interval]:
        """Wilson's at 95 % for each rate, by name."""
        rates = ("members", "nonmembers", "guesses")
        return {rate: wilson(round(getattr(self, rate) * self.attempts), self.attempts) for rate in rates}


def risk(members: Tensor, nonmembers: Tensor, guesses: Tensor) -> Risk:
    """Of which attempts succeeded: each (a,) bool. Raises ValueError without any, or where there are not as many."""
    a = len(members)
    if not a or not a == len(nonmembers) == len(guesses):
        raise ValueError(f"attempts must be equally many, 1 at least, got {a}, {len(nonmembers)}, {len(guesses)}")
    (inside, spread), (outside, spread_out) = (_centre(int(hits.sum()), a) for hits in (members, nonmembers))
    value = (inside - outside) / (1 - outside)
    half = math.hypot(spread / (1 - outside), (1 - inside) * spread_out / (1 - outside) ** 2)
    rates = {"members": members, "nonmembers": nonmembers, "guesses": guesses}
    shares = {name: float(hits.double().mean()) for name, hits in rates.items()}
    return Risk(**shares, attempts=a, risk=value, risk_interval=(value - half, min(1.0, value + half)))


def singling_out(made: Tensor, *, members: Tensor, nonmembers: Tensor, rng: torch.Generator) -> Risk | None:
    """Predicates that are true of one made row, on tables of codes (m, n) each: does it hold of one record alone?

    None where no such predicate is found. Raises ValueError unless there are as many non-members as members: how often
    something is unique depends on how many there are.
    """
    if len(members) != len(nonmembers):
        raise ValueError(f"members and nonmembers must be equally many, got {len(members)} and {len(nonmembers)}")
    wanted = min(ATTEMPTS, len(made), len(members))
    which = _columns(TRIES * wanted, made.shape[1], rng)
    row = torch.randint(len(made), (len(which),), generator=rng)
    drawn = torch.where(which, made[row], -1).unique(dim=0)  # -1: the column is not asked about
    drawn = drawn[torch.randperm(len(drawn), generator=rng)]
    asked = drawn[_matches(drawn, made) == 1][:wanted]
    if not len(asked):
        return None
    row = torch.randint(len(made), asked.shape, generator=rng)
    guessed = torch.where(asked >= 0, made.gather(0, row), -1)  # each value by itself is one that there is
    attempts = ((asked, members), (asked, nonmembers), (guessed, members))
    return risk(*(_matches(predicates, records) == 1 for predicates, records in attempts))


def linkability(
    made: Tensor, *, members: Tensor, nonmembers: Tensor, spans: Sequence[int], rng: torch.Generator
) -> Risk:
    """Two halves of the columns of each record, drawn by lot: is one made row the nearest to both? Of random guesses
    one in s is. Raises ValueError on fewer than two columns."""
    n = made.shape[1]
    if n < 2:
        raise ValueError(f"linkability needs two columns at least, got {n}")
    members, nonmembers = _equally_many(members, nonmembers, rng)
    half = torch.rand(len(members), n, generator=rng).argsort(1) < n // 2

    def linked(records: Tensor) -> Tensor:
        one, other = (nearest(distances(records, made, spans=spans, columns=c), rng) for c in (half, ~half))
        return one == other

    guess, again = torch.randint(len(made), (2, len(members)), generator=rng)
    return risk(linked(members), linked(nonmembers), guess == again)


def inference(
    made: Tensor, secret: int, *, members: Tensor, nonmembers: Tensor, spans: Sequence[int], rng: torch.Generator
) -> Risk:
    """Is a record's code in column `secret` that of the made row nearest to it in the other columns? A random guess is
    that of any made row."""
    members, nonmembers = _equally_many(members, nonmembers, rng)
    others = (torch.arange(made.shape[1]) != secret).expand_as(members)

    def inferred(records: Tensor) -> Tensor:
        alike = nearest(distances(records, made, spans=spans, columns=others), rng)
        return made[alike, secret] == records[:, secret]

    guess = made[torch.randint(len(made), (len(members),), generator=rng), secret]
    return risk(inferred(members), inferred(nonmembers), guess == members[:, secret])


def _centre(hits: int, n: int) -> tuple[float, float]:
    """The centre and the half width of Wilson's interval."""
    low, high = wilson(hits, n)
    return (low + high) / 2, (high - low) / 2


def _columns(count: int, n: int, rng: torch.Generator) -> Tensor:
    """(count, n) bool: any number of columns from 1 to n, all as likely, and any so many."""
    size = torch.randint(1, n + 1, (count, 1), generator=rng)
    return torch.rand(count, n, generator=rng).argsort(1) < size


def _matches(predicates: Tensor, records: Tensor) -> Tensor:
    """Of how many records (N, n) each predicate (p, n) is true, (p,)."""
    k = int(max(predicates.max(), records.max())) + 1
    there, found = F.one_hot(records, k).flatten(1).float().T, []
    for part in predicates.split(BATCH):
        asked = F.one_hot(part + 1, k + 1)[..., 1:].flatten(1).float()  # all 0 where a column is not asked about
        found.append((asked @ there == (part >= 0).sum(1, keepdim=True)).sum(1))
    return torch.cat(found)


def _equally_many(members: Tensor, nonmembers: Tensor, rng: torch.Generator) -> list[Tensor]:
    """As many of either, `ATTEMPTS` at most, drawn by lot."""
    count = min(len(members), len(nonmembers), ATTEMPTS)
    return [records[torch.randperm(len(records), generator=rng)[:count]] for records in (members, nonmembers)]
