"""FedDistr's server: who is matched with whom, what stays of it, and that nothing is lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raydiff.papers.feddistr.prompt_pool import PromptPool, Prompts, match, table, threshold_between
from raydiff.seeding import generator
from raydiff.storage.atomic_files import read_tensors, write_tensors


def prompts(vectors: object, labels: list[int], counts: list[int] | None = None) -> Prompts:
    x = torch.as_tensor(vectors, dtype=torch.float32).reshape(len(labels), -1)
    return Prompts(x, torch.tensor(labels), torch.tensor(counts or [1] * len(labels)))


def line(*positions: float) -> Prompts:
    """One prompt of label 0 at each of these places."""
    return prompts(positions, [0] * len(positions))


def pooled(*sent: Prompts, threshold: float) -> PromptPool:
    pool = PromptPool.empty(sent[0].vectors.shape[1])
    for client, own in enumerate(sent):
        pool = pool.with_prompts(client, own, threshold=threshold)
    return pool


def permuted(x: Prompts, order: list[int]) -> Prompts:
    return Prompts(x.vectors[order], x.labels[order], x.counts[order])


# --- copies, and prompts that have nothing in common -------------------------------------------------------

RANDOM = torch.randn(6, 5, generator=generator(0, "prompts"))
BASES = {
    "apart": (RANDOM, 10.0),
    "equally far from each other": (torch.eye(6), 10.0),  # each other one is within the threshold too
    "some equal": (RANDOM[[0, 0, 0, 1, 1, 2]], 10.0),
}


@pytest.mark.parametrize("kind", BASES)
@settings(deadline=None, max_examples=40)
@given(orders=st.lists(st.permutations(range(6)), min_size=1, max_size=3))
def test_permuted_copies_are_aligned_exactly(kind: str, orders: list[list[int]]) -> None:
    vectors, threshold = BASES[kind]
    first = prompts(vectors, [0, 0, 1, 1, 1, 2], [9, 8, 7, 6, 5, 4])
    pool = pooled(first, *(permuted(first, order) for order in orders), threshold=threshold)
    assert torch.equal(pool.prompts.vectors, first.vectors) and torch.equal(pool.prompts.labels, first.labels)
    client, place, row = pool.members.T
    for k, order in enumerate([list(range(6)), *orders]):
        sent = permuted(first, order)
        assert place[client == k].tolist() == list(range(6))
        assert sorted(row[client == k].tolist()) == list(range(6))
        assert torch.equal(pool.prompts.vectors[row[client == k]], sent.vectors)
        assert torch.equal(pool.prompts.labels[row[client == k]], sent.labels)
    if kind != "some equal":
        assert torch.equal(pool.prompts.counts, first.counts * (1 + len(orders)))


@settings(deadline=None, max_examples=40)
@given(order=st.permutations(range(9)), sizes=st.sampled_from([(4, 5), (1, 3, 5), (2, 2, 2, 3)]))
def test_disjoint_prompts_are_all_kept(order: list[int], sizes: tuple[int, ...]) -> None:
    everything = prompts([10.0 * i for i in range(9)], [i % 2 for i in range(9)], list(range(1, 10)))
    sent = [permuted(everything, rows.tolist()) for rows in torch.tensor(order).split(list(sizes))]
    pool = pooled(*sent, threshold=19.9)  # of one label they are 20 apart
    assert torch.equal(pool.prompts.vectors, everything.vectors[order])
    assert torch.equal(pool.prompts.labels, everything.labels[order])
    assert torch.equal(pool.prompts.counts, everything.counts[order])
    assert pool.members[:, 2].tolist() == list(range(9))


def test_different_labels_are_never_merged() -> None:
    pool = pooled(prompts([0.0, 0.0], [0, 1]), prompts([0.0, 0.0], [2, 1]), threshold=1e6)
    assert pool.prompts.labels.tolist() == [0, 1, 2] and pool.members[:, 2].tolist() == [0, 1, 2, 1]


# --- the assignment ----------------------------------------------------------------------------------------


def greedy(sent: Prompts, pool: Prompts, threshold: float) -> list[int]:
    """Each in its turn takes the nearest that is left."""
    distances, taken = torch.cdist(sent.vectors, pool.vectors), []
    for own in distances:
        left = [p for p in range(len(own)) if p not in taken and own[p] < threshold]
        taken.append(min(left, key=lambda p: float(own[p])) if left else -1)
    return taken


@pytest.mark.parametrize(
    ("sent", "pool", "threshold", "partners"),
    [
        (line(2, 4.5), line(0, 3), 3.0, [0, 1]),  # 2 + 1.5, and not 1 + 3 for going without
        (line(1, -1), line(0, 2), 2.5, [1, 0]),  # 1 is as far from 0 as from 2
        (line(1, 0), line(0, 2), 1.5, [1, 0]),  # the same with a partner at distance 0
        (line(2, 4.5, 40), line(0, 3), 3.0, [0, 1, -1]),  # more are sent than there are
        (line(1, -1), line(0, 2, 40), 2.5, [1, 0]),  # fewer
        (line(1, 3, 5, 7), line(2, 4, 6), 1.5, None),  # four for three: any three, 1 each
    ],
)
def test_the_assignment_is_the_best_where_greedy_is_not(
    sent: Prompts, pool: Prompts, threshold: float, partners: list[int] | None
) -> None:
    found = match(sent, pool, threshold=threshold).tolist()
    if partners is None:
        assert cost(found, sent, pool, threshold) == pytest.approx(3 + threshold)
    else:
        assert found == partners != greedy(sent, pool, threshold)


def test_no_near_pair_is_spent_to_give_every_prompt_a_partner() -> None:
    sent, pool = line(9, 20), line(0, 10)
    assert match(sent, pool, threshold=torch.inf).tolist() == [0, 1]  # 9 + 10, and not 1 + 20
    assert match(sent, pool, threshold=5.0).tolist() == [1, -1]


def test_a_pair_at_the_threshold_is_not_merged() -> None:
    assert match(line(1), line(0), threshold=1.0).tolist() == [-1]
    assert match(line(1), line(0), threshold=1.001).tolist() == [0]


def cost(partner: list[int], sent: Prompts, pool: Prompts, threshold: float) -> float:
    """Distances of the pairs, and the threshold for each prompt without a partner; infinite across labels."""
    total = 0.0
    for i, p in enumerate(partner):
        if p >= 0 and sent.labels[i] != pool.labels[p]:
            return torch.inf
        total += threshold if p < 0 else float((sent.vectors[i].double() - pool.vectors[p].double()).norm())
    return total


def every_matching(sent: int, pool: int) -> list[list[int]]:
    """All ways in which each prompt has a partner of its own, or none."""
    ways = itertools.product(range(-1, pool), repeat=sent)
    return [list(way) for way in ways if len({p for p in way if p >= 0}) == sum(p >= 0 for p in way)]


@settings(deadline=None, max_examples=80)
@given(data=st.data(), grid=st.booleans(), threshold=st.floats(0.1, 6))
def test_the_assignment_equals_a_search_over_all_of_them(data: st.DataObject, grid: bool, threshold: float) -> None:
    place = st.integers(-3, 3) if grid else st.floats(-3, 3, width=32)  # on the grid there are many ties

    def some(least: int) -> Prompts:
        one = st.tuples(place, place, st.integers(0, 1))
        drawn = data.draw(st.lists(one, min_size=least, max_size=4))
        return Prompts(
            torch.tensor([p[:2] for p in drawn], dtype=torch.float32).reshape(-1, 2),
            torch.tensor([p[2] for p in drawn], dtype=torch.int64),
            torch.ones(len(drawn), dtype=torch.int64),
        )

    sent, pool = some(1), some(0)
    found = match(sent, pool, threshold=threshold).tolist()
    assert found in every_matching(len(found), len(pool.labels))
    least = min(cost(way, sent, pool, threshold) for way in every_matching(len(found), len(pool.labels)))
    assert cost(found, sent, pool, threshold) == pytest.approx(least, abs=1e-9)
    merged = [(i, p) for i, p in enumerate(found) if p >= 0]
    assert all(float((sent.vectors[i] - pool.vectors[p]).norm()) < threshold + 1e-5 for i, p in merged)


# --- what stays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "stays"),
    [([3, 5, 4], 1), ([5, 3, 4], 0), ([2, 3, 4], 2), ([4, 4, 4], 0), ([3, 4, 4], 1), ([3, 2, 4], 2)],
)
def test_the_vector_with_most_data_stays_and_counts_add_up(counts: list[int], stays: int) -> None:
    """[3, 2, 4]: compared are the vectors, not the sum of 5 behind the pool's."""
    pool = pooled(*(prompts([float(k)], [7], [n]) for k, n in enumerate(counts)), threshold=10.0)
    assert pool.prompts.vectors.tolist() == [[stays]] and pool.prompts.labels.tolist() == [7]
    assert pool.prompts.counts.tolist() == [sum(counts)] and pool.largest.tolist() == [max(counts)]


