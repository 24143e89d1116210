"""What survives a crash: the checkpoint of one trial, in any `Storage`. No Ray inside.

    server-00003.safetensors           the server's state after round 3
    clients/00007-00003-<checksum>.safetensors
                                       client 7's private state after round 3, written by the process that hosts it
    releases/00007-00003.safetensors   what client 7 sends in round 3 if it is noised, with its event; written BEFORE it
                                       is sent (write-ahead log)
    releases/00003-<id>.jsonl          events of messages that are not noised, a line for each client; written ahead too
    commit-00003.json                  what round 3 adds to the ledger, its metrics, the checksum of the server's state,
                                       round and checksum of each client's latest one, and the checksum of the commit
                                       before. Written last: a round without it did not happen

Each file is written whole or not at all and carries a checksum, its trial and its name, so that a copy of another is
refused, as is a state that is not the one of the commit. A damaged file, or a missing one that a commit needs, raises a
ValueError with its name. Files of other names, such as the copies that a synchronising program leaves, are not read.
"""

import hashlib
import json
import re
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raydiff.formats.json_files import dumps, parse_sealed, read_numbers, sealed
from raydiff.privacy.ledger import Entry, Ledger
from raydiff.privacy.release import Event, Gaussian, Nothing, Release, already_private, event_from_dict, event_to_dict
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.checksums import checksum, dump_tensors, load_tensors
from raydiff.storage.file_names import COMMIT, NAMES, RELEASE, SERVER, STATE
from raydiff.storage.shared_results import SharedResults
from raydiff.storage.storage import storage_at
from raydiff.tree import Params, Tensors

INITIAL = -1  # the "round" of a client's state before its first one
Stored = tuple[int, str]  # a state's round and checksum
WRITERS = 8  # threads that write states: together they take a tenth of the time of one by one


