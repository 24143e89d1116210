"""Epsilon of all trials on a data set together, and what is left of its budget.

    raydiff budget                       every budget of the storage folder
    raydiff budget digits                that of a data set, a preset or an experiment file

The first trial with `--budget 10` (raydiff sweep, raydiff run) begins a budget. The log is verified: with a record
damaged, cut or missing nothing more is charged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydiff.cli.options import StorageOptions, parse_options, positional
from raydiff.data import source_registry
from raydiff.experiment import presets, spending, toml_file
from raydiff.formats import rounding
from raydiff.privacy import accountants, filters, gaussian
from raydiff.privacy.filters import Budget
from raydiff.privacy.release import Event
from raydiff.storage.append_log import BudgetLog


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(StorageOptions):
    data: str | None = positional(None)
    """A data set, a preset or an experiment file (default: all)."""


def main(argv: Sequence[str]) -> int:
    """Print each budget. Raises ValueError where there is none, or where its records are damaged."""
    options = parse_options(BudgetOptions, argv, __doc__)
    logs = spending.logs(options.storage)
    about = ""
    if (name := options.data) is not None:
        about = f" of {name}"
        if name in presets.PRESETS or (name.endswith(toml_file.SUFFIX) and Path(name).exists()):
            name = presets.study(name).experiment.data.name
        wanted = spending.called(source_registry.identity(name))
        logs = [log for log in logs if log.folder.name == wanted]
    if not logs:
        raise ValueError(f"there is no budget{about} in {options.storage}: the first trial with --budget begins one")
    for log in logs:
        print("\n".join(budget_lines(log)))
    return 0


def budget_lines(log: BudgetLog) -> list[str]:
    """The budget, each trial with its own epsilon and that of all up to it, and what is left."""
    header, *records = spending.verified(log)
    budget = Budget(**header["budget"])
    out = [f"{header['source']}: {budget}"]
    charges = dict[str, tuple[Event, ...]]()
    order = spending.order_of(records)
    total = budget.spent([])
    for record in records:
        charges[record["key"]] = events = filters.events_from_json(record["events"])
        trial = budget.spent([events])
        total = budget.spent(charges.values(), order)
        epsilons = f"epsilon {rounding.up(trial.epsilon)}, together epsilon {rounding.up(total.epsilon)}"
        sent = "" if record["whole"] else ", as far as it was sent before there was a budget"
        out.append(f"  {record['at']}  {record['trial']}: {epsilons}{sent}")
    if order in (None, "first"):
        used = sum(filters.cost(events, None) for events in charges.values() if events)
        mu = math.sqrt(max(0.0, accountants.mu_for(budget.epsilon, budget.delta) ** 2 - used))  # Squares of mu add up.
        epsilon = rounding.down(gaussian.gaussian_epsilon(mu, budget.delta))
        left = f"left: one more trial at epsilon {epsilon}, or several that are less together"
    else:
        left = f"what is left depends on the noise that would come next (Renyi order {order:g})"
    summary = f"epsilon {rounding.up(total.epsilon)} of {budget.epsilon:g}, by {len(charges)} trials"
    return [*out, f"spent: {summary}; {left}"]
