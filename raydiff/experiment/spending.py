"""What trials on the same records spend together, and a budget that none of them may exceed.

    <storage>/budgets/<name>-<digest>/00001.json    the budget, as the first trial that had one gave it
    <storage>/budgets/<name>-<digest>/00002.json    what a trial spends: a record for each, see `federated.book`
    <trial>/budget.json                             the trial's key in that book, and the number of its record

A trial is charged before its first round, for all its rounds: who is drawn is known beforehand, and so is what an
upload reveals (`Method.upload_event`). A round that is run again, and an upload that is sent again, find the record
there. No process sends anything while the trial's note has no number (`Charged`), and none sends more than was charged
(`Client.run`). What is not sent after all, for a trial was stopped, stays spent.

Every trial counts with its worst client, for in the next one a record may be with another client (`composed`). The book
is that of a source of data, however it is cut or resized: two cuts share records. Trials from before there was a budget
are charged with what they have sent, at its opening.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from raydiff.data import sources
from raydiff.data.datasets import Data
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of, planned
from raydiff.experiment.owner import Owner
from raydiff.federated.book import Book
from raydiff.federated.files import Overtaken, write_text
from raydiff.privacy import budget as privacy
from raydiff.privacy.budget import Budget
from raydiff.privacy.release import Event
from raydiff.report.files import read_json, read_outcome, sealed

NOTE = "budget.json"
OVER = ("finished", "stopped")
"""Outcomes of trials that no `--resume` runs again."""


@dataclass(frozen=True)
class Charged:
    """What a trial's store asks before anything is sent: whether its driver still owns the sweep, and whether the trial
    is charged where there is a budget. Small, and safe to send to another process."""

    owner: Owner | None
    trial: Path
    book: Book

    def __call__(self) -> None:
        """Raises Overtaken where the trial may not go on."""
        if self.owner is not None:
            self.owner()
        if self.book.begun and _note(self.trial).get("record") is None:
            raise Overtaken(f"{_who(self.trial)} is not charged to {self.book.folder}, which was begun meanwhile")


def book_of(trial: Path, data: Data) -> Book:
    """The book of a trial's records, given its folder."""
    return Book(trial.parents[3] / "budgets" / called(source(data.name)))


def source(name: str) -> str:
    """What tells private records apart, given the name of a data set: a path, or the name of what lies below the root
    or on the hub."""
    return str(Path(name).expanduser().resolve()) if sources.is_path(name) else sources.FOLDERS.get(name, name)


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
        book = book_of(folder, experiment.data)
        if (experiment.runtime.budget or book.begun) and (read_outcome(folder) or {}).get("outcome") not in OVER:
            pending.setdefault(book.folder, []).append((experiment, folder))
    for at, waiting in pending.items():
        given = next((e.runtime.budget for e, _ in waiting if e.runtime.budget), None)
        state, taken = _State.of(Book(at), given), dict[str, tuple[Event, ...]]()
        for experiment, folder in waiting:
            _same_budget(experiment, state.budget, Book(at))
            key = _note(folder).get("key", str(folder))
            if not state.is_charged(key):
                events = _owed(experiment, folder)
                state.check(_named(experiment, folder), key, events, taken)
                taken[key] = events


def charge(experiment: Experiment, folder: Path) -> None:
    """Charge a trial to its records' budget, if they have one, for all that it will send; once, however often it is
    asked. On the disk when this returns.

    Raises ValueError, which names the trial, where the budget does not allow it, or where the book is damaged.
    """
    book = book_of(folder, experiment.data)
    if experiment.runtime.budget is None and not book.begun:
        return
    key = _key(folder, book)
    while True:
        state = _State.of(book, experiment.runtime.budget)
        _same_budget(experiment, state.budget, book)
        if state.is_charged(key):
            break
        mine = _owed(experiment, folder)
        state.check(_named(experiment, folder), key, mine, {})
        with suppress(FileExistsError):  # Another process was faster: look again.
            if not state.records:
                book.add({"budget": asdict(state.budget), "source": source(experiment.data.name)}, 1)
            elif (other := next(iter(state.unrecorded), None)) is not None:
                _add(book, state, other, _key(other, book), state.unrecorded[other], whole=False)
            else:
                _add(book, state, folder, key, mine, whole=True)
    number = max(n for n, record in enumerate(state.records, 1) if record.get("key") == key)
    write_text(folder / NOTE, sealed({"key": key, "book": book.folder.name, "record": number}), durable=True)


def _add(book: Book, state: _State, folder: Path, key: str, events: Sequence[Event], *, whole: bool) -> None:
    at = time.strftime("%Y-%m-%d %H:%M:%S")
    record = {"trial": _who(folder), "key": key, "events": privacy.written(events), "whole": whole, "at": at}
    book.add(record, len(state.records) + 1)


