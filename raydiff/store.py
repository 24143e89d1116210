"""What survives a crash: one folder per trial on storage that all nodes share. No Ray inside.

    <root>/server-00003.safetensors            the server's state after round 3
    <root>/clients/00007-00003.safetensors     client 7's private state after round 3, written by whoever hosts it
    <root>/releases/00007-00003.safetensors    what client 7 sends in round 3 and its event, written BEFORE it is sent
    <root>/releases/00003-<node>.jsonl         where it is not noised only the event: a line for each client of a node
    <root>/commit-00003.json                   what round 3 adds to the ledger, and its metrics; written last: a round
                                               without it did not happen
    <cache>/<key>.safetensors                  results that several trials share, by the digest of what they depend on

Every file appears whole or not at all (temporary file, then rename), but for the .jsonl, to which lines are added.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.privacy.ledger import Entry, Ledger
from raydiff.privacy.release import Event, Gaussian, Nothing, Release, already_private, event_from_dict, event_to_dict
from raydiff.tree import Params

INITIAL = -1  # the "round" of a client's state before its first one


@dataclass(frozen=True)
class Store:
    """The files of one trial. Cheap to make, safe to send to another process."""

    root: Path
    cache: Path | None = None

    def save_server(self, number: int, state: Params) -> None:
        """Keep the server's state after a round; `commit` makes it count."""
        write_tensors(self._server(number), state)

    def load_server(self, number: int) -> Params:
        """The server's state after a committed round."""
        return read_tensors(self._server(number))[0]

    def save_client(self, client: int, number: int, state: Params) -> None:
        """Keep a client's private state after a round (INITIAL: before the first)."""
        write_tensors(self._numbered("clients", client, number), state)

    def load_client(self, client: int, *, before: int) -> Params | None:
        """A client's latest state from a round earlier than `before`, or None."""
        numbers = [int(p.stem[6:]) for p in (self.root / "clients").glob(f"{client:05d}-*.safetensors")]
        usable = [n for n in numbers if n < before]
        return read_tensors(self._numbered("clients", client, max(usable)))[0] if usable else None

    def save_release(self, client: int, number: int, release: Release) -> Release:
        """Write ahead: gives what the client may send now, and must send whenever it is asked again.

        The event is kept for whatever is sent, so that nothing is forgotten when the round never commits; the value is
        kept where it was noised, for repeating any other spends nothing. Of two noised ones the first counts: a lost
        node may still compute, and the same noise on two values would reveal their difference.
        """
        if isinstance(release.event, Nothing):
            return release
        note = {"event": event_to_dict(release.event), "bytes": release.nbytes}
        if not isinstance(release.event, Gaussian):
            # a file for each node: on storage of a network two nodes' additions to one may overwrite each other
            path = self.root / "releases" / f"{number:05d}-{platform.node()}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as f:  # the line break first: what a full disk left of a line stays by itself
                f.write("\n" + json.dumps({"client": client, **note}))
            return release
        path = self._numbered("releases", client, number)
        write_tensors(path, release.value, note=json.dumps(note), durable=True, first=True)
        return self.load_release(client, number) or release

    def load_release(self, client: int, number: int) -> Release | None:
        """What this client has already noised for this round, or None."""
        path = self._numbered("releases", client, number)
        if not path.exists():
            return None
        value, note = read_tensors(path)
        return already_private(value, event_from_dict(json.loads(note)["event"]))

    def sent_after(self, number: int) -> list[tuple[int, int, Event, int]]:
        """(round, client, event, bytes) of what clients sent, or may have sent, in rounds later than `number`.

        Raises ValueError where a note is damaged by more than a write that failed.
        """
        notes: dict[tuple[int, int], dict[str, Any]] = {}
        for path in (self.root / "releases").glob("*.safetensors"):
            if _round_of(path) > number:
                notes[_round_of(path), int(path.stem[:5])] = json.loads(read_tensors(path)[1])
        for path in (self.root / "releases").glob("*.jsonl"):  # last: where both were sent, the unprotected one counts
            if (later := int(path.stem[:5])) > number:
                notes |= {(later, note["client"]): note for note in _lines(path)}
        return [
            (later, client, event_from_dict(note["event"]), int(note["bytes"]))
            for (later, client), note in sorted(notes.items())
        ]

    def commit(self, number: int, record: dict[str, Any]) -> None:
        """Make round `number` count, then drop what no resume can need: server states, releases, client states."""
        write_text(self.root / f"commit-{number:05d}.json", json.dumps(record), durable=True)
        old = [path for path in self.root.glob("server-*.safetensors") if int(path.stem[7:]) < number]
        old += [path for path in (self.root / "releases").glob("*.safetensors") if _round_of(path) <= number]
        old += [path for path in (self.root / "releases").glob("*.jsonl") if int(path.stem[:5]) <= number]
        latest: dict[str, Path] = {}
        for path in sorted((self.root / "clients").glob("*.safetensors")):
            if _round_of(path) <= number:
                old += [latest[path.stem[:5]]] if path.stem[:5] in latest else []
                latest[path.stem[:5]] = path
        for path in old:
            path.unlink(missing_ok=True)

    def last_commit(self) -> tuple[int, dict[str, Any]] | None:
        """(number, record) of the last round that counts, or None."""
        numbers = self._committed()
        return (numbers[-1], self._record(numbers[-1])) if numbers else None

    def ledger(self) -> Ledger:
        """What the rounds that count have spent. Raises ValueError where it is not known: where a commit is missing
        or has entries of other rounds."""
        entries: list[Entry] = []
        for number, there in enumerate(self._committed()):
            if number != there:
                raise ValueError(f"{self.root} has lost commit {number}: what it has spent is not known")
            added = Ledger.from_json(self._record(number)["ledger"]).entries
            if any(entry.round != number for entry in added):
                raise ValueError(f"{self.root} was made by another version of raydiff: its commits have whole ledgers")
            entries += added
        return Ledger(tuple(entries))

    def cached(self, key: str, make: Callable[[], Params]) -> Params:
        """`make()`, or what an earlier call with the same key made, in this trial or another of the same sweep."""
        if (found := self.load_cached(key)) is not None:
            return found
        made = make()
        if self.cache is None:
            return made
        if (found := self.load_cached(key)) is not None:  # a trial beside this one was first, and its result counts
            return found
        write_tensors(self.cache / f"{key}.safetensors", made)
        return made

    def load_cached(self, key: str) -> Params | None:
        """What `cached` has kept under this key, or None. It may be forgotten while one looks."""
        with contextlib.suppress(FileNotFoundError):
            return read_tensors(self.cache / f"{key}.safetensors")[0] if self.cache else None
        return None

    def forget(self, keys: Iterable[str]) -> None:
        """Drop cached results that no one will ask for again."""
        for key in keys:
            if self.cache is not None:
                (self.cache / f"{key}.safetensors").unlink(missing_ok=True)

    def has_cached(self, key: str) -> bool:
        """Whether `cached` would find this key's result."""
        return self.cache is not None and (self.cache / f"{key}.safetensors").exists()

    def has_server(self, number: int) -> bool:
        """Whether the server's state after this round is there."""
        return self._server(number).exists()

    def _committed(self) -> list[int]:
        return sorted(int(p.stem[7:]) for p in self.root.glob("commit-*.json"))

    def _record(self, number: int) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.root / f"commit-{number:05d}.json").read_text())
        return record

    def _server(self, number: int) -> Path:
        return self.root / f"server-{number:05d}.safetensors"

    def _numbered(self, kind: str, client: int, number: int) -> Path:
        return self.root / kind / f"{client:05d}-{number:05d}.safetensors"


