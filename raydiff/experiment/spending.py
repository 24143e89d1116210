"""A privacy budget that trials on the same records share, and the log of what each was charged.

    <storage>/budgets/<name>-<digest>/00001.json    the budget, from the first trial that had one
    <storage>/budgets/<name>-<digest>/00002.json    the charge of a trial, and so on: see `storage.append_log`
    <storage>/sweeps/.budgeted/<name>-<digest>      the key of the digests in it
    <trial>/budget.json                             the trial's key in that log, and the number of its record

A trial is charged once, before its first round, for all its rounds (`Method.upload_event`). No process sends anything
while the trial's note has no number (`BudgetGuard`), or more than was charged (`Client.run`). A stopped trial gets
nothing back. Trials are charged with their worst client, and add up in a privacy filter (`privacy.filters`). An example
is in at most one client of a trial, so this covers it unless it is public there: all trials must have the same public
rows, and under the unit client the same partition (`privacy_units`).

The log belongs to a data source, however it is split or resized: two splits share records. Trials from before there was
a budget are charged when it begins, with what they have sent; Gaussian DP's filter adds them up in any order.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from raydiff.data.datasets import Data
from raydiff.data.source_registry import identity
from raydiff.experiment import config
from raydiff.experiment.client_records import privacy_units
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of, plan_ledger
from raydiff.formats import rounding
from raydiff.formats.json_files import place_of, read_json, read_outcome, read_sealed, sealed, trial_folders
from raydiff.privacy import filters
from raydiff.privacy.filters import Budget, Order
from raydiff.privacy.release import Event, NonPrivate
from raydiff.storage import staging
from raydiff.storage.append_log import BudgetLog
from raydiff.storage.atomic_files import LeaseLost, write_text
from raydiff.storage.lease import Lease

NOTE = "budget.json"
OVER = ("finished", "stopped")  # outcomes of trials that no --resume runs again
LISTED = 3  # trials in a message
AS_PUBLIC = NonPrivate("records of this data set (as data.public_from)")


@dataclass(frozen=True)
class BudgetGuard:
    """A checkpoint's guard: nothing is sent without the sweep's lease, or without a charge where there is a budget."""

    owner: Lease | None
    trial: Path
    book: BudgetLog

    def __call__(self) -> None:
        """Raises LeaseLost if the trial may not go on."""
        if self.owner is not None:
            self.owner()
        if self.book.begun and _note(self.trial).get("record") is None:
            raise LeaseLost(f"{_who(self.trial)} is not charged to {self.book.folder}, which was begun meanwhile")


def budget_log_of(trial: Path, data: Data) -> BudgetLog:
    """The budget log of the data of a trial in this folder."""
    return BudgetLog(trial.parents[3] / "budgets" / called(identity(data.name)))


def called(source: str) -> str:
    """The name of a data source's log."""
    short = re.sub(r"[^\w.-]", "-", PurePath(source).name)[:40]
    return f"{short}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def check_spending(trials: Sequence[Experiment], sweep: Path) -> None:
    """Raises ValueError, naming the first trial that would overspend, unless all can be charged. Nothing is written."""
    pending: dict[Path, list[tuple[Experiment, Path]]] = {}
    for experiment in trials:
        folder = sweep / "trials" / experiment.digest
        book = _bound(experiment, folder)
        if book is not None and (read_outcome(folder) or {}).get("outcome") not in OVER:
            pending.setdefault(book.folder, []).append((experiment, folder))
    for at, waiting in pending.items():
        budgets = [experiment.runtime.budget for experiment, _ in waiting]
        state = _State.of(BudgetLog(at), next(filter(None, budgets), None))
        for experiment, folder in waiting:
            if not state.is_charged(_key_of(folder)):
                state = replace(state, pending=(*state.pending, state.charge_of(experiment, folder)))


def charge(experiment: Experiment, folder: Path) -> None:
    """Charge a trial once for all its rounds, if its data have a budget; durable when this returns.

    Raises ValueError, naming the trial, if it would overspend or the log is damaged.
    """
    if (book := _bound(experiment, folder)) is None:
        return
    key = _key(folder, book)
    while True:
        state = _State.of(book, experiment.runtime.budget)
        if state.is_charged(key):
            break
        record = state.charge_of(experiment, folder)
        with suppress(FileExistsError):  # Another process was faster: look again.
            if not state.records:
                book.add({"budget": asdict(state.budget), "source": identity(experiment.data.name)}, 1)
            elif state.secret is None:
                staging.write_secret(book.marker, secrets.token_bytes(32), if_absent=True)
            else:
                first, record = next(iter(state.early.items()), (folder, record))
                book.add({**record, "key": _key(first, book)}, len(state.records) + 1)
    number = max(n for n, record in enumerate(state.records, 1) if record.get("key") == key)
    write_text(
        folder / NOTE,
        sealed({"key": key, "book": book.folder.name, "record": number}, place_of(folder / NOTE)),
        durable=True,
    )