@dataclass(frozen=True)
class _State:
    """What a book says, and what trials have sent that it does not tell of yet."""

    book: Book
    budget: Budget
    records: list[dict[str, Any]]
    unrecorded: dict[Path, tuple[Event, ...]]
    """Trials from before there was a budget, and what they have sent beyond their records."""

    @classmethod
    def of(cls, book: Book, given: Budget | None) -> _State:
        """`given` counts while there is no record. Raises ValueError where the book is damaged."""
        storage = book.folder.parents[1]
        notes = dict(_notes(storage, book))  # before the book: a record that comes meanwhile is not missed
        sent = {folder: privacy.worst(ledger_of(folder).server) for folder in _uncharged(storage, book, notes)}
        records = book.records()
        _check_notes(book, records, notes)
        budget = Budget(**records[0]["budget"]) if records else given
        assert budget is not None  # else there is no book
        known = {r["key"]: Counter(privacy.read(r["events"])) for r in records[1:]}
        key = {folder: note["key"] for folder, note in notes.items()}
        new = {f: events for f, events in sent.items() if events and Counter(events) != known.get(key.get(f, ""))}
        return cls(book, budget, records, new)

    def is_charged(self, key: str) -> bool:
        """Whether the trial with this key is, for all its rounds."""
        return any(r.get("key") == key and r["whole"] for r in self.records)

    def check(self, who: str, key: str, events: tuple[Event, ...], beside: dict[str, tuple[Event, ...]]) -> None:
        """Raises ValueError unless these can be charged too."""
        others = {r["key"]: privacy.read(r["events"]) for r in self.records[1:]}
        others |= {_note(folder).get("key", str(folder)): sent for folder, sent in self.unrecorded.items()}
        others = {**others, **beside}
        others.pop(key, None)
        where = f"{self.book.folder}: raydiff budget lists it"
        if why := self.budget.refuses(events):
            raise ValueError(f"{who} cannot be charged to the budget of {self.budget}: {why} ({where})")
        before, after = self.budget.spent(others.values()), self.budget.spent([*others.values(), events])
        if events and after.epsilon > self.budget.epsilon:
            has = f"epsilon {before.epsilon:.4g} is spent" if before.epsilon < math.inf else f"{before}"
            raise ValueError(
                f"{who} would overspend the budget of {self.budget}: {has}, and with it {after.epsilon:.4g} ({where})"
            )


def verified(book: Book) -> list[dict[str, Any]]:
    """A book's records. Raises ValueError where one is damaged, or missing that a trial was charged by."""
    notes = dict(_notes(book.folder.parents[1], book))
    records = book.records()
    _check_notes(book, records, notes)
    return records


def _check_notes(book: Book, records: Sequence[dict[str, Any]], notes: Mapping[Path, dict[str, Any]]) -> None:
    for folder, note in notes.items():
        number = note["record"]
        if number is not None and (number > len(records) or records[number - 1].get("key") != note["key"]):
            raise ValueError(f"{book.folder} has lost record {number}, by which {_who(folder)} was charged")


def _same_budget(experiment: Experiment, budget: Budget, book: Book) -> None:
    if (given := experiment.runtime.budget) is not None and given != budget:
        raise ValueError(f"the budget of {book.folder} is {budget}, and not {given}: it is given once and for all")


def _owed(experiment: Experiment, folder: Path) -> tuple[Event, ...]:
    """What a trial has sent, or will have."""
    return privacy.worst(planned(experiment), ledger_of(folder).server)


def _notes(storage: Path, book: Book) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in storage.glob(f"sweeps/*/trials/*/{NOTE}"):
        with suppress(FileNotFoundError):  # removed meanwhile
            note = read_json(path, needs="record")
            if note["book"] == book.folder.name:
                yield path.parent, note


def _uncharged(storage: Path, book: Book, notes: Mapping[Path, dict[str, Any]]) -> Iterator[Path]:
    """Trials on these records that have no record for all their rounds."""
    whole = {folder for folder, note in notes.items() if note["record"] is not None}
    for path in storage.glob("sweeps/*/trials/*/config.json"):
        if path.parent not in whole:
            with suppress(FileNotFoundError):
                name = read_json(path, needs="data")["data"]["name"]
                if called(source(name)) == book.folder.name:
                    yield path.parent


def _note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    return read_json(path, needs="record") if path.exists() else {}


def _key(folder: Path, book: Book) -> str:
    """A trial's key in the book, made once. It goes with its folder, and so does what could be sent again."""
    with suppress(FileExistsError):
        fresh = {"key": uuid.uuid4().hex, "book": book.folder.name, "record": None}
        if not (folder / NOTE).exists():
            write_text(folder / NOTE, sealed(fresh), durable=True, first=True)
    return str(_note(folder)["key"])


def _named(experiment: Experiment, folder: Path) -> str:
    return f"{type(experiment.method).__name__} trial {_who(folder)}"


def _who(folder: Path) -> str:
    return f"{folder.parents[1].name}/{folder.name}"
