"""Gaussian noise on a public grid: what leaves is a whole multiple of a power of two, and its last bits tell nothing.

A float32 sum `signal + noise` reveals the signal by its last bits: not every number is signal plus a float32 draw
(Mironov, CCS 2012). Here noise of standard deviation sigma is released in steps g, the power of two in
(sigma / 2 FINENESS, sigma / FINENESS]. The signal is split into whole steps a and a remainder f; the noise is drawn in
float64, and

    released = g (a + rint(f + sigma z / g)),    a = rint(signal / g),  f = signal / g - a

so that whole numbers are added. With a real Gaussian z this is rint((signal + sigma z) / g) exactly, post-processing of
the Gaussian mechanism (as in Canonne, Kamath & Steinke 2020, arXiv 2004.00010, and Google's "Secure noise generation",
2020): the sensitivity is that of the signal, and g depends on sigma alone. What is done to the result afterwards, such
as the cast to float32, is post-processing too.

**What the sampler costs.** z comes from 64 or more uniform bits through the normal quantile function in float64
(`seeding.NoiseStream`). Let P be the law of rint(f + sigma N(0, 1) / g), Q that of what runs. The end of a cell at x
standard deviations moves by e(x) <= 2^-50 (|x| + 1): 0.35 of it is the quantile function's error (measured against 40
digits, `tests/privacy/test_grid.py`), the rest four roundings of float64. A cell is w >= 1 / (2 FINENESS) = 2^-7 wide,
so its probability is off by a factor within 1 +- r(x), r(x) = 2^-42 (|x| + 2) exp((|x| + 1) / 64). 2^-42 of that is for
the uniform number's own steps: it has at least 47 significant bits, and more where a cell is large. Hence L = ln Q / P
of one draw has |L| <= b = 2 r(X) for |x| <= X, E L^2 <= V = 2^-80 and |E L| <= V. (The bits are taken for uniform:
SHAKE-256's, and for the steps of DP-SGD Philox's.) By Bernstein's inequality the sum over D = `DRAWS` independent
draws stays within

    tau = sqrt(2 ell D V) + b ell + D V

but for a probability exp(-ell), and with X^2 = 2 (ell + ln D) no |x| exceeds X but for another exp(-ell). So outside of
an event of probability kappa = 3 exp(-ell) under either law, the laws of all noise of a run, and of all that is
computed from it in any number of rounds, differ by a factor of exp(+-tau) at most. If the ideal mechanism is
(epsilon, d)-DP, then the one that runs is, going from Q to P, on to the neighbour's P, and back to its Q,

    (epsilon + 2 tau, exp(tau) d + (1 + exp(epsilon + tau)) kappa)-DP.

`add_sampler_cost` takes ell = epsilon + ln(1 / delta) + 12 and d = delta (1 - KEPT_BACK), which covers the rest. At
epsilon 1 and delta 1e-5 it adds 2.7e-5 to epsilon, for 2^42 draws in all: no run makes as many.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

FINENESS = 64
"""Steps in a standard deviation, at least. Rounding adds 1 / (12 FINENESS^2) = 0.002 % to the noise's variance."""
DRAWS = 2.0**42
"""Noised numbers of a run, or of all trials that share a budget, at most."""
SECOND_MOMENT = 2.0**-80
"""V above: E r(x)^2 is 2^-84 times 8.8."""
BLOCK = 2**15
"""Numbers that are rounded at a time, so that they stay in a CPU's cache."""
KEPT_BACK = 2.0**-13
"""Fraction of delta that the sampler may use up."""


def step_of(std: float) -> float:
    """g: the power of two in (std / 2 FINENESS, std / FINENESS]. Raises ValueError for a std not fit for float64."""
    if not 2.0**-900 < std < 2.0**900:
        raise ValueError(f"the noise's standard deviation must be a positive number, got {std}")
    return math.ldexp(1.0, math.frexp(std / FINENESS)[1] - 1)


def add_noise_on_grid(signal: Tensor, z: Tensor, *, std: float) -> Tensor:
    """`signal + std * z` on the grid of `step_of(std)`, in float64; with std 0 the signal itself.

    Args: `signal`, of any floating-point type, and `z`, standard normal draws in float64 of the same shape.
    """
    if std == 0:
        return signal.double()
    step = step_of(std)
    out = torch.empty(signal.shape, dtype=torch.float64, device=signal.device)
    blocks = zip(out.view(-1).split(BLOCK), signal.reshape(-1).split(BLOCK), z.reshape(-1).split(BLOCK), strict=True)
    for released, exact, draws in blocks:
        whole = released.copy_(exact).div_(step).round()  # The division is exact: the step is a power of two.
        released.sub_(whole).add_(draws, alpha=std / step).round_().add_(whole).mul_(step)
    return out


def add_sampler_cost(bound: Callable[[float], float], delta: float) -> float:
    """The epsilon at `delta` of the noise that is drawn, from that of real Gaussians, `bound(delta)`."""
    epsilon = bound(delta * (1 - KEPT_BACK))
    return epsilon if epsilon == math.inf else epsilon + 2 * distance(epsilon, delta)


def distance(epsilon: float, delta: float) -> float:
    """tau: how far the log-probabilities of all draws of a run together are from those of real Gaussians."""
    ell = epsilon - math.log(delta) + 12
    x = math.sqrt(2 * (ell + math.log(DRAWS)))
    largest = 2.0**-41 * (x + 2) * math.exp((x + 1) / 64)
    return math.sqrt(2 * ell * DRAWS * SECOND_MOMENT) + largest * ell + DRAWS * SECOND_MOMENT
