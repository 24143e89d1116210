"""A privacy budget that trials on the same records share, and the log of what each was charged.

    <storage>/budgets/<name>-<digest>/00001.json    the budget, as the first trial that had one gave it
    <storage>/budgets/<name>-<digest>/00002.json    the charge of a trial: a record for each, see `federated.book`
    <storage>/sweeps/.budgeted/<name>-<digest>      the key of the digests in it
    <trial>/budget.json                             the trial's key in that log, and the number of its record

A trial is charged before its first round, for all its rounds: who is drawn is known beforehand, and so is what an
upload reveals (`Method.upload_event`). A round that is run again, and an upload that is sent again, find the record
there. No process sends anything while the trial's note has no number (`BudgetGuard`), and none sends more than was
charged (`Client.run`). What is not sent after all, for a trial was stopped, stays spent.

Trials are charged with their worst client, and add up in a privacy filter (`privacy.budget`). That covers each unit,
whatever the settings. An example is in one client of a trial at most, so the trial costs it no more than its worst
client: unless it is public there, so all trials must have the same public rows. A client's records may be in several
clients of a trial that deals them otherwise, and then all of these would count: so under the unit client all trials
must have the same partition too (`units_of`).

The log is that of a source of data, however it is cut or resized: two cuts share records. Trials from before there was
a budget are charged at its opening with what they have sent. Which of them was first is not known: Gaussian DP's filter
adds them up.
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
from raydiff.data.sources import identity as source
from raydiff.experiment import config
from raydiff.experiment.client_records import units_of
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of, planned
from raydiff.formats import rounding as bounds
from raydiff.formats.json_files import read_json, read_outcome, sealed
from raydiff.privacy import filters as privacy
from raydiff.privacy.filters import Budget, Order
from raydiff.privacy.release import Event, NonPrivate
from raydiff.storage import staging
from raydiff.storage.append_log import BudgetLog
from raydiff.storage.atomic_files import LeaseLost, write_text
from raydiff.storage.lease import Lease

NOTE = "budget.json"
OVER = ("finished", "stopped")
"""Outcomes of trials that no `--resume` runs again."""
LISTED = 3  # trials in a message
AS_PUBLIC = NonPrivate("records of this data set (as data.public_from)")


@dataclass(frozen=True)
class BudgetGuard:
    """What a trial's store asks before anything is sent: whether its driver still owns the sweep, and whether the trial
    is charged where there is a budget. Small, and safe to send to another process."""

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
    """The budget log of a trial's records, by the trial's folder."""
    return BudgetLog(trial.parents[3] / "budgets" / called(source(data.name)))


def called(source: str) -> str:
    """The name of a source's book."""
    short = re.sub(r"[^\w.-]", "-", PurePath(source).name)[:40]
    return f"{short}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def check(trials: Sequence[Experiment], sweep: Path) -> None:
    """Raises ValueError, which names the first trial that would overspend, unless all of these that are not charged yet
    can be, one after the other. Nothing is written."""
    pending: dict[Path, list[tuple[Experiment, Path]]] = {}
    for experiment in trials:
        folder = sweep / "trials" / experiment.digest
        book = _bound(experiment, folder)
        if book is not None and (read_outcome(folder) or {}).get("outcome") not in OVER:
            pending.setdefault(book.folder, []).append((experiment, folder))
    for at, waiting in pending.items():
        state = _State.of(BudgetLog(at), next((e.runtime.budget for e, _ in waiting if e.runtime.budget), None))
        for experiment, folder in waiting:
            if not state.is_charged(_key_of(folder)):
                state = replace(state, pending=(*state.pending, state.charge_of(experiment, folder)))


