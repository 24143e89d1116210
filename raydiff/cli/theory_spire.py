"""Tables and pictures of `raydiff theory spire`: what raydiff/evaluation/oracle_spire.py says, measured."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from raydiff.seeding import generator
from raydiff.theory import spire as oracle_spire
from raydiff.theory.pfdm_data import Interval, interval
from raydiff.theory.spire import Federation

W, MU, RECORDS = 0.7, 4.0, 1000  # Figure 3's weight and mean; the paper does not give n
TIMES = (0.1, 0.5, 1.0)  # nor t
SQUARE = 4.0  # |mu_t|^2 elsewhere
CLIENTS, COUNTS = (2, 8, 32, 128), (30, 100, 300, 1000)
BASE = Federation(clients=8, records=100, d=8, square=SQUARE)
AXES = {
    "clients": ("clients m", "-1", "0"),
    "records": ("records n", "-1", "-1"),
    "d": ("dimensions d", "6", "0"),
    "square": ("|mu_t|^2", "8", "0"),
}
"""Fields of a setting; Theorem 4.3's exponents of the mean's part and of the weights'."""


def spire(out: Path, *, seeds: int = 10, trials: int = 5, steps: int = 1000) -> list[str]:
    """The tables of Figure 3 and of Theorems 4.2 and 4.3; two pictures into the folder `out`."""
    learning, losses = out / "spire-learning.png", out / "spire-losses.png"
    lines = [f"SPIRE's theory: the clients share mu and differ in w. [95 % interval over {seeds} seeds]", ""]
    lines += [*_figure3(learning, seeds, steps), "", *_moments(seeds, 10 * trials), "", *_minimum(), ""]
    return [*lines, *_orders(losses, seeds, trials), f"written: {learning}", f"written: {losses}"]


# --- Figure 3 ---


def _figure3(path: Path, seeds: int, steps: int) -> list[str]:
    mean, w = torch.tensor([MU], dtype=torch.float64), torch.full((seeds,), W, dtype=torch.float64)
    x0 = oracle_spire.sample(RECORDS, mean, w, rng=generator(0, "spire", "figure 3"))
    lines = [
        f"Figure 3: {steps} steps of Adam on the DDPM loss at one t, {RECORDS} records of w = {W}, mu = {MU:g} (the",
        "paper: 0.72 and 4.11 in one run, n and t not given). RMSE of w, beside the roots of Theorem 4.2's bound and",
        "of what the exact minimum of the loss has for large n (mu known, all noise averaged out):",
        _row(("t", 5), ("w", 22), ("mu", 22), ("RMSE of w", 12), ("bound", 9), ("minimum", 10)),
    ]
    paths = {}
    for t in TIMES:
        rng = generator(0, "spire", "noise", str(t))
        weights, means = paths[t] = oracle_spire.learn(x0, t=t, steps=steps, rate=0.05, rng=rng)
        found = [_bracket(interval(v.tolist())) for v in (weights[-1], means[-1, :, 0])]
        bound = oracle_spire.weight_bound(W, (math.exp(-t) * MU) ** 2, RECORDS, d=1)
        roots = [float((weights[-1] - W).square().mean()), bound, oracle_spire.ddpm_variance(W, MU, t) / RECORDS]
        cells = [(f"{math.sqrt(value):.3f}", width) for value, width in zip(roots, (12, 9, 10), strict=True)]
        lines.append(_row((f"{t:g}", 5), *((cell, 22) for cell in found), *cells))
    _draw_learning(path, paths)
    return lines


def _draw_learning(path: Path, paths: dict[float, tuple[Tensor, Tensor]]) -> None:
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    x = torch.linspace(-6, 6, 400, dtype=torch.float64).unsqueeze(1)
    w = torch.tensor(W, dtype=torch.float64)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for colour, (t, (weights, means)) in enumerate(paths.items()):
        mean, learned = torch.tensor([math.exp(-t) * MU], dtype=torch.float64), math.exp(-t) * means
        new = oracle_spire.sample(2000, mean, w, rng=generator(0, "spire", "new", str(t)))
        steps = range(0, len(weights), 10)
        errors = [oracle_spire.score_error(new, (mean, w), (learned[s], weights[s])).mean() for s in steps]
        label = f"t = {t:g}: w = {float(weights[-1, 0]):.2f}, mu = {float(means[-1, 0, 0]):.2f}"
        left.plot(x, oracle_spire.score(x, mean, w), color=f"C{colour}", alpha=0.3, linewidth=5)
        left.plot(x, oracle_spire.score(x, learned[-1, 0], weights[-1, 0]), color=f"C{colour}", label=label)
        right.semilogy(steps, errors, color=f"C{colour}", label=f"t = {t:g}")
    left.set(title="the score: true (broad), and as the first seed learned it", xlabel="x")
    right.set(title="squared error of the score, mean of the seeds", xlabel="step of Adam")
    for ax in (left, right):
        ax.legend()
    figure.savefig(path, dpi=110)


# --- Theorem 4.2 ---


def _moments(seeds: int, trials: int) -> list[str]:
    lines = [
        f"Theorem 4.2: n times the mean squared error of w from first moments, w = {W}, |mu_t|^2 = {SQUARE:g}",
        _row(("d", 5), ("n", 7), ("measured", 22), ("exact", 9), ("bound", 9)),
    ]
    for d, n in itertools.product((1, 4, 16), (10, 100, 1000, 10_000)):
        mean, w = oracle_spire.even_mean(d, SQUARE), torch.full((trials,), W, dtype=torch.float64)
        each = []
        for seed in range(seeds):
            x = oracle_spire.sample(n, mean, w, rng=generator(seed, "spire", "moments", d, n))
            each.append(n * float((oracle_spire.weight_estimate(x, mean) - W).square().mean()))
        exact, bound = oracle_spire.weight_variance(W, SQUARE, 1), oracle_spire.weight_bound(W, SQUARE, 1, d=d)
        cells = [(_bracket(interval(each)), 22), (f"{exact:.3f}", 9), (f"{bound:.3f}", 9)]
        lines.append(_row((str(d), 5), (str(n), 7), *cells))
    return lines


