"""Distributed discrete Gaussian mechanism for secure aggregation: the server learns the sum of a round's updates only.

Each participant clips its whole update, scales it to whole numbers and adds noise; that of `shares` participants
together is the full noise (Kairouz, Liu & Steinke 2021, arXiv 2102.06387).

Trust model: secure aggregation (Bonawitz et al. 2017, arXiv 1611.04482). Epsilon covers the sum modulo 2^32. Key
agreement and masking are not simulated: the server's process and the storage folder hold single uploads.

Privacy. Let x be a client's d whole numbers, ||x|| <= B, and the entries of each share N_Z(0, sigma^2): P(z)
proportional to exp(-z^2 / (2 sigma^2)). Replacing the client moves the sum by 2 B at most. With m shares its Renyi
divergence of order a is at most a mu^2 / 2, where mu = 2 B / (sqrt(m) sigma) + tau sqrt(d) and tau = 10 times the sum
over 0 < k < m of exp(-2 pi^2 sigma^2 k / (k + 1)) (Proposition 14 there): that of Gaussian noise but for tau, which is
below 10^-1000 where sigma >= 16, and is covered by SLACK. More shares, and the reduction modulo 2^32, are
post-processing. Nothing is claimed of the trade-off curve.

Sensitivity. Entries are rounded at random, unbiased, and again until ||x|| <= B, where B^2 = c^2 + d / 4 + c + sqrt(d)
/ 2 of the scaled clip c: at least 1 - exp(-1/2) of all roundings are (Theorem 1 there, beta = exp(-1/2)).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raydiff.seeding import NoiseStream
from raydiff.tree import Params, Tensors

BITS = 32  # sums are modulo 2**BITS: a message takes as many bytes as an update in float32
LEAST = 16  # smallest standard deviation of a share, in steps: makes tau negligible
LARGEST = 2**24  # and the largest: the sampler's whole numbers fit 64 bits
FINE = 4.0  # B over the root of the number of entries, at least: rounding then costs about 1 % of the clip
SLACK = 1e-9  # relative; exceeds tau and the rounding of these few numbers
MOST = 2**20  # participants whose sum float64 recovers from their mean of 32 bits
WRAPS = 2.0**-40  # largest probability that an entry of a round's sum wraps around, which would ruin the model

Whole = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Encoding:
    """Encoding of updates as whole numbers, and the noise of one share; a function of public numbers."""

    size: int  # d, entries of an update
    shares: int  # m, participants whose noise together is the full noise
    sigma: int  # standard deviation of a share, in steps
    longest: int  # B^2, the largest sum of squares of an encoded update
    scale: float  # steps in 1
    clip: float  # norm to which updates are clipped

    @classmethod
    def of(cls, *, clip: float, ratio: float, size: int, shares: int) -> "Encoding":
        """Return the coarsest encoding at which rounding costs about 1 % of the clip.

        `ratio` is the full noise's standard deviation over the sensitivity. Raises ValueError where it would not fit.
        """
        fine = max(64.0, FINE * math.sqrt(size))
        sigma = max(LEAST, math.ceil(2 * ratio * fine / math.sqrt(shares)))
        bound = sigma * math.sqrt(shares) / (2 * ratio) * (1 - SLACK)
        if sigma > LARGEST or bound > 2 ** (BITS - 2):
            remedy = "larger, or shares more" if sigma > LARGEST else "smaller"
            raise ValueError(
                f"privacy.trust = aggregate has no room for noise of {ratio:.4g} x sensitivity on updates of {size} "
                f"entries modulo 2^{BITS}: epsilon must be {remedy}"
            )
        clipped = math.sqrt(bound**2 - size / 4 - math.sqrt(size) / 2 + 0.25) - 0.5  # c, of B^2 above
        return cls(size, shares, sigma, math.floor(bound**2), clipped / clip, clip)

    def check_room(self, participants: int) -> None:
        """Raise ValueError where the sum of so many uploads may wrap around."""
        tail = self.sigma * math.sqrt(2 * participants * math.log(2 * self.size / WRAPS))  # each share is subgaussian
        if participants > MOST or participants * math.sqrt(self.longest) + tail >= 2 ** (BITS - 1):
            raise ValueError(
                f"the updates of {participants} participants may wrap around modulo 2^{BITS} under privacy.trust = "
                f"aggregate: give fewer participants or a larger epsilon"
            )

    def rounded(self, x: Any, noise: NoiseStream) -> Whole:
        """Return a clipped update (d,) in steps, randomly rounded. Raises ValueError where it is not clipped."""
        exact = self.scale * np.asarray(x, np.float64)
        if not float(np.linalg.norm(exact)) <= self.scale * self.clip:
            raise ValueError(f"the update must be clipped to {self.clip:g} before it is rounded")
        low = np.floor(exact)
        rng = noise.generator("rounding")
        while True:
            steps = (low + (rng.random(self.size) < exact - low)).astype(np.int64)
            if int(steps @ steps) <= self.longest:
                return steps


def encode_update(update: Tensors, encoding: Encoding, noise: NoiseStream) -> Params:
    """Return a participant's upload: its clipped update in steps plus its share of noise, modulo 2^32, in int32."""
    x = torch.cat([update[k].detach().double().reshape(-1) for k in sorted(update)]).cpu().numpy()
    steps = encoding.rounded(x, noise) + discrete_gaussian(encoding.sigma, encoding.size, noise.generator("share"))
    return _leaves(torch.from_numpy(steps.astype(np.int32)), update)


