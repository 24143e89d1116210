"""FedDistr's entangled coefficient, the cosine between two clients' weights, and partitions that attain it.

The weights are those on the base distributions (arXiv 2410.12530, Definition 1, Eq. 7). Shapes: m base distributions, K
clients.
"""

import math

import torch
from torch import Tensor

from raydiff.formats.metric_records import Metric


def mixing(xi: float, clients: int) -> float:
    """r in pi_k = (1 - r) u_k + r u, at which every pair of the K clients has the coefficient xi in [0, 1).

    u_k is uniform on the m / K bases that client k owns, u on all m. With q = (1 - r)^2: <pi_j, pi_k> = (1 - q) / m for
    j != k and |pi_k|^2 = (1 + (K - 1) q) / m, so the coefficient is (1 - q) / (1 + (K - 1) q) for any m."""
    return 1 - math.sqrt((1 - xi) / (1 + (clients - 1) * xi))


def entangled_shares(sizes: Tensor, clients: int, xi: float, *, rng: torch.Generator) -> Tensor:
    """(m, K) int64: how many of the `sizes` (m,) records of each base each client gets; rows sum to `sizes`.

    The owner of a base gets 1 - r + r / K of it, every other client r / K, so that the sum over an owner's bases is
    exact to within one record. Raises ValueError unless K >= 2 divides m."""
    m = len(sizes)
    if clients < 2 or m % clients:
        fitting = ", ".join(str(n) for n in range(2, m + 1) if m % n == 0) or "no number of"
        raise ValueError(f"an Entangled partition of {m} base distributions needs {fitting} clients, got {clients}")
    dealt = torch.randperm(m, generator=rng)
    away = mixing(xi, clients) * (clients - 1) / clients
    moved = (sizes[dealt].double() * away).cumsum(0).round().long().diff(prepend=torch.zeros(1, dtype=torch.int64))
    out = torch.zeros(m, clients, dtype=torch.int64)
    surplus = torch.zeros(clients, dtype=torch.float64)  # records of others' bases beyond the exact number
    for place, (base, n) in enumerate(zip(dealt.tolist(), moved.tolist(), strict=True)):
        owner = place // (m // clients)
        each, over = divmod(n, clients - 1)
        turn = surplus + 0.01 * torch.rand(clients, dtype=torch.float64, generator=rng)
        turn[owner] = math.inf
        row = torch.full((clients,), each)
        row[turn.argsort()[:over]] += 1
        surplus += row - n / (clients - 1)
        surplus[owner] -= row[owner] - n / (clients - 1)
        row[owner] = sizes[base] - n
        out[base] = row
    return out


def coefficients(counts: Tensor) -> Tensor:
    """(K, K) float64: the coefficient of each pair of clients (Eq. 7), from counts (K, m) of records, none 0 in all."""
    unit = torch.nn.functional.normalize(counts.double())
    return unit @ unit.T


def measure_entanglement(counts: Tensor) -> list[Metric]:
    """Return metrics of a partition with counts (K, m); none for one client.

    The average coefficient over pairs, by which the paper names experiments (appendix A.1), the largest, and whether
    Theorem 2's condition holds: all are below 1 / (K - 1)^2.
    """
    clients = len(counts)
    if clients < 2:
        return []
    rows, columns = torch.triu_indices(clients, clients, offset=1)
    pairs = coefficients(counts)[rows, columns]
    holds = pairs.max() < 1 / (clients - 1) ** 2
    of = {"entanglement_mean": pairs.mean(), "entanglement_max": pairs.max(), "theorem2": holds}
    return [Metric(name=f"partition/{name}", value=float(value)) for name, value in of.items()]
