"""Private Evolution (Lin et al. 2024): the votes by hand, how candidates are drawn and varied, and what they become."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import records

from raydiff.data.records import Records
from raydiff.federated.method import Mean, Round
from raydiff.methods.evolution import Evolution, project_onto_counts, sample_parents
from raydiff.models.by_row import Population
from raydiff.privacy import accountants
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

pytestmark = pytest.mark.usefixtures("fine_grid")

NOISE = NoiseStream(b"0123456789abcdef", ("x",))
PUBLIC = records(9, 30)


def small(**fields: Any) -> Evolution:
    return Evolution(**{"candidates": 6, "rounds": 3, **fields})


def pictures(server: Params) -> Tensor:
    """(R, N, d)."""
    return server["model/pictures"].flatten(2)


def test_the_votes_by_hand() -> None:
    """Record by record: one vote for the nearest candidate of its label, and noise for all rounds together."""
    method, data = small(epsilon=3.0, rounds=4), records(0)
    server = method.init_server(PUBLIC, generator(0))
    result = method.local_update(server, {}, data, Round(2, generator(0), NOISE))
    votes, lengths = torch.zeros(10, 6).double(), []
    for x, label in zip(data.images, data.labels[:, 0], strict=True):
        apart = [float((x.flatten() - c).double().norm()) for c in pictures(server)[label]]
        lengths.append(min(apart))
        votes[label, apart.index(lengths[-1])] += 1
    sigma = math.sqrt(2) * math.sqrt(4) / accountants.mu_for(3.0, 1e-5)
    sent = result.release.value
    assert sorted(sent) == ["counts", "votes"] and float(votes.sum()) == 12
    noisy = votes + sigma * NOISE.normal([0], (10, 6))[0]
    torch.testing.assert_close(sent["votes"], noisy.float(), rtol=1e-5, atol=1e-5)
    assert sent["counts"].tolist() == data.labels[:, 0].bincount(minlength=10).tolist()
    assert result.metrics["vote/distance"] == pytest.approx(sum(lengths) / 12, rel=1e-4)


def apart(method: Evolution, server: Params, a: Records, b: Records) -> float:
    sent = [method.local_update(server, {}, x, Round(0, generator(0))).release.value["votes"] for x in (a, b)]
    return float((sent[0].double() - sent[1].double()).norm())


def test_no_replaced_record_moves_the_votes_by_more_than_the_root_of_two_and_some_move_them_so() -> None:
    """By brute force: every record of a grid in place of every other one, beside others; candidates that coincide too,
    and those that an adversary may have made up."""
    method = small(model=Population(shape=(1, 1, 2), labels=(2,)), epsilon=None, candidates=4)
    grid = torch.cartesian_prod(*[torch.linspace(-1.5, 1.5, 5)] * 2).view(-1, 1, 1, 2)
    others = torch.tensor([[0.1, 0.2], [-0.7, 0.4], [0.5, -0.5]]).view(3, 1, 1, 2)
    labels = torch.tensor([0, 1, 1, 1])[:, None]
    found = []
    for scale, same in ((1.0, False), (1e6, False), (1.0, True)):
        made = scale * torch.randn(2, 4, 1, 1, 2, generator=generator(1))
        server = {"model/pictures": made[:, :1].repeat(1, 4, 1, 1, 1) if same else made}
        both = [Records(torch.cat([others, x[None]]), labels, torch.arange(4)) for x in grid]
        found += [apart(method, server, a, b) for a, b in itertools.combinations(both, 2)]
    assert max(found) == pytest.approx(method.sensitivity) == pytest.approx(math.sqrt(2))
    assert {round(x, 6) for x in found} == {0.0, round(math.sqrt(2), 6)}


def test_the_threshold_leaves_as_many_votes_as_there_are_records() -> None:
    """The nearest histogram that could be: what is left is less by one number, and what is not was no more than it."""
    votes = 5 * torch.randn(40, 9, generator=generator(0)).double()
    counts = torch.arange(40).double() * 2
    left = project_onto_counts(votes, counts)
    torch.testing.assert_close(left.sum(1), counts)
    for noisy, found, count in zip(votes, left, counts, strict=True):
        kept = found > 0
        if not count:
            assert not kept.any()
            continue
        level = (noisy - found)[kept]
        torch.testing.assert_close(level, level[:1].expand_as(level))
        assert bool((noisy[~kept] <= level[0] + 1e-9).all())
    exact = torch.tensor([[3.0, 0.0, 5.0]]).double()
    assert torch.equal(project_onto_counts(exact, torch.tensor([8.0]).double()), exact)


def test_each_candidate_is_drawn_as_often_as_its_share_says_to_the_next_whole_number() -> None:
    votes = torch.rand(30, 8, generator=generator(0)).double().square()
    votes[3, :7] = 0
    votes[4] = 0
    parents = sample_parents(votes, generator(1))
    share = 8 * votes / votes.sum(1, keepdim=True)
    for row, (found, due) in enumerate(zip(parents, share, strict=True)):
        times = found.bincount(minlength=8)
        if row == 4:  # no votes at all: everybody stays
            assert times.tolist() == [1] * 8
            continue
        assert bool((times >= due.floor() - 1e-9).all() and (times <= due.ceil() + 1e-9).all())
    assert parents[3].tolist() == [7] * 8
    many = torch.stack([sample_parents(votes[:1], generator(i))[0].bincount(minlength=8) for i in range(2000)])
    torch.testing.assert_close(many.double().mean(0), share[0], rtol=0, atol=0.05)


def stepped(method: Evolution, server: Params, votes: Tensor, number: int) -> Tensor:
    """The candidates (R, N, d) after a round in which these votes (R, N) were cast by one client."""
    sent = Mean({"votes": votes, "counts": votes.sum(1).double()}, 1)
    return pictures(method.aggregate(server, sent, Round(number, generator(5)))[0])


def test_the_first_copy_stays_and_others_move_by_less_and_less() -> None:
    """Towards one of the five public pictures nearest, by `variation` of the way in round 0, a T-th of it at last."""
    method = small(epsilon=None, rounds=4, variation=0.8, model=Population(labels=(2,)))
    server = method.init_server(PUBLIC, generator(0))
    votes = torch.tensor([[0.0, 4.0, 0.0, 2.0, 0.0, 0.0], [1.0] * 6])
    public, before = PUBLIC.images.flatten(1), pictures(server)
    parents = before[0][[1, 1, 1, 1, 3, 3]]
    ends = set()
    for number, share in enumerate((0.8, 0.6, 0.4, 0.2)):
        after = stepped(method, server, votes, number)
        assert torch.equal(after[0, [0, 4]], parents[[0, 4]]) and torch.equal(after[1], before[1])
        for i in (1, 2, 3, 5):
            apart = (public - parents[i]).norm(dim=1)
            end = parents[i] + (after[0, i] - parents[i]) / share
            to = int((public - end).norm(dim=1).argmin())
            torch.testing.assert_close(public[to], end, rtol=0, atol=1e-4)
            assert to in apart.argsort()[:5]
            ends.add(to)
    assert len(ends) > 2


def test_first_candidates_are_public_pictures_whatever_their_labels_or_noise_where_there_are_none() -> None:
    method = small()
    server = method.init_server(PUBLIC, generator(0))
    other = method.init_server(replace(PUBLIC, labels=PUBLIC.labels.flip(0)), generator(0))
    assert torch.equal(server["model/pictures"], other["model/pictures"])
    known = PUBLIC.images.flatten(1)
    for row in pictures(server):
        which = [int((known == x).all(1).nonzero()[0, 0]) for x in row]
        assert len(set(which)) == 6
    many = replace(method, candidates=70).init_server(PUBLIC, generator(0))
    assert {len(row.unique(dim=0)) for row in pictures(many)} == {30}
    nothing = method.init_server(None, generator(0))["model/pictures"]
    assert nothing.shape == (10, 6, 1, 8, 8) and float(nothing.std()) == pytest.approx(1 / math.sqrt(3), rel=0.05)
