"""Records that only grow in number, in a folder that all nodes share: whoever adds one sees all before it.

    <folder>/00001.json     the first record; sealed (`seals`), as all are
    <folder>/00002.json     the next one, with the digest of the file before it
    <storage>/sweeps/.budgeted/<folder's name>    that there is such a log, where the trials are; before record 2

A number is taken by an atomic link of a file that is on the disk already. So a record is there whole or not at all,
whenever a process dies; of several processes that add at once one succeeds, and the others look again; and a lock that
a dead process might hold there is none. A flipped bit, a cut file or a missing one is found by the digests; that the
first or all are missing, by the marker in another folder; that the last are, by the trials that were told their numbers
(`experiment.spending`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.formats.json_files import sealed
from raydiff.storage import checksums as seals
from raydiff.storage.atomic_files import write_text


@dataclass(frozen=True)
class BudgetLog:
    """The records in a folder; nothing is made until there is one."""

    folder: Path

    @property
    def marker(self) -> Path:
        """The file that knows of this log when its folder is gone."""
        return self.folder.parents[1] / "sweeps" / ".budgeted" / self.folder.name

    @property
    def begun(self) -> bool:
        """Whether there is a record, or ever was one after the first."""
        return self._file(1).exists() or self.marker.exists()

    def records(self) -> list[dict[str, Any]]:
        """All of them, checked. Raises ValueError, which names the file, where one is damaged or missing."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        marked = self.marker.exists()  # before record 1 is looked for: another process writes both
        while (path := self._file(len(found) + 1)).exists():
            record = seals.read_json(path)
            if record.pop("previous", "") != before:
                raise ValueError(f"{path} is damaged: it does not follow the record before it")
            before = seals.digest(path)
            found.append(record)
        later = any(p.stem.isdigit() and int(p.stem) > len(found) + 1 for p in self.folder.glob("*.json"))
        if later or (marked and not found):
            gone = f"has lost record {len(found) + 1}" if self.folder.exists() else "is gone"
            raise ValueError(f"{self.folder} {gone}: what was spent is not known until a copy is put back")
        if len(found) > 1 and not self.marker.exists():
            raise ValueError(f"{self.marker} is gone, the other trace of {self.folder}: put back a copy of it")
        return found

    def add(self, record: Mapping[str, Any], number: int) -> None:
        """Write record `number`, whose predecessors were read; on the disk when this returns. Raises FileExistsError
        where another process was faster, ValueError as `records` does for the one before."""
        previous = None if number == 1 else seals.digest(self._file(number - 1))
        text = sealed({**record, "previous": previous})
        write_text(self._file(number), text, durable=True, first=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"