def _round_of(path: Path) -> int:
    return int(path.stem[6:])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The notes in a file. One that is not whole does not count: its write failed, and nothing was sent."""
    for line in filter(None, path.read_text().splitlines()):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if not line.startswith("{"):
                raise ValueError(f"{path} is damaged: what clients have sent is not known") from None


def write_tensors(path: Path, tensors: Params, *, note: str = "", durable: bool = False, first: bool = False) -> None:
    """Write a safetensors file; `note` goes into its header. `first`: one that is there stays."""
    from safetensors.torch import save

    whole = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    with appearing(path, durable=durable, first=first) as temporary:
        temporary.write_bytes(save(whole, metadata={"note": note}))


def read_tensors(path: Path) -> tuple[Params, str]:
    """(tensors, note) of a file that `write_tensors` wrote."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, (f.metadata() or {}).get("note", "")  # noqa: SIM118


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a small text file, whole or not at all."""
    with appearing(path, durable=durable) as temporary:
        temporary.write_text(text)


@contextlib.contextmanager
def appearing(path: Path, *, durable: bool = False, first: bool = False) -> Iterator[Path]:
    """A temporary name beside `path` (".<name>.<8 hex digits>") that becomes `path` if the block succeeds, and with
    `first` if there is no such file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as f:
                os.fsync(f.fileno())
        if first:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        else:
            temporary.replace(path)
        if durable:  # the name too
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)
