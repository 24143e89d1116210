"""FedDistr's theory (arXiv 2410.12530, section 3.2 and appendix C) on truncated normal base distributions.

Base i is normal with unknown mean, truncated to an interval of length b - a around it (appendix C.1). Clients send each
base's sample mean; the server keeps the mean over most records (section 4.3). The loss is |w_i - z|, so with delta_i
the error of that mean, exactly,

    eps_u = sum_i (fraction of base i) E(|T - delta_i| - |T|),   T ~ the base less its mean    (Eq. 4)

Lipschitz constants L enter as L (b - a). Where the paper disagrees with itself, or with this setting:

- Theorem 1 (Eq. 8) has the exponent -2 min_k n_k eps^2, the appendix -min_k n_k eps^2 / (2 L^2), which both depend on
  the units of f; the appendix's proof also divides by (a - b)^2. It counts all n_k records for each base of a client,
  and its average over clients (appendix, Eq. 7) lacks a factor K, the union over clients.
- Theorem 2 drops (a - b)^2. Its probability at xi = 0 is 1 - 2 exp(-n eps^2 / (2 m)), not one.
- Lemma 2, with the sample mean as the parameter mu of phi(mu, sigma, a, b), is false (`literal_limit`).
- Lemma 3 must have <= xi. Its vectors leave only m = K and m = K + 1 (or K = 1), to which Theorem 2's proof is thus
  limited. For Definition 1's cosine it is false (`one_shared`), and true with xi m / K (`dominant_share`).

Shapes: K clients, m base distributions, R repetitions, E values of epsilon. All in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analysis.theory.theory_tables import Rows, bracket
from raydiff.data import entangled
from raydiff.formats.plots import panels, save_figure
from raydiff.formats.tables import aligned
from raydiff.seeding import generator

CHUNK = 4_000_000  # records drawn at once
CLIENTS = (5, 10, 20)
RECORDS = (10, 50)
XIS = (0.0, 0.003, 0.057, 0.385)
WIDTHS = (1.0, 100.0)  # b - a, in the picture
ALL_WIDTHS = torch.logspace(-1, 4, 101, dtype=torch.float64)
EPS = torch.logspace(-4, 4, 401, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Base:
    """A normal distribution truncated to `width` around its mean, less that mean."""

    width: float = 1.0
    """b - a."""
    sigma: float = 0.25
    """Standard deviation before truncation, as a share of the width."""

    @property
    def mass(self) -> float:
        """What the normal distribution has on the interval."""
        return math.erf(0.5 / self.sigma / math.sqrt(2))

    def sample(self, *shape: int, rng: torch.Generator) -> Tensor:
        """Draws of T."""
        u = torch.rand(shape, dtype=torch.float64, generator=rng)
        return torch.erfinv((2 * u - 1) * self.mass) * (math.sqrt(2) * self.sigma * self.width)

    def loss(self, delta: Tensor) -> Tensor:
        """E(|T - delta| - |T|), the integral of 2 Pr(T <= t) - 1 to delta, for |delta| at most half the width."""
        scale = self.sigma * self.width
        x = delta / scale
        normal = x * torch.erf(x / math.sqrt(2)) + math.sqrt(2 / math.pi) * torch.expm1(-x.square() / 2)
        return scale * normal / self.mass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A federation: m bases with equally many records, partitioned by `raydiff.data.entangled`."""

    clients: int
    bases: int = 20
    records: int = 100
    """Records of each base over all clients: the paper's n / m."""
    xi: float = 0.0

    def counts(self, rng: torch.Generator) -> Tensor:
        """(K, m): records of each client by base."""
        return entangled.entangled_shares(torch.full((self.bases,), self.records), self.clients, self.xi, rng=rng).T

    @property
    def fewest(self) -> float:
        """min_k n_k; clients have as many records as each other."""
        return self.records * self.bases / self.clients


