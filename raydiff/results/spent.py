"""What all trials of a sweep have spent together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from raydiff.experiment.ledgers import ledger_of
from raydiff.federated.files import write_text
from raydiff.federated.remote import shared
from raydiff.privacy import accountants
from raydiff.privacy.composed import compose
from raydiff.privacy.ledger import Guarantee, Ledger
from raydiff.report.files import sealed

DELTA = 1e-5  # at which the trials are composed


def composed(folder: Path, *, keep: bool = True) -> str:
    """What all trials have spent together, run on the same records: a line for each kind of epsilon, for these do not
    compose. To `keep` it is to write it as composed.json, too."""
    folders = sorted((folder / "trials").glob("*"))
    for trial in folders:
        shared(trial).restore(server=False)  # of a bucket: a driver's folder lacks what other machines have committed
    ledgers = [ledger_of(f).server for f in folders]
    protected = [book for book in ledgers if all(math.isfinite(g.epsilon) for g in _guarantees(book))]
    says = [
        *_lines(f"all {len(ledgers)} trials composed", ledgers),
        *_lines(f"the {len(protected)} protected ones alone", protected),
    ]
    if keep:
        write_text(folder / "composed.json", sealed({"trials": [f.name for f in folders], "says": says}, indent=1))
    return "\n".join(says)


def _lines(about: str, books: Sequence[Ledger]) -> list[str]:
    found = list(dict.fromkeys(map(str, _guarantees(compose(books)))))
    which = [f", kind {i} of {len(found)}" if len(found) > 1 else "" for i in range(1, len(found) + 1)]
    return [f"{about}{kind}: {epsilon}" for kind, epsilon in zip(which, found, strict=True)]


def _guarantees(book: Ledger) -> list[Guarantee]:
    """One per kind of epsilon, by the tightest accountant that has a theorem for all of it."""
    return accountants.tightest(lambda name: book.guarantees(DELTA, name))
