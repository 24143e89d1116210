"""What an attack has read, in the folder that was asked for."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydiff.runtime import sweep_folder
from raydiff.storage.atomic_files import write_text


def keep(out: Path, rows: Sequence[Mapping[str, Any]], **about: Any) -> None:
    """Write readings.json, with what there is to say `about` them, and readings.csv; at least one row."""
    out.mkdir(parents=True, exist_ok=True)
    said = {**about, "privacy": "none", "made_by": sweep_folder.version(), "readings": rows}
    write_text(out / "readings.json", json.dumps(said, indent=1))
    with (out / "readings.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
