"""Client-level privacy of averaged updates (DP-FedAvg, McMahan et al. 2018, arXiv 1710.06963).

Unit: all records of one client, replaced by any others. Each client's update is clipped to a norm as a whole; then
either the client adds the noise itself (local trust: it holds against the server), or the server, which is trusted with
the clipped updates, adds it to their sum (central trust: it holds against everybody else, the other clients included).

Deviations: no amplification by sampling clients, since a server sees who takes part and rounds have fixed counts; the
relation is replace-one, for the number of clients is public. Under local trust so is each client's number of records,
which the server sees: it is declared in the event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from raydiff.lookup import check_one_of
from raydiff.privacy import accountants
from raydiff.privacy.release import (
    Event,
    Gaussian,
    NonPrivate,
    Release,
    Trust,
    clipped_update,
    disclose,
    gaussian_update,
    noised,
)
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

DELTA = 1e-5
"""The delta at which a client-level epsilon is stated."""
TRUSTED = "clipped updates, to a server trusted to add the noise"


@dataclass(frozen=True, kw_only=True)
class ClientPrivacy:
    """Clip the whole update of a client, and add noise."""

    epsilon: float = 10.0
    """Budget of one client's updates of all rounds together, at delta 1e-5; inf clips only."""
    clip: float = 1.0
    """Norm to which an update is clipped. A public number: never take it from private data."""
    trust: Trust = "local"
    """local: clients add the noise; central: the server does, once per round, to the sum."""

    def __post_init__(self) -> None:
        accountants.check_budget(self.epsilon, DELTA)
        if not (self.clip > 0 and math.isfinite(self.clip)):
            raise ValueError(f"clip must be a positive number, got {self.clip}")
        check_one_of("trust", self.trust, get_args(Trust))

    def std(self, rounds: int) -> float:
        """Standard deviation of each round's noise, on one update (local) or on their sum (central), such that
        `rounds` rounds keep to the budget."""
        if self.epsilon == math.inf:
            return 0.0
        return 2 * self.clip * math.sqrt(rounds) / accountants.mu_for(self.epsilon, DELTA)

    def release(self, update: Params, *, rounds: int, noise: NoiseStream) -> Release:
        """What a client sends."""
        if self.trust == "local":
            return gaussian_update(update, clip=self.clip, std=self.std(rounds), noise=noise)
        return disclose(clipped_update(update, self.clip), TRUSTED, copy=False)

    def upload_event(self, rounds: int) -> Event:
        """The event of any release, which no update changes."""
        if self.trust == "local":
            ratio = self.std(rounds) / (2 * self.clip)
            return Gaussian(ratio, "client", "replace_one", "local", declared=("examples",))
        return NonPrivate(TRUSTED)

    def publish(self, mean: Params, *, count: int, rounds: int, noise: NoiseStream) -> tuple[Params, Gaussian]:
        """The mean of `count` clipped updates as the server publishes it under central trust, and its event."""
        std = self.std(rounds)
        event = Gaussian(std / (2 * self.clip), "client", "replace_one", "central")
        return noised(mean, std=std / count, noise=noise), event
