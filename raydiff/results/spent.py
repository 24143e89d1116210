"""Composed guarantee of a sweep's trials."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydiff.experiment.client_records import alike
from raydiff.experiment.ledgers import ledger_of
from raydiff.formats.json_files import dumps, read_plan, trial_folders
from raydiff.privacy import accountants
from raydiff.privacy.filters import compose
from raydiff.privacy.ledger import Guarantee, Ledger
from raydiff.storage.atomic_files import write_text

DELTA = 1e-5  # at which the trials are composed


def composed_guarantee(folder: Path, *, keep: bool = True) -> str:
    """Return a line for each privacy definition, since these do not compose, or why there is no composed epsilon.

    `keep` it in composed.json.
    """
    folders = trial_folders(folder)
    ledgers = {f: ledger_of(f).server for f in folders}
    noised = {f: book for f, book in ledgers.items() if all(0 < g.epsilon < math.inf for g in _guarantees(book))}
    if why := _unfit(folder, folders):
        lines = [f"no composed epsilon: {why}"]
    else:
        lines = _lines(f"all {len(ledgers)} trials composed", ledgers)
        lines += _lines(f"the {len(noised)} that sent noised values alone", noised) if noised else []
    if keep:
        fields = {"trials": [f.name for f in folders], "text": lines}
        write_text(folder / "composed.json", dumps(fields, indent=1))
    return "\n".join(lines)


def _unfit(folder: Path, trials: Sequence[Path]) -> str:
    """Why these trials have no composed epsilon; "" where they may."""
    plan = read_plan(folder) if (folder / "sweep.json").exists() else {}
    if plan.get("suggested") or plan.get("scheduler"):
        return "the search chose trials, or when they end, by those before"
    if plan.get("extended"):
        return "trials were added when others had been seen"
    return "" if alike(trials, "example") else "trials declare different records public"


def _lines(about: str, ledgers: Mapping[Path, Ledger]) -> list[str]:
    of_clients = [f for f, book in ledgers.items() if "client" in {getattr(e.event, "unit", "") for e in book.entries}]
    apart = "" if alike(of_clients, "client") else "no composed epsilon per client: trials deal the records differently"
    stated = _guarantees(compose(ledgers.values()))
    guarantees = list(dict.fromkeys(apart if apart and g.unit == "client" else str(g) for g in stated))
    which = [f", kind {i} of {len(guarantees)}" if len(guarantees) > 1 else "" for i in range(1, len(guarantees) + 1)]
    return [f"{about}{kind}: {epsilon}" for kind, epsilon in zip(which, guarantees, strict=True)]


def _guarantees(book: Ledger) -> list[Guarantee]:
    """One per privacy definition, by the tightest accountant with a theorem for all of it."""
    return accountants.tightest(lambda name: book.guarantees(DELTA, name))
