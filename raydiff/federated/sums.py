"""The sum of a round's uploads, made where the clients are hosted.

Where all that a method needs of its uploads is their weighted mean (`Method.mean_spec`), a worker checks its clients'
uploads itself, adds them up, and sends one sum. Beside it travels a line about each client: what it sent, what that
costs, and why it is not in the sum if it is not. `ExactSum` gives the same bits however clients are dealt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raydiff import tree
from raydiff.federated.exact_sum import Bits, ExactSum, Grid, OutOfRange
from raydiff.federated.method import Mean, Method, Metrics, Upload
from raydiff.federated.upload_spec import UploadSpec
from raydiff.privacy.release import UNACCOUNTED, Event, accountable
from raydiff.storage.checkpoint import Store
from raydiff.tree import Params


@dataclass(frozen=True)
class UploadRecord:
    """What is known of an upload beside its value."""

    client: int
    event: Event
    bytes: int
    metrics: Metrics
    rejected: str | None = None
    """Why `aggregate` must not see it, in words; None: it may."""


@dataclass
class Partial:
    """The sum of some clients' uploads."""

    total: ExactSum
    weight: float = 0.0
    sent: list[UploadRecord] = field(default_factory=list)
    """A line for each of these clients; those that are rejected are not in the sum."""

    def merge(self, other: Partial) -> None:
        """Those clients' uploads too."""
        self.total.merge(other.total)
        self.weight += other.weight
        self.sent += other.sent

    @property
    def mean(self) -> Mean:
        """Raises ValueError where the weights of its uploads add up to nothing."""
        if not self.total.count:
            return Mean({}, 0)
        return Mean(self.total.over(self.weight), self.total.count)


class UploadValidator:
    """Where a round's uploads are checked, and added up."""

    def __init__(self, method: Method, server: Params, number: int, clients: int) -> None:
        self.method, self.number, self.clients = method, number, clients
        self.mean_spec = method.mean_spec(server)
        self.server = server if self.mean_spec is None else tree.flattened(server)
        self._forms: dict[int, UploadSpec] = {}

    def check(self, upload: Upload, metrics: Metrics) -> tuple[Upload, UploadRecord]:
        """The upload as it is accounted for."""
        upload = replace(upload, release=accountable(upload.release))
        why = self._objection(upload)
        return upload, UploadRecord(upload.client, upload.release.event, upload.release.nbytes, metrics, why)

    def partial(self, spare: Bits | None = None) -> Partial:
        """The sum of no uploads yet, of a method with a summand; `spare` is memory for it."""
        assert self.mean_spec is not None
        return Partial(ExactSum(Grid.of(self.mean_spec.largest, self.clients), spare))

    def add(self, partial: Partial, upload: Upload, metrics: Metrics) -> None:
        """One more upload: into the sum, or rejected."""
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

    def mean(self, uploads: Iterable[Upload]) -> Mean:
        """Of all these, in one go."""
        partial = self.partial()
        for upload in uploads:
            self.add(partial, upload, {})
        return partial.mean

    def _objection(self, upload: Upload) -> str | None:
        """Why an upload may not reach `aggregate`, in words; None: it may."""
        if upload.release.event == UNACCOUNTED:
            return "it sent what is no release of local trust"
        if not (isinstance(upload.examples, int) and upload.examples >= 0):
            return f"its number of records is {upload.examples}"
        if self.mean_spec is None and (why := _not_finite(upload)):  # A sum's range tells that too.
            return why
        if (form := self._forms.get(upload.examples)) is None:
            form = self._forms[upload.examples] = self.method.upload_spec(self.server, upload.examples, self.number)
        return form.mismatch(upload.release.value)


def _not_finite(upload: Upload) -> str | None:
    return None if tree.is_finite(upload.release.value) else "it is not finite"


def partial_sum(
    validator: UploadValidator,
    results: Iterable[tuple[Upload, Metrics]],
    *,
    spare: list[Bits],
    store: Store | None = None,
    seconds: float = math.inf,
) -> Partial:
    """The sum of the first of these results, as many as come within `seconds`, and one at least where there is one; to
    be sent, of which the store is told.

    The memory in `spare` is used, and left there for the next sum: whoever makes that needs this one no more.
    """
    partial, started = validator.partial(spare.pop() if spare else None), time.monotonic()
    for result in results:
        validator.add(partial, *result)
        if time.monotonic() - started >= seconds:
            break
    if partial.total.memory is not None:
        spare.append(partial.total.memory)
    if store is not None:
        store.note(validator.number, [(s.client, s.event, s.bytes) for s in partial.sent])
    return partial
