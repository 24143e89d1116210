"""Partitions of N training records over M clients: lists of index tensors, disjoint, covering all, none empty.

"Class" is label column 0 (only `Entangled` uses hidden classes), of K; classes without records do not count. Partitions
that count records by class, so that another label of one record moves others, have labels public by declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff import seeding
from raydiff.data import entangled
from raydiff.data.records import Records

MOST_DRAWS = 1000  # of a Dirichlet partition with a least number of records: seconds where there are 50,000
TEN_CLASSES = (0, 1, 6, 7, 9)  # PFDM's first cluster of the ten digits; the second is 2, 3, 4, 5, 8


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """One client with all records: centralised training."""


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Shuffled and cut into M parts, equal to within one record."""


@dataclass(frozen=True, kw_only=True)
class ByClass:
    """Client i has the classes i, i + M, ...; if M > K, clients i, i + K, ... divide class i evenly."""


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Each class has proportions over the clients drawn from Dirichlet(alpha, ..., alpha), by which each record goes to
    a client at random (Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019)."""

    alpha: float = 0.5
    """Concentration: near 0 each class goes to one client, at infinity clients are equal."""
    balanced: bool = False
    """As in NIID-Bench (arXiv 2102.02079): clients with 1 / M of all records get no later class. Labels are public."""
    least: int = 0
    """Fewest records of a client, for which the partition is drawn again (NIID-Bench: 10); labels are then public."""

    def __post_init__(self) -> None:
        if not 1e-6 <= self.alpha <= 1e6:
            raise ValueError(f"partition.alpha must be between 1e-6 and 1e6, got {self.alpha}")
        if self.least < 0:
            raise ValueError(f"partition.least must be at least 0, got {self.least}")


@dataclass(frozen=True, kw_only=True)
class MajorityMinority:
    """Clients with many records of half of the classes and few of the others, as in PFDM (arXiv 2504.00952): those of
    even clients are the first of `clusters`, those of odd clients the second."""

    ratio: float = 0.1
    """Records of a class at each minority client over those at a majority client (default: PFDM's attacker's set)."""
    minority: int | None = None
    """Records of a class at each minority client, in place of `ratio`."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"partition.ratio must be above 0 and at most 1, got {self.ratio}")
        if self.minority is not None and self.minority < 1:
            raise ValueError(f"partition.minority must be at least 1, got {self.minority}")


@dataclass(frozen=True, kw_only=True)
class Entangled:
    """Each client has base distributions, and equally many records of the others', as in FedDistr (arXiv 2410.12530):
    hidden classes with `data.superclasses`, else classes, whose number the clients must divide."""

    xi: float = 0.0
    """Entangled coefficient of every pair, in [0, 1)."""

    def __post_init__(self) -> None:
        if not 0 <= self.xi < 1:
            raise ValueError(f"partition.xi must be at least 0 and below 1, got {self.xi}")


@dataclass(frozen=True, kw_only=True)
class Newcomers:
    """Unseen clients, which join after the last round, each with records of a few classes. Labels are then public."""

    clients: int = 5
    """Number of unseen clients."""
    classes: int = 2
    """Classes of each, drawn at random, with equally many records (to within one)."""
    records: int = 40
    """Records of each."""
    own_classes: bool = False
    """No other client has records of their classes, of which they take at most `records`."""

    def __post_init__(self) -> None:
        if self.clients < 1 or self.classes < 1 or self.records < self.classes:
            raise ValueError(f"newcomers need clients >= 1, classes >= 1 and a record of each class, got {self}")


Partition = Pooled | Iid | ByClass | Dirichlet | MajorityMinority | Entangled