def utility_losses(counts: Tensor, base: Base, *, repetitions: int, rng: torch.Generator) -> Tensor:
    """eps_u (R,) of the one-round algorithm for clients with `counts` (K, m).

    The counts determine which estimate the server keeps; the others are not drawn.
    """
    kept = counts.amax(0)
    fractions = counts.sum(0) / counts.sum()
    total = torch.zeros(repetitions, dtype=torch.float64)
    for n, weight in zip(kept.tolist(), fractions.tolist(), strict=True):
        step = max(1, CHUNK // n)
        means = [base.sample(len(part), n, rng=rng).mean(1) for part in total.split(step)]
        total += weight * base.loss(torch.cat(means))
    return total


def theorem1(fewest: float, eps: Tensor, *, width: float | None) -> Tensor:
    """Theorem 1's lower bound on Pr(eps_u <= eps), (E,), for L = 1: Eq. 8 (`width` None), or the appendix's proof."""
    exponent = 2.0 if width is None else 1 / (2 * width**2)
    return 1 - 2 * torch.exp(-exponent * fewest * eps.square())


def theorem2(setting: Setting, eps: Tensor) -> Tensor:
    """Theorem 2's lower bound (Eq. 9), (E,), for L = 1; below -1 where it does not apply, above xi = 1 / (K - 1)^2."""
    kept = 1 - (setting.clients - 1) * math.sqrt(setting.xi)
    return 1 - 2 * torch.exp(-kept * setting.records * eps.square() / 2)


def probability(losses: Tensor, eps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pr(eps_u <= eps), (E,), from losses (R,): the fraction and its exact 95 % interval (Clopper and Pearson)."""
    from scipy.stats import beta

    total = len(losses)
    hits = torch.searchsorted(losses.sort().values, eps, right=True).double()
    low = torch.from_numpy(beta.ppf(0.025, hits.numpy(), (total - hits + 1).numpy())).nan_to_num(0.0)
    high = torch.from_numpy(beta.ppf(0.975, (hits + 1).numpy(), (total - hits).numpy())).nan_to_num(1.0)
    return hits / total, low, high


def promised(bound: Tensor, eps: Tensor) -> float:
    """The smallest of eps (E,), ascending, at which `bound` (E,) reaches 0.95; infinite where it never does."""
    reached = (bound >= 0.95).nonzero()
    return float(eps[reached[0, 0]]) if len(reached) else math.inf


def fails_from(losses: Tensor, setting: Setting, widths: Tensor, *, theorem: int) -> float:
    """The smallest of the ascending `widths` b - a at which a theorem as printed is violated, else infinity.

    Violated: at some eps the whole 95 % interval of Pr(eps_u <= eps) is below the bound. `losses` (R,): for b - a = 1.
    """
    eps = losses.quantile(torch.linspace(0, 1, 201, dtype=torch.float64))
    high = probability(losses, eps)[2]
    for width in widths.tolist():
        scaled = eps * width
        bound = theorem1(setting.fewest, scaled, width=None) if theorem == 1 else theorem2(setting, scaled)
        if (high < bound).any():
            return float(width)
    return math.inf


# --- counter-examples ---


def dominant_share(counts: Tensor) -> tuple[float, float, float, float]:
    """Lemma 3 for `counts` (K, m) of equally large bases.

    Returns (xi, minimum over bases of the largest client's fraction, two lower bounds on it): Lemma 3's
    1 - (K - 1) sqrt(xi), and 1 - (K - 1) sqrt(xi m / K).
    """
    clients, bases = counts.shape
    pairs = entangled.coefficients(counts)[~torch.eye(clients, dtype=torch.bool)]
    xi = float(pairs.max())
    least = float((counts.double() / counts.sum(0)).amax(0).min())
    printed, proved = (1 - (clients - 1) * math.sqrt(x) for x in (xi, xi * bases / clients))
    return xi, least, printed, proved


def one_shared(clients: int, exclusive: int) -> Tensor:
    """(K, K e + 1): a client has e = `exclusive` bases to itself, and all have one in common: xi = 1 / (1 + K^2 e)."""
    alone = torch.eye(clients, dtype=torch.int64).repeat_interleave(exclusive, dim=1) * clients
    return torch.cat([alone, torch.ones(clients, 1, dtype=torch.int64)], dim=1)


def literal_limit(mu: float = 0.0) -> float:
    """Limit of eps_u for S = phi(mu, 0.5, 0, 1) if the mean of S replaces mu, as in Lemma 2.

    mu is the mean only in the middle of [a, b]: the median of phi(mean of S, sigma, a, b) never becomes that of S.
    """
    from scipy.stats import truncnorm

    sigma = 0.5
    a = 0.0
    b = 1.0

    def truncated(center: float) -> Any:
        return truncnorm((a - center) / sigma, (b - center) / sigma, center, sigma)

    truth = truncated(mu)
    w = float(truncated(float(truth.mean())).median())
    best = float(truth.median())
    t = torch.linspace(best, w, 1001, dtype=torch.float64)
    return float(torch.trapezoid(torch.from_numpy(2 * truth.cdf(t.numpy()) - 1), t))


# --- what `python -m analysis.theory feddistr` prints ---


def report(out: Path, *, repetitions: int = 2000) -> list[str]:
    """Lines of text with the table and the counter-examples; writes feddistr-theory.png into the folder `out`."""
    settings = [Setting(clients=k, records=n, xi=xi) for k, n, xi in itertools.product(CLIENTS, RECORDS, XIS)]
    losses = {setting: _losses(setting, repetitions) for setting in settings}
    picture = out / "feddistr-theory.png"
    _draw(picture, losses)
    head = ("K", "n/m", "xi", "measured", "Thm 1", "appendix", "Thm 2", "1 fails at", "2 fails at")
    return [
        f"FedDistr's Theorems 1 and 2 where the truth is known: 20 bases, {repetitions} repetitions, L = 1.",
        "Epsilon that eps_u stays below with probability 0.95 at b - a = 1: measured, as promised (-: never); then the",
        "b - a from which a theorem as printed, which does not know b - a, is violated (95 % interval below the bound)",
        *aligned([head, *(_cells(*item) for item in losses.items())], words=0),
        "",
        *_many_bases(repetitions),
        *_counter_examples(),
        f"written: {picture}",
    ]


def _losses(setting: Setting, repetitions: int) -> Tensor:
    path = ("feddistr", repr(setting))
    counts = setting.counts(generator(0, *path, "counts"))
    return utility_losses(counts, Base(), repetitions=repetitions, rng=generator(0, *path, "losses"))


def _cells(setting: Setting, losses: Tensor) -> tuple[str, ...]:
    fails = [fails_from(losses, setting, ALL_WIDTHS, theorem=theorem) for theorem in (1, 2)]
    bounds = *(theorem1(setting.fewest, EPS, width=width) for width in (None, 1.0)), theorem2(setting, EPS)
    reached = [promised(bound, EPS) for bound in bounds]
    if setting.xi > 0:  # Theorem 1 is about xi = 0
        reached[:2], fails[0] = [math.inf, math.inf], math.inf
    values = (f"{value:.3g}" if value < math.inf else "-" for value in (*reached, *fails))
    measured = f"{float(losses.quantile(0.95)):.5f}"
    return (str(setting.clients), str(setting.records), f"{setting.xi:g}", measured, *values)


def _many_bases(repetitions: int) -> list[str]:
    """The appendix's own bound, where a client has one record of each of many bases."""
    setting = Setting(clients=2, bases=800, records=1)
    losses = _losses(setting, repetitions)
    eps = losses.quantile(torch.tensor([0.01], dtype=torch.float64))
    fraction, low, high = (float(v) for v in probability(losses, eps))
    bound = float(theorem1(setting.fewest, eps, width=1.0))
    return [
        "Theorem 1 in the appendix's form, with n_k records of 400 bases at each of two clients, one of each base: at",
        f"epsilon = {float(eps):.4f} it says {bound:.3f}; measured {bracket(fraction, low, high)}",
    ]


def _counter_examples() -> list[str]:
    rows: Rows = [("K", "own", "xi", "1/(K-1)^2", "share", "Lemma 3", "xi m/K")]
    for clients, exclusive in ((2, 1), (5, 1), (5, 4), (20, 1)):
        xi, *bounds = (f"{value:.4f}" for value in dominant_share(one_shared(clients, exclusive)))
        rows.append((str(clients), str(exclusive), xi, f"{1 / (clients - 1) ** 2:.4f}", *bounds))
    return [
        "Lemma 2 with the sample mean as the parameter mu of phi(0, 0.5, 0, 1): eps_u tends to "
        f"{literal_limit():.4f}, not to 0, as n grows",
        "Lemma 3 for Definition 1's cosine, K clients with `own` bases each and one that all share evenly:",
        *aligned(rows, words=0),
    ]


def _draw(path: Path, results: Mapping[Setting, Tensor]) -> None:
    """The probability by epsilon at two widths, measured and bounded; epsilon at probability 0.95 by xi."""
    drawn = Setting(clients=20, records=50)  # With one base per client all of Theorem 1 can hold.
    losses, (figure, ((*curves, blow_up),)) = results[drawn], panels(1, 3, size=(14, 4.4), dpi=110)
    for axes, width in zip(curves, WIDTHS, strict=True):
        low = width * float(losses.min()) / 2
        high = max(3.0, 5 * width) / math.sqrt(drawn.records)
        eps = torch.logspace(math.log10(min(low, 0.02)), math.log10(high), 200, dtype=torch.float64)
        axes.semilogx(eps, probability(losses * width, eps)[0], "k", linewidth=2, label="measured")
        axes.semilogx(eps, theorem1(drawn.fewest, eps, width=None), "C3", label="Theorem 1, Eq. 8")
        axes.semilogx(eps, theorem2(drawn, eps), "C1--", label="Theorem 2, Eq. 9")
        bound = theorem1(drawn.fewest, eps, width=width)
        axes.semilogx(eps, bound, "C0:", linewidth=2, label="appendix's proof, with b - a")
        axes.set(ylim=(-0.05, 1.05), xlabel="epsilon", ylabel="Pr(eps_u <= epsilon)")
        axes.set_title(f"K = m = 20, n/m = {drawn.records}, xi = 0, b - a = {width:g}")
        axes.legend(fontsize=8)
    for colour, clients in enumerate(CLIENTS):
        settings = [s for s in results if (s.clients, s.records) == (clients, drawn.records)]
        xis = [s.xi + 1e-3 for s in settings]
        measured = [float(results[s].quantile(0.95)) for s in settings]
        blow_up.plot(xis, measured, "o-", color=f"C{colour}", label=f"K = {clients}, measured")
        xi = torch.linspace(0, 1, 400, dtype=torch.float64)[:-1].square() / (clients - 1) ** 2
        promised = [math.sqrt(2 * math.log(40) / (drawn.records * (1 - (clients - 1) * x**0.5))) for x in xi.tolist()]
        blow_up.plot(xi + 1e-3, promised, "--", color=f"C{colour}", label=f"K = {clients}, Theorem 2, to 1/(K-1)^2")
    blow_up.set(xscale="log", yscale="log", ylim=(5e-4, 20), xlabel="xi + 0.001", ylabel="epsilon")
    blow_up.set_title(f"epsilon at probability 0.95, n/m = {drawn.records}, b - a = 1")
    blow_up.legend(fontsize=8)
    save_figure(figure, path)