def charge(experiment: Experiment, folder: Path) -> None:
    """Charge a trial to its records' budget, if they have one, for all that it will send; once, however often it is
    asked. On the disk when this returns.

    Raises ValueError, which names the trial, where the budget does not allow it, or where the log is damaged.
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
                book.add({"budget": asdict(state.budget), "source": source(experiment.data.name)}, 1)
            elif state.secret is None:
                staging.write_secret(book.marker, secrets.token_bytes(32), if_absent=True)
            else:
                first, record = next(iter(state.early.items()), (folder, record))
                book.add({**record, "key": _key(first, book)}, len(state.records) + 1)
    number = max(n for n, record in enumerate(state.records, 1) if record.get("key") == key)
    write_text(folder / NOTE, sealed({"key": key, "book": book.folder.name, "record": number}), durable=True)


def _bound(experiment: Experiment, folder: Path) -> BudgetLog | None:
    """The log that the trial is to be charged to, if any. Raises ValueError where its public records are under another
    budget."""
    book, public_from = budget_log_of(folder, experiment.data), experiment.data.public_from
    other = book if public_from is None else BudgetLog(book.folder.with_name(called(source(public_from))))
    if other != book and other.begun:
        why = f"data.public_from is {public_from}, whose records are under the budget in {other.folder}"
        raise ValueError(f"{_named(experiment, folder)} cannot declare them public: {why}")
    return book if experiment.runtime.budget or book.begun else None


@dataclass(frozen=True)
class _State:
    """What a log says, and what it does not say yet."""

    book: BudgetLog
    budget: Budget
    secret: bytes | None
    """The log's key; None before there is one."""
    records: list[dict[str, Any]]
    early: dict[Path, dict[str, Any]]
    """What trials from before there was a budget have sent beyond their records, as records."""
    pending: tuple[dict[str, Any], ...] = ()
    """Records of trials that are to be charged before the next one."""

    @classmethod
    def of(cls, book: BudgetLog, given: Budget | None) -> _State:
        """`given` counts while there is no record. Raises ValueError where the log is damaged, and where the budget
        cannot cover what was sent before."""
        storage = book.folder.parents[1]
        notes = dict(_notes(storage, book))  # before the log: a record that comes meanwhile is not missed
        sent = dict(_uncharged(storage, book, notes))
        secret = book.marker.read_bytes() if book.marker.exists() else None
        records = book.records()
        _check_notes(book, records, notes)
        budget = Budget(**records[0]["budget"]) if records else given
        assert budget is not None  # else there is no log
        state, early = cls(book, budget, secret, records, {}), dict[Path, tuple[Event, ...]]()
        known = {r["key"]: Counter(privacy.read(r["events"])) for r in records[1:]}
        for folder, events in sent.items():
            key = _key_of(folder)  # asked now: it may have been charged, and have sent, since its note was read
            ours = events != (AS_PUBLIC,) or not records  # of a trial that was refused the config.json stays
            if events and ours and not state.is_charged(key) and known.get(key) != Counter(events):
                early[folder] = events
        if why := {_who(folder): reason for folder, events in early.items() if (reason := budget.refuses(events))}:
            raise ValueError(
                f"the budget of {budget} cannot cover {_listed(why)}, run before there was one ({min(why.values())}): "
                "what was sent stays sent, so give another runtime.storage, whose budget leaves it out, or raydiff rm "
                "these sweeps if nobody else has seen any of it"
            )
        made = ((f, state._record(config.read(f / "config.json"), f, e, whole=False)) for f, e in early.items())
        return replace(state, early=dict(made))

    def is_charged(self, key: str) -> bool:
        """Whether the trial with this key is, for all its rounds."""
        return any(r.get("key") == key and r["whole"] for r in self.records)

    def charge_of(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """The record of a trial for all its rounds. Raises ValueError, which names it, unless it can be charged too."""
        given, who, where = experiment.runtime.budget, _named(experiment, folder), self.book.folder
        if given is not None and given != self.budget:
            raise ValueError(f"the budget of {where} is {self.budget}, and not {given}: it is given once and for all")
        events = privacy.worst(planned(experiment), ledger_of(folder).server)
        if why := self.budget.refuses(events):
            raise ValueError(f"{who} cannot be charged to the budget of {self.budget}: {why} ({where})")
        record = self._record(experiment, folder, events, whole=True)
        known = [*self.records[1:], *self.early.values(), *self.pending]
        for other in (r for r in known if r["units"]["digest"] != record["units"]["digest"]):
            what = "public records" if self.budget.unit == "example" else "clients or public records"
            apart = _apart(record["units"], other["units"])
            raise ValueError(f"{who} has other {what} than {other['trial']}, under one budget in {where}: {apart}")
        others = {r["key"]: privacy.read(r["events"]) for r in known if r["key"] != record["key"]}
        after = self.budget.spent(charges := [*others.values(), events], order_of(known))
        if events and after.epsilon > self.budget.epsilon:
            before = self.budget.spent(charges[:-1], order_of(known)).epsilon
            how = {"exact": " (sampled noise counts as if unsampled)", "rdp": " (at one Renyi order)"}
            sampled = any(getattr(e, "sampling_rate", 1) < 1 for charge in charges for e in charge)
            early = _listed(r["trial"] for r in known if not r["whole"])
            raise ValueError(
                f"{who} would overspend the budget of {self.budget}: epsilon {bounds.up(before, 3)} is spent, and with "
                f"it {bounds.up(after.epsilon, 3)}{how.get(after.accountant, '') if sampled else ''}"
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
            "events": privacy.written(events),
            "whole": whole,
            "order": order,
            "units": units_of(experiment, self.budget.unit, self.secret or b"none yet"),
            "at": time.strftime("%Y-%m-%d %H:%M:%S"),
        }


def _apart(now: dict[str, str], then: dict[str, str]) -> str:
    """In which settings two trials differ, and what to do."""
    names = [k for k in {**now, **then} if k != "digest" and now.get(k) != then.get(k)]
    found = [f"{k} is {now.get(k, 'not there')}, and was {then.get(k, 'not there')}" for k in names]
    return f"{', '.join(found) or 'the files of the data set have changed'}; set that as it was"


def order_of(charges: Sequence[Mapping[str, Any]]) -> Order:
    """Of the filter by which the charges in these records add up (`Budget.spent`)."""
    return next((r["order"] for r in charges if r["events"]), "first")


def logs(storage: Path) -> list[BudgetLog]:
    """All logs of a storage folder, those that are lost too."""
    names = {path.parent.name for path in storage.glob("budgets/*/*.json")}
    names |= {path.name for path in storage.glob("sweeps/.budgeted/[!.]*")}
    return [BudgetLog(storage / "budgets" / name) for name in sorted(names)]


def verified(book: BudgetLog) -> list[dict[str, Any]]:
    """A book's records. Raises ValueError where one is damaged, or missing that a trial was charged by."""
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
    for path in storage.glob(f"sweeps/*/trials/*/{NOTE}"):
        with suppress(FileNotFoundError):  # removed meanwhile
            note = read_json(path, needs="record")
            if note["book"] == book.folder.name:
                yield path.parent, note


def _uncharged(
    storage: Path, book: BudgetLog, notes: Mapping[Path, dict[str, Any]]
) -> Iterator[tuple[Path, tuple[Event, ...]]]:
    """Trials on these records that have no record for all their rounds, and what they have sent."""
    whole = {folder for folder, note in notes.items() if note["record"] is not None}
    for path in storage.glob("sweeps/*/trials/*/config.json"):
        if path.parent not in whole:
            with suppress(FileNotFoundError):
                data = read_json(path, needs="data")["data"]
                if called(source(data["name"])) == book.folder.name:
                    yield path.parent, privacy.worst(ledger_of(path.parent).server)
                elif (other := data.get("public_from")) and called(source(other)) == book.folder.name:
                    yield path.parent, (AS_PUBLIC,)


def _note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    return read_json(path, needs="record") if path.exists() else {}


def _key_of(folder: Path) -> str:
    """A trial's key, or what stands for it while it has none."""
    return str(_note(folder).get("key", folder))


def _key(folder: Path, book: BudgetLog) -> str:
    """A trial's key in the book, made once. It goes with its folder, and so does what could be sent again."""
    with suppress(FileExistsError):
        fresh = {"key": uuid.uuid4().hex, "book": book.folder.name, "record": None}
        if not (folder / NOTE).exists():
            write_text(folder / NOTE, sealed(fresh), durable=True, if_absent=True)
    return str(_note(folder)["key"])


def _named(experiment: Experiment, folder: Path) -> str:
    return f"{type(experiment.method).__name__} trial {_who(folder)}"


def _who(folder: Path) -> str:
    return f"{folder.parents[1].name}/{folder.name}"


def _listed(trials: Iterable[str]) -> str:
    names = list(trials)
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
