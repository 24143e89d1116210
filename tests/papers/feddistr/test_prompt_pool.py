"""FedDistr's server: who is matched with whom, what stays of it, and that nothing is lost."""

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st

from raydiff.papers.feddistr.prompt_pool import (
    PromptPool,
    Prompts,
    match_prompts,
    repeat_rows,
    split_classes,
    threshold_between,
)
from raydiff.seeding import generator


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
@settings(deadline=None, max_examples=20)
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


# --- the assignment ----------------------------------------------------------------------------------------


def test_a_pair_at_the_threshold_is_not_merged() -> None:
    assert match_prompts(line(1), line(0), threshold=1.0).tolist() == [-1]
    assert match_prompts(line(1), line(0), threshold=1.001).tolist() == [0]


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


@settings(deadline=None, max_examples=40)
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
    result = match_prompts(sent, pool, threshold=threshold).tolist()
    assert result in every_matching(len(result), len(pool.labels))
    least = min(cost(way, sent, pool, threshold) for way in every_matching(len(result), len(pool.labels)))
    assert cost(result, sent, pool, threshold) == pytest.approx(least, abs=1e-9)
    merged = [(i, p) for i, p in enumerate(result) if p >= 0]
    assert all(float((sent.vectors[i] - pool.vectors[p]).norm()) < threshold + 1e-5 for i, p in merged)


# --- what stays --------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"at least two public prompts: set method\.threshold"):
        threshold_between(one, other)


def test_halves_have_equally_many_records_of_each_class_and_none_in_common() -> None:
    classes = torch.tensor([0] * 9 + [1] * 9)
    one, other = split_classes(classes, generator(1))
    assert not set(one.tolist()) & set(other.tolist())
    assert [classes[half].bincount().tolist() for half in (one, other)] == [[4, 4], [4, 4]]


def test_pictures_are_in_proportion_to_records_at_least_one_for_each_prompt() -> None:
    assert repeat_rows(torch.tensor([100, 299, 1]), 40).bincount().tolist() == [10, 30, 1]