def _minimum() -> list[str]:
    lines = [
        "But the theorem speaks of the DDPM loss. n times the mean squared error of w, d = 1: at the exact minimum of",
        "that loss (n large, all noise averaged out), and from the first moments of one x_t per record",
        _row(("mu", 5), ("t", 6), ("minimum", 10), ("moments", 10), ("bound", 10)),
    ]
    for mu, t in itertools.product((2.0, MU), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)):
        square = (math.exp(-t) * mu) ** 2
        moments, bound = oracle_spire.weight_variance(W, square, 1), oracle_spire.weight_bound(W, square, 1, d=1)
        values = (oracle_spire.ddpm_variance(W, mu, t), moments, bound)
        lines.append(_row((f"{mu:g}", 5), (f"{t:g}", 6), *((f"{value:.3f}", 10) for value in values)))
    return lines


# --- Theorem 4.3 ---


def _orders(path: Path, seeds: int, trials: int) -> list[str]:
    grid = [replace(BASE, records=n, clients=m) for n, m in itertools.product(COUNTS, CLIENTS)]
    axes = {
        "clients": [s for s in grid if s.records == BASE.records],
        "records": [s for s in grid if s.clients == BASE.clients],
        "d": [replace(BASE, records=300, d=d) for d in (2, 4, 8, 16, 32)],
        "square": [replace(BASE, records=300, square=b) for b in (1.0, 2.0, 4.0, 8.0, 16.0)],
    }
    found = {s: _losses(s, seeds, trials) for s in dict.fromkeys(itertools.chain(grid, *axes.values()))}
    lines = [
        f"Theorem 4.3: squared error of the score, m clients with n records each, d = {BASE.d}, |mu_t|^2 = {SQUARE:g}:",
        "all estimated (only the shared mean, with the true w | only the clients' weights, with the true mu)",
        _row(("n", 6), *((f"m = {m}", 28) for m in CLIENTS)),
    ]
    for n, row in itertools.groupby(grid, lambda s: s.records):
        means = [found[s].mean(0).tolist() for s in row]
        lines.append(_row((str(n), 6), *((f"{every:.5f} ({mean:.5f} | {own:.5f})", 28) for every, mean, own in means)))
    _, mean, own = found[BASE].mean(0).tolist()
    even = BASE.clients * mean / own  # the mean's part falls like 1 / m, the other does not
    lines += [
        f"At n = {BASE.records} the mean's part is the larger one up to about m = {even:.0f}; Remark 2 has it so up to",
        f"the order of d^6 B^8 = {BASE.d**6 * SQUARE**8:.1e}. Exponents: fitted, and (in round brackets) the bound's:",
        _row(("in", 14), ("all", 24), ("only the mean", 30), ("only the weights", 30)),
    ]
    for axis, settings in axes.items():
        title, *orders = AXES[axis]
        x = [float(getattr(s, axis)) for s in settings]
        losses = torch.stack([found[s] for s in settings], dim=-1)  # (seeds, 3, settings)
        parts = [_bracket(interval(oracle_spire.exponents(x, part).tolist())) for part in losses.unbind(1)]
        cells = [f"{part} ({order})" for part, order in zip(parts[1:], orders, strict=True)]
        lines.append(_row((title, 14), (parts[0], 24), *((cell, 30) for cell in cells)))
    _draw_losses(path, {s: found[s].mean(0).tolist() for s in grid})
    return lines


def _losses(setting: Federation, seeds: int, trials: int) -> Tensor:
    """(seeds, 3); more trials where there are few clients, whose weights alone differ much."""
    trials = max(trials, 32 * trials // setting.clients)
    rngs = [generator(seed, "spire", "losses", repr(setting)) for seed in range(seeds)]
    return torch.stack([oracle_spire.score_losses(setting, trials=trials, rng=rng) for rng in rngs])


def _draw_losses(path: Path, found: dict[Federation, list[float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.8), layout="constrained")
    ax = figure.subplots()
    for colour, m in enumerate(CLIENTS):
        losses = [found[replace(BASE, records=n, clients=m)] for n in COUNTS]
        ax.loglog(COUNTS, [every for every, _, _ in losses], "o-", color=f"C{colour}", label=f"m = {m}")
        constant = losses[-1][1] * m * COUNTS[-1]  # of the mean's part, from its last point
        ax.loglog(COUNTS, [constant / (m * n) for n in COUNTS], "--", color=f"C{colour}", linewidth=1)
    constant = losses[-1][2] * COUNTS[-1]
    ax.loglog(COUNTS, [constant / n for n in COUNTS], "k--", linewidth=1, label="the weights' part: 1 / n")
    ax.set(xlabel="records of each client, n", ylabel="squared error of the score")
    ax.set(title="Theorem 4.3: measured, and the mean's part, 1 / (m n), dashed")
    ax.legend()
    figure.savefig(path, dpi=110)


def _bracket(i: Interval) -> str:
    return f"{i.mean:.3f} [{i.low:.3f} {i.high:.3f}]"


def _row(*cells: tuple[str, int]) -> str:
    return "".join(f"{text:>{width}}" for text, width in cells)