class Checkpoint:
    """The checkpoint of one trial. Cheap to create; not safe for several threads."""

    def __init__(
        self, root: Path, cache: Path | None = None, guard: Callable[[], None] | None = None, trial: str | None = None
    ) -> None:
        """Open the checkpoint in a trial's folder, of a bucket the working folder.

        `cache`: the folder of `results`; `guard`: raises LeaseLost if the driver has lost the sweep; `trial`:
        its digest, if the folder's name is not.
        """
        self.root = root
        self.guard = guard
        self.trial = trial or root.name
        self.storage = storage_at(root, private=True)
        self.results = SharedResults(storage_at(cache or root / "cache", private=True))
        self._writers = ThreadPoolExecutor(WRITERS)
        self._writes: list[Future[None]] = []
        self._saved: dict[int | None, Stored] = {}  # client, None: server -> the last state this process has saved
        self._latest: dict[int, dict[str, Stored]] = {}  # the last commit read -> each client's latest state

    def save_server(self, number: int, state: Params) -> None:
        """Store the server's state after a round; `commit` makes it count. Raises LeaseLost as `check_open`."""
        self.check_open(number)
        data = self._dump(SERVER.format(number), state)
        self.storage.put(SERVER.format(number), data)
        self._saved[None] = number, checksum(data)

    def load_server(self, number: int) -> Params:
        """The server's state after a committed round. Raises ValueError if it is damaged, missing or another one."""
        commit = self._record(number)[0] if number in self._rounds("commit") else {}
        return self._required(SERVER.format(number), commit.get("server"))

    def save_client(self, client: int, number: int, state: Params) -> None:
        """Store a client's private state after a round, in the background.

        `flush`, `note` and `commit` wait for it. Raises LeaseLost as `check_open`, and OSError if an earlier write has
        failed.
        """
        self.check_open(number)
        data = self._dump(STATE.format(client, number, ""), state)
        stored = number, checksum(data)
        self.flush(0 if self._saved.get(client, (INITIAL, ""))[0] == number else 2 * WRITERS)  # The latest one counts.
        self._writes.append(self._writers.submit(self.storage.put, STATE.format(client, *stored), data))
        self._saved[client] = stored

    def flush(self, limit: int = 0) -> None:
        """Wait until at most `limit` states are being written. Raises OSError if a write has failed."""
        while len(self._writes) > limit:
            self._writes.pop(0).result()

    def load_client(self, client: int, *, before: int) -> Params | None:
        """A client's latest committed state of a round before `before`, or None. Raises ValueError if it is damaged."""
        last = before - 1
        if last not in self._latest:
            last = max((n for n in self._rounds("commit") if n < before), default=INITIAL) if before > 0 else INITIAL
            self._latest = {last: self._record(last)[0]["states"] if last > INITIAL else {}}
        stored = self._latest[last].get(str(client))
        return None if stored is None else self._required(STATE.format(client, *stored), stored[1])

    def save_release(
        self, client: int, number: int, release: Release, metrics: Mapping[str, float] = types.MappingProxyType({})
    ) -> Release:
        """Store a noised message before it is sent; returns the one to send, now and in every retry.

        Resending the stored bytes spends nothing. The first stored message counts, with its `metrics`: the same noise
        on two values (a process believed dead may still compute) would reveal their difference. A message without noise
        is returned as it is; `note` records it. Raises LeaseLost as `check_open`."""
        if not isinstance(release.event, Gaussian):
            return release
        name = RELEASE.format(client, number)
        saved, digest = self._saved.get(client, (INITIAL, ""))
        state = digest if saved == number else None  # Whoever resends it needs the state, too.
        about: dict[str, Any] = {"client": client, "event": event_to_dict(release.event), "bytes": release.nbytes}
        about |= {"metrics": dict(metrics), "state": state}
        first = self.storage.put_if_absent(name, self._dump(name, release.value, **about))
        stored = None if first else self.load_sent(client, number)
        self.check_open(number)  # Last: a commit in between may have removed another message than this one.
        if not first and stored is None:
            raise LeaseLost(f"{self.storage.describe(name)} was removed by another process")
        return stored[0] if stored else release

    def load_sent(self, client: int, number: int) -> tuple[Release, dict[str, float], bool] | None:
        """Return a client's noised message of a round, its metrics, and whether its state of that round is intact.

        A power loss can remove the state. None if there is no such message.
        """
        if (stored := self._load(RELEASE.format(client, number))) is None:
            return None
        value, about = stored
        try:
            if (digest := about["state"]) is not None:
                self._required(STATE.format(client, number, digest), digest)
            intact = True
        except ValueError:
            intact = False
        return (
            already_private(value, event_from_dict(about["event"]), copy=False),
            read_numbers(about["metrics"]),
            intact,
        )

    def note(self, number: int, sent: Iterable[tuple[int, Event, int]]) -> None:
        """Write ahead what messages without noise reveal, (client, event, bytes) each, in case the round never commits.

        Wait until their clients' states are stored too.
        """
        self.flush()
        name = f"releases/{number:05d}-{uuid.uuid4().hex[:12]}.jsonl"
        lines = [
            sealed({"client": client, "event": event_to_dict(event), "bytes": size}, self._identity(name))
            for client, event, size in sent
            if not isinstance(event, Gaussian | Nothing)
        ]
        if lines:
            self.storage.put(name, "\n".join(lines).encode())
        self.check_open(number)

    def sent_after(self, number: int) -> list[tuple[int, int, Event, int]]:
        """(round, client, event, bytes) of what clients may have sent after `number`. Raises ValueError if damaged."""
        messages: dict[tuple[int, int], Mapping[str, Any]] = {}
        names = [m for m in self._names("releases") if int(m["round"]) > number]
        for m in sorted(names, key=lambda m: m["client"] is None):  # Of two, the unprotected message counts.
            name = f"releases/{m[0]}"
            if m["client"] is None:
                lines = (self.storage.get(name) or b"").splitlines()
                sent = [self._parse(name, line, needs="event") for line in lines]
            else:
                stored = self._load(name)
                sent = [] if stored is None else [stored[1]]  # A commit may have just removed the file.
            messages |= {(int(m["round"]), about["client"]): about for about in sent}
        return [
            (later, client, event_from_dict(about["event"]), int(about["bytes"]))
            for (later, client), about in sorted(messages.items())
        ]

    def commit(self, number: int, record: dict[str, Any]) -> None:
        """Make a round count; remove older states and messages. Raises LeaseLost as `check_open`, changing nothing."""
        self.flush()
        names = self._names("clients")
        new = [m for m in names if int(m["round"]) == number]
        if len({m["client"] for m in new}) < len(new):  # A retry had other bits: the latest one counts.
            new.sort(key=lambda m: self.storage.modified(f"clients/{m[0]}") or 0.0)
        earlier = [n for n in self._rounds("commit") if n < number]
        before, previous = self._record(earlier[-1]) if earlier else ({"states": {}}, None)
        latest = {**before["states"], **{str(int(m["client"])): [number, m["checksum"]] for m in new}}
        saved, server = self._saved.get(None, (INITIAL, None))
        links = {"server": server if saved == number else None, "states": latest, "previous": previous}
        data = sealed({**record, **links}, self._identity(COMMIT.format(number))).encode()
        self.check_open(number)
        if not self.storage.put_if_absent(COMMIT.format(number), data):
            raise self._committed_already(number)
        old = [SERVER.format(of) for of in self._rounds("server") if of < number]
        old += [f"releases/{m[0]}" for m in self._names("releases") if int(m["round"]) <= number]
        kept = {STATE.format(int(client), *stored) for client, stored in latest.items()}
        old += [f"clients/{m[0]}" for m in names if int(m["round"]) <= number and f"clients/{m[0]}" not in kept]
        self.storage.delete(old)

    def check_open(self, number: int) -> None:
        """Raises LeaseLost if round `number` is committed, or this process's driver has lost the sweep."""
        if self.guard is not None:
            self.guard()
        if self.storage.modified(COMMIT.format(number)) is not None:
            raise self._committed_already(number)

    def last_commit(self) -> tuple[int, dict[str, Any]] | None:
        """(number, record) of the last committed round; None before the first. Raises ValueError if it is damaged."""
        numbers = self._rounds("commit")
        if not numbers:
            self.ledger()
            return None
        record = self._record(numbers[-1])[0]
        return numbers[-1], {k: v for k, v in record.items() if k not in ("server", "states", "previous")}

    def ledger(self) -> Ledger:
        """The ledger of the committed rounds. Raises ValueError if a commit is missing, damaged or out of order."""
        entries: list[Entry] = []
        previous: str | None = None
        committed = self._rounds("commit")
        for number in range(max([*committed, *self._lost(committed)], default=INITIAL) + 1):
            record, digest = self._record(number)
            if record["previous"] != previous:
                raise ValueError(
                    f"{self.storage.describe(COMMIT.format(number - 1))} is damaged: it is not the commit that round "
                    f"{number} followed"
                )
            previous = digest
            entries += Ledger.from_json(record["ledger"]).entries
        return Ledger(tuple(entries))

    def _names(self, kind: str) -> list[re.Match[str]]:
        """The names of this kind, `NAMES`, matched."""
        names = self.storage.list_names(kind if kind in ("clients", "releases") else "")
        return [m for m in map(NAMES[kind].fullmatch, names) if m]

    def _rounds(self, kind: str) -> list[int]:
        return sorted(int(m["round"]) for m in self._names(kind))

    def _committed_already(self, number: int) -> LeaseLost:
        return LeaseLost(
            f"round {number} of {self.storage.describe('')} is committed: another process has taken over this trial"
        )

    def _record(self, number: int) -> tuple[dict[str, Any], str]:
        """A commit's fields and its checksum."""
        if (data := self.storage.get(COMMIT.format(number))) is None:
            raise ValueError(f"{self.storage.describe('')} has lost commit {number}: what it has spent is not known")
        return self._parse(COMMIT.format(number), data, needs="states"), hashlib.sha256(data).hexdigest()

    def _lost(self, committed: Sequence[int]) -> list[int]:
        """Return the last commit's number if the commit is gone and other files show it.

        A commit removes the server states before it, and nobody sends anything, or stores a state, in a round
        before the one before it is committed.
        """
        last = committed[-1] if committed else INITIAL
        servers = self._rounds("server")
        lost = bool(servers) and max(servers) > last and last not in servers and max(servers) > 0
        begun = [*self._rounds("clients"), *self._rounds("releases")]
        return [last + 1] if lost or max(begun, default=0) > last + 1 else []

    def _dump(self, name: str, value: Tensors, **about: Any) -> bytes:
        return dump_tensors(value, self._identity(name), dumps(about))

    def _load(self, name: str, digest: str | None = None) -> tuple[Params, dict[str, Any]] | None:
        """The tensors of this name, and what is noted about them; `digest`: their checksum in the commit."""
        if (data := self.storage.get(name)) is None:
            return None
        where = self.storage.describe(name)
        value, note = load_tensors(data, where, self._identity(name))
        if digest not in (None, checksum(data)):
            raise ValueError(f"{where} is damaged: it is not the one that was committed, as an older copy put back is")
        about: dict[str, Any] = json.loads(note)
        return value, about

    def _required(self, name: str, digest: str | None = None) -> Params:
        self.flush()
        if (stored := self._load(name, digest)) is None:
            raise ValueError(f"{self.storage.describe(name)} is gone, and the trial cannot go on without it")
        return stored[0]

    def _identity(self, name: str) -> str:
        """What a file is of: the trial and the name, of a client's state without the checksum."""
        return f"{self.trial}/{name.rpartition('-')[0] if name.startswith('clients/') else name}"

    def _parse(self, name: str, data: bytes, needs: str) -> dict[str, Any]:
        return parse_sealed(data, self.storage.describe(name), of=self._identity(name), needs=needs)
