"""Noise on a grid: what is released are whole steps, their law is the rounded Gaussian's to the bound of the proof, and
epsilon says what the difference costs."""

import math
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import brentq
from scipy.stats import chisquare, norm

from raydiff import seeding
from raydiff.privacy import accountants, gaussian, grid
from raydiff.privacy.release import Gaussian

STDS = st.floats(1e-12, 1e12)


def of_words(words: list[int], further: Iterator[int] | None = None) -> torch.Tensor:
    """The draws that these uniform words of 64 bits make."""
    return seeding._normal(np.array(words, np.uint64), lambda _: further or iter(()))


# --- the grid ----------------------------------------------------------------------------------------------


@given(STDS)
def test_a_step_is_the_power_of_two_below_a_64th_of_the_noise(std: float) -> None:
    step = grid.step_of(std)
    assert math.frexp(step)[0] == 0.5 and std / 128 < step <= std / 64


@pytest.mark.parametrize("std", [-1.0, math.inf, math.nan, 1e-300])
def test_noise_that_has_no_grid_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        grid.add_noise_on_grid(torch.zeros(2), torch.zeros(2, dtype=torch.float64), std=std)


@given(st.floats(-1e9, 1e9), STDS, st.floats(-9, 9))
def test_a_release_is_the_exact_sum_rounded_once(signal: float, std: float, z: float) -> None:
    """Against rational numbers: the step next to signal + std z, whatever their sizes, and no other."""
    step = Fraction(grid.step_of(std))
    one = torch.tensor([signal], dtype=torch.float64)
    released = float(grid.add_noise_on_grid(one, torch.tensor([z], dtype=torch.float64), std=std))
    steps = Fraction(released) / step
    exact = (Fraction(signal) + Fraction(std) * Fraction(z)) / step
    if abs(Fraction(signal)) < step * 2**50:  # Beyond, float64 has no room for a step beside the signal.
        assert steps.denominator == 1
        assert abs(steps - exact) <= Fraction(1, 2) + Fraction(1, 2**40)


# --- the draws ---------------------------------------------------------------------------------------------


def test_the_quantile_function_is_as_exact_as_the_proof_says() -> None:
    """At 600 points of either tail, against 40 digits: an error of 0.35 x 2^-50 (|z| + 1) at most."""
    rng = np.random.default_rng(0)
    half = np.concatenate([rng.random(300) / 2, np.exp(-60 * rng.random(200)) / 2, np.exp(-600 * rng.random(100)) / 2])
    quantiles = torch.special.ndtri(torch.from_numpy(half)).tolist()
    with mpmath.workdps(40):
        for u, z in zip(half.tolist(), quantiles, strict=True):
            x = mpmath.mpf(z)
            for _ in range(3):  # Newton's method
                x -= (mpmath.ncdf(x) - mpmath.mpf(u)) / mpmath.npdf(x)
            assert abs(x - mpmath.mpf(z)) <= 0.35 * 2.0**-50 * (abs(z) + 1)


def test_a_word_is_a_sign_and_a_uniform_number_of_63_bits() -> None:
    words = [2**62, 2**62 + 2**63, 2**63 - 1, 2**47]
    quarter = float(torch.special.ndtri(torch.tensor(0.25, dtype=torch.float64)))
    draws = of_words(words)
    assert draws[0] == -quarter and draws[1] == quarter and 0 <= draws[2] < 1e-15
    assert float(torch.special.ndtr(-draws[3])) == pytest.approx(2.0**-17, rel=1e-12)


def test_no_tail_is_cut_off() -> None:
    """Where a number has few significant bits, further words follow: of 64 zeros each, down to 1e-308."""
    for zeros in range(15):
        z = -of_words([0], iter([*[0] * zeros, 2**63]))
        assert float(torch.special.log_ndtr(z)) == pytest.approx(-(64 * zeros + 65) * math.log(2), rel=1e-9)
    many = of_words([5] * 1000, iter(np.random.default_rng(0).integers(0, 2**63, 1000).tolist()))
    assert len(many.unique()) == 1000