def decode_mean(mean: Tensors, encoding: Encoding, count: int) -> Params:
    """Return the mean update, in float64, from the mean of `count` uploads.

    Raises ValueError where `count` is below `shares`, whose noise the ledger states, or their sum may wrap around.
    """
    if count < encoding.shares:
        raise ValueError(
            f"{count} uploads of the round can be used, fewer than privacy.shares = {encoding.shares}: their sum has "
            "too little noise. Give a larger min_clients or fewer shares"
        )
    encoding.check_room(count)
    total = torch.cat([mean[k].double().reshape(-1) for k in sorted(mean)]).mul(count).round().to(torch.int64)
    steps = torch.from_numpy(total.numpy().astype(np.int32)).double()
    return _leaves(steps / (encoding.scale * count), mean)


def _leaves(flat: torch.Tensor, like: Tensors) -> Params:
    parts = flat.split([like[k].numel() for k in sorted(like)])
    return {k: part.view(like[k].shape).clone() for k, part in zip(sorted(like), parts, strict=True)}


# --- exact sampling, in integer arithmetic ---


def discrete_gaussian(sigma: int, count: int, rng: np.random.Generator) -> Whole:
    """Return (count,) exact draws of N_Z(0, sigma^2) for a whole sigma: Karney 2016 (arXiv 1303.6257), algorithm D."""
    draws = [np.zeros(0, np.int64)]
    missing = count
    while missing > 0:
        draws.append(_accepted(sigma, 2 * missing + 16, rng)[:missing])
        missing -= len(draws[-1])
    return np.concatenate(draws)


def _accepted(sigma: int, tries: int, rng: np.random.Generator) -> Whole:
    """The accepted ones of so many proposals +-(k sigma + j), j < sigma.

    The exponent (k + j / sigma)^2 / 2 is applied in three parts: k / 2, k (k - 1) / 2, and the rest.
    """
    k = np.zeros(tries, np.int64)
    going = np.arange(tries)
    while len(going):
        going = going[_happens(np.ones_like(going), np.full_like(going, 2), rng)]
        k[going] += 1
    k = k[_all_happen(np.ones_like(k), np.ones_like(k), k * (k - 1) // 2, rng)]
    j = rng.integers(0, sigma, len(k))
    kept = _all_happen(j * (2 * k * sigma + j), 2 * sigma * sigma * (k + 1), k + 1, rng)
    sizes = (k * sigma + j)[kept]
    negative = rng.integers(0, 2, int(kept.sum())) == 1
    once = ~(negative & (sizes == 0))  # 0 has no sign
    signed: Whole = np.where(negative, -sizes, sizes)[once]
    return signed


def _all_happen(a: Whole, b: Whole, times: Whole, rng: np.random.Generator) -> Any:
    """Whether events of probability exp(-times a / b) happen: `times` independent ones of exp(-a / b)."""
    going = np.arange(len(a))
    done = np.zeros(len(a), bool)
    at = 0
    while len(going):
        over = times[going] == at
        done[going[over]] = True
        going = going[~over]
        at = at + 1
        going = going[_happens(a[going], b[going], rng)]
    return done


def _happens(a: Whole, b: Whole, rng: np.random.Generator) -> Any:
    """Whether events of probability exp(-a / b), 0 <= a <= b, happen (arXiv 2004.00010, Algorithm 1)."""
    happens = np.zeros(len(a), bool)
    going = np.arange(len(a))
    n = 1
    while len(going):
        more = rng.integers(0, n * b[going]) < a[going]
        happens[going[~more]] = n % 2 == 1
        going = going[more]
        n = n + 1
    return happens
