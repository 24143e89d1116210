"""Client-level privacy of averaged updates (DP-FedAvg, McMahan et al. 2018, arXiv 1710.06963).

Unit: all records of one client, replaced by any others. Each client's update is clipped as a whole. Noise comes from

- the client (local): the guarantee holds against the server;
- the server, on the sum of clipped updates (central): it holds against all others, the other clients included;
- all clients together (secure aggregation, see `aggregate`): the server sees only the sum, and the guarantee holds as
  long as `shares` of the participants keep their noise secret.

Deviations: no amplification by sampling clients, since a server sees who takes part and rounds have fixed counts; the
relation is replace-one, for the number of clients is public. Under local and aggregate trust so is each client's number
of records: it is declared in the event.
"""

import math
from typing import Annotated, Literal

from annotated_types import Ge

from raydiff.lookup import check_value
from raydiff.privacy import accountants, aggregate, release
from raydiff.privacy.aggregate import Encoding
from raydiff.privacy.release import DiscreteGaussian, Event, Gaussian, Release, Trust, add_noise_to_leaves, clip_update
from raydiff.seeding import NoiseStream
from raydiff.settings import Positive, settings
from raydiff.tree import Params, Tensors

DELTA = 1e-5  # of client-level epsilons
TRUSTED = "clipped updates, to a server trusted to add the noise"


@settings(frozen=True, kw_only=True)
class ClientPrivacy:
    """Clips a client's whole update and adds noise.

    Raises:
        ValueError: If `shares` is given without aggregate trust, or missing with it.

    Examples:
        >>> privacy = rd.ClientPrivacy(epsilon=8.0, clip=1.0)
        >>> round(privacy.std(rounds=10), 2)
        3.8
        >>> rd.FedAvg(averaging=rd.Averaging(privacy=privacy)).rounds
        10
    """

    epsilon: accountants.Epsilon = 10.0
    """Budget of one client's updates of all rounds together, at delta 1e-5; inf clips only."""
    clip: Positive = 1.0
    """Norm to which an update is clipped. A public number: never take it from private data."""
    trust: Trust = "local"
    """local: clients add the noise; central: the server does, once per round, to the sum; aggregate: clients add it
    together, and the server is taken to see only the sum."""
    shares: Annotated[int, Ge(2)] | None = None
    """Under aggregate trust: how many of a round's participants have all of the noise together. A round with fewer
    fails; of those beyond it any may drop out, or tell the server their noise."""

    def __post_init__(self) -> None:
        if self.trust != "aggregate":
            check_value("shares", self.shares, self.shares is None, "none unless trust is aggregate")
        elif self.shares is None:
            raise ValueError("shares must be at least 2 under trust = aggregate, got none")
        elif self.epsilon == math.inf:
            raise ValueError("epsilon must be a number under trust = aggregate; got inf")

    def std(self, rounds: int) -> float:
        """Return the standard deviation of each round's noise on one update (local) or on their sum."""
        if self.epsilon == math.inf:
            return 0.0
        return 2 * self.clip * math.sqrt(rounds) / accountants.mu_for(self.epsilon, DELTA, self.accountant)

    @property
    def accountant(self) -> Literal["exact", "rdp"]:
        """The tightest accountant that has a theorem for this noise."""
        return "rdp" if self.trust == "aggregate" else "exact"

    def release(self, update: Params, *, rounds: int, noise: NoiseStream) -> Release:
        """Return a client's upload for its update."""
        if self.trust == "aggregate":
            clipped = clip_update(update, self.clip)
            value = aggregate.encode_update(clipped, self._encoding(update, rounds), noise)
            return release.already_private(value, self.upload_event(rounds), copy=False)
        if self.trust == "local":
            return release.gaussian_update(update, clip=self.clip, std=self.std(rounds), noise=noise)
        return release.disclose(clip_update(update, self.clip), TRUSTED, copy=False)

    def upload_event(self, rounds: int) -> Event:
        """Return the event of a release, which does not depend on the update."""
        if self.trust == "central":
            return release.NonPrivate(TRUSTED)
        ratio = self.std(rounds) / (2 * self.clip)
        mechanism = DiscreteGaussian if self.trust == "aggregate" else Gaussian
        return mechanism(ratio, "client", "replace_one", self.trust, declared=("examples",))

    def decode(self, mean: Tensors, *, count: int, rounds: int) -> Params:
        """Return the mean update under aggregate trust, in float64, from the mean of `count` uploads."""
        return aggregate.decode_mean(mean, self._encoding(mean, rounds), count)

    def _encoding(self, update: Tensors, rounds: int) -> Encoding:
        assert self.shares is not None  # checked above for aggregate trust
        size = sum(v.numel() for v in update.values())
        return Encoding.of(clip=self.clip, ratio=self.std(rounds) / (2 * self.clip), size=size, shares=self.shares)

    def publish(self, mean: Params, *, count: int, rounds: int, noise: NoiseStream) -> tuple[Params, Gaussian]:
        """Return the noised mean of `count` clipped updates, as published under central trust, and its event.

        A mean in float32 is rounded by up to 2^-24 of its norm, so replacing a client moves `count` times the mean by
        (2 + 2 count 2^-24) clip: the noise is larger by that.
        """
        std = self.std(rounds)
        event = Gaussian(std / (2 * self.clip), "client", "replace_one", "central")
        noisy = add_noise_to_leaves(mean, std=std / count * (1 + count * 2.0**-24), noise=noise)
        return {k: v.to(mean[k].dtype) for k, v in noisy.items()}, event
