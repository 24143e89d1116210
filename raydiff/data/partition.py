"""Partitions of N training records over M clients: each record has one owner, and each client at least one record.

"Class" is label column 0 (`Entangled` counts hidden classes), of K; classes without records do not count. Partitions
that count records by class, so that another label of one record moves others, have labels public by declaration.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from raydiff import seeding
from raydiff.data import entangled
from raydiff.data.records import Records
from raydiff.lookup import Door
from raydiff.settings import Count, Natural, settings

MOST_DRAWS = 1000  # of a Dirichlet partition with a least number of records: seconds where there are 50,000
TEN_CLASSES = (0, 1, 6, 7, 9)  # PFDM's first cluster of the ten digits; the second is 2, 3, 4, 5, 8


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base class of partitions. A subclass is a frozen dataclass with a default for each field."""

    counts_hidden_classes: ClassVar[bool] = False
    """Whether `assign` is given the hidden classes, where superclasses hide them, in place of the labels."""

    @abstractmethod
    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        """Return the client of each record, 0 to M - 1, (N,) int64, for labels (N, K) int64.

        Raises ValueError where the records do not suffice.
        """

    @property
    def publishes_labels(self) -> bool:
        """Whether the label of one record may move other records, so that labels are public by declaration."""
        return True


@settings(frozen=True, kw_only=True)
class Pooled(Partition):
    """One client with all records: centralised training.

    Examples:
        >>> import torch
        >>> labels = torch.arange(12)[:, None] % 4
        >>> rd.Pooled().assign(labels, 1, torch.Generator()).unique().tolist()
        [0]
    """

    publishes_labels = False

    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        if clients != 1:
            raise ValueError(f"clients must be 1 for a Pooled partition, got {clients}")
        return torch.zeros(len(labels), dtype=torch.int64)


@settings(frozen=True, kw_only=True)
class Iid(Partition):
    """Shuffled and cut into M parts, equal to within one record.

    Examples:
        >>> import torch
        >>> labels = torch.arange(12)[:, None] % 4
        >>> rd.Iid().assign(labels, 3, torch.Generator()).bincount().tolist()
        [4, 4, 4]
    """

    publishes_labels = False

    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        order = torch.randperm(len(labels), generator=rng)
        return _deal(torch.zeros_like(order), _evenly(len(order), clients)[None], order)


@settings(frozen=True, kw_only=True)
class ByClass(Partition):
    """Client i has the classes i, i + M, ...; if M > K, clients i, i + K, ... divide class i evenly.

    Examples:
        >>> import torch
        >>> labels = torch.arange(12)[:, None] % 4
        >>> owners = rd.ByClass().assign(labels, 2, torch.Generator())
        >>> labels[owners == 0].unique().tolist()
        [0, 2]
    """

    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        sizes = labels[:, 0].unique(return_counts=True)[1].tolist()
        table = torch.zeros(len(sizes), clients, dtype=torch.int64)
        for k, n in enumerate(sizes):
            owners = range(k % clients, clients, len(sizes))
            table[k, owners] = _evenly(n, len(owners))
        return _deal(labels[:, 0], table, torch.randperm(len(labels), generator=rng))


