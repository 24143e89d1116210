"""One ledger for several trials on the same data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from raydiff.privacy import accountants
from raydiff.privacy.ledger import Entry, Exposed, Ledger
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing


def compose(ledgers: Iterable[Ledger]) -> Ledger:
    """One ledger for several trials with settings fixed beforehand: of a unit that fared worst in each (client 0).

    An example is with one client of each trial, which one may change: every trial counts with its worst client. Of the
    unit client this holds only where a client has the same records in each trial, and of either only where the public
    records are the same: see `client_records.alike`, which the caller asks. Give the same view of every trial
    (`ledger.server` or `ledger.outsiders`). `bytes` are the trials' totals.
    """
    entries: list[Entry] = []
    for trial in ledgers:
        events = _worst(list(Exposed(trial).events())) or [Nothing()]
        for n, event in enumerate(events):
            entries.append(Entry(len(entries), 0, event, 0 if n else trial.bytes_up))
    return Ledger(tuple(entries))


def _worst(exposures: Sequence[Sequence[Event]]) -> list[Event]:
    """Events as revealing as any one client's, or more: the worst of each group, and all unprotected ones."""
    worst: list[Event] = [e for events in exposures for e in events if isinstance(e, NonPrivate)]
    worst = list(dict.fromkeys(worst))
    for group in accountants.groups_of(exposures):
        members = [accountants.of_group(events, group) for events in exposures]
        every = [e for events in members for e in events]
        if all(e.sampling_rate == 1 for e in every):
            strongest: list[Gaussian] = max(members, key=accountants.renyi_mu)
            worst += strongest
        else:  # No number orders sampled Gaussians, so the worst of each parameter counts.
            bound = replace(
                every[0],
                std_over_sensitivity=min(e.std_over_sensitivity for e in every),
                sampling_rate=max(e.sampling_rate for e in every),
                steps=max(sum(e.steps for e in events) for events in members),
                declared=accountants.declared_by(every),
            )
            worst.append(bound)
    return worst
