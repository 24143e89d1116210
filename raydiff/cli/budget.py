"""What the trials on a data set have spent of its budget, and what is left.

raydiff budget                       every budget of the storage folder
raydiff budget digits                that of a data set, a preset or an experiment file
raydiff budget path/to/pictures --storage /mnt/shared/raydiff

A budget is begun by the first trial with `--budget 10` (raydiff sweep, raydiff run). "together" is what the trials so
far count for in its privacy filter; what is guaranteed is the budget. The log is checked: what is damaged, cut or
missing is named, and then nothing is charged any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from raydiff.cli.parser import Parser
from raydiff.data import sources
from raydiff.experiment import presets as names
from raydiff.experiment import spending
from raydiff.experiment import toml_file as file
from raydiff.formats import rounding as bounds
from raydiff.privacy import accountants, gaussian
from raydiff.privacy import filters as privacy
from raydiff.privacy.filters import Budget, Order
from raydiff.privacy.ledger import Guarantee
from raydiff.privacy.release import Event
from raydiff.storage.append_log import BudgetLog


def main(argv: Sequence[str]) -> int:
    """Print each budget. Raises ValueError where there is none, or where its records are damaged."""
    p = Parser("budget [DATA]", __doc__).with_storage()
    p.add_argument("data", nargs="?", help="a data set, a preset or an experiment file (default: all)")
    given = p.parse_args(argv)
    books = spending.logs(given.storage)
    if given.data is not None:
        wanted = spending.called(sources.identity(_data(given.data)))
        books = [book for book in books if book.folder.name == wanted]
    if not books:
        of = "" if given.data is None else f" of {given.data}"
        raise ValueError(f"there is no budget{of} in {given.storage}: the first trial with --budget begins one")
    for book in books:
        print("\n".join(lines(book)))
    return 0


def lines(book: BudgetLog) -> list[str]:
    """What a book says: its budget, each trial with what it spends and what all up to it have, and what is left."""
    header, *records = spending.verified(book)
    budget = Budget(**header["budget"])
    said, charges = [f"{header['source']}: {budget}"], dict[str, tuple[Event, ...]]()
    order, total = spending.order_of(records), budget.spent([])
    for record in records:
        charges[record["key"]] = events = privacy.read(record["events"])
        alone, total = budget.spent([events]), budget.spent(charges.values(), order)
        sent = "" if record["whole"] else ", as far as it was sent before there was a budget"
        said.append(f"  {record['at']}  {record['trial']}: {_shown(alone)}, together {_shown(total)}{sent}")
    left = _left(budget, [events for events in charges.values() if events], order)
    return [*said, f"spent: {_shown(total)} of {budget.epsilon:g}, by {len(charges)} trials; {left}"]


def _left(budget: Budget, charges: Sequence[tuple[Event, ...]], order: Order) -> str:
    """What one more trial may spend: under Gaussian DP the squares of mu add up; of Renyi divergences no epsilon says
    it."""
    if order not in (None, "first"):
        return f"what is left depends on the noise that would come next (Renyi order {order:g})"
    room = accountants.mu_for(budget.epsilon, budget.delta) ** 2 - sum(privacy.cost(events, None) for events in charges)
    left = gaussian.epsilon_for(math.sqrt(max(0.0, room)), budget.delta)
    return f"left: one more trial at epsilon {bounds.down(left)}, or several that are less together"


def _shown(guarantee: Guarantee) -> str:
    return f"epsilon {bounds.up(guarantee.epsilon)}"


def _data(name: str) -> str:
    """The name of the data set that is meant."""
    known = name in names.PRESETS or (name.endswith(file.SUFFIX) and Path(name).exists())
    return names.study(name).experiment.data.name if known else name
