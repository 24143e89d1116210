"""Storage in a bucket, beyond `files.Shared`: what of a trial's folder is carried there, and when. No Ray inside.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

from raydiff.formats.json_files import sealed
from raydiff.privacy.release import Event, Nothing, event_to_dict
from raydiff.storage import checksums as seals
from raydiff.storage.atomic_files import LeaseLost, Shared, write_bytes
from raydiff.storage.bucket import MULTIPART, Bucket, Lock, bucket_at, closed_size

AHEAD = 16  # names that are asked for at once, where they are counted up
PLACES = "places.json"
NOTHING = event_to_dict(Nothing())
LEVELS = {"sweeps": 2, "trials": 4}
"""Of a folder in such a one, how many above it the storage is."""
Place = tuple[str, int, int]
"""A pack, and the first byte and the one after the last of something in it."""


def shared(folder: Path, levels: int | None = None) -> Shared:
    """What all processes see of the folder of a sweep or a trial, or, with 0 levels, of a storage's own."""
    at = folder.absolute()
    if levels is None:
        levels = LEVELS.get(at.parent.name, 0)
    bucket = bucket_at(at.parents[levels - 1] if 0 < levels <= len(at.parents) else at)
    return Shared(folder) if bucket is None else Remote(folder, bucket, "/".join(at.parts[len(at.parts) - levels :]))


