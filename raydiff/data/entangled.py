"""Clients whose mixtures of base distributions overlap as much as asked for: the mathematics of `Entangled`.

FedDistr (arXiv 2410.12530), Definition 1 (Eq. 7): the entangled coefficient of two clients is the cosine between their
weights on the base distributions. Its experiments are named by the average over all pairs (appendix A.1).

Shapes: m base distributions, K clients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixing(xi: float, clients: int) -> float:
    """r in pi_k = (1 - r) u_k + r u, at which every pair of the K clients has the coefficient xi in [0, 1).

    u_k is uniform on client k's own m / K bases, u on all m. With q = (1 - r)^2: <pi_j, pi_k> = (1 - q) / m for j != k
    and |pi_k|^2 = (1 + (K - 1) q) / m, so the coefficient is (1 - q) / (1 + (K - 1) q), whatever m.
    """
    return 1 - math.sqrt((1 - xi) / (1 + (clients - 1) * xi))


def shares(sizes: Tensor, clients: int, xi: float, *, rng: torch.Generator) -> Tensor:
    """(m, K) int64: how many of the `sizes` (m,) records of each base go to each client; rows sum to `sizes`.

    Client k has pi_k[b] m / K of base b: its owner 1 - r + r / K, every other client r / K. What a base gives away is
    rounded so that the sum over the bases of one owner is right to within one record, and goes to the others as evenly
    as can be: with bases of equal size the clients' totals differ by a few records. Raises ValueError, in one sentence,
    unless K >= 2 divides m.
    """
    m = len(sizes)
    if clients < 2 or m % clients:
        raise ValueError(
            "an Entangled partition needs at least 2 clients, in a number that divides that of the base distributions, "
            f"got {clients} clients and {m} base distributions"
        )
    owners = torch.arange(m) // (m // clients)  # of the bases in the order dealt
    dealt = torch.randperm(m, generator=rng)
    away = mixing(xi, clients) * (clients - 1) / clients
    given = (sizes[dealt].double() * away).cumsum(0).round().long().diff(prepend=torch.zeros(1, dtype=torch.int64))
    out = torch.zeros(m, clients, dtype=torch.int64)
    surplus = torch.zeros(clients, dtype=torch.float64)  # received of others' bases, less the exact share
    for base, owner, n in zip(dealt.tolist(), owners.tolist(), given.tolist(), strict=True):
        each, over = divmod(n, clients - 1)
        row = torch.full((clients,), each)
        ties = torch.rand(clients, dtype=torch.float64, generator=rng)
        turn = surplus + 0.01 * ties
        turn[owner] = math.inf
        row[turn.argsort()[:over]] += 1
        surplus += row - n / (clients - 1)
        surplus[owner] -= row[owner] - n / (clients - 1)
        row[owner] = sizes[base] - n
        out[base] = row
    return out


def coefficients(counts: Tensor) -> Tensor:
    """(K, K) float64: the entangled coefficient of each pair of clients, from counts (K, m) of their records by base.

    Definition 1, Eq. 7. Each client must have a record.
    """
    weights = counts.double()
    unit = weights / weights.norm(dim=1, keepdim=True)
    return torch.mm(unit, unit.T)


def measured(counts: Tensor) -> dict[str, float]:
    """What a partition with counts (K, m) achieves: average and largest coefficient, and Theorem 2's condition.

    The average is appendix A.1's, 2 / (K (K - 1)) times the sum over pairs; the condition, that every pair is below
    1 / (K - 1)^2, is said as 1 or 0. Without a pair there is nothing to say.
    """
    clients = len(counts)
    if clients < 2:
        return {}
    rows, columns = torch.triu_indices(clients, clients, offset=1)
    pairs = coefficients(counts)[rows, columns]
    largest = float(pairs.max())
    return {
        "partition/entanglement_mean": float(pairs.mean()),
        "partition/entanglement_max": largest,
        "partition/theorem2": float(largest < 1 / (clients - 1) ** 2),
    }