def test_later_clients_are_matched_with_the_vector_that_stayed() -> None:
    sent = [prompts([0.0], [0], [1]), prompts([2.0], [0], [5]), prompts([4.0], [0], [1])]
    assert pooled(*sent, threshold=3.0).members.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]


def test_an_earlier_pool_is_not_changed_by_what_is_merged() -> None:
    before = pooled(prompts([0.0], [0], [1]), threshold=3.0)
    before.with_prompts(1, prompts([1.0, 9.0], [0, 0], [5, 5]), threshold=3.0)
    assert before.prompts.vectors.tolist() == [[0.0]] and before.prompts.counts.tolist() == [1]
    assert before.largest.tolist() == [1] and len(before.members) == 1


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), threshold=st.floats(0, 4))
def test_each_sent_prompt_is_in_the_provenance_once(seed: int, sizes: list[int], threshold: float) -> None:
    rng = generator(seed, "sent")

    def drawn(m: int) -> Prompts:
        labels, counts = torch.randint(3, (m,), generator=rng), torch.randint(1, 50, (m,), generator=rng)
        return Prompts(torch.randn(m, 2, generator=rng), labels, counts)

    sent = [drawn(m) for m in sizes]
    pool = pooled(*sent, threshold=threshold)
    client, place, row = pool.members.T
    assert list(zip(client.tolist(), place.tolist(), strict=True)) == [
        (k, i) for k, m in enumerate(sizes) for i in range(m)
    ]
    assert set(row.tolist()) == set(range(len(pool.prompts.labels)))
    assert all(len(row[client == k].unique()) == m for k, m in enumerate(sizes))  # no two of a client's are merged
    labels, counts, vectors = (torch.cat([getattr(p, of) for p in sent]) for of in ("labels", "counts", "vectors"))
    assert torch.equal(pool.prompts.labels[row], labels)
    for p in range(len(pool.prompts.labels)):
        behind = torch.nonzero(row == p)[:, 0]
        best = behind[counts[behind].argmax()]  # the first of the largest
        assert int(pool.prompts.counts[p]) == int(counts[behind].sum())
        assert int(pool.largest[p]) == int(counts[best])
        assert torch.equal(pool.prompts.vectors[p], vectors[best])


