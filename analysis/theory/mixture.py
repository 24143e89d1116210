"""PFDM with perfect denoisers on a hierarchical Gaussian mixture: what the server decides, and what the client.

The mixture is that of PFDM's Figure 5 (arXiv 2504.00952, without numbers; these are ours): a tree of depth 3 in the
plane, each node the centre of three children on a circle, a Gaussian at each leaf. Forward in time the leaves merge
first, then the twigs, then the branches (`merge_time`); so a reverse chain decides the branch first. PFDM hands over at
t0: what merges later than t0 is decided by the global model, the rest by the client's.

A client's denoiser has the exact score of one Gaussian of the leaves' width at each of its records, the global one that
of the truth diffused to t0, that is of infinitely many uploads.

Shapes: B samples, K components, d dimensions. All in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from analysis.theory.closed_forms import ABAR, reverse
from analysis.theory.theory_tables import Rows
from raydiff.formats.intervals import student
from raydiff.formats.plots import panels, save_figure
from raydiff.formats.tables import aligned
from raydiff.models.samplers import MEASURED
from raydiff.seeding import generator

RADII = (4.0, 1.2, 0.36)  # of each level of the tree
LEAF = 0.08  # standard deviation of a leaf
CHILDREN = 3
STEPS = 100  # of each chain in a hand-over, or all that it has


@dataclass(frozen=True, eq=False)
class Mixture:
    """Equally weighted isotropic Gaussians."""

    means: Tensor  # (K, d) float64
    variance: float  # of each component, along each axis

    def noised(self, abar: float) -> Mixture:
        """The distribution of sqrt(abar) x + sqrt(1 - abar) z."""
        return Mixture(math.sqrt(abar) * self.means, abar * self.variance + 1 - abar)

    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """(count, d)."""
        return Mixture(self.means[torch.randint(len(self.means), (count,), generator=rng)], self.variance).each(rng)

    def each(self, rng: torch.Generator) -> Tensor:
        """One draw of every component, (K, d)."""
        noise = torch.randn(self.means.shape, dtype=torch.float64, generator=rng)
        return self.means + math.sqrt(self.variance) * noise

    def predict(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """The exact noise prediction, -sqrt(1 - abar_t) times the score of `noised(abar_t)`, for x (B, d)."""
        abar = float(ABAR[int(t[0])])
        q = self.noised(abar)
        component = (-torch.cdist(x, q.means).square() / (2 * q.variance)).softmax(1)
        return math.sqrt(1 - abar) * (x - component @ q.means) / q.variance


def tree() -> Mixture:
    """The hierarchical mixture: 27 leaves in the plane; leaves 9 i to 9 i + 8 belong to branch i."""
    means = torch.zeros(1, 2, dtype=torch.float64)
    for radius in RADII:
        angle = math.pi / 2 + 2 * math.pi / CHILDREN * torch.arange(CHILDREN, dtype=torch.float64)
        circle = radius * torch.stack([angle.cos(), angle.sin()], dim=1)
        means = (means.unsqueeze(1) + circle).flatten(0, 1)
    return Mixture(means, LEAF**2)


def merge_time(half_distance: float, variance: float) -> int:
    """The smallest t at which two equal Gaussians, 2 `half_distance` apart, have a single mode.

    They have where the distance of each from the middle is at most the standard deviation, both after diffusion:
    abar half_distance^2 <= abar variance + 1 - abar.
    """
    return int((ABAR * half_distance**2 <= ABAR * variance + 1 - ABAR).nonzero()[0])


def merge_times() -> list[int]:
    """When siblings of each level merge, coarsest first: each as one Gaussian with the variance of all below it."""
    below = [LEAF**2 + sum(r * r / 2 for r in RADII[level + 1 :]) for level in range(len(RADII))]
    return [merge_time(r * math.sin(math.pi / CHILDREN), v) for r, v in zip(RADII, below, strict=True)]


class HandOver(NamedTuple):
    """One client's samples of its minority class at one depth."""

    t0: int
    x_t0: Tensor  # (B, 2), from the global chain
    samples: Tensor  # (B, 2), after the client's chain
    w2_squared: float  # to as many draws of the truth, equally many of each leaf, by optimal assignment


class Case(NamedTuple):
    """A class, the tree's first branch, of which a client has a few records."""

    truth: Mixture
    records: Tensor  # (n, 2)
    local: float  # W2^2 of what the client samples alone, from T to 0
    floor: float  # W2^2 of as many independent draws of the truth
    depths: list[HandOver]


