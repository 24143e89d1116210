"""A trial's `Store` where the storage is a bucket: what of its folder is carried there, and when. No Ray inside.

    <trial>/packs/00003-<id>        states and noised uploads that a process made in round 3
    <trial>/log/00003/00000         the first message of round 3: who sends what, and which part of which pack has it
    <trial>/server-00003-<id>       the server's state
    <trial>/commit-00003            the commit as it is in the folder, the name of the server's state, and where the
                                    states that the round made are

A message is in the log BEFORE it is sent, and its pack before that. A place in the log, and a commit, is taken by
whoever puts it first: two processes that take each other for dead cannot both send what one client noised, and one
round cannot count twice. All names but those of packs and states, which others name, are counted up from 0. All of it
is encrypted: digests and places tell of clients too.

What a process has in its folder it has from here (`restore`) or made itself, and states are fetched when they are asked
for.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from raydiff.federated import seals
from raydiff.federated.bucket import MULTIPART, Bucket, Lock, bucket_above, closed_size
from raydiff.federated.files import Overtaken, appearing
from raydiff.privacy.release import Event, Nothing, event_to_dict
from raydiff.report.files import sealed

AHEAD = 16  # names that are asked for at once, where they are counted up
PLACES = "places.json"
Place = tuple[str, int, int]
"""A pack, and the first byte and the one after the last of something in it."""


@dataclass(frozen=True)
class Remote:
    """The files of one trial in a bucket."""

    bucket: Bucket
    folder: Path
    """The trial's folder here."""
    _log: dict[int, list[dict[str, Any]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was read of the log, by round."""

    @classmethod
    def of(cls, folder: Path) -> Remote | None:
        """Of the trial in this folder; None where the storage is a folder itself."""
        bucket = bucket_above(folder, 3)
        return None if bucket is None else cls(bucket, folder)

    @property
    def name(self) -> str:
        """What the names of its files begin with."""
        return "/".join(self.folder.absolute().parts[-4:])

    @cached_property
    def _lock(self) -> Lock:
        sweep = self.folder.parents[1]
        if not (sweep / "secret").exists():
            raise ValueError(
                f"what {self.bucket.name} has of clients is encrypted: RAYDIFF_NOISE_SECRET must be the noise secret "
                f"of {sweep.name}"
            )
        return Lock((sweep / "secret").read_bytes(), sweep.name)

    # --- from the bucket

    def restore(self, *, server: bool = True) -> None:
        """Make the folder what the bucket says: its commits, what was sent in the round after them, and the server's
        state if asked. Raises ValueError where something is damaged or lost."""
        for kind in ("commit-*.json", "server-*", "clients/*", "releases/*"):
            for path in self.folder.glob(kind):
                path.unlink()
        places: dict[str, Place] = {}
        number, last = -1, None
        for number, last in enumerate(self._commits()):
            _write(self.folder / f"commit-{number:05d}.json", last["commit"].encode())
            made = {_state(int(client), number): place for client, place in last["states"].items()}
            again = {_client(name) for name in made}
            places = {name: place for name, place in places.items() if _client(name) not in again} | made
        self._log.clear()
        for record in self._records(number + 1):
            places |= record["places"]
            told = [{k: sent[k] for k in ("client", "event", "bytes")} for sent in record["sent"]]
            lines = "".join("\n" + sealed(line) for line in told if line["event"] != event_to_dict(Nothing()))
            _write(self.folder / "releases" / f"{number + 1:05d}-{record['by']}.jsonl", lines.encode())
        _write(self.folder / PLACES, json.dumps({"server": last and last["server"], "places": places}).encode())
        self._forget()
        if server and last is not None:
            self._fetch_server(number, last["server"])

    def is_here(self, last: int) -> bool:
        """Whether the folder has all that tells of a trial whose last round is this one, but for clients' states."""
        commit, server = self.folder / f"commit-{last:05d}.json", self.folder / f"server-{last:05d}.safetensors"
        return server.exists() and (self.folder / PLACES).exists() and commit.exists() and commit.stat().st_size > 0

    def fetch(self, path: Path) -> None:
        """Bring a state or an upload here, if it is not and there is one. Raises ValueError where it is damaged, or is
        gone."""
        name = f"{path.parent.name}/{path.name}"
        if path.exists() or (place := self._places.get(name)) is None:
            return
        pack, start, end = place
        found = self.bucket.part(f"{self.name}/{pack}", start, end)
        if found is None:
            raise ValueError(f"{self.bucket.name}/{self.name}/{pack} is gone or cut short: it has {name}")
        _write(path, self._opened(found, f"{self.name}/{name}"))

    def mark(self) -> None:
        """Have the names of its commits in the folder, for whoever only counts them, and may have no secret."""
        number = 0
        while self.counts(number):
            (self.folder / f"commit-{number:05d}.json").touch()
            number += 1

    def counts(self, number: int) -> bool:
        """Whether a round's commit is there."""
        return self.bucket.written(f"{self.name}/commit-{number:05d}") is not None

    def _fetch_server(self, number: int, name: str) -> None:
        found = self.bucket.get(f"{self.name}/{name}")
        if found is None:
            raise ValueError(f"{self.bucket.name}/{self.name}/{name} is gone, and round {number} counts: it made it")
        _write(self.folder / f"server-{number:05d}.safetensors", self._opened(found, f"{self.name}/{name}"))

    def _opened(self, data: bytes, name: str) -> bytes:
        lock = self._lock
        try:
            return lock.opened(data, name)
        except ValueError as e:
            raise ValueError(f"{self.bucket.name}/{e}") from None

    def _commits(self) -> Iterator[dict[str, Any]]:
        yield from self._counted(f"{self.name}/commit-{{:05d}}", 0)

    def _records(self, number: int) -> list[dict[str, Any]]:
        """The log of a round, as far as it has come by now."""
        for earlier in [n for n in self._log if n < number]:
            del self._log[earlier]
        known = self._log.setdefault(number, [])
        known += self._counted(f"{self.name}/log/{number:05d}/{{:05d}}", len(known), ahead=1)
        return known

    def _counted(self, names: str, start: int, *, ahead: int = AHEAD) -> Iterator[dict[str, Any]]:
        """What is there of names that are counted up. Raises ValueError where one is damaged, or there is a later
        one."""
        with ThreadPoolExecutor(ahead) as pool:
            while True:
                asked = [names.format(i) for i in range(start, start + ahead)]
                found = list(pool.map(self.bucket.get, asked))
                there = found.index(None) if None in found else ahead
                if any(found[there:]):
                    raise ValueError(f"{self.bucket.name}/{asked[there]} is lost, and a later one is there")
                for name, data in zip(asked[:there], found, strict=False):
                    assert data is not None
                    yield self._read(name, data)
                start += ahead
                if there < ahead:
                    return

    def _read(self, name: str, data: bytes) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self._opened(data, name))
        return fields

    def _first(self, name: str, fields: Mapping[str, Any]) -> bool:
        return self.bucket.first(name, b"".join(self._lock.closed(json.dumps(fields).encode(), name)))

    # --- to the bucket

    def send(self, number: int, messages: Sequence[tuple[int, Event, int]]) -> None:
        """Write ahead (client, event, bytes) of what is sent now, with the states and noised uploads that are in the
        folder. It is in the bucket when this returns; raises Overtaken where another process has sent something else
        that one of these clients noised, or the round counts."""
        mine = [self._sent(number, *message) for message in messages]
        place, by = dict[str, Place](), uuid.uuid4().hex
        while True:
            log = self._records(number)
            before = {sent["client"]: sent for record in log for sent in record["sent"]}
            noised = {sent["client"]: sent["upload"] for r in log for sent in r["sent"] if sent["upload"]}
            for sent in mine:
                if sent["upload"] and noised.get(sent["client"], sent["upload"]) != sent["upload"]:
                    raise Overtaken(f"another process has sent what client {sent['client']} noised in round {number}")
            new = [sent for sent in mine if before.get(sent["client"]) != sent and _tells(sent)]
            if not new:
                break
            place = place or self._pack(number, by, new)
            record = {"by": by, "sent": new, "places": place}
            name = f"{self.name}/log/{number:05d}/{len(log):05d}"
            if self._first(name, record):
                log.append(record)
                break
        if self.counts(number):
            raise Overtaken(f"round {number} of {self.folder} counts already: another process goes on with this trial")

    def said(self, number: int) -> dict[str, str]:
        """The digests of the states that a round's messages tell of, by client."""
        found = {s["client"]: s["state"] for record in self._records(number) for s in record["sent"] if s["state"]}
        return {str(client): found[client] for client in sorted(found)}

    def commit(self, number: int, text: str, server: Path | None) -> None:
        """Make a round count, with what the folder is to have as its commit; then drop what no resume can need. Raises
        Overtaken where it counts already."""
        name = None
        if server is not None:
            name = f"server-{number:05d}-{uuid.uuid4().hex}"
            self._put(name, self._lock.closed(server.read_bytes(), f"{self.name}/{name}"), server.stat().st_size)
        log = self._records(number)
        of = {s["client"]: r["places"][_state(s["client"], number)] for r in log for s in r["sent"] if s["state"]}
        fields = {"commit": text, "server": name, "states": of}
        if not self._first(f"{self.name}/commit-{number:05d}", fields):
            if name is not None:
                self.bucket.remove([f"{self.name}/{name}"])
            raise Overtaken(f"round {number} of {self.folder} counts already: another process goes on with this trial")
        self._drop(number, {_state(client, number): place for client, place in of.items()}, name, log)

    def _drop(
        self, number: int, made: Mapping[str, Place], server: str | None, log: Iterable[Mapping[str, Any]]
    ) -> None:
        """What the commit before needed and this one does not."""
        again = {_client(name) for name in made}
        before = {**self._places, **{name: place for record in log for name, place in record["places"].items()}}
        after = {name: p for name, p in self._places.items() if _is_state(name, number) and _client(name) not in again}
        after |= made
        packs = {p[0] for p in before.values()} - {p[0] for p in after.values()}
        old = [*sorted(packs), *([self._known["server"]] if self._known.get("server") else [])]
        _write(self.folder / PLACES, json.dumps({"server": server, "places": after}).encode())
        self._forget()
        self.bucket.remove([f"{self.name}/{name}" for name in old])

    def _sent(self, number: int, client: int, event: Event, size: int) -> dict[str, Any]:
        kept = {kind: self.folder / _named(kind, client, number) for kind in ("clients", "releases")}
        seal = {kind: seals.seal_of(path) if path.exists() else None for kind, path in kept.items()}
        about = {"client": client, "event": event_to_dict(event), "bytes": size}
        told: dict[str, Any] = json.loads(json.dumps({**about, "state": seal["clients"], "upload": seal["releases"]}))
        return told  # as it is read from the log: without tuples

    def _pack(self, number: int, by: str, sent: Iterable[Mapping[str, Any]]) -> dict[str, Place]:
        """Put what these messages go with, and say where it is."""
        names = [_named("clients", s["client"], number) for s in sent if s["state"]]
        names += [_named("releases", s["client"], number) for s in sent if s["upload"]]
        pack, places, at = f"packs/{number:05d}-{by}", dict[str, Place](), 0
        for name in names:
            end = at + closed_size((self.folder / name).stat().st_size)
            places[name], at = (pack, at, end), end

        def pieces() -> Iterator[bytes]:
            for name in names:
                yield from self._lock.closed((self.folder / name).read_bytes(), f"{self.name}/{name}")

        if places:
            self._put(pack, pieces(), at)
        return places

    def _put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        # What is small is put at once: parts take three requests.
        self.bucket.put(f"{self.name}/{name}", b"".join(pieces) if size <= MULTIPART else pieces)

    # --- results that several trials share

    def load_cached(self, path: Path) -> None:
        """Bring a result here, if it is not and there is one."""
        name = self._cached(path)
        if not path.exists() and (found := self.bucket.get(name)) is not None:
            _write(path, self._opened(found, name))

    def keep_cached(self, path: Path) -> None:
        """Put a result that was made here."""
        name, size = self._cached(path), path.stat().st_size
        pieces = self._lock.closed(path.read_bytes(), name)
        self.bucket.put(name, b"".join(pieces) if size <= MULTIPART else pieces)

    def forget_cached(self, path: Path) -> None:
        """Drop it."""
        self.bucket.remove([self._cached(path)])

    def has_cached(self, path: Path) -> bool:
        """Whether it is there."""
        return self.bucket.written(self._cached(path)) is not None

    def _cached(self, path: Path) -> str:
        return "/".join(path.absolute().parts[-4:])

    # --- what this process knows

    @cached_property
    def _known(self) -> dict[str, Any]:
        path = self.folder / PLACES
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"server": None, "places": {}}
        return found

    @property
    def _places(self) -> dict[str, Place]:
        return dict(self._known["places"])

    def _forget(self) -> None:
        self.__dict__.pop("_known", None)


def _named(kind: str, client: int, number: int) -> str:
    return f"{kind}/{client:05d}-{number:05d}.safetensors"


def _state(client: int, number: int) -> str:
    return _named("clients", client, number)


def _client(name: str) -> str:
    """What the name of a state begins with: its client."""
    return name.partition("-")[0]


def _is_state(name: str, number: int) -> bool:
    """Whether this is a client's state from before a round."""
    kind, _, of = name.partition("/")
    return kind == "clients" and int(of.partition("-")[2].removesuffix(".safetensors")) < number


def _tells(sent: Mapping[str, Any]) -> bool:
    """Whether this must be known: a message reveals something, or a state goes with it."""
    return bool(sent["state"] or sent["upload"] or sent["event"] != event_to_dict(Nothing()))


def _write(path: Path, data: bytes) -> None:
    with appearing(path) as temporary:
        temporary.write_bytes(data)