@settings(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class has proportions over the clients drawn from Dirichlet(alpha, ..., alpha).

    Each record goes to a client at random by those of its class (Yurochkin et al., "Bayesian Nonparametric Federated
    Learning of Neural Networks", ICML 2019).

    Examples:
        >>> import torch
        >>> labels = torch.arange(12)[:, None] % 4
        >>> owners = rd.Dirichlet(alpha=1.0, least=2).assign(labels, 3, torch.Generator())
        >>> int(owners.bincount().min()) >= 2
        True
    """

    alpha: Annotated[float, Ge(1e-6), Le(1e6)] = 0.5
    """Concentration: near 0 each class goes to one client, at infinity clients are equal."""
    balanced: bool = False
    """As in NIID-Bench (arXiv 2102.02079): clients with 1 / M of all records get no later class. Labels are public."""
    least: Natural = 0
    """Fewest records of a client, for which the partition is drawn again (NIID-Bench: 10); labels are then public."""

    @property
    def publishes_labels(self) -> bool:
        return self.balanced or self.least > 0

    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        """Return the first draw, or the first of MOST_DRAWS in which each client has `least` records."""
        order = torch.randperm(len(labels), generator=rng)
        least = max(self.least, 1)
        draws = MOST_DRAWS if self.least else 1
        for _ in range(draws):
            owners = self._draw(labels[:, 0], order, clients, rng)
            if owners.bincount(minlength=clients).min() >= least:
                return owners
        again = "lower partition.least" if self.least else "set partition.least to 1 (labels are then public)"
        raise ValueError(
            f"a client would get fewer than {least} of {len(labels)} records for {clients} clients in {draws} "
            f"draw{'s' * (draws > 1)} of a Dirichlet partition: {again}, raise partition.alpha ({self.alpha:g}), "
            "lower clients or raise data.train"
        )

    def _draw(self, classes: Tensor, order: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        """Each record, at its place order (N,), by its class's proportions, which are drawn alike for any numbers."""
        place = (order.double() + 0.5) / len(order)
        owners = torch.zeros_like(order)
        ones = torch.ones(clients, dtype=torch.float64)
        held = torch.zeros(clients, dtype=torch.int64)
        with seeding.fork_rng(rng):
            for c in range(int(classes.max()) + 1):
                # Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha), in logs: torch 2's Dirichlet underflows at small alpha
                gamma = torch.distributions.Gamma((self.alpha + 1) * ones, ones).sample()
                weights = gamma.log() + torch.rand_like(ones).log() / self.alpha
                if self.balanced:
                    weights = weights.masked_fill(held * clients >= len(classes), -torch.inf)
                mine = classes == c
                owners[mine] = torch.searchsorted(weights.softmax(0).cumsum(0), place[mine]).clamp_max(clients - 1)
                held += owners[mine].bincount(minlength=clients)
        return owners


@settings(frozen=True, kw_only=True)
class MajorityMinority(Partition):
    """Clients with many records of half of the classes and few of the others (PFDM, arXiv 2504.00952).

    The classes of even clients are the first of `clusters`, those of odd clients the second.

    Examples:
        >>> import torch
        >>> labels = torch.arange(12)[:, None] % 4
        >>> owners = rd.MajorityMinority(minority=1).assign(labels, 2, torch.Generator())
        >>> labels[owners == 0, 0].bincount().tolist()
        [2, 2, 1, 1]
    """

    ratio: Annotated[float, Gt(0), Le(1)] = 0.1
    """Records of a class at each minority client over those at a majority client (default: PFDM's attacker's set)."""
    minority: Count | None = None
    """Records of a class at each minority client, in place of `ratio`."""

    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        """Minority clients of a class get equal numbers, majority clients divide the rest evenly."""
        classes, sizes = labels[:, 0].unique(return_counts=True)
        if clients < 2 or len(classes) < 2:
            raise ValueError(
                f"a MajorityMinority partition needs at least 2 clients and 2 classes, got {clients} clients and "
                f"{len(classes)} classes"
            )
        first, _ = clusters(classes.tolist())
        table = torch.empty(len(classes), clients, dtype=torch.int64)
        for k, (c, n) in enumerate(zip(classes.tolist(), sizes.tolist(), strict=True)):
            start = 0 if c in first else 1
            majority = range(start, clients, 2)
            minority = range(1 - start, clients, 2)
            # At least one record, and never more than n // clients: rounding must not make the minority larger.
            few = max(1, round(self.ratio * n / (len(majority) + self.ratio * len(minority))))
            few = self.minority or min(few, n // clients)
            if not 1 <= few <= n // clients:
                raise ValueError(
                    f"a minority client would get {few} of the {n} records of class {c} ({clients} clients), which "
                    "must be at least 1 and no more than a majority client's: lower clients or partition.minority, "
                    "raise data.train or set partition to iid"
                )
            table[k, minority] = few
            table[k, majority] = _evenly(n - few * len(minority), len(majority))
        return _deal(labels[:, 0], table, torch.randperm(len(labels), generator=rng))


@settings(frozen=True, kw_only=True)
class Entangled(Partition):
    """Each client has base distributions, and equally many records of the others' (FedDistr, arXiv 2410.12530).

    Base distributions are hidden classes with `data.superclasses`, else classes; the clients must divide their number.

    Examples:
        >>> import torch
        >>> labels = torch.arange(12)[:, None] % 4
        >>> owners = rd.Entangled(xi=0.0).assign(labels, 2, torch.Generator())
        >>> [len(labels[owners == client].unique()) for client in (0, 1)]
        [2, 2]
    """

    counts_hidden_classes = True
    xi: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Entangled coefficient of every pair, in [0, 1)."""

    def assign(self, labels: Tensor, clients: int, rng: torch.Generator) -> Tensor:
        order = torch.randperm(len(labels), generator=rng)
        sizes = labels[:, 0].unique(return_counts=True)[1]
        return _deal(labels[:, 0], entangled.entangled_shares(sizes, clients, self.xi, rng=rng), order)


@settings(frozen=True, kw_only=True)
class UnseenClients:
    """Unseen clients, which join after the last round, each with records of a few classes. Labels are then public.

    Raises:
        ValueError: If `records` is below `classes`.

    Examples:
        >>> rd.Experiment(clients=3, unseen=rd.UnseenClients(clients=2)).everyone
        range(0, 5)
    """

    clients: Count = 5
    """Number of unseen clients."""
    classes: Count = 2
    """Classes of each, drawn at random, with equally many records (to within one)."""
    records: int = 40
    """Records of each."""
    own_classes: bool = False
    """No other client has records of their classes, of which they take at most `records`."""

    def __post_init__(self) -> None:
        if self.records < self.classes:
            raise ValueError(f"unseen clients need clients >= 1, classes >= 1 and a record of each class, got {self}")


PARTITIONS: Door[type[Partition]] = Door(
    "partition",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "majority-minority": MajorityMinority,
        "by-class": ByClass,
        "entangled": Entangled,
        "pooled": Pooled,
    },
    base=Partition,
)
"""Name -> class of a partition."""


def partition(records: Records, clients: int, *, how: Partition, rng: torch.Generator) -> list[Tensor]:
    """Positions within `records`, ascending int64, for each of M = `clients` clients.

    Raises ValueError if a client would get no record (under MajorityMinority: no record of some class).
    """
    if not len(records):
        raise ValueError("clients would get no record: there are none")
    owners = how.assign(records.bases[:, None] if how.counts_hidden_classes else records.labels, clients, rng)
    if (
        owners.shape != (len(records),)
        or owners.dtype != torch.int64
        or not 0 <= owners.min() <= owners.max() < clients
    ):
        raise ValueError(
            f"{type(how).__name__}.assign must return a client 0 .. {clients - 1} for each of {len(records)} "
            "records, int64"
        )
    parts = [(owners == client).nonzero()[:, 0] for client in range(clients)]
    for client, part in enumerate(parts):
        if not len(part):
            raise ValueError(
                f"client {client} would get no record ({len(records)} records for {clients} clients): lower clients "
                "or raise data.train"
            )
    return parts


def draw_unseen(records: Records, how: UnseenClients, *, rng: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """(positions of each unseen client's records, positions of the remaining records), ascending int64.

    Raises ValueError if there are too few classes, or records of a class.
    """
    present = records.labels[:, 0].unique()
    parts = []
    wanted = how.classes * how.clients + 1 if how.own_classes else how.classes
    if wanted > len(present):
        one, more = (" (one at least is for the others)", " or unseen.clients") if how.own_classes else ("", "")
        raise ValueError(f"unseen.classes: {wanted} classes are needed{one}, there are {len(present)}: lower it{more}")
    order = torch.randperm(len(records), generator=rng)
    left = {int(c): order[records.labels[order, 0] == c] for c in present}
    shuffled = present[torch.randperm(len(present), generator=rng)].tolist()
    numbers = _evenly(how.records, how.classes).tolist()
    for client in range(how.clients):
        classes = shuffled[client * how.classes :][: how.classes]
        if not how.own_classes:  # In random order, without those of which earlier clients left too few.
            drawn = present[torch.randperm(len(present), generator=rng)].tolist()
            classes = [c for c in drawn if len(left[c]) >= max(numbers)][: how.classes]
        if len(classes) < how.classes:
            raise ValueError(
                f"too few training records ({len(classes)} classes have {max(numbers)} records left, {how.classes} are "
                "wanted): lower unseen.records or unseen.clients"
            )
        rows = []
        for c, n in zip(classes, numbers, strict=True):
            rows.append(left[c][:n])
            left[c] = left[c][:0] if how.own_classes else left[c][n:]
        parts.append(torch.cat(rows).sort().values)
    return parts, torch.cat(list(left.values())).sort().values


def _deal(groups: Tensor, table: Tensor, order: Tensor) -> Tensor:
    """Return the owner of each record (N,), given the groups (N,).

    `table` (K, M) says how many records of each group, in the ascending order of their values, each client gets, in the
    shuffled `order` (N,).
    """
    owners = torch.empty_like(groups)
    for value, row in zip(groups.unique(), table, strict=True):
        owners[order[groups[order] == value]] = torch.arange(len(row)).repeat_interleave(row)
    return owners


def _evenly(n: int, parts: int) -> Tensor:
    """n cut into parts that differ by at most one."""
    return torch.tensor([n // parts + (i < n % parts) for i in range(parts)])


def clusters(classes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two clusters of the ascending classes: PFDM's for 0 to 9, else the first and the second half."""
    first = TEN_CLASSES if list(classes) == list(range(10)) else tuple(classes[: len(classes) // 2])
    return first, tuple(c for c in classes if c not in first)


def class_groups(records: Records) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (majority classes, minority classes) of one client's records, ascending.

    Minority classes have fewer than half the records of its largest class, and at least one.
    """
    classes, sizes = records.labels[:, 0].unique(return_counts=True)
    few = 2 * sizes < (sizes.max() if len(sizes) else 0)
    return tuple(classes[~few].tolist()), tuple(classes[few].tolist())


def counts(records: Records, parts: Sequence[Tensor], classes: int) -> Tensor:
    """(M, classes) int64: records of each class, or hidden class, of each client."""
    return torch.stack([records.bases[part].bincount(minlength=classes) for part in parts])
