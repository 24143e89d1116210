"""An append-only log in a folder that all nodes share: each record follows all records before it.

    <folder>/00001.json     the first record, with a checksum of itself
    <folder>/00002.json     the next one, with the checksum of the file before it
    <storage>/sweeps/.budgeted/<folder's name>    that the log exists, in another place; written before record 2

A number is taken by an atomic link of a file that is on the disk already: of several processes that add at once one
succeeds, the others read again, and no dead process holds a lock. The checksums show a flipped bit, a cut file or a
missing one; the marker that the first or all records are missing; the numbers that trials note that the last ones are.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.formats.json_files import place_of, read_sealed, sealed
from raydiff.storage.atomic_files import write_text


@dataclass(frozen=True)
class BudgetLog:
    """The records in a folder, which is created with the first one."""

    folder: Path

    @property
    def marker(self) -> Path:
        """The file that shows that there was a log if its folder is gone."""
        return self.folder.parents[1] / "sweeps" / ".budgeted" / self.folder.name

    @property
    def begun(self) -> bool:
        """Whether there is a record, or ever was a second one."""
        return self._file(1).exists() or self.marker.exists()

    def records(self) -> list[dict[str, Any]]:
        """All records. Raises ValueError, which names the file, if one is damaged or missing."""
        records: list[dict[str, Any]] = []
        previous: str | None = None
        marked = self.marker.exists()  # Looked up before record 1: another process writes both.
        while (path := self._file(len(records) + 1)).exists():
            record = read_sealed(path)
            if record.pop("previous", "") != previous:
                raise ValueError(f"{path} is damaged: it does not follow the record before it")
            previous = hashlib.sha256(path.read_bytes()).hexdigest()
            records.append(record)
        later = any(p.stem.isdigit() and int(p.stem) > len(records) + 1 for p in self.folder.glob("*.json"))
        if later or (marked and not records):
            gone = f"has lost record {len(records) + 1}" if self.folder.exists() else "is gone"
            raise ValueError(f"{self.folder} {gone}: what was spent is not known until a copy is put back")
        if len(records) > 1 and not self.marker.exists():
            raise ValueError(f"{self.marker} is gone, the other trace of {self.folder}: put back a copy of it")
        return records

    def add(self, record: Mapping[str, Any], number: int) -> None:
        """Write record `number`, after its predecessors were read. Raises FileExistsError if another process did."""
        before = self._file(number - 1)
        previous = None if number == 1 else hashlib.sha256(before.read_bytes()).hexdigest()
        path = self._file(number)
        write_text(path, sealed({**record, "previous": previous}, place_of(path)), durable=True, if_absent=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05d}.json"
