"""Secure aggregation: the noise of a sum of shares and what it costs, roundings within their bound."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reference.gaussians import hockey_stick, of_sum
from scipy import stats

from raydiff.privacy import accountants
from raydiff.privacy.aggregate import LARGEST, LEAST, Encoding, decode_mean, discrete_gaussian, encode_update
from raydiff.privacy.release import DiscreteGaussian, Gaussian, NonPrivate, clip_update
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

SECRET = b"0123456789abcdef"
DELTA = 1e-5
FALSE_ALARM = 1e-3
"""Seeds are fixed, so a test that holds goes on holding; of a hundred seeds a tenth of one would have been an alarm."""


def stream(*path: str | int) -> NoiseStream:
    return NoiseStream(SECRET, path)


def philox(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


# --- the noise ---


def unlike(draws: np.ndarray, sigma: int) -> float:
    """p of the chi-square test of draws against N_Z(0, sigma^2), in cells of ten at least."""
    expected = of_sum(sigma, 1) * len(draws)
    counts = np.bincount(draws + len(expected) // 2, minlength=len(expected))
    cells = (expected.cumsum() / 10).astype(int).clip(0, len(draws) // 10 - 1)  # about ten expected draws each
    observed, wanted = (np.bincount(cells, weights=values) for values in (counts, expected))
    kept = wanted > 0
    return float(stats.chisquare(observed[kept], wanted[kept] * len(draws) / wanted.sum()).pvalue)


@pytest.mark.parametrize("sigma", [1, 2, 16, 300])
def test_draws_are_those_of_the_discrete_gaussian(sigma: int) -> None:
    assert unlike(discrete_gaussian(sigma, 20_000, philox(sigma)), sigma) > FALSE_ALARM


def test_a_rounded_gaussian_and_another_scale_are_none() -> None:
    rounded = np.rint(philox(1).normal(0, 1, 20_000)).astype(np.int64)
    assert unlike(rounded, 1) < 1e-6
    assert unlike(discrete_gaussian(16, 20_000, philox(1)), 17) < 1e-6


def test_the_largest_scale_does_not_overflow() -> None:
    assert abs(int(discrete_gaussian(LARGEST, 100, philox(0)).max())) > LARGEST


# --- what it costs ---


def renyi(noise: np.ndarray, shift: int, order: float) -> float:
    """D_order of the noise moved by `shift`, from the noise, where both are positive in float64."""
    p, q = noise[:-shift], noise[shift:]
    both = (p > 0) & (q > 0)
    logs = order * np.log(p[both]) + (1 - order) * np.log(q[both])
    return float(np.logaddexp.reduce(logs)) / (order - 1)


def tau(sigma: float, shares: int) -> float:
    return 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, shares))


@pytest.mark.parametrize("shares", [1, 2, 5])
@pytest.mark.parametrize("order", [1.25, 2.0, 8.0])
def test_the_renyi_divergence_of_a_sum_is_the_gaussian_s(shares: int, order: float) -> None:
    noise = of_sum(LEAST, shares)
    for shift in (1, 7, 40):
        gaussian = order * shift**2 / (2 * shares * LEAST**2)
        assert renyi(noise, shift, order) == pytest.approx(gaussian, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("shares", [2, 3, 6])
@pytest.mark.parametrize("sigma", [0.4, 0.5, 0.7, 1.0])
def test_of_finer_noise_the_bound_needs_its_tau_and_holds_with_it(sigma: float, shares: int) -> None:
    """In one entry and in two: divergences of independent entries add up."""
    noise = of_sum(sigma, shares)
    for order, (a, b) in itertools.product((1.25, 2.0, 8.0), ((1, 0), (1, 1), (1, 2))):
        divergence = sum(renyi(noise, shift, order) for shift in (a, b) if shift)
        mu = math.hypot(a, b) / (math.sqrt(shares) * sigma) + tau(sigma, shares) * math.sqrt(2 if b else 1)
        assert divergence <= order * mu**2 / 2
    if sigma < 1:
        assert renyi(noise, 1, 1.25) > 1.001 * 1.25 / (2 * shares * sigma**2)  # So LEAST is there for a reason.


def delta_of(noise: np.ndarray, shift: int, epsilon: float) -> float:
    return hockey_stick(np.pad(noise, (0, shift)), np.pad(noise, (shift, 0)), epsilon)


def test_epsilon_covers_the_true_divergence_and_half_the_noise_or_one_share_fewer_breaks_it() -> None:
    """One entry, three shares, the two updates that are furthest apart: delta by brute force, at the epsilon stated."""
    encoding = Encoding.of(clip=1.0, ratio=1.0, size=1, shares=3)
    event = DiscreteGaussian(1.0, "client", "replace_one", "aggregate")
    epsilon, shift = accountants.rdp([event], DELTA), 2 * math.isqrt(encoding.longest)
    assert delta_of(of_sum(encoding.sigma, 3), shift, epsilon) <= DELTA
    assert delta_of(of_sum(encoding.sigma, 3), shift, 0.9 * epsilon) > DELTA / 3  # And not by far.
    for broken in (of_sum(encoding.sigma, 2), of_sum(encoding.sigma / 2, 3)):
        assert delta_of(broken, shift, epsilon) > 3 * DELTA


@pytest.mark.usefixtures("real_gaussians")
def test_accountants_without_a_theorem_refuse() -> None:
    event = DiscreteGaussian(2.0, "client", "replace_one", "aggregate")
    plain = Gaussian(2.0, "client", "replace_one", "aggregate")
    for name in ("exact", "pld"):
        with pytest.raises(accountants.Unsupported, match="use the rdp accountant"):
            accountants.epsilon_of([event] * 2, DELTA, name)
    with pytest.raises(accountants.Unsupported):
        accountants.gaussian_dp_mu([event])
    for name in ("rdp", "theorem"):
        assert accountants.epsilon_of([event] * 2, DELTA, name) == accountants.epsilon_of([plain] * 2, DELTA, name)
    assert accountants.exact([event, NonPrivate("it", "aggregate")], DELTA) == math.inf
    with pytest.raises(ValueError, match="sampling_rate must be 1"):
        DiscreteGaussian(2.0, "client", "replace_one", "aggregate", 0.5)


# --- whole numbers ---


@pytest.mark.parametrize("size", [1, 30, 5_000, 3_000_000])
@pytest.mark.parametrize("ratio", [1e-3, 0.5, 20.0])
@pytest.mark.parametrize("shares", [2, 50])
def test_the_noise_is_what_was_asked_for_and_rounding_costs_little(size: int, ratio: float, shares: int) -> None:
    encoding = Encoding.of(clip=0.3, ratio=ratio, size=size, shares=shares)
    assert encoding.sigma >= LEAST
    assert ratio <= math.sqrt(shares) * encoding.sigma / (2 * math.sqrt(encoding.longest)) < 1.02 * ratio
    clipped = encoding.scale * 0.3
    assert clipped**2 + size / 4 + clipped + math.sqrt(size) / 2 <= encoding.longest + 1
    assert clipped > 0.97 * math.sqrt(encoding.longest)


def updates(size: int) -> list[torch.Tensor]:
    """Of norm 1: along an entry, all entries alike, random; and none."""
    along = torch.eye(1, size, dtype=torch.float64)[0]
    random = torch.randn(size, generator=generator(1), dtype=torch.float64)
    return [along, torch.full((size,), size**-0.5), random / random.norm(), torch.zeros(size)]


@pytest.mark.parametrize("size", [1, 50, 4_000])
def test_no_rounded_update_is_longer_than_the_bound_and_most_need_one_try(size: int) -> None:
    encoding = Encoding.of(clip=1.0, ratio=1.0, size=size, shares=2)
    for x in updates(size):
        x = x.double() * (1 - 1e-6)
        within = 0
        for i in range(30):
            steps = encoding.rounded(x, stream(i))
            assert int(steps @ steps) <= encoding.longest
            assert float(np.abs(steps - encoding.scale * x.numpy()).max()) < 1
            free = replace(encoding, longest=2**62).rounded(x, stream(i))
            within += int(free @ free) <= encoding.longest
        assert within >= 12  # At least 1 - exp(-1/2) of them, of which so few in thirty are below a thousandth.


def test_rounding_is_unbiased() -> None:
    encoding = Encoding.of(clip=1.0, ratio=1.0, size=50, shares=2)
    x = updates(50)[1].double() * 0.9
    mean = np.mean([encoding.rounded(x, stream(i)).mean() for i in range(2_000)])
    exact = float(encoding.scale * x[0])
    assert abs(mean - exact) < 4 * 0.5 / math.sqrt(50 * 2_000)
    assert abs(math.floor(exact) - exact) > 0.05 and abs(round(exact) - exact) > 0.05  # What is not at random is off.


def test_an_update_that_was_not_clipped_is_refused() -> None:
    encoding = Encoding.of(clip=0.5, ratio=1.0, size=3, shares=2)
    for x in (torch.tensor([0.6, 0.0, 0.0]), torch.tensor([math.nan, 0.0, 0.0])):
        with pytest.raises(ValueError, match=r"clipped to 0\.5"):
            encoding.rounded(x, stream())


@pytest.mark.parametrize(("ratio", "says"), [(1e6, "epsilon must be larger"), (1e-9, "epsilon must be smaller")])
def test_what_does_not_fit_is_refused(ratio: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Encoding.of(clip=1.0, ratio=ratio, size=1_000, shares=2)


# --- the sum ---

CLIENTS = (2, 3, 5, 11)


def round_of(
    xs: dict[int, Params], encoding: Encoding, *, noise: Callable[[int], NoiseStream], arrived: Any = None
) -> Params:
    """The mean that the server is shown of the clipped updates of these clients; `noise` gives each its stream."""
    sent = [encode_update(clip_update(xs[c], 1.0), encoding, noise(c)) for c in arrived or xs]
    mean = {k: torch.stack([value[k].double() for value in sent]).mean(0) for k in sent[0]}
    return decode_mean(mean, encoding, len(sent))


def variance(encoding: Encoding, *, clients: int = 3, noise: Callable[[int], NoiseStream] = stream) -> float:
    """Of the noise in the sum of so many clients' updates of 0, over what ENCODED declares for three."""
    mean = round_of({c: {"w": torch.zeros(6_000)} for c in range(clients)}, encoding, noise=noise)
    return float((mean["w"] * clients * encoding.scale).square().mean()) / (3 * ENCODED.sigma**2)


