"""Named random streams, and the noise's own."""

import math

import numpy as np
import pytest
import torch

from raydiff import seeding
from raydiff.seeding import NoiseStream, fork_rng, generator, keyed_digest

SECRET = b"a secret of the experimenter"


def draw(rng: torch.Generator) -> tuple[float, ...]:
    return tuple(torch.rand(4, generator=rng).tolist())


def test_a_stream_is_its_name() -> None:
    assert draw(generator(0, "client", 3)) == draw(generator(0, "client", 3))


def test_other_names_are_other_streams() -> None:
    names: list[tuple[str | int, ...]] = [(), ("client", 3), ("client", "3"), (3, "client"), ("client", 13)]
    names += [("client3",), ("clientint:3",), ("client", 3, "round", 0), ("client", 3, "round", 1)]
    draws = [draw(generator(seed, *name)) for seed in (0, 1) for name in names]
    assert len(set(draws)) == len(draws)


def test_streams_leave_the_global_ones_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    draw(generator(0, "x"))
    NoiseStream(SECRET, ("x",)).normal(range(3), (2,))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_record_has_its_own_noise() -> None:
    stream = NoiseStream(SECRET, ("digest", "client", 0, "round", 0))
    three = stream.normal([7, 2, 9], (1, 8, 8))
    assert torch.equal(stream.normal([2], (1, 8, 8))[0], three[1])  # whatever else is asked for
    assert len({tuple(row.flatten().tolist()) for row in three}) == 3


@pytest.mark.parametrize(
    "other",
    [
        NoiseStream(b"another secret", ("digest", "client", 0)),
        NoiseStream(SECRET, ("another digest", "client", 0)),
        NoiseStream(SECRET, ("digest", "client", 1)),
        NoiseStream(SECRET, ("digest", "client", "0")),
    ],
)
def test_noise_is_keyed_by_secret_and_path(other: NoiseStream) -> None:
    mine = NoiseStream(SECRET, ("digest", "client", 0)).normal(range(50), (200,))
    theirs = other.normal(range(50), (200,))
    correlation = float(torch.corrcoef(torch.stack([mine.flatten(), theirs.flatten()]))[0, 1])
    assert abs(correlation) < 5 / math.sqrt(mine.numel())


def test_noise_is_standard_normal_within_and_across_records() -> None:
    z = NoiseStream(SECRET, ("x",)).normal(range(200), (200,))
    assert z.dtype == torch.float64 and z.isfinite().all()
    n = z.numel()
    assert abs(float(z.mean())) < 5 / math.sqrt(n)
    assert abs(float(z.square().mean()) - 1) < 5 * math.sqrt(2 / n)
    neighbours = (z[1:] * z[:-1]).mean()
    assert abs(float(neighbours)) < 5 / math.sqrt(n)


def test_fast_streams_are_their_names_too() -> None:
    streams = [NoiseStream(SECRET, ("x",)), NoiseStream(SECRET, ("y",)), NoiseStream(b"another", ("x",))]
    names: list[tuple[str | int, ...]] = [("noise", 0), ("noise", 1), ("sample", 0), ("noise", "0"), ()]
    draws = [stream.generator(*name).standard_normal(5_000) for stream in streams for name in names]
    assert np.array_equal(draws[1], NoiseStream(SECRET, ("x",)).generator("noise", 1).standard_normal(5_000))
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 6 / math.sqrt(5_000)


def test_a_fast_stream_has_a_key_of_128_bits() -> None:
    state = NoiseStream(SECRET, ("x",)).generator("noise", 0).bit_generator.state["state"]
    assert all(int(word).bit_length() > 48 for word in state["key"])  # two words of 64 bits


def test_the_secret_is_not_printed() -> None:
    assert SECRET.decode() not in repr(NoiseStream(SECRET, ("x",)))


def test_forked_depends_on_its_stream_alone() -> None:
    draws = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        with fork_rng(generator(0, "x")):
            draws.append((torch.rand(3).tolist(), np.random.rand(3).tolist()))
    assert draws[0] == draws[1]
    with fork_rng(generator(0, "y")):
        assert (torch.rand(3).tolist(), np.random.rand(3).tolist()) != draws[0]


def test_forked_moves_its_stream_on() -> None:
    rng = generator(0, "x")
    draws = []
    for _ in range(2):
        with fork_rng(rng):
            draws.append(torch.rand(3).tolist())
    assert draws[0] != draws[1]


def test_forked_puts_the_global_streams_back_even_after_an_error() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(3).tolist(), np.random.rand(3).tolist()
    torch.manual_seed(5)
    np.random.seed(5)
    with pytest.raises(KeyError), fork_rng(generator(0, "x")):
        torch.rand(9), np.random.rand(9)
        raise KeyError
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist()) == expected


def test_a_keyed_digest_needs_the_secret_and_is_no_stream_of_noise() -> None:
    digest = keyed_digest(SECRET, "data", "records")
    assert len(digest) == 64 and digest == keyed_digest(SECRET, "data", "records")
    others = [(b"another secret", "data", "records"), (SECRET, "client", "records"), (SECRET, "data", "others")]
    assert len({digest, *(keyed_digest(*of) for of in others)}) == 4
    path = ("data", "records")
    assert digest not in {seeding._digest(SECRET, p).hex() for p in (path, ("digest", *path), ("trial", *path))}
    with pytest.raises(ValueError, match="the file secret of the sweep is gone"):
        keyed_digest(b"", "data", "records")