@dataclass(frozen=True)
class Remote(Shared):
    """The files in a bucket of a sweep or a trial, on which each process works in a folder of its own."""

    bucket: Bucket
    name: str
    """What the names of its files begin with."""
    _log: dict[int, list[dict[str, Any]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was read of the log, by round."""
    apart: ClassVar[bool] = True
    asked_s: ClassVar[float] = 5.0  # Each question costs money.
    together_s: ClassVar[float] = 5.0

    @cached_property
    def lock(self) -> Lock:
        """Of what a trial has of clients."""
        sweep = self.folder.parents[1]
        if not (sweep / "secret").exists():
            raise ValueError(
                f"what {self.bucket.name} has of clients is encrypted: RAYDIFF_NOISE_SECRET must be the noise secret "
                f"of {sweep.name}"
            )
        return Lock((sweep / "secret").read_bytes(), sweep.name)

    # --- a file by its name

    def at(self, name: str) -> str:
        """Its whole name."""
        return f"{self.name}/{name}".removeprefix("/")

    def put(self, name: str, data: bytes) -> None:
        self.bucket.put(self.at(name), data)

    def first(self, name: str, data: bytes) -> bool:
        return self.bucket.first(self.at(name), data)

    def get(self, name: str) -> bytes | None:
        return self.bucket.get(self.at(name))

    def reading(self, name: str) -> Callable[[], bytes | None]:
        return partial(self.bucket.get, self.at(name))

    def written(self, name: str) -> float | None:
        return self.bucket.written(self.at(name))

    touch = carry = put

    def remove(self, names: Sequence[str]) -> None:
        super().remove(names)
        self.bucket.remove([self.at(name) for name in names])

    def called(self, name: str) -> str:
        return f"{self.bucket.name}/{self.at(name)}"

    def unseen(self, node: str) -> str:
        says = f"the bucket {self.bucket.name} cannot be read: node {node} does not see what the driver writes there"
        return f"{says}; its credentials must be in every node's environment"

    # --- from the bucket

    def restore(self, *, server: bool = True) -> None:
        for kind in ("commit-*.json", "server-*", "clients/*", "releases/*"):
            for path in self.folder.glob(kind):
                path.unlink()
        places: dict[str, Place] = {}
        number, last = -1, None
        for number, last in enumerate(self._counted("commit-{:05d}", 0)):
            write_bytes(self.folder / f"commit-{number:05d}.json", last["commit"].encode())
            places = _after(places, number, last["states"])
        self._log.clear()
        for record in self._records(number + 1):
            places |= record["places"]
            told = [{k: sent[k] for k in ("client", "event", "bytes")} for sent in record["sent"]]
            lines = "".join("\n" + sealed(line) for line in told if line["event"] != NOTHING)
            write_bytes(self.folder / "releases" / f"{number + 1:05d}-{record['by']}.jsonl", lines.encode())
        name = None if last is None else last["server"]
        self._know(name, places)
        if server and name is not None:
            if (found := self.get(name)) is None:
                raise ValueError(f"{self.called(name)} is gone, and round {number} counts: it made it")
            write_bytes(self.folder / f"server-{number:05d}.safetensors", self._opened(found, self.at(name)))

    def complete(self, last: int) -> None:
        names = (f"commit-{last:05d}.json", f"server-{last:05d}.safetensors", PLACES)
        if not all((self.folder / name).exists() and (self.folder / name).stat().st_size for name in names):
            self.restore()

    def fetch(self, path: Path) -> None:
        name = f"{path.parent.name}/{path.name}"
        if path.exists() or (place := self._known["places"].get(name)) is None:
            return
        pack, start, end = place
        found = self.bucket.part(self.at(pack), start, end)
        if found is None:
            raise ValueError(f"{self.called(pack)} is gone or cut short: it has {name}")
        write_bytes(path, self._opened(found, self.at(name)))

    def _opened(self, data: bytes, name: str) -> bytes:
        lock = self.lock
        try:
            return lock.opened(data, name)
        except ValueError as e:
            raise ValueError(f"{self.bucket.name}/{e}") from None

    def _records(self, number: int) -> list[dict[str, Any]]:
        """The log of a round, as far as it has come by now."""
        for earlier in [n for n in self._log if n < number]:
            del self._log[earlier]
        known = self._log.setdefault(number, [])
        known += self._counted(f"log/{number:05d}/{{:05d}}", len(known), ahead=1)
        return known

    def _counted(self, names: str, start: int, *, ahead: int = AHEAD) -> Iterator[dict[str, Any]]:
        """What is there of names that are counted up. Raises ValueError where one is damaged, or there is a later
        one."""
        with ThreadPoolExecutor(ahead) as pool:
            while True:
                asked = [names.format(i) for i in range(start, start + ahead)]
                found = list(pool.map(self.get, asked))
                there = found.index(None) if None in found else ahead
                if any(found[there:]):
                    raise ValueError(f"{self.called(asked[there])} is lost, and a later one is there")
                for name, data in zip(asked[:there], found, strict=False):
                    assert data is not None
                    yield json.loads(self._opened(data, self.at(name)))
                start += ahead
                if there < ahead:
                    return

    # --- to the bucket

    def send(self, number: int, messages: Sequence[tuple[int, Event, int]]) -> None:
        mine = [self._sent(number, *message) for message in messages]
        place, by = dict[str, Place](), uuid.uuid4().hex
        while True:
            log = self._records(number)
            before = {sent["client"]: sent for record in log for sent in record["sent"]}
            noised = {sent["client"]: sent["upload"] for r in log for sent in r["sent"] if sent["upload"]}
            for sent in mine:
                if sent["upload"] and noised.get(sent["client"], sent["upload"]) != sent["upload"]:
                    raise LeaseLost(f"another process has sent what client {sent['client']} noised in round {number}")
            told = [sent for sent in mine if sent["state"] or sent["upload"] or sent["event"] != NOTHING]
            new = [sent for sent in told if before.get(sent["client"]) != sent]
            if not new:
                break
            place = place or self._pack(number, by, new)
            record = {"by": by, "sent": new, "places": place}
            if self._first(f"log/{number:05d}/{len(log):05d}", record):
                log.append(record)
                break
        if self.written(f"commit-{number:05d}") is not None:
            raise self._counts(number)

    def said(self, number: int, states: dict[int, Path]) -> dict[str, str | None]:
        """Most states are in other processes' folders; their messages have told of them."""
        found = {s["client"]: s["state"] for record in self._records(number) for s in record["sent"] if s["state"]}
        return {str(client): found[client] for client in sorted(found)}

    def commit(self, number: int, text: str, server: Path | None) -> None:
        name = None
        if server is not None:
            name = f"server-{number:05d}-{uuid.uuid4().hex}"
            self._put(self.at(name), {self.at(name): server})
        log = self._records(number)
        states = {s["client"]: r["places"][_state(s["client"], number)] for r in log for s in r["sent"] if s["state"]}
        if not self._first(f"commit-{number:05d}", {"commit": text, "server": name, "states": states}):
            self.remove([name] if name is not None else [])
            raise self._counts(number)
        self._drop(number, states, name, log)

    def _drop(
        self, number: int, states: Mapping[int, Place], server: str | None, log: Iterable[Mapping[str, Any]]
    ) -> None:
        """What the commit before needed and this one does not."""
        known, after = self._known, _after(self._known["places"], number, states)
        before = [*known["places"].values(), *(place for record in log for place in record["places"].values())]
        old = sorted({pack for pack, *_ in before} - {pack for pack, *_ in after.values()})
        self._know(server, after)
        self.remove([*old, *filter(None, [known["server"]])])

    def _counts(self, number: int) -> LeaseLost:
        return LeaseLost(f"round {number} of {self.folder} counts already: another process goes on with this trial")

    def _sent(self, number: int, client: int, event: Event, size: int) -> dict[str, Any]:
        kept = {kind: self.folder / _named(kind, client, number) for kind in ("clients", "releases")}
        seal = {kind: seals.seal_of(path) if path.exists() else None for kind, path in kept.items()}
        about = {"client": client, "event": event_to_dict(event), "bytes": size}
        told: dict[str, Any] = json.loads(json.dumps({**about, "state": seal["clients"], "upload": seal["releases"]}))
        return told  # as it is read from the log: without tuples

    def _first(self, name: str, fields: Mapping[str, Any]) -> bool:
        return self.first(name, b"".join(self.lock.closed(json.dumps(fields).encode(), self.at(name))))

    def _pack(self, number: int, by: str, sent: Iterable[Mapping[str, Any]]) -> dict[str, Place]:
        """Put what these messages go with, and say where it is."""
        names = [_state(s["client"], number) for s in sent if s["state"]]
        names += [_named("releases", s["client"], number) for s in sent if s["upload"]]
        pack, sizes = f"packs/{number:05d}-{by}", [closed_size((self.folder / n).stat().st_size) for n in names]
        if names:
            self._put(self.at(pack), {self.at(name): self.folder / name for name in names})
        return {n: (pack, *ends) for n, ends in zip(names, pairwise(accumulate(sizes, initial=0)), strict=True)}

    def _put(self, name: str, files: Mapping[str, Path]) -> None:
        """Put these as one, each encrypted under its own name."""
        size = sum(path.stat().st_size for path in files.values())
        pieces = (piece for own, path in files.items() for piece in self.lock.closed(path.read_bytes(), own))
        # What is small is put at once: parts take three requests.
        self.bucket.put(name, b"".join(pieces) if size <= MULTIPART else pieces)

    # --- results that several trials share

    def load_cached(self, path: Path) -> None:
        name = _cached(path)
        if not path.exists() and (found := self.bucket.get(name)) is not None:
            write_bytes(path, self._opened(found, name))

    def keep_cached(self, path: Path) -> None:
        self._put(_cached(path), {_cached(path): path})

    def forget_cached(self, path: Path) -> None:
        super().forget_cached(path)
        self.bucket.remove([_cached(path)])

    def has_cached(self, path: Path) -> bool:
        return super().has_cached(path) or self.bucket.written(_cached(path)) is not None

    # --- what this process knows: the name of the server's last state, and where states and uploads are

    @cached_property
    def _known(self) -> dict[str, Any]:
        path = self.folder / PLACES
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"server": None, "places": {}}
        return found

    def _know(self, server: str | None, places: Mapping[str, Place]) -> None:
        write_bytes(self.folder / PLACES, json.dumps({"server": server, "places": places}).encode())
        self.__dict__.pop("_known", None)


def _named(kind: str, client: int, number: int) -> str:
    return f"{kind}/{client:05d}-{number:05d}.safetensors"


def _state(client: int, number: int) -> str:
    return _named("clients", client, number)


def _cached(path: Path) -> str:
    return "/".join(path.absolute().parts[-4:])


def _after(places: Mapping[str, Place], number: int, made: Mapping[Any, Place]) -> dict[str, Place]:
    """Where clients' latest states are, once a round has made some: by client, where they are."""
    new = {int(client): place for client, place in made.items()}

    def lasts(name: str) -> bool:
        kind, _, rest = name.partition("/")
        client, _, of = rest.removesuffix(".safetensors").partition("-")
        return kind == "clients" and int(of) < number and int(client) not in new

    kept = {name: place for name, place in places.items() if lasts(name)}
    return kept | {_state(client, number): place for client, place in new.items()}
