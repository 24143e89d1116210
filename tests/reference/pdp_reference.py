"""Algorithms 1 and 2 written down as they stand: one record, one step, one pair of rows at a time. O(s^2 n T).

It is what the fast audit must agree with. The readings of the paper are those listed in `papers.discrete.bound` and
`radius`; only the arithmetic is done anew.
"""

import math
from collections.abc import Iterable

import numpy as np

from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Floats, Ints

INF = math.inf


def deltas(table: Ints, release: ReleasedRows, records: Iterable[int] | None = None) -> Floats:
    """delta(v*) of the given records of the table, or of all."""
    records = range(len(table)) if records is None else records
    return np.array([_delta(np.delete(table, v, axis=0), table[v], release) for v in records])


def _delta(others: Ints, record: Ints, release: ReleasedRows) -> float:
    (s, n), k, m, epsilon = others.shape, release.kernel.categories, release.samples, release.epsilon
    alpha = [float(a) for a in release.kernel.alpha]
    abar = [math.prod(alpha[: t + 1]) for t in range(len(alpha))]
    distances = [sum(int(a) != int(b) for a, b in zip(row, record, strict=True)) for row in others]
    within = [sum(d <= eta for d in distances) for eta in range(n + 1)]
    total = 0.0
    for t in release.steps:
        if alpha[t] == 1:
            continue  # nothing happens in that step
        before = (1 + (k - 1) * abar[t - 1]) / (1 - abar[t - 1]) if abar[t - 1] < 1 else INF  # Rbar_{t-1}
        after = (1 + (k - 1) * abar[t]) / (1 - abar[t])  # Rbar_t
        same, other = (1 + (k - 1) * abar[t]) / k, (1 - abar[t]) / k
        change = (abar[t - 1] - abar[t]) / (k * same * other)
        near = sum(after**-d for d in distances)
        leak = 0.0
        for i in range(n):
            like = sum(after**-d for d, row in zip(distances, others, strict=True) if row[i] == record[i])
            if before < INF:
                leak += math.log1p((before**2 - 1) / (before**2 * like + near + 1))
            else:
                leak += math.log(1 + 1 / like) if like > 0 else INF
        leak *= change / (1 + near)
        if release.condition == "theorem":
            ball = _theorem(within, leak, change, after, same, other)
        else:
            ball = _relaxed(within, leak, change, before, after, same, other)
        total += min(4 * within[ball] / s, 1) * leak + n * (1 - 1 / before) / s**2
    return m * total / (epsilon * (1 - math.exp(-epsilon)))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -INF


def _odds(outside: int, inside: int) -> float:
    return outside / inside if inside else INF


def _theorem(within: list[int], leak: float, change: float, after: float, same: float, other: float) -> int:
    """Eq. 9."""
    n, s = len(within) - 1, within[-1]
    if after == 1 or n * (1 - same) >= 1:
        return n
    for eta in range(1, n + 1):
        odds = _odds(s - within[eta], within[eta])
        first = _log(odds) / math.log(1 / (n * (1 - same)))
        second = (_log(odds) + _log(change * n / leak)) / (2 * math.log(after)) - 2
        if eta >= first + max(second, 0):
            scale = math.log(1 / other) - 1
            for j in range(n - eta + 1):
                odds = _odds(s - within[eta + j], within[eta + j])
                if scale > 0 and j / eta >= (_log(odds) / eta + 1.5) / scale:
                    return eta + j
            return n
    return n


def _relaxed(
    within: list[int], leak: float, change: float, before: float, after: float, same: float, other: float
) -> int:
    """Eq. 27 with Algorithm 2."""
    n, s = len(within) - 1, within[-1]
    if after == 1:
        return n
    for eta in range(1, n + 1):
        ball = _algorithm_2(within, eta, other)
        inside, outside = within[ball], s - within[eta]
        if outside == 0:
            return ball
        if inside == 0:
            continue
        tail, kappa = 1.0, 0
        while kappa <= n and tail > inside / outside:
            kappa += 1
            tail = sum(math.comb(n, j) * (1 - same) ** j * same ** (n - j) for j in range(kappa, n + 1))
        share = 1 - 1 / before**2
        second = (_log(outside / inside) + _log(change * share * n / leak)) / (2 * math.log(after))
        if eta >= kappa + max(second, 0) - 2:
            return ball
    return n


def _algorithm_2(within: list[int], eta: int, other: float) -> int:
    n, s = len(within) - 1, within[-1]
    odds = [_odds(s - inside, inside) for inside in within]
    double = odds[min(2 * eta, n)]
    if (1 / double if double > 0 else INF) > (2 * math.e * other) ** eta:
        for j in range(eta):
            if eta + j <= n and j / eta >= (_log(odds[eta + j]) / eta + 1 + math.log(2)) / math.log(1 / other):
                return eta + j
        return min(2 * eta, n)
    scale = math.log(1 / other) - 1
    for j in range(eta, n - eta + 1):
        if scale > 0 and j / eta >= _log(odds[eta + j]) / eta / scale:
            return eta + j
    return n