def test_further_bits_are_a_record_s_own_and_the_same_when_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = seeding.NoiseStream(b"secret", ("a",))
    monkeypatch.setattr(seeding, "_FEW", 2**63)  # every draw needs further bits
    three, one = stream.normal([7, 2, 9], (40,)), stream.normal([2], (40,))
    assert torch.equal(three[1], one[0]) and len(three.unique()) == 120
    assert torch.equal(stream.many_normal(90, "x"), stream.many_normal(90, "x"))


@pytest.mark.parametrize("remainder", [0.0, 0.3, -0.5])
@pytest.mark.parametrize("std", [1.0, 1.7])
def test_every_cell_has_the_rounded_gaussian_s_probability(std: float, remainder: float) -> None:
    """The ends of cells of the negative half in the words, by bisection through the real code: none is off by more than
    r(x). Beyond 4.2 standard deviations every word has further ones."""
    step = grid.step_of(std)
    signal = torch.tensor([remainder * step], dtype=torch.float64)

    def steps(bits: int) -> float:  # 63 bits, and a negative sign
        draw = of_words([bits + 2**63], iter([2**63]))
        return float(grid.add_noise_on_grid(signal, draw, std=std)) / step

    def first(cell: int) -> int:  # the least bits of that cell or above
        low, high = 0, 2**63 - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if steps(middle) < cell else (low, middle)
        return low

    with mpmath.workdps(40):
        for x in (0.3, 1.0, 2.5, 4.0):
            cell = -round(x * std / step)
            count = first(cell + 1) - first(cell)
            ends = [mpmath.mpf(cell + side - remainder) * mpmath.mpf(step) / mpmath.mpf(std) for side in (-0.5, 0.5)]
            exact = mpmath.ncdf(ends[1]) - mpmath.ncdf(ends[0])
            off = abs(mpmath.mpf(count) / mpmath.mpf(2) ** 64 / exact - 1)
            assert off <= 2.0**-42 * (x + 2) * math.exp((x + 1) / 64)


def test_released_steps_have_the_law_of_the_rounded_gaussian() -> None:
    std, signal, draws = 3.0, 100.013, 400_000
    z, step = seeding.NoiseStream(b"secret", ("law",)).many_normal(draws), grid.step_of(std)
    cells = np.round((np.linspace(-3, 3, 61) * std + signal) / step) - 0.5
    expected = np.diff(norm.cdf((cells * step - signal) / std), prepend=0, append=1) * draws

    def p_value(z: torch.Tensor) -> float:
        released = grid.add_noise_on_grid(torch.full_like(z, signal), z, std=std).numpy() / step
        return float(chisquare(np.bincount(np.searchsorted(cells, released), minlength=62), expected).pvalue)

    assert p_value(z) > 1e-6 and p_value(0.98 * z) < 1e-6


# --- what it costs -----------------------------------------------------------------------------------------


def test_the_second_moment_of_the_proof_holds() -> None:
    x = np.linspace(0, 40, 400_001)
    density = 2 * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    r = 2.0**-42 * (x + 2) * np.exp((x + 1) / 64)
    assert np.trapezoid(r * r * density, x) < grid.SECOND_MOMENT / 1.5


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 200.0])
def test_the_charge_covers_the_conversion_and_moves_epsilon_little(epsilon: float, delta: float) -> None:
    """The three terms of delta, by hand; and no epsilon from 0.1 on moves by a thousandth."""
    ell, tau = epsilon - math.log(delta) + 12, grid.distance(epsilon, delta)
    kept, kappa = delta * (1 - grid.KEPT_BACK), 3 * math.exp(-ell)
    assert math.exp(tau) * kept + (1 + math.exp(epsilon + tau)) * kappa <= delta
    mu = brentq(lambda mu: gaussian.gaussian_epsilon(mu, delta) - epsilon, 1e-6, 1000)
    charged = accountants.exact([Gaussian(1 / mu, "example", "replace_one", "local")], delta)
    assert epsilon < charged <= epsilon * (1 + (1e-3 if epsilon >= 0.1 else 1e-2))