def partition(records: Records, clients: int, *, how: Partition, rng: torch.Generator) -> list[Tensor]:
    """Positions within `records`, ascending int64, for each of M = `clients` clients. Raises ValueError if a client
    would get no record (under MajorityMinority: no record of some class)."""
    if clients < 1 or (isinstance(how, Pooled) and clients != 1):
        wanted = "1 for a Pooled partition" if clients > 1 else "at least 1"
        raise ValueError(f"clients must be {wanted}, got {clients}")
    if not len(records):
        raise ValueError("clients would get no record: there are none")
    order = torch.randperm(len(records), generator=rng)
    if isinstance(how, Pooled | Iid):
        parts = list(order.tensor_split(clients))
    elif isinstance(how, Dirichlet):
        parts = _drawn(records.labels[:, 0], order, clients, how, rng)
    else:
        labels = records.bases if isinstance(how, Entangled) else records.labels[:, 0]
        sizes, shuffled = _sizes(labels, clients, how, rng), labels[order]
        cut = [order[shuffled == c].split(row.tolist()) for c, row in zip(labels.unique(), sizes, strict=True)]
        parts = [torch.cat(pieces) for pieces in zip(*cut, strict=True)]
    for client, part in enumerate(parts):
        if not len(part):
            few = f"{len(records)} records for {clients} clients"
            raise ValueError(f"client {client} would get no record ({few}): lower clients or raise data.train")
    return [part.sort().values for part in parts]


def publishes_labels(how: Partition) -> bool:
    """Whether the label of one record may move other records, so that labels are public by declaration."""
    return how.balanced or how.least > 0 if isinstance(how, Dirichlet) else not isinstance(how, Pooled | Iid)


def newcomers(records: Records, how: Newcomers, *, rng: torch.Generator) -> tuple[list[Tensor], Tensor]:
    """(positions of each unseen client's records, positions of the remaining records), ascending int64. Raises
    ValueError if there are too few classes, or records of a class."""
    present, parts = records.labels[:, 0].unique(), []
    wanted = how.classes * how.clients + 1 if how.own_classes else how.classes
    if wanted > len(present):
        one, more = (" (one at least is for the others)", " or newcomers.clients") if how.own_classes else ("", "")
        few = f"{wanted} classes are needed{one}, there are {len(present)}"
        raise ValueError(f"newcomers.classes: {few}: lower it{more}")
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
            few = f"{len(classes)} classes have {max(numbers)} records left, {how.classes} are wanted"
            raise ValueError(f"too few training records ({few}): lower newcomers.records or newcomers.clients")
        rows = []
        for c, n in zip(classes, numbers, strict=True):
            held = left.pop(c)
            if not how.own_classes:
                left[c] = held[n:]
            rows.append(held[:n])
        parts.append(torch.cat(rows).sort().values)
    return parts, torch.cat(list(left.values())).sort().values


def _sizes(labels: Tensor, clients: int, how: ByClass | MajorityMinority | Entangled, rng: torch.Generator) -> Tensor:
    """(K, M) int64: records of each class for each client."""
    classes, sizes = labels.unique(return_counts=True)
    if isinstance(how, Entangled):
        return entangled.shares(sizes, clients, how.xi, rng=rng)
    if isinstance(how, MajorityMinority):
        return _majority_minority(classes.tolist(), sizes, clients, how)
    out = torch.zeros(len(sizes), clients, dtype=torch.int64)
    for k, n in enumerate(sizes.tolist()):
        owners = range(k % clients, clients, len(sizes))
        out[k, owners] = _evenly(n, len(owners))
    return out


def _drawn(labels: Tensor, order: Tensor, clients: int, how: Dirichlet, rng: torch.Generator) -> list[Tensor]:
    """The first draw, or the first of MOST_DRAWS in which each client has `how.least` records."""
    least, largest = max(how.least, 1), 0
    for draw in range(MOST_DRAWS):
        parts = _dirichlet(labels, order, clients, how, rng)
        smallest = min(map(len, parts))
        if smallest >= least and (how.least or draw == 0):
            return parts
        if (largest := max(largest, smallest)) and not how.least:
            break  # The first draw counts; the others tell whether `least` would help.
    again = f"set partition.least to {min(largest, least)} (labels are then public), " if largest else ""
    skewed = f"raise partition.alpha ({how.alpha:g}), " if least * clients <= len(labels) else ""
    few = f"{'none' if least == 1 else f'fewer than {least}'} of {len(labels)} records for {clients} clients"
    draws = f"in {f'each of {MOST_DRAWS} draws' if how.least else 'the draw'} of a Dirichlet partition"
    raise ValueError(f"a client would get {few} {draws}: {again}{skewed}lower clients or raise data.train")