# --- the threshold -----------------------------------------------------------------------------------------


def test_the_threshold_by_hand() -> None:
    """Label 0: pairs at 6 and 6, crossed at 10 and 10. Label 1: a pair at 1. Across labels nothing counts."""
    one = prompts([[0, 0], [8, 0], [0, 0]], [0, 0, 1])
    other = prompts([[0, 1], [8, 6], [0, 6]], [1, 0, 0])
    assert threshold_between(one, other) == (8.0, 6.0, 10.0)


def test_with_one_prompt_a_label_the_threshold_is_from_pairs_of_any_labels() -> None:
    one, other = prompts([[0, 0], [8, 0]], [0, 1]), prompts([[0, 6], [8, 6]], [0, 1])
    assert threshold_between(one, other) == (8.0, 6.0, 10.0)


@pytest.mark.parametrize(("ours", "theirs"), [([0], [0]), ([0, 1], [2, 3])])
def test_a_threshold_needs_pairs(ours: list[int], theirs: list[int]) -> None:
    one, other = (prompts(torch.randn(len(labels), 3), labels) for labels in (ours, theirs))
    with pytest.raises(ValueError) as caught:
        threshold_between(one, other)
    assert str(caught.value) == "a threshold needs at least two public prompts: give method.threshold"


# --- on disk, and as a table -------------------------------------------------------------------------------


def test_a_pool_survives_the_disk(tmp_path: Path) -> None:
    pool = pooled(prompts(RANDOM, [0, 0, 1, 1, 1, 2], [9, 8, 7, 6, 5, 4]), prompts(RANDOM[:2], [0, 5]), threshold=1.0)
    write_tensors(tmp_path / "pool.safetensors", pool.to_params())
    again = PromptPool.from_params(read_tensors(tmp_path / "pool.safetensors")[0])

    def leaves(of: PromptPool) -> list[Tensor]:
        return [of.prompts.vectors, of.prompts.labels, of.prompts.counts, of.largest, of.members]

    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(leaves(pool), leaves(again), strict=True))
    more = prompts(RANDOM[3:4], [1], [50])
    after, same = (of.with_prompts(2, more, threshold=1.0) for of in (pool, again))
    assert all(torch.equal(a, b) for a, b in zip(leaves(after), leaves(same), strict=True))


def test_the_table_says_from_whom_each_row_is() -> None:
    first = prompts([[3.0, 4.0], [0.0, 0.0]], [2, 1], [10, 20])
    columns, rows = table(pooled(first, prompts([[0.0, 1.0]], [1], [5]), threshold=2.0))
    assert columns == ["prompt", "label", "records", "client:place", "norm"]
    assert rows == [["0", "2", "10", "0:0", "5.0000"], ["1", "1", "25", "0:1 1:0", "0.0000"]]
