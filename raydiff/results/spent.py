"""What all trials of a sweep have spent together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydiff.experiment.client_records import alike
from raydiff.experiment.ledgers import ledger_of
from raydiff.formats.json_files import read_json, sealed
from raydiff.privacy import accountants
from raydiff.privacy.filters import compose
from raydiff.privacy.ledger import Guarantee, Ledger
from raydiff.storage.atomic_files import write_text
from raydiff.storage.remote import shared

DELTA = 1e-5  # at which the trials are composed


def composed(folder: Path, *, keep: bool = True) -> str:
    """What all trials have spent together, run on the same records: a line for each kind of epsilon, for these do not
    compose; or why no line can be stated. To `keep` it is to write it as composed.json, too."""
    folders = sorted((folder / "trials").glob("*"))
    for trial in folders:
        shared(trial).restore(server=False)  # of a bucket: a driver's folder lacks what other machines have committed
    ledgers = {f: ledger_of(f).server for f in folders}
    protected = {f: book for f, book in ledgers.items() if all(math.isfinite(g.epsilon) for g in _guarantees(book))}
    if why := _unfit(folder, folders):
        says = [f"no composed epsilon: {why}"]
    else:
        says = [
            *_lines(f"all {len(ledgers)} trials composed", ledgers),
            *_lines(f"the {len(protected)} protected ones alone", protected),
        ]
    if keep:
        write_text(folder / "composed.json", sealed({"trials": [f.name for f in folders], "says": says}, indent=1))
    return "\n".join(says)


def _unfit(folder: Path, trials: Sequence[Path]) -> str:
    """Why no epsilon holds of these trials together; "" where one may."""
    plan = read_json(path) if (path := folder / "sweep.json").exists() else {}
    if str(plan.get("search", "")).split(" ")[0] in ("optuna", "asha"):
        return "the search chose trials, or when they end, by those before"
    if plan.get("extended"):
        return "trials were added when others had been seen"
    return "" if alike(trials, "example") else "trials declare different records public"


def _lines(about: str, ledgers: Mapping[Path, Ledger]) -> list[str]:
    """Of a kind per client: none where a client is not the same records in each trial."""
    of_clients = [f for f, book in ledgers.items() if "client" in {getattr(e.event, "unit", "") for e in book.entries}]
    apart = "" if alike(of_clients, "client") else "no composed epsilon per client: trials deal the records differently"
    stated = _guarantees(compose(ledgers.values()))
    found = list(dict.fromkeys(apart if apart and g.unit == "client" else str(g) for g in stated))
    which = [f", kind {i} of {len(found)}" if len(found) > 1 else "" for i in range(1, len(found) + 1)]
    return [f"{about}{kind}: {epsilon}" for kind, epsilon in zip(which, found, strict=True)]


def _guarantees(book: Ledger) -> list[Guarantee]:
    """One per kind of epsilon, by the tightest accountant that has a theorem for all of it."""
    return accountants.tightest(lambda name: book.guarantees(DELTA, name))