def _dirichlet(labels: Tensor, order: Tensor, clients: int, how: Dirichlet, rng: torch.Generator) -> list[Tensor]:
    """Each record, at its place order (N,), by its class's proportions, which are drawn alike for any numbers."""
    place, owners = (order.double() + 0.5) / len(order), torch.zeros_like(order)
    ones, held = torch.ones(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.int64)
    with seeding.forked(rng):
        for c in range(int(labels.max()) + 1):
            # Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha), in logs: torch 2's Dirichlet underflows at small alpha
            gamma = torch.distributions.Gamma((how.alpha + 1) * ones, ones).sample()
            weights = gamma.log() + torch.rand_like(ones).log() / how.alpha
            if how.balanced:
                weights = weights.masked_fill(held * clients >= len(labels), -torch.inf)
            mine = labels == c
            ends = weights.softmax(0).cumsum(0)
            owners[mine] = torch.searchsorted(ends, place[mine]).clamp_max(clients - 1)
            held += owners[mine].bincount(minlength=clients)
    return [(owners == client).nonzero()[:, 0] for client in range(clients)]


def _majority_minority(classes: list[int], sizes: Tensor, clients: int, how: MajorityMinority) -> Tensor:
    """Minority clients of a class get equal numbers, majority clients divide the rest evenly."""
    if clients < 2 or len(classes) < 2:
        got = f"{clients} clients and {len(classes)} classes"
        raise ValueError(f"a MajorityMinority partition needs at least 2 clients and 2 classes, got {got}")
    first, _ = clusters(classes)
    out = torch.empty(len(classes), clients, dtype=torch.int64)
    for k, (c, n) in enumerate(zip(classes, sizes.tolist(), strict=True)):
        start = 0 if c in first else 1
        majority, minority = range(start, clients, 2), range(1 - start, clients, 2)
        # At least one record, and never more than n // clients: rounding must not make the minority the larger part.
        few = max(1, round(how.ratio * n / (len(majority) + how.ratio * len(minority))))
        few = how.minority or min(few, n // clients)
        if not 1 <= few <= n // clients:
            most, fits = int(sizes.min()), "at least 1 and no more than a majority client's"
            lower = f"partition.minority to {most // clients} or " if how.minority and most >= clients else ""
            what = f"{few} of the {n} records of class {c} ({clients} clients), which must be {fits}"
            remedy = f"lower {lower}clients to {max(most, 2)} at most, raise data.train or set partition to iid"
            raise ValueError(f"a minority client would get {what}: {remedy}")
        out[k, minority] = few
        out[k, majority] = _evenly(n - few * len(minority), len(majority))
    return out


def _evenly(n: int, parts: int) -> Tensor:
    """n cut into parts that differ by at most one."""
    return torch.tensor([n // parts + (i < n % parts) for i in range(parts)])


def clusters(classes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two clusters of the ascending classes: PFDM's for 0 to 9, else the first and the second half."""
    first = TEN_CLASSES if list(classes) == list(range(10)) else tuple(classes[: len(classes) // 2])
    return first, tuple(c for c in classes if c not in first)


def groups(records: Records) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(majority classes, minority classes) of one client's records, ascending: minority classes have fewer than half
    the records of its largest class, and at least one."""
    classes, sizes = records.labels[:, 0].unique(return_counts=True)
    few = 2 * sizes < (sizes.max() if len(sizes) else 0)
    return tuple(classes[~few].tolist()), tuple(classes[few].tolist())


def counts(records: Records, parts: Sequence[Tensor], classes: int) -> Tensor:
    """(M, classes) int64: records of each class, or hidden class, of each client."""
    return torch.stack([records.bases[part].bincount(minlength=classes) for part in parts])
