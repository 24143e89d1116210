"""Entangled clients: the closed form, what the counts achieve, and that all records are dealt."""

import pytest
import torch

from raydiff.data.datasets import Records
from raydiff.data.entangled import coefficients, measure_entanglement, mixing
from raydiff.data.partition import Entangled, counts, partition
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator

XIS = (0.003, 0.057, 0.385)
CLIENTS = (5, 10, 20)


def records(sizes: list[int]) -> Records:
    """Base distributions of these sizes, two to a superclass, in turn."""
    base = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    base = base[torch.randperm(len(base), generator=generator(0, "rows"))]
    n = len(base)
    return Records(torch.zeros(n, 1, 1, 1), base.unsqueeze(1) // 2, torch.arange(n), base)


@pytest.mark.parametrize("xi", [0.0, *XIS, 0.9])
@pytest.mark.parametrize("clients", [2, *CLIENTS])
def test_the_closed_form_gives_every_pair_xi(clients: int, xi: float) -> None:
    r, m = mixing(xi, clients), 20
    own = torch.eye(clients, dtype=torch.float64).repeat_interleave(m // clients, dim=1) * clients / m
    pi = (1 - r) * own + r / m
    torch.testing.assert_close(pi.sum(1), torch.ones(clients, dtype=torch.float64))
    torch.testing.assert_close(pi.sum(0), torch.full((m,), clients / m, dtype=torch.float64))  # bases stay equal
    pairs = coefficients(pi)[~torch.eye(clients, dtype=torch.bool)]
    assert pairs.tolist() == pytest.approx([xi] * len(pairs), abs=1e-12)


def test_entanglement_is_the_average_and_the_largest_and_says_whether_theorem_2_applies() -> None:
    result = columns(measure_entanglement(torch.tensor([[3, 4, 0], [4, 3, 0], [0, 0, 7]])))
    assert result == pytest.approx(
        {"partition/entanglement_mean": 0.32, "partition/entanglement_max": 0.96, "partition/theorem2": 0}
    )
    # three clients: below 1/4. cos((4, 1), (0, 1)) = 1 / sqrt(17) = 0.243, cos((3, 1), (0, 1)) = 0.316
    for large, holds in ((4, 1.0), (3, 0.0)):
        table = torch.tensor([[large, 1, 0], [0, 1, 0], [0, 0, 1]])
        assert columns(measure_entanglement(table))["partition/theorem2"] == holds
    assert measure_entanglement(torch.tensor([[3, 4]])) == []


@pytest.mark.parametrize("xi", XIS)
@pytest.mark.parametrize("clients", CLIENTS)
def test_twenty_bases_are_dealt_as_asked_for(clients: int, xi: float) -> None:
    data = records([500] * 20)
    parts = partition(data, clients, how=Entangled(xi=xi), rng=generator(0))
    table = counts(data, parts, 20)
    result = columns(measure_entanglement(table))
    assert result["partition/entanglement_mean"] == pytest.approx(xi, rel=0.01)
    assert result["partition/entanglement_max"] == pytest.approx(xi, rel=0.1, abs=2e-3)
    assert result["partition/theorem2"] == (xi < 1 / (clients - 1) ** 2)  # 1/16, 1/81, 1/361
    totals = table.sum(1)
    assert int(totals.max() - totals.min()) <= 2 and int(totals.sum()) == 10_000
