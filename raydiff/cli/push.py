"""Upload samples of `raydiff generate` to the Hugging Face hub, as a data set with a card.

    raydiff push FOLDER hub:owner/name            says what would leave, and under which privacy; nothing is uploaded
    raydiff push FOLDER hub:owner/name --yes      uploads it, for yourself alone; with --public for everybody

Its card.json goes along, and a README.md made of it. The hub knows you by `hf auth login`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.cli.options import parse, positional
from raydiff.data import hub
from raydiff.data.tables import rows_file
from raydiff.formats.json_files import read_json
from raydiff.storage.atomic_files import write_text


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    folder: Path = positional()
    """Folder that raydiff generate wrote."""
    name: str = positional()
    """hub:owner/name."""
    yes: bool = False
    """Upload it."""
    public: bool = False
    """Visible to everybody, not only to the owner."""
    without_guarantee: bool = False
    """Also where no epsilon covers the records, such as for samples of a client's own model."""


def main(argv: Sequence[str]) -> int:
    """Print what would leave; with --yes, upload it."""
    options = parse(PushOptions, argv, __doc__)
    folder, repository = options.folder, hub.repository(options.name)
    if not (folder / "card.json").exists():
        raise ValueError(f"{folder} has no card.json: raydiff generate did not write it")
    card = read_json(folder / "card.json", needs="privacy")
    files = sorted(path.name for path in folder.iterdir() if path.name != "README.md")
    unknown = [name for name in files if not (name.startswith("train-") or name in ("card.json", rows_file.FILE))]
    if unknown:
        raise ValueError(f"{folder} holds {unknown[0]}, which raydiff generate did not write: remove it")
    print(f"{', '.join(files)}: {card['rows']} samples\nprivacy: {card['privacy']}\ncovers: {card['covers']}")
    epsilon = float((card.get("guarantee") or {"epsilon": math.inf})["epsilon"])
    if not (epsilon < math.inf or options.without_guarantee):
        raise ValueError("no epsilon covers the records behind these samples: give --without-guarantee to push them")
    if not options.yes:
        print(f"nothing was uploaded: --yes uploads it to {options.name}, {'public' if options.public else 'private'}")
        return 0
    write_text(folder / "README.md", readme(repository, card))
    print(f"uploaded: {hub.upload(folder, repository, public=options.public)}")
    return 0


def readme(repository: str, card: dict[str, Any]) -> str:
    """The hub's page: the card in sentences."""
    made_by, chosen = card["made_by"], card["chosen"]
    composed = "; ".join(chosen["spent_together"])
    return f"""---
tags: [synthetic, raydiff]
---
# {repository}

{card["rows"]} synthetic records: {card["about"]}. Made by raydiff {made_by["raydiff"]} ({card["method"]["kind"]}).

**Privacy: {card["privacy"]}.** What it covers: {card["covers"]}. Labels: {card["labels"]}.

Chosen from {chosen["from_trials"]} trials of one sweep: {chosen["says"]}. Against the server, {composed}.

`card.json` has the method's settings, the seed and the guarantee in numbers.
"""
