"""Partitions: disjoint, covering, seeded, nobody empty; the shapes that the schemes promise; the picture."""

import itertools
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from raydiff.data.datasets import Records
from raydiff.data.partition import (
    ByClass,
    Dirichlet,
    Entangled,
    Iid,
    MajorityMinority,
    Partition,
    Pooled,
    UnseenClients,
    class_groups,
    clusters,
    counts,
    draw_unseen,
    partition,
)
from raydiff.data.splits import cut
from raydiff.seeding import generator


def records(labels: list[int]) -> Records:
    n = len(labels)
    column = torch.tensor(labels, dtype=torch.int64).view(n, 1)
    return Records(torch.zeros(n, 1, 1, 1), column, torch.arange(n))


def equal_classes(classes: int, each: int) -> Records:
    return records(list(range(classes)) * each)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydiff.data.partition.MOST_DRAWS", 50)


def table(data: Records, clients: int, how: Partition, *, seed: int = 0) -> list[list[int]]:
    """Records by client and class."""
    classes = int(data.labels.max()) + 1
    parts = partition(data, clients, how=how, rng=generator(seed))
    result: list[list[int]] = counts(data, parts, classes).tolist()
    return result


schemes = st.one_of(
    st.just(Pooled()),
    st.just(Iid()),
    st.just(ByClass()),
    st.builds(Dirichlet, alpha=st.floats(0.01, 100)),
    st.builds(MajorityMinority, ratio=st.floats(0.01, 1)),
    st.builds(MajorityMinority, minority=st.integers(1, 4)),
    st.builds(Entangled, xi=st.floats(0, 0.999)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.lists(st.integers(0, 6), max_size=80),
    clients=st.integers(1, 6),
    how=schemes,
    seed=st.integers(0, 1000),
)
def test_disjoint_covering_seeded_and_nobody_empty_or_refused(
    labels: list[int], clients: int, how: Partition, seed: int, few_draws: None
) -> None:
    data = records(labels)
    try:
        parts = partition(data, clients, how=how, rng=generator(seed))
    except ValueError as error:
        assert str(error).startswith(("client", "a client", "a minority client", "a MajorityMinority", "an Entangled"))
        with pytest.raises(ValueError):
            partition(data, clients, how=how, rng=generator(seed))
        return
    assert len(parts) == clients and all(len(part) for part in parts)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    again = partition(data, clients, how=how, rng=generator(seed))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


every_label = st.lists(st.integers(0, 9), min_size=30, max_size=120)
one_change = st.tuples(st.integers(0, 10**6), st.integers(0, 12))


def changed(labels: list[int], change: tuple[int, int]) -> tuple[list[int], int]:
    """With another label for one record (also one that nobody else has), and which one that is."""
    row = change[0] % len(labels)
    return [*labels[:row], change[1], *labels[row + 1 :]], row


@given(
    labels=every_label,
    change=one_change,
    clients=st.integers(1, 5),
    how=st.one_of(st.just(Pooled()), st.just(Iid()), st.builds(Dirichlet, alpha=st.floats(0.05, 100))),
    seed=st.integers(0, 1000),
)
def test_another_label_of_one_record_moves_no_other_record(
    labels: list[int], change: tuple[int, int], clients: int, how: Partition, seed: int
) -> None:
    """Under each partition that leaves labels private; and every partition is either one of these or says so."""
    assert not how.publishes_labels
    others, row = changed(labels, change)
    held = []
    for of in (labels, others):
        try:
            parts = partition(records(of), 1 if isinstance(how, Pooled) else clients, how=how, rng=generator(seed))
        except ValueError as error:
            assert re.search("would get (no record|fewer than)", str(error))
            return
        held.append([set(part.tolist()) - {row} for part in parts])
    assert held[0] == held[1]


def test_partitions_that_count_labels_say_that_labels_are_public() -> None:
    counting = (ByClass(), MajorityMinority(), Entangled(), Dirichlet(balanced=True), Dirichlet(least=1))
    assert all(how.publishes_labels for how in counting)
    assert {type(how) for how in (*counting, Pooled(), Iid(), Dirichlet())} == set(Partition.__subclasses__())


@given(
    labels=every_label,
    change=one_change,
    own_test=st.sampled_from([0, 5, 9]),
    sizes=st.tuples(*[st.integers(0, 5)] * 4),
    whole=st.booleans(),
    public=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_another_label_of_one_record_moves_none_between_splits_nor_within_one(
    labels: list[int],
    change: tuple[int, int],
    own_test: int,
    sizes: tuple[int, ...],
    whole: bool,
    public: bool,
    seed: int,
) -> None:
    others = dict(zip(("public", "validation", "calibration", "test"), sizes, strict=True))
    wanted = {"train": None if whole else 3, **others}
    drawn = torch.arange(sizes[0]) if public else None
    one, other = (
        cut(torch.tensor(of), own_test, sizes=wanted, seed=seed, name="these", public=drawn)
        for of in (labels, changed(labels, change)[0])
    )
    assert {split: rows.tolist() for split, rows in one.items()} == {s: rows.tolist() for s, rows in other.items()}
    assert {split: len(one[split]) for split in others} == others


def test_by_class_deals_classes_in_turn() -> None:
    assert table(equal_classes(5, 4), 2, ByClass()) == [[4, 0, 4, 0, 4], [0, 4, 0, 4, 0]]


def test_by_class_shares_classes_among_many_clients() -> None:
    assert table(equal_classes(2, 5), 5, ByClass()) == [[2, 0], [0, 3], [2, 0], [0, 2], [1, 0]]


@pytest.mark.parametrize("alpha", [0.1, 5.0])
def test_dirichlet_has_the_moments_of_its_law(alpha: float) -> None:
    """One of M proportions: mean 1/M, variance (1/M)(1 - 1/M) / (M alpha + 1)."""
    data = equal_classes(1000, 40)
    shares = torch.tensor(table(data, 4, Dirichlet(alpha=alpha))).double() / 40  # (4, 1000)
    variance = 0.25 * 0.75 / (4 * alpha + 1)
    variance += (0.25 * 0.75 - variance) / 40  # of 40 records, each with its own place
    assert shares.mean(dim=1).tolist() == pytest.approx([0.25] * 4, abs=5 * (variance / 1000) ** 0.5)
    assert shares.var(dim=1).mean().item() == pytest.approx(variance, rel=0.1)


def test_balanced_dirichlet_gives_no_more_to_who_has_enough() -> None:
    """Ten classes of 100 for five clients: whoever has 200 after a class gets none of the next ones, and no field is
    said where it is not set."""
    data = equal_classes(10, 100)
    stopped = 0
    for seed in range(20):
        parts = partition(data, 5, how=Dirichlet(alpha=0.5, balanced=True), rng=generator(seed))
        table = counts(data, parts, 10)  # (5, 10)
        before = table.cumsum(1) - table
        assert not table[before >= 200].any() and int(table.sum()) == 1000
        stopped += int((before >= 200).sum())
        free = partition(data, 5, how=Dirichlet(alpha=0.5), rng=generator(seed))
        assert torch.equal(counts(data, free, 10)[:, 0], table[:, 0])  # the same draws
    assert stopped > 20


def test_majority_minority_has_the_papers_clusters() -> None:
    even, odd = table(equal_classes(10, 110), 2, MajorityMinority(ratio=0.1))
    assert even == [100, 100, 10, 10, 10, 10, 100, 100, 10, 100]
    assert odd == [10, 10, 100, 100, 100, 100, 10, 10, 100, 10]
    assert clusters(range(10)) == ((0, 1, 6, 7, 9), (2, 3, 4, 5, 8))
    assert clusters([1, 4, 5]) == ((1,), (4, 5))


@pytest.mark.parametrize(
    ("clients", "how", "text"),
    [
        (2, Pooled(), "clients must be 1 for a Pooled partition, got 2"),
        (21, Iid(), r"client 20 would get no record \(20 records for 21 clients\): lower clients"),
        (1, MajorityMinority(), "needs at least 2 clients and 2 classes, got 1 clients and 2 classes"),
        (
            11,
            MajorityMinority(ratio=0.5),
            "a minority client would get 0 of the 10 records of class 0 .*: lower clients or partition.minority",
        ),
        (3, Entangled(), "an Entangled partition of 2 base distributions needs 2 clients, got 3"),
        (
            2,
            MajorityMinority(minority=6),
            "a minority client would get 6 .* class 0 .* lower clients or partition.minority",
        ),
        (4, Dirichlet(alpha=0.001), r"fewer than 1 of 20 records for 4 clients in 1 draw of .*raise partition.alpha"),
        (4, Dirichlet(alpha=0.1, least=4), r"fewer than 4 .* in 50 draws of .*: lower partition.least"),
        (4, Dirichlet(least=6), r"fewer than 6 of 20 records for 4 clients.*, lower clients or raise data.train"),
    ],
)
def test_refusals_say_who_and_what_to_do(clients: int, how: Partition, text: str, few_draws: None) -> None:
    with pytest.raises(ValueError, match=text):
        partition(equal_classes(2, 10), clients, how=how, rng=generator(0))


REMEDIES = {
    "would get no record": [
        (24, Iid(), 20, Iid()),
        (20, ByClass(), 10, ByClass()),
    ],
    "set partition.least to 1 ": [
        (5, Dirichlet(alpha=0.1), 5, Dirichlet(alpha=0.1, least=1)),
        (5, Dirichlet(alpha=0.1, balanced=True), 5, Dirichlet(alpha=0.1, balanced=True, least=1)),
    ],
    "lower partition.least": [(4, Dirichlet(least=6), 4, Dirichlet(least=4))],
    "raise partition.alpha": [
        (5, Dirichlet(alpha=0.01), 5, Dirichlet(alpha=100)),
        (4, Dirichlet(least=5), 4, Dirichlet(alpha=100, least=5)),
    ],
    "lower clients": [
        (4, Dirichlet(least=6), 2, Dirichlet(least=6)),
        (5, Dirichlet(alpha=0.01), 4, Dirichlet(alpha=0.01)),
    ],
    "minority client": [
        (3, MajorityMinority(), 2, MajorityMinority()),
        (3, MajorityMinority(), 3, Iid()),
        (2, MajorityMinority(minority=5), 2, MajorityMinority(minority=1)),
    ],
    "needs 2, 4 clients": [(3, Entangled(), clients, Entangled()) for clients in (2, 4)],
    "clients must be 1": [(2, Pooled(), 1, Pooled())],
}
"""Part of a refusal -> (clients, partition) that are refused, and those that it names."""


@pytest.mark.parametrize(("text", "case"), [(text, case) for text, cases in REMEDIES.items() for case in cases])
def test_each_remedy_that_a_refusal_names_works(
    text: str, case: tuple[int, Partition, int, Partition], few_draws: None
) -> None:
    data = records([0] * 10 + [1] * 8 + [2] * 3 + [3] * 2)
    clients, how, fitting, remedy = case
    with pytest.raises(ValueError, match=text):
        partition(data, clients, how=how, rng=generator(0))
    parts = partition(data, fitting, how=remedy, rng=generator(0))
    assert min(map(len, parts)) >= max(1, getattr(remedy, "least", 0)) and sum(map(len, parts)) == len(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(labels=every_label, clients=st.integers(1, 6), alpha=st.floats(0.05, 10), least=st.integers(1, 5))
def test_a_least_size_changes_no_partition_that_has_it(
    labels: list[int], clients: int, alpha: float, least: int, few_draws: None
) -> None:
    """Else it is drawn again, from the same seed to the same end; labels are then public."""
    data = records(labels)

    def drawn(how: Partition) -> list[list[int]] | None:
        try:
            return [part.tolist() for part in partition(data, clients, how=how, rng=generator(1))]
        except ValueError:
            return None

    wanted = Dirichlet(alpha=alpha, least=least)
    once, again = drawn(Dirichlet(alpha=alpha)), drawn(wanted)
    assert wanted.publishes_labels and again == drawn(wanted)
    if once is not None and min(map(len, once)) >= least:
        assert again == once
    elif again is not None:
        assert min(map(len, again)) >= least and sorted(itertools.chain(*again)) == list(range(len(labels)))


def test_groups_by_half_of_the_largest_class() -> None:
    assert class_groups(records([0] * 10 + [1] * 5 + [2] * 4 + [4] * 1)) == ((0, 1), (2, 4))
    assert class_groups(records([3, 3])) == ((3,), ())
    assert class_groups(records([])) == ((), ())


def test_unseen_clients_get_their_classes_and_nobody_elses_records() -> None:
    data = equal_classes(10, 20)
    parts, rest = draw_unseen(data, UnseenClients(clients=4, classes=3, records=20), rng=generator(0))
    assert [len(part) for part in parts] == [20] * 4
    dealt = torch.cat([*parts, rest])
    assert sorted(dealt.tolist()) == list(range(200))
    sizes = counts(data, parts, 10)
    assert [sorted(row[row > 0].tolist()) for row in sizes] == [[6, 7, 7]] * 4
    assert len({tuple(row.nonzero().flatten().tolist()) for row in sizes}) > 1  # drawn for each
    again, _ = draw_unseen(data, UnseenClients(clients=4, classes=3, records=20), rng=generator(0))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


def test_unseen_clients_with_classes_of_their_own_share_them_with_nobody() -> None:
    data = equal_classes(10, 20)
    parts, rest = draw_unseen(data, UnseenClients(clients=3, classes=2, records=10, own_classes=True), rng=generator(0))
    theirs = [set(data.labels[part, 0].tolist()) for part in parts]
    others = set(data.labels[rest, 0].tolist())
    assert [len(part) for part in parts] == [10] * 3 and [len(t) for t in theirs] == [2] * 3
    assert len(set.union(*theirs, others)) == 10 == sum(map(len, theirs)) + len(others)
    few, _ = draw_unseen(data, UnseenClients(clients=1, classes=2, records=99, own_classes=True), rng=generator(0))
    assert [len(part) for part in few] == [40]


def test_unseen_clients_take_no_class_that_is_used_up() -> None:
    """Two of them use a class up; a third takes others."""
    for seed in range(20):
        parts, _ = draw_unseen(
            equal_classes(4, 12), UnseenClients(clients=3, classes=2, records=10), rng=generator(seed)
        )
        assert [len(part) for part in parts] == [10, 10, 10]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"classes": 4}, "unseen.classes: 4 classes are needed, there are 3"),
        (
            {"classes": 1, "records": 9},
            "few training records (0 classes have 9 records left, 1 are wanted)",
        ),
        (
            {"clients": 3, "classes": 1, "records": 4, "own_classes": True},
            "unseen.classes: 4 classes are needed (one at least is for the others), there are 3",
        ),
    ],
)
def test_unseen_clients_who_would_take_too_much_are_refused(how: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        draw_unseen(equal_classes(3, 8), UnseenClients(**{"clients": 1, **how}), rng=generator(0))
