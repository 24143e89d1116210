"""What survives a crash: one folder per trial on storage that all nodes share. No Ray inside.

    <root>/server-00003.safetensors            the server's state after round 3
    <root>/clients/00007-00003.safetensors     client 7's private state after round 3, written by whoever hosts it
    <root>/releases/00007-00003.safetensors    what client 7 sends in round 3 and its event, written BEFORE it is sent
    <root>/releases/00003-<node>.jsonl         where it is not noised only the event: a line for each client of a node
    <root>/commit-00003.json                   what round 3 adds to the ledger, its metrics, and digests: of the states
                                               that it made, of the commit before; written last: a round without it
                                               did not happen
    <cache>/<key>.safetensors                  results that several trials share, by the digest of what they depend on

Every file appears whole or not at all (temporary file, then rename), but for the .jsonl, to which lines are added.
Tensors and commits carry a digest of themselves (`seals`), and whoever reads one that is damaged, or misses one that a
commit names, gets a ValueError that names the file.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from raydiff.formats.json_files import sealed, unsealed
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Event, Gaussian, Nothing, Release, already_private, event_from_dict, event_to_dict
from raydiff.seeding import keyed_digest
from raydiff.storage import checksums as seals
from raydiff.storage.atomic_files import LeaseLost, Shared, read_tensors, write_tensors, write_text
from raydiff.storage.remote import shared
from raydiff.storage.state_cache import StateIndex
from raydiff.tree import Params

INITIAL = -1  # the "round" of a client's state before its first one
END = re.compile(r'[0-9a-f]{64}"}$|"sha256": ".{64}..$')  # of a note that was written whole, whatever one byte became


@dataclass(frozen=True)
class Store:
    """The files of one trial. Cheap to make, safe to send to another process."""

    root: Path
    cache: Path | None = None
    guard: Callable[[], None] | None = None
    """Raises LeaseLost where the driver that this process works for no longer owns the sweep."""
    _latest: StateIndex = field(default_factory=StateIndex, init=False, repr=False, compare=False)
    """What was seen of clients' states: one client after the other asks for its latest."""

    @cached_property
    def shared(self) -> Shared:
        """What all processes see of it."""
        return shared(self.root)

    def save_server(self, number: int, state: Params) -> None:
        """Keep the server's state after a round; `commit` makes it count. Raises LeaseLost as `commit` does."""
        self.check_open(number)
        write_tensors(self._server(number), state, durable=True)

    def load_server(self, number: int) -> Params:
        """The server's state after a committed round. Raises ValueError where it is damaged or gone."""
        return self._whole(self._server(number), self._states(number).get("server"))

    def save_client(self, client: int, number: int, state: Params) -> None:
        """Keep a client's private state after a round (INITIAL: before the first). One that is there stays if the round
        counts already: a process that had lost the trial does not change what a commit tells of."""
        write_tensors(self._numbered("clients", client, number), state, first=self._commit(number).exists())
        self._latest.kept(number)

    def load_client(self, client: int, *, before: int) -> Params | None:
        """A client's latest state from a round earlier than `before`, or None. Raises ValueError where it is damaged,
        or where a commit tells of a later one.

        One that no commit tells of is believed: a process that had lost the trial may have written it.
        """
        found = self._latest.find(
            client,
            before=before,
            files=lambda: map(_numbers, (self.root / "clients").glob("*.safetensors")),
            commits=lambda: self._committed() if before > 0 else [],
            said=lambda number: self._states(number).get("clients", {}),
        )
        return None if found is None else self._whole(self._here("clients", client, found[0]), found[1])

    def check_clients(self, clients: Iterable[int], *, before: int) -> None:
        """Raises ValueError as `load_client`, of each. Not where the storage is a bucket, from which all of them would
        have to be fetched."""
        if not self.shared.apart:
            for client in clients:
                self.load_client(client, before=before)

    def save_release(
        self, client: int, number: int, release: Release, metrics: Mapping[str, float] = types.MappingProxyType({})
    ) -> Release:
        """Write ahead: gives what the client may send now, and must send whenever it is asked again.

        The value is kept where it was noised, for repeating any other spends nothing; beside it its event, and the
        client's metrics, so that what is sent again has them too. Of two noised ones the first counts: a lost
        node may still compute, and the same noise on two values would reveal their difference. For the same reason
        nothing noised may be sent in a round that counts, for its commit has taken the first: raises LeaseLost.
        What is not noised is told of by `note`.
        """
        if not isinstance(release.event, Gaussian):
            return release
        note: dict[str, Any] = {"event": event_to_dict(release.event), "bytes": release.nbytes}
        if self._numbered("clients", client, number).exists():
            note["state"] = True  # The client has kept a state first, which whoever sends this again needs.
        path = self._numbered("releases", client, number)
        told = json.dumps({**note, "metrics": dict(metrics)})
        write_tensors(path, release.value, note=told, durable=True, first=True)
        kept = self.load_release(client, number)
        self.check_open(number)  # This is last: an earlier commit may have taken away another value than `kept`.
        if kept is None:
            raise LeaseLost(f"what client {client} sends in round {number} has gone from {path.parent}")
        return kept

    def note(self, number: int, sent: Iterable[tuple[int, Event, int]]) -> None:
        """Write ahead what these messages reveal, (client, event, bytes) each, in one go; so nothing is forgotten when
        the round never commits. Of what was noised `save_release` has told already."""
        sent = list(sent)
        self.shared.send(number, sent)  # All that must be there before these are sent is put now, in one piece.
        told = [
            "\n" + sealed({"client": client, "event": event_to_dict(event), "bytes": size})
            for client, event, size in sent
            if not isinstance(event, Gaussian | Nothing)
        ]
        if not told:
            return
        # Each node has a file of its own: on a network's storage two nodes may overwrite each other's lines.
        path = self.root / "releases" / f"{number:05d}-{platform.node()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as f:  # A line begins with its break, so that half a line (full disk) stays by itself.
            f.write("".join(told))

    def load_release(self, client: int, number: int) -> Release | None:
        """What this client has already noised for this round, or None."""
        return stored[0] if (stored := self._stored(client, number)) else None

    def load_sent(self, client: int, number: int) -> tuple[Release, dict[str, float], bool] | None:
        """The same with the client's metrics, and whether the state that its round made is there, undamaged: a loss of
        power can take it and leave what was stored after it."""
        if (stored := self._stored(client, number)) is None:
            return None
        release, note = stored
        whole = True
        if note.get("state"):
            try:
                read_tensors(self._here("clients", client, number))
            except (ValueError, FileNotFoundError):
                whole = False
        return release, note["metrics"], whole

    def _stored(self, client: int, number: int) -> tuple[Release, dict[str, Any]] | None:
        try:
            value, text = read_tensors(self._here("releases", client, number))
        except FileNotFoundError:  # Nothing was stored, or the round's commit has just removed it.
            return None
        note = json.loads(text)
        return already_private(value, event_from_dict(note["event"]), copy=False), note

    def sent_after(self, number: int) -> list[tuple[int, int, Event, int]]:
        """(round, client, event, bytes) of what clients sent, or may have sent, in rounds later than `number`.

        Raises ValueError where a note is damaged by more than a write that failed.
        """
        notes: dict[tuple[int, int], dict[str, Any]] = {}
        for path in (self.root / "releases").glob("*.safetensors"):
            client, later = _numbers(path)
            if later > number:
                notes[later, client] = json.loads(read_tensors(path)[1])
        for path in (self.root / "releases").glob("*.jsonl"):  # They are last: the unprotected one of two counts.
            if (later := _first(path)) > number:
                notes |= {(later, note["client"]): note for note in _lines(path)}
        return [
            (later, client, event_from_dict(note["event"]), int(note["bytes"]))
            for (later, client), note in sorted(notes.items())
        ]

    def commit(self, number: int, record: dict[str, Any]) -> None:
        """Make round `number` count, then drop what no resume can need: server states, releases, client states.

        Raises LeaseLost, and changes nothing, where it counts already, or the guard does.
        """
        states = sorted((self.root / "clients").glob("*.safetensors"), key=_numbers)
        before, server = self._commit(number - 1), self._server(number) if self.has_server(number) else None
        said = self.shared.said(number, {c: path for path in states for c, of in [_numbers(path)] if of == number})
        whole = {
            **record,
            "states": {"server": seals.seal_of(server) if server else None, "clients": said},
            "previous": seals.digest(before) if before.exists() else None,
        }
        self.check_open(number)
        self.shared.commit(number, sealed(whole), server)
        try:
            write_text(self._commit(number), sealed(whole), durable=True, first=True)
        except FileExistsError:
            self.check_open(number)
        old = [path for path in self.root.glob("server-*.safetensors") if int(path.stem[7:]) < number]
        old += [path for path in (self.root / "releases").glob("*.safetensors") if _numbers(path)[1] <= number]
        old += [path for path in (self.root / "releases").glob("*.jsonl") if _first(path) <= number]
        latest: dict[int, Path] = {}
        for path in states:
            client, of = _numbers(path)
            if of <= number:
                old += [latest[client]] if client in latest else []
                latest[client] = path
        for path in old:
            path.unlink(missing_ok=True)

    def check_open(self, number: int) -> None:
        """Raises LeaseLost unless round `number` is still to be done, and by this process's driver."""
        if self.guard is not None:
            self.guard()
        if self._commit(number).exists():
            raise LeaseLost(f"round {number} of {self.root} counts already: another process goes on with this trial")

    def last_commit(self) -> tuple[int, dict[str, Any]] | None:
        """(number, record) of the last round that counts, or None. Raises ValueError where it is damaged."""
        numbers = self._committed()
        if not numbers:
            self.check()
            return None
        record = seals.read_json(self._commit(numbers[-1]))
        return numbers[-1], {k: v for k, v in record.items() if k not in ("states", "previous")}

    def ledger(self) -> Ledger:
        """What the rounds that count have spent. Raises ValueError where it is not known, as `check` does."""
        return Ledger(tuple(e for _, record in self._records() for e in Ledger.from_json(record["ledger"]).entries))

    def check(self) -> None:
        """Raises ValueError where a commit is missing, damaged, or another one than the next round followed."""
        for _ in self._records():
            pass

    def cached(self, key: str, make: Callable[[], Params]) -> Params:
        """`make()`, or what an earlier call with the same key made, in this trial or another of the same sweep."""
        if (found := self.load_cached(key)) is not None:
            return found
        made = make()
        if self.cache is None:
            return made
        if (found := self.load_cached(key)) is not None:  # Another trial was faster: its result counts.
            return found
        write_tensors(self.cache / f"{key}.safetensors", made)
        self.shared.keep_cached(self.cache / f"{key}.safetensors")
        return made

    def load_cached(self, key: str) -> Params | None:
        """What `cached` has kept under this key, or None. It may be forgotten while one looks."""
        if self.cache is not None:
            self.shared.load_cached(self.cache / f"{key}.safetensors")
            with contextlib.suppress(FileNotFoundError):
                return read_tensors(self.cache / f"{key}.safetensors")[0]
        return None

    def forget(self, keys: Iterable[str]) -> None:
        """Drop cached results that no one will ask for again."""
        for key in keys:
            if self.cache is not None:
                self.shared.forget_cached(self.cache / f"{key}.safetensors")

    def has_cached(self, key: str) -> bool:
        """Whether `cached` would find this key's result."""
        return self.cache is not None and self.shared.has_cached(self.cache / f"{key}.safetensors")

    def cache_key(self, kind: str, secret: bytes, parts: tuple[object, ...]) -> str:
        """The name of a cached result that depends on `parts`, digests of records among them: keyed by the sweep's
        secret, for it is a file's name."""
        return f"{kind}-{keyed_digest(secret, kind, repr(parts))[:32]}"

    def has_server(self, number: int) -> bool:
        """Whether the server's state after this round is there."""
        return self._server(number).exists()

    def _committed(self) -> list[int]:
        return sorted(int(p.stem[7:]) for p in self.root.glob("commit-*.json"))

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        before: str | None = None
        numbers = self._committed()
        for number, there in enumerate([*numbers, *self._lost(numbers)]):
            if number != there:
                raise ValueError(f"{self.root} has lost commit {number}: what it has spent is not known")
            record = seals.read_json(self._commit(number))
            if record["previous"] != before:
                raise ValueError(f"{self._commit(number - 1)} is damaged: it is not what round {number} followed")
            before = seals.digest(self._commit(number))
            yield number, record

    def _lost(self, committed: Sequence[int]) -> list[int]:
        """The round after one whose commit is gone, if other files tell: a commit takes the server's states before it,
        and nobody sends anything, or keeps a state, in a round before the one before it counts."""
        last = committed[-1] if committed else INITIAL
        servers = {int(p.stem[7:]) for p in self.root.glob("server-*.safetensors")}
        lost = bool(servers) and max(servers) > last and last not in servers and max(servers) > 0
        begun = [_first(p) for p in (self.root / "releases").glob("*.jsonl")]
        begun += [_numbers(p)[1] for kind in ("clients", "releases") for p in (self.root / kind).glob("*.safetensors")]
        return [last + 2] if lost or max(begun, default=0) > last + 1 else []

    def _states(self, number: int) -> dict[str, Any]:
        """The digests that a commit carries; none where there is no such commit."""
        path = self._commit(number)
        return seals.read_json(path)["states"] if path.exists() else {}

    def _whole(self, path: Path, said: str | None) -> Params:
        """A state that is there and undamaged, and the one that a commit told of (None: it told of none)."""
        if said is not None and not path.exists():
            raise ValueError(f"{path} is gone, and a round that counts has made it: it cannot be done without")
        state, _ = read_tensors(path)
        if said is not None and seals.seal_of(path) != said:
            raise ValueError(f"{path} is damaged: it is not the state of which its round's commit tells")
        return state

    def _commit(self, number: int) -> Path:
        return self.root / f"commit-{number:05d}.json"

    def _server(self, number: int) -> Path:
        return self.root / f"server-{number:05d}.safetensors"

    def _here(self, kind: str, client: int, number: int) -> Path:
        """The same as `_numbered`, fetched if need be."""
        path = self._numbered(kind, client, number)
        self.shared.fetch(path)
        return path

    def _numbered(self, kind: str, client: int, number: int) -> Path:
        return self.root / kind / f"{client:05d}-{number:05d}.safetensors"


def _numbers(path: Path) -> tuple[int, int]:
    """(client, round) of a state or release. Names are padded to five digits, and longer where that is too few."""
    client, _, number = path.stem.partition("-")
    return int(client), int(number)


def _first(path: Path) -> int:
    """The round of a node's notes: the node's name comes after it, and may hold a "-" too."""
    return int(path.name.partition("-")[0])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The notes in a file. One that is not whole does not count: its write failed, and nothing was sent."""
    for line in filter(None, path.read_text(errors="replace").splitlines()):
        try:
            yield unsealed(line)
        except ValueError as e:
            cut = isinstance(e, json.JSONDecodeError) and line.startswith("{") and not END.search(line)
            if not cut:
                raise ValueError(f"{path} is damaged: what clients have sent is not known") from None
