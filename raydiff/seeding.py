"""Named random streams, so that no draw depends on the order in which things run.

`generator` is for everything that may be replayed: initial weights, batches, sampling. Privacy noise comes from a
`NoiseStream`, keyed by a secret: with the experiment's seed instead, two trials at different epsilon would share their
noise, and the difference of their uploads would reveal the data.
"""

import contextlib
import hashlib
import hmac
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FEW = 2**47  # A smaller word of 64 bits has too few significant bits.
_BLOCK = 2**15  # draws at a time, so that they fit a CPU's cache


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator for the stream named by `path`, e.g. `generator(0, "client", 3, "round", 1)`."""
    return torch.Generator().manual_seed(_key(str(seed).encode(), path))


@dataclass(frozen=True)
class NoiseStream:
    """Gaussian noise for one upload, one independent stream per record.

    It is keyed by the noise secret and (config digest, client, round), then by the record's number: a repeated round
    repeats the noise and costs no epsilon.
    """

    secret: bytes = field(repr=False)
    path: tuple[str | int, ...]

    def normal(self, records: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Standard normal draws, (len(records), *shape), float64, for `privacy.grid.add_noise_on_grid`.

        Torch's CPU generator keeps 32 bits of its seed: among 100,000 records some would share their noise, and all
        streams can be tried. So SHAKE-256 gives the bits, and the normal quantile function the draws.
        """
        size = math.prod(shape)
        streams = [_digest(self.secret, (*self.path, record)) for record in records]
        bits = b"".join(hashlib.shake_256(stream).digest(8 * size) for stream in streams)

        def further(at: int) -> Iterator[int]:
            record, entry = divmod(at, size)
            more = hashlib.shake_256(_digest(streams[record], ("further", entry))).digest(1024)
            return iter(np.frombuffer(more, "<u8").tolist())

        return _normal(np.frombuffer(bits, "<u8"), further).view(len(streams), *shape)

    def many_normal(self, count: int, *path: str | int) -> Tensor:
        """(count,) standard normal draws in float64 from `generator`: fast enough for millions of draws a step."""
        source = self.generator(*path).bit_generator
        blocks = [min(_BLOCK, count - start) for start in range(0, count, _BLOCK)]
        draws = [_normal(source.random_raw(n), lambda _: iter(source.random_raw, None)) for n in blocks]
        return torch.cat(draws) if draws else torch.empty(0, dtype=torch.float64)

    def generator(self, *path: str | int) -> np.random.Generator:
        """A fast generator for the stream named by `path` below this one: Philox with 128 bits of the HMAC as its key.

        So streams do not overlap and none can be found by trying. Philox is no cipher: that its key does not follow
        from noise seen through an unknown gradient is an assumption, which `normal` does not need.
        """
        key = int.from_bytes(_digest(self.secret, (*self.path, *path))[:16], "little")
        return np.random.Generator(np.random.Philox(key=key))


def keyed_digest(secret: bytes, what: str, text: str) -> str:
    """64 hex digits (HMAC-SHA256) for digests of private records that are written to files.

    A plain hash can be inverted by trying, by anyone who knows all but a few fields of a record. No stream of noise is
    named "keyed", so none has these bits. Raises ValueError where the secret is empty.
    """
    if not secret:
        raise ValueError("the file secret of the sweep is gone, and digests of records are keyed by it")
    return _digest(secret, ("keyed", what, text)).hex()


@contextlib.contextmanager
def fork_rng(rng: torch.Generator) -> Iterator[None]:
    """Seed the global generators (weight initialisers, dropout, numpy.random) from `rng`; restore them afterwards."""
    seed = int(torch.randint(2**31, (1,), generator=rng))
    numpy_state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):  # the CPU's alone: naming no device would wake every GPU
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)


def _normal(words: np.ndarray[Any, np.dtype[np.uint64]], further: Callable[[int], Iterator[int]]) -> Tensor:
    """Standard normal draws in float64, one from each uniform word of 64 bits.

    The first bit is the sign, the others a uniform number in (0, 1/2), whose quantile is taken. A number below 2^-17
    gets more bits from the words `further(its place)`, so that each has at least 47 significant bits and no tail is cut
    off.
    """
    words = words.view(np.int64)
    bits = words & (2**63 - 1)
    half = bits.astype(np.float64)
    half += 0.5
    half *= 2.0**-64
    for at in np.flatnonzero(bits < _FEW).tolist():
        half[at] = (int(bits[at]) + _uniform(further(at))) * 2.0**-64
    z = torch.special.ndtri(torch.from_numpy(half)).numpy()
    return torch.from_numpy(np.copysign(z, words))


def _uniform(words: Iterator[int]) -> float:
    """A uniform number in (0, 1), with 47 significant bits at least."""
    word = next(words)
    return (word + (_uniform(words) if word < _FEW else 0.5)) * 2.0**-64


def _key(secret: bytes, path: Sequence[str | int]) -> int:
    return int.from_bytes(_digest(secret, path)[:8], "little") >> 1


def _digest(secret: bytes, path: Sequence[str | int]) -> bytes:
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in path)
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()
