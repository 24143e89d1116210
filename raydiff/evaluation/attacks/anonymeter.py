"""Singling out, linkability and attribute inference from synthetic rows.

These are the three risks of the Article 29 Working Party's Opinion 05/2014 on anonymisation, attacked as in Anonymeter
(Giomi et al., PoPETs 2023, arXiv 2211.10459).

The attacker has all synthetic rows, and nothing else. What these tell about the population succeeds equally often with
non-members, so the risk is the excess of members: (r_members - r_nonmembers) / (1 - r_nonmembers). It is averaged over
records, and no guarantee.

| Anonymeter | here |
|---|---|
| predicates of 3 columns; of numbers: at most, at least | of a random number of columns; a bin is a category |
| a guess of each value uniform among the possible ones | as often as synthetic rows have it |
| the user names the linked columns | random halves for every record |
| nearest neighbour, the first of equals | a random one of equals |
| a number is inferred if within 5 % | if its bin is |
| risks and intervals are cut at 0 and 1 | not at 0: else none could lie around it |

Shapes: s synthetic rows, m members, m non-members, n columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.evaluation.attacks.closest import nearest_records, row_distances
from raydiff.evaluation.attacks.membership import Interval, wilson

ATTEMPTS = 2000  # records of each side that are attacked, and predicates that are guessed, at most
BATCH = 512
TRIES = 10  # predicates drawn for each one wanted: most are true of several synthetic rows


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Success rates of an attack, and the risk."""

    members: float  # success rate of attempts on members
    nonmembers: float  # the same on records that nobody trained on: the control
    guesses: float  # the same of random guesses on members: the baseline
    attempts: int  # of each of the three
    intervals: dict[str, Interval]  # Wilson's at 95 % of the three rates, by name
    risk: float  # as above, from the centres of these intervals as in Anonymeter: they never reach 1
    risk_interval: Interval  # 95 %: both rates' intervals, propagated to first order as in Anonymeter


def risk(members: Tensor, nonmembers: Tensor, guesses: Tensor) -> Risk:
    """Return the risk from successes of equally many attempts, (a,) bool each."""
    successes = {"members": members, "nonmembers": nonmembers, "guesses": guesses}
    intervals = {name: wilson(int(hits.sum()), len(hits)) for name, hits in successes.items()}
    (inside, spread), (outside, spread_out) = (
        ((low + high) / 2, (high - low) / 2) for low, high in (intervals["members"], intervals["nonmembers"])
    )
    value = (inside - outside) / (1 - outside)
    half = math.hypot(spread / (1 - outside), (1 - inside) * spread_out / (1 - outside) ** 2)
    rates = {name: float(hits.double().mean()) for name, hits in successes.items()}
    return Risk(
        **rates,
        attempts=len(members),
        intervals=intervals,
        risk=value,
        risk_interval=(value - half, min(1.0, value + half)),
    )


def singling_out(synthetic: Tensor, *, members: Tensor, nonmembers: Tensor, rng: torch.Generator) -> Risk | None:
    """Attack tables of codes (m, n) by predicates that hold for one synthetic row: does one hold for one record only?

    Returns None without such a predicate. Needs as many non-members as members, since uniqueness depends on that.
    """
    (s, n), wanted = synthetic.shape, min(ATTEMPTS, len(synthetic), len(members))
    size = torch.randint(1, n + 1, (TRIES * wanted, 1), generator=rng)  # columns of each predicate
    which = torch.rand(len(size), n, generator=rng).argsort(1) < size
    row = torch.randint(s, (len(which),), generator=rng)
    drawn = torch.where(which, synthetic[row], -1).unique(dim=0)  # -1: not in the predicate
    drawn = drawn[torch.randperm(len(drawn), generator=rng)]
    chosen = drawn[_matches(drawn, synthetic) == 1][:wanted]
    if not len(chosen):
        return None
    row = torch.randint(s, chosen.shape, generator=rng)
    guessed = torch.where(chosen >= 0, synthetic.gather(0, row), -1)  # each value is that of some synthetic row
    attempts = ((chosen, members), (chosen, nonmembers), (guessed, members))
    return risk(*(_matches(predicates, records) == 1 for predicates, records in attempts))


def linkability(
    synthetic: Tensor, *, members: Tensor, nonmembers: Tensor, spans: Sequence[int], rng: torch.Generator
) -> Risk:
    """Attack random halves of each record's columns, two at least: is one synthetic row the nearest to both?"""
    n = synthetic.shape[1]
    members, nonmembers = _equally_many(members, nonmembers, rng)
    half = torch.rand(len(members), n, generator=rng).argsort(1) < n // 2

    def linked(records: Tensor) -> Tensor:
        one, other = (
            nearest_records(row_distances(records, synthetic, spans=spans, columns=c), rng) for c in (half, ~half)
        )
        return one == other

    guess, again = torch.randint(len(synthetic), (2, len(members)), generator=rng)
    return risk(linked(members), linked(nonmembers), guess == again)


def inference(
    synthetic: Tensor, secret: int, *, members: Tensor, nonmembers: Tensor, spans: Sequence[int], rng: torch.Generator
) -> Risk:
    """Attack the code in column `secret`: is it that of the synthetic row nearest in the other columns?"""
    members, nonmembers = _equally_many(members, nonmembers, rng)
    others = (torch.arange(synthetic.shape[1]) != secret).expand_as(members)

    def inferred(records: Tensor) -> Tensor:
        alike = nearest_records(row_distances(records, synthetic, spans=spans, columns=others), rng)
        return synthetic[alike, secret] == records[:, secret]

    guess = synthetic[torch.randint(len(synthetic), (len(members),), generator=rng), secret]
    return risk(inferred(members), inferred(nonmembers), guess == members[:, secret])


def _matches(predicates: Tensor, records: Tensor) -> Tensor:
    """Number of records (N, n) for which each predicate (p, n) holds, (p,)."""
    k = int(max(predicates.max(), records.max())) + 1
    encoded = F.one_hot(records, k).flatten(1).float().T
    counts = []
    for part in predicates.split(BATCH):
        wanted = F.one_hot(part + 1, k + 1)[..., 1:].flatten(1).float()  # all 0 where a column is not in the predicate
        counts.append((wanted @ encoded == (part >= 0).sum(1, keepdim=True)).sum(1))
    return torch.cat(counts)


def _equally_many(members: Tensor, nonmembers: Tensor, rng: torch.Generator) -> list[Tensor]:
    count = min(len(members), len(nonmembers), ATTEMPTS)
    return [records[torch.randperm(len(records), generator=rng)[:count]] for records in (members, nonmembers)]