ENCODED = Encoding.of(clip=1.0, ratio=1.0, size=6_000, shares=3)


def agrees(ratio: float) -> bool:
    """Two-sided: 6,000 times it is a chi-square of as many degrees."""
    tails = stats.chi2.cdf(6_000 * ratio, 6_000), stats.chi2.sf(6_000 * ratio, 6_000)
    return float(min(tails)) > FALSE_ALARM / 2


def test_a_sum_of_as_many_shares_has_the_declared_noise() -> None:
    assert agrees(variance(ENCODED))


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_less_noise_and_more_are_found(factor: float) -> None:
    assert not agrees(variance(replace(ENCODED, sigma=round(factor * ENCODED.sigma))))


def test_a_share_that_two_have_drawn_and_a_client_fewer_are_found() -> None:
    assert not agrees(variance(ENCODED, noise=lambda c: stream(max(c, 1))))
    assert not agrees(variance(replace(ENCODED, shares=2), clients=2))


def test_the_mean_is_that_of_clipped_updates_but_for_grid_and_noise() -> None:
    rng = generator(4)
    xs = {c: {"a": torch.randn(2, 3, generator=rng), "b": torch.randn(5, generator=rng) * c} for c in CLIENTS}
    encoding = Encoding.of(clip=1.0, ratio=1e-4, size=11, shares=3)
    for arrived in (CLIENTS, CLIENTS[1:]):  # The first one's upload was rejected.
        mean = round_of(xs, encoding, noise=stream, arrived=arrived)
        plain = {k: torch.stack([clip_update(xs[c], 1.0)[k] for c in arrived]).mean(0) for k in ("a", "b")}
        off = (8 * encoding.sigma * math.sqrt(len(arrived)) + len(arrived)) / (encoding.scale * len(arrived))
        assert off < 0.01
        for k, v in plain.items():
            assert mean[k].shape == v.shape and float((mean[k] - v).abs().max()) < off


def test_fewer_uploads_than_shares_give_no_mean() -> None:
    xs = {c: {"w": torch.zeros(11)} for c in CLIENTS}
    encoding = Encoding.of(clip=1.0, ratio=1.0, size=11, shares=3)
    with pytest.raises(ValueError, match=r"^2 uploads .* fewer than privacy\.shares = 3"):
        round_of(xs, encoding, noise=stream, arrived=(2, 3))


def test_a_sum_is_reduced_modulo_2_to_the_32_and_one_that_may_wrap_is_refused() -> None:
    encoding = Encoding.of(clip=1.0, ratio=1.0, size=3, shares=2)
    steps = torch.tensor([5, -7, 2**31 - 1])
    for turns in (-2, 1, 3):
        mean = {"w": (steps + turns * 2**32).double() / 2}
        assert (decode_mean(mean, encoding, 2)["w"] * 2 * encoding.scale).round().tolist() == steps.tolist()
    wide = replace(encoding, longest=2**60)
    with pytest.raises(ValueError, match=r"^the updates of 2 participants may wrap around"):
        decode_mean({"w": torch.zeros(3)}, wide, 2)