def hand_overs(*, minority: int, depths: Sequence[int], sampler: str, count: int = 360, seed: int = 0) -> Case:
    """Run PFDM on the tree's first branch, `count` samples at each depth, with `minority` records, at least one."""
    rng = generator(seed, "mixture")
    truth = Mixture(tree().means[:9], LEAF**2)
    records = truth.sample(minority, rng)
    client = Mixture(records, LEAF**2)
    target = Mixture(truth.means.repeat(count // 9, 1), truth.variance).each(rng)
    pure = torch.randn(len(target), 2, dtype=torch.float64, generator=rng)
    T = len(ABAR) - 1

    def run(model: Mixture, x: Tensor, start: int) -> Tensor:
        return reverse(model.predict, x, start, sampler=sampler, steps=STEPS, rng=rng)

    hands = []
    for t0 in depths:
        x_t0 = run(truth.noised(float(ABAR[t0])), pure, T)
        samples = run(client, x_t0, t0)
        hands.append(HandOver(t0, x_t0, samples, assignment(samples, target)))
    local = assignment(run(client, pure, T), target)
    return Case(truth, records, local, assignment(truth.sample(len(target), rng), target), hands)


def assignment(a: Tensor, b: Tensor) -> float:
    """Squared 2-Wasserstein distance between two sets of points (B, d): the best one-to-one assignment."""
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(a, b).square().numpy()
    return float(cost[linear_sum_assignment(cost)].mean())


# --- what `python -m analysis.theory mixture` prints ---


def report(out: Path, *, seeds: int = 4) -> list[str]:
    """Write the pictures into the folder `out`; a table of W2^2 over t0."""
    t0s, (branches, twigs, leaves) = (10, 40, 90, 260, 500), merge_times()
    draw_hierarchy(hierarchy := out / "hierarchy.png")
    paths = [hierarchy]
    rows = Rows([("n", "sampler", "local", *(f"t0 = {t0}" for t0 in t0s), "floor")])
    for n, sampler in itertools.product((3, 20), MEASURED):
        cases = [hand_overs(minority=n, depths=t0s, sampler=sampler, seed=seed) for seed in range(seeds)]
        columns = zip(*([c.local, *(hand.w2_squared for hand in c.depths), c.floor] for c in cases), strict=True)
        intervals = map(student, columns)
        rows.append((str(n), sampler, *(f"{mean:.3f}±{high - mean:.3f}" for mean, _, high in intervals)))
        paths.append(out / f"hand-over-{n}-{sampler}.png")
        draw_hand_overs(cases[0], paths[-1], title=f"{n} records, {sampler}, one draw")
    return [
        f"The hierarchical mixture: siblings merge at t = {leaves} (leaves), {twigs} (twigs), {branches} (branches).",
        "A client with n records of one branch; the global chain hands over at t0. W2^2 by assignment, mean and half",
        f"of the 95 % interval over {seeds} draws:",
        *aligned(rows, words=0),
        *(f"written: {path}" for path in paths),
    ]


def draw_hierarchy(path: Path, *, count: int = 1500) -> None:
    """Write Figure 5 as a PNG: the perfect ancestral chain for the whole tree, stopped on its way from T to 0."""
    T, rng, target, (branches, twigs, leaves) = len(ABAR) - 1, generator(0, "hierarchy"), tree(), merge_times()
    stops = (T, branches, (branches + twigs) // 2, twigs, (twigs + leaves) // 2, leaves, leaves // 2, 0)
    names = (f"{level} {what}" for level in ("branches", "twigs", "leaves") for what in ("merge", "apart"))
    points = [torch.randn(count, 2, dtype=torch.float64, generator=rng)]
    for start, stop in itertools.pairwise(stops):
        points.append(reverse(target.predict, points[-1], start, stop, sampler="ancestral", rng=rng))
    colours = [f"C{leaf // 9}" for leaf in torch.cdist(points[-1], target.means).argmin(1).tolist()]
    figure, axes = panels(2, 4, size=(4 * 3.2, 2 * 3.4), dpi=110)
    for ax, x, t, name in zip(axes.flat, points, stops, ("noise", *names, "the mixture"), strict=True):
        ax.scatter(*x.T.numpy(), s=3, c=colours, linewidths=0)
        ax.set(title=f"t = {t}: {name}", xlim=(-6.5, 6.5), ylim=(-6.5, 6.5), aspect="equal")
    figure.suptitle("The chain of the exact score, stopped at t. Colour: the branch in which a sample ends.")
    save_figure(figure, path)


def draw_hand_overs(case: Case, path: Path, *, title: str) -> None:
    """Write a PNG: above, what the global chain hands over at each t0; below, what the client's chain makes of it."""
    figure, axes = panels(2, len(case.depths), size=(3.1 * len(case.depths), 6.8), dpi=110)
    for (above, below), hand in zip(axes.T, case.depths, strict=True):
        for ax, points, colour in ((above, hand.x_t0, "tab:blue"), (below, hand.samples, "tab:green")):
            ax.scatter(*points.T.numpy(), s=4, color=colour, linewidths=0, alpha=0.6)
            ax.set_aspect("equal")
        above.set(title=f"from the global chain, t0 = {hand.t0}", xlim=(-4, 4), ylim=(-3, 7))
        below.scatter(*case.truth.means.T.numpy(), marker="x", color="grey", s=40, linewidths=1, label="truth's leaves")
        below.scatter(*case.records.T.numpy(), marker="o", facecolors="none", edgecolors="black", label="records")
        below.set(title=f"after the client's: W2² {hand.w2_squared:.3f}", xlim=(-2.2, 2.2), ylim=(1.8, 6.2))
    axes[1, 0].legend(loc="lower left", fontsize=8)
    figure.suptitle(f"{title}; W2² of local training {case.local:.3f}, floor {case.floor:.3f}")
    save_figure(figure, path)
