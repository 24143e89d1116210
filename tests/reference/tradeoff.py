"""True positive rates that no attack on one client's records exceeds, by each adversary's view of a ledger."""

from __future__ import annotations

from collections.abc import Sequence

from raydiff.privacy import tradeoff as losses
from raydiff.privacy.ledger import PUBLISHED, Exposed, Ledger


def of_ledger(ledger: Ledger, client: int, fprs: Sequence[float]) -> list[float]:
    """Of a view against that adversary, of the whole ledger against the stronger."""
    one = Ledger(tuple(e for e in ledger.entries if e.client in (client, PUBLISHED)))
    views = [[e for events in Exposed(view).events() for e in events] for view in (one.server, one.outsiders)]
    return [max(losses.tpr_ceiling(events, fpr) for events in views) for fpr in fprs]
