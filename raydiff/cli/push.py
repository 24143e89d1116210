"""Upload what `raydiff generate` made to the Hugging Face hub, as a data set with a card.

    raydiff push FOLDER hub:owner/name            says what would leave, and under which privacy; nothing is uploaded
    raydiff push FOLDER hub:owner/name --yes      uploads it, for yourself alone; with --public for everybody

FOLDER is `--out` of `raydiff generate`. Its card.json goes along, and a README.md made of it. Samples without a
guarantee, such as a client's own model makes, go with --without-guarantee alone. The hub knows you by `hf auth login`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raydiff.cli.parser import Parser
from raydiff.data import hub
from raydiff.data.tables import rows_file
from raydiff.formats.json_files import read_json
from raydiff.storage.atomic_files import write_text

KNOWN = ("card.json", rows_file.FILE)
"""What `raydiff generate` writes beside the parts, which begin with train-."""


def main(argv: Sequence[str]) -> int:
    """Say what it is, then upload it where that is meant."""
    p = Parser("push FOLDER hub:owner/name", __doc__)
    p.add_argument("folder", type=Path, help="what raydiff generate wrote")
    p.add_argument("name", help="hub:owner/name")
    p.add_argument("--yes", action="store_true", help="upload it")
    p.add_argument("--public", action="store_true", help="for everybody to see; else for the owner alone")
    p.add_argument("--without-guarantee", action="store_true", help="also where no epsilon covers the records")
    given = p.parse_args(argv)
    folder = given.folder.expanduser()
    repository = hub.repository(given.name)
    if not (folder / "card.json").exists():
        raise ValueError(f"{folder} has no card.json: it is not what raydiff generate wrote")
    card = read_json(folder / "card.json", needs="privacy")
    files = sorted(path.name for path in folder.iterdir() if path.name != "README.md")
    if unknown := [name for name in files if not name.startswith("train-") and name not in KNOWN]:
        raise ValueError(f"{folder} holds {unknown[0]}, which raydiff generate did not write: take it away")
    print(f"{', '.join(files)}: {card['rows']} samples\nprivacy: {card['privacy']}\ncovers: {card['covers']}")
    guarantee = card.get("guarantee")
    covered = guarantee is not None and float(guarantee["epsilon"]) < math.inf
    if not (covered or given.without_guarantee):
        raise ValueError("no epsilon covers the records behind these samples: give --without-guarantee to push them")
    if not given.yes:
        print(f"nothing was uploaded: --yes uploads it to {given.name}, {'public' if given.public else 'private'}")
        return 0
    write_text(folder / "README.md", readme(repository, card))
    print(f"uploaded: {hub.upload(folder, repository, public=given.public)}")
    return 0


def readme(repository: str, card: dict[str, Any]) -> str:
    """The hub's page about it: what the card says, in sentences."""
    made, chosen = card["made_by"], card["chosen"]
    spent = "; ".join(chosen["spent_together"])
    return f"""---
tags: [synthetic, raydiff]
---
# {repository}

{card["rows"]} synthetic records: {card["about"]}. Made by raydiff {made["raydiff"]} ({card["method"]["kind"]}).

**Privacy: {card["privacy"]}.** What it covers: {card["covers"]}. Labels: {card["labels"]}.

Chosen from {chosen["from_trials"]} trials of one sweep: {chosen["says"]}. Against the server, {spent}.

`card.json` has the method's settings, the seed and the guarantee in numbers.
"""
