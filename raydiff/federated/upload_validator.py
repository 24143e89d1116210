"""Sums of a round's uploads, made where the clients are hosted.

If a method needs only the weighted mean of its uploads (`Method.mean_spec`), a worker checks its clients' uploads, adds
them up, and sends one sum with a record of each. `ExactSum` has the same bits however clients are distributed.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raydiff import tree
from raydiff.federated.exact_sum import ExactSum, Grid, OutOfRange
from raydiff.federated.method import Mean, Method, Metrics, Upload
from raydiff.federated.upload_spec import UploadSpec
from raydiff.privacy.release import UNACCOUNTED, Event, accountable
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params


@dataclass(frozen=True)
class UploadRecord:
    """An upload without its value."""

    client: int
    event: Event
    bytes: int
    metrics: Metrics
    rejected: str | None = None  # why it does not reach `aggregate`


@dataclass
class Partial:
    """The sum of some clients' uploads."""

    total: ExactSum
    weight: float = 0.0
    sent: list[UploadRecord] = field(default_factory=list)  # also of rejected uploads, which are not in the sum

    def merge(self, other: "Partial") -> None:
        """Add the sum of other clients' uploads."""
        self.total.merge(other.total)
        self.weight += other.weight
        self.sent += other.sent

    @property
    def mean(self) -> Mean:
        """The weighted mean. Raises ValueError if the weights add up to 0."""
        if not self.total.count:
            return Mean({}, 0)
        return Mean(self.total.over(self.weight), self.total.count)


class UploadValidator:
    """Checks a round's uploads, and adds them up."""

    def __init__(self, method: Method, server: Params, round_number: int, clients: int) -> None:
        self.method = method
        self.round_number = round_number
        self.clients = clients
        self.mean_spec = method.mean_spec(server)
        self.server = server if self.mean_spec is None else tree.flatten(server)
        self._specs: dict[int, UploadSpec] = {}

    def check(self, upload: Upload, metrics: Metrics) -> tuple[Upload, UploadRecord]:
        """Return the upload as it is accounted for, and its record."""
        upload = replace(upload, release=accountable(upload.release))
        why = self._mismatch(upload)
        return upload, UploadRecord(upload.client, upload.release.event, upload.release.nbytes, metrics, why)

    def partial(self) -> Partial:
        """Return an empty sum, of a method with a `mean_spec`."""
        assert self.mean_spec is not None
        return Partial(ExactSum(Grid.of(self.mean_spec.largest, self.clients)))

    def add(self, partial: Partial, upload: Upload, metrics: Metrics) -> None:
        """Add one more upload to the sum, or reject it."""
        upload, sent = self.check(upload, metrics)
        if sent.rejected is None:
            assert self.mean_spec is not None
            weight = self.mean_spec.weight(upload.examples)
            try:
                partial.total.add(upload.release.value, weight)
                partial.weight += weight
            except OutOfRange as e:
                sent = replace(sent, rejected=_not_finite(upload) or str(e))
        partial.sent.append(sent)

    def _mismatch(self, upload: Upload) -> str | None:
        """Why an upload may not reach `aggregate`; None: it may."""
        if upload.release.event == UNACCOUNTED:
            return "it sent what is no release of local trust"
        if not (isinstance(upload.examples, int) and upload.examples >= 0):
            return f"its number of records is {upload.examples}"
        if self.mean_spec is None and (why := _not_finite(upload)):  # A sum's range tells that too.
            return why
        if (spec := self._specs.get(upload.examples)) is None:
            spec = self._specs[upload.examples] = self.method.upload_spec(
                self.server, upload.examples, self.round_number
            )
        return spec.mismatch(upload.release.value)


def _not_finite(upload: Upload) -> str | None:
    return None if tree.is_finite(upload.release.value) else "it is not finite"


def partial_sum(
    validator: UploadValidator,
    results: Iterable[tuple[Upload, Metrics]],
    *,
    store: Checkpoint | None = None,
    seconds: float = math.inf,
) -> Partial:
    """Return the sum of the results that come within `seconds`, at least one, noted in the store."""
    partial = validator.partial()
    started = time.monotonic()
    for result in results:
        validator.add(partial, *result)
        if time.monotonic() - started >= seconds:
            break
    if store is not None:
        store.note(validator.round_number, [(s.client, s.event, s.bytes) for s in partial.sent])
    return partial