def _bound(experiment: Experiment, folder: Path) -> BudgetLog | None:
    """The log that the trial is charged to, if any. Raises ValueError if another budget covers its public records."""
    book = budget_log_of(folder, experiment.data)
    public_from = experiment.data.public_from
    other = book if public_from is None else BudgetLog(book.folder.with_name(called(identity(public_from))))
    if other != book and other.begun:
        raise ValueError(
            f"{_named(experiment, folder)} cannot declare them public: data.public_from is {public_from}, whose "
            f"records are under the budget in {other.folder}"
        )
    return book if experiment.runtime.budget or book.begun else None


@dataclass(frozen=True)
class _State:
    """A log's records, and those that are still to be written."""

    book: BudgetLog
    budget: Budget
    secret: bytes | None  # the log's key
    records: list[dict[str, Any]]
    early: dict[Path, dict[str, Any]]  # what trials from before there was a budget have sent, as records
    pending: tuple[dict[str, Any], ...] = ()  # records of trials that will be charged before the next one

    @classmethod
    def of(cls, book: BudgetLog, configured: Budget | None) -> _State:
        """Read the log; `configured` is the budget of an empty one. Raises ValueError if it is damaged or overspent."""
        storage = book.folder.parents[1]
        notes = dict(_notes(storage, book))  # before the log: no record written meanwhile is missed
        sent = dict(_find_uncharged(storage, book, notes))
        secret = book.marker.read_bytes() if book.marker.exists() else None
        records = book.records()
        _check_notes(book, records, notes)
        budget = Budget(**records[0]["budget"]) if records else configured
        assert budget is not None  # else there is no log
        state = cls(book, budget, secret, records, {})
        early = dict[Path, tuple[Event, ...]]()
        recorded = {r["key"]: Counter(filters.events_from_json(r["events"])) for r in records[1:]}
        for folder, events in sent.items():
            key = _key_of(folder)  # read now: it may have been charged, and have sent, since its note was read
            counts = events != (AS_PUBLIC,) or not records  # A refused trial leaves its config.json.
            if events and counts and not state.is_charged(key) and recorded.get(key) != Counter(events):
                early[folder] = events
        reasons = {_who(folder): budget.refuses(events) for folder, events in early.items()}
        why = {trial: reason for trial, reason in reasons.items() if reason}
        if why:
            raise ValueError(
                f"the budget of {budget} cannot cover {_list_trials(why)}, run before there was one "
                f"({min(why.values())}): give another runtime.storage, or raydiff rm these sweeps if nobody has seen "
                "any of it"
            )
        charges = {f: state._record(config.read_config(f / "config.json"), f, e, whole=False) for f, e in early.items()}
        return replace(state, early=charges)

    def is_charged(self, key: str) -> bool:
        """Whether the trial with this key is charged for all its rounds."""
        return any(r.get("key") == key and r["whole"] for r in self.records)

    def charge_of(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """The record of a trial for all its rounds. Raises ValueError, naming it, if it cannot be charged too."""
        configured = experiment.runtime.budget
        who = _named(experiment, folder)
        where = self.book.folder
        if configured not in (None, self.budget):
            raise ValueError(f"the budget of {where} is {self.budget} and cannot be changed, got {configured}")
        events = filters.worst(plan_ledger(experiment), ledger_of(folder).server)
        if why := self.budget.refuses(events):
            raise ValueError(f"{who} cannot be charged to the budget of {self.budget}: {why} ({where})")
        record = self._record(experiment, folder, events, whole=True)
        charged = [*self.records[1:], *self.early.values(), *self.pending]
        for other in (r for r in charged if r["units"]["digest"] != record["units"]["digest"]):
            what = "public records" if self.budget.unit == "example" else "clients or public records"
            apart = _apart(record["units"], other["units"])
            raise ValueError(f"{who} has other {what} than {other['trial']}, under one budget in {where}: {apart}")
        others = {r["key"]: filters.events_from_json(r["events"]) for r in charged if r["key"] != record["key"]}
        before, after = (
            self.budget.spent(charges, order_of(charged)).epsilon
            for charges in ([*others.values()], [*others.values(), events])
        )
        if events and after > self.budget.epsilon:
            early = _list_trials(r["trial"] for r in charged if not r["whole"])
            raise ValueError(
                f"{who} would overspend the budget of {self.budget}: epsilon {rounding.up(before, 3)} is spent, and "
                f"with it {rounding.up(after, 3)}"
                + (early and f"; {early} ran before there was a budget, and another runtime.storage leaves them out")
                + (f" ({where}: raydiff budget lists it)" if self.records else "")
            )
        return record

    def _record(
        self, experiment: Experiment, folder: Path, events: tuple[Event, ...], *, whole: bool
    ) -> dict[str, Any]:
        if (order := order_of(self.records[1:])) == "first":
            order = self.budget.order(events) if whole else None
        return {
            "trial": _who(folder),
            "key": _key_of(folder),
            "events": filters.events_to_json(events),
            "whole": whole,
            "order": order,
            "units": privacy_units(experiment, self.budget.unit, self.secret or b"none yet"),
            "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        }


def _apart(now: dict[str, str], then: dict[str, str]) -> str:
    """The settings in which two trials differ, and what to do."""
    names = [k for k in {**now, **then} if k != "digest" and now.get(k) != then.get(k)]
    changes = [f"{k} is {now.get(k, 'missing')}, and was {then.get(k, 'missing')}" for k in names]
    return f"{', '.join(changes) or 'the files of the data set have changed'}; set that as it was"


def order_of(charges: Sequence[Mapping[str, Any]]) -> Order:
    """The order of the filter that adds these charges up (`Budget.spent`)."""
    return next((r["order"] for r in charges if r["events"]), "first")


def logs(storage: Path) -> list[BudgetLog]:
    """All logs of a storage folder, lost ones included."""
    names = {path.parent.name for path in storage.glob("budgets/*/*.json")}
    names |= {path.name for path in storage.glob("sweeps/.budgeted/[!.]*")}
    return [BudgetLog(storage / "budgets" / name) for name in sorted(names)]


def verified(book: BudgetLog) -> list[dict[str, Any]]:
    """A log's records. Raises ValueError if one is damaged, or one that a trial was charged by is missing."""
    notes = dict(_notes(book.folder.parents[1], book))
    records = book.records()
    _check_notes(book, records, notes)
    return records


def _check_notes(book: BudgetLog, records: Sequence[dict[str, Any]], notes: Mapping[Path, dict[str, Any]]) -> None:
    for folder, note in notes.items():
        number = note["record"]
        if number is not None and (number > len(records) or records[number - 1].get("key") != note["key"]):
            raise ValueError(f"{book.folder} has lost record {number}, by which {_who(folder)} was charged")


def _notes(storage: Path, book: BudgetLog) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in _trial_folders(storage, NOTE):
        with suppress(FileNotFoundError):  # removed meanwhile
            note = read_sealed(folder / NOTE, needs="record")
            if note["book"] == book.folder.name:
                yield folder, note


def _find_uncharged(
    storage: Path, book: BudgetLog, notes: Mapping[Path, dict[str, Any]]
) -> Iterator[tuple[Path, tuple[Event, ...]]]:
    """Trials on these data without a record for all their rounds, and what they have sent."""
    whole = {folder for folder, note in notes.items() if note["record"] is not None}
    for folder in _trial_folders(storage, "config.json"):
        if folder not in whole:
            with suppress(FileNotFoundError):
                data = read_json(folder / "config.json", needs="data")["data"]
                if called(identity(data["name"])) == book.folder.name:
                    yield folder, filters.worst(ledger_of(folder).server)
                elif (other := data.get("public_from")) and called(identity(other)) == book.folder.name:
                    yield folder, (AS_PUBLIC,)


def _trial_folders(storage: Path, file: str) -> Iterator[Path]:
    """Folders of all trials in the storage that have this file."""
    for sweep in storage.glob("sweeps/*"):
        yield from trial_folders(sweep, file)


def _note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    return read_sealed(path, needs="record") if path.exists() else {}


def _key_of(folder: Path) -> str:
    """A trial's key; its folder while it has none."""
    return str(_note(folder).get("key", folder))


def _key(folder: Path, book: BudgetLog) -> str:
    """A trial's key in the log, drawn once. Whoever removes the folder removes what could be sent again, too."""
    if not (folder / NOTE).exists():
        with suppress(FileExistsError):  # Another process was faster.
            write_text(
                folder / NOTE,
                sealed({"key": uuid.uuid4().hex, "book": book.folder.name, "record": None}, place_of(folder / NOTE)),
                durable=True,
                if_absent=True,
            )
    return _key_of(folder)


def _named(experiment: Experiment, folder: Path) -> str:
    return f"{type(experiment.method).__name__} trial {_who(folder)}"


def _who(folder: Path) -> str:
    return f"{folder.parents[1].name}/{folder.name}"


def _list_trials(trials: Iterable[str]) -> str:
    names = list(trials)
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
