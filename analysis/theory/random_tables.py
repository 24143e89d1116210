"""The per-instance bound on random tables over t, s, the schedule and p, as in Figures 3, 4, 5, 8 and 11 of the paper.

Columns are independent: value 0 with probability p, the k - 1 others alike. The audited record has a value other than
0 in every column. Settings that the paper leaves open are those of Figure 4.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), sections 3.3 and 4.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import torch

from analysis.theory.theory_tables import bracket
from raydiff.evaluation.evaluation_settings import Condition
from raydiff.formats import plots
from raydiff.formats.csv_files import write_csv
from raydiff.formats.intervals import student
from raydiff.models.d3pm_kernel import CategorySchedule, Linear, Sigmoid
from raydiff.papers.discrete.bound import CAVEATS, Audit, ReleasedRows, audit_rows, bounds
from raydiff.papers.discrete.histograms import Histograms, distinct, histograms
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel
from raydiff.seeding import generator

PS = (0.3, 0.5, 0.7, 0.9)
SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000, 3_162_278, 10_000_000)
COLUMNS = (5, 10, 20)
RATES: dict[str, tuple[Linear | Sigmoid, ...]] = {
    "linear": tuple(Linear(rate=r) for r in (0.1, 0.3, 0.5, 0.7, 0.9)),
    "sigmoid": tuple(Sigmoid(rate=r) for r in (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)),
}
STEP = 5  # at which Figure 3's similarity is taken
EXPECTED = {1: -1, 50: -2}  # slopes over s, by step
CONFIGURATIONS = ((5, 5, 20), (10, 5, 20), (20, 5, 100))
"""(n, k, T) of Figure 11."""
Interval = tuple[float, float, float]
"""Mean and 95 % interval over table seeds."""
Point = tuple[str, str, str, float, float, float, float]
"""A row of the csv: figure, quantity, curve, x, and the interval of y."""
Grown = dict[int, list[tuple[Floats, Ints]]]  # by n: of each table, the main terms and the radii


@dataclass(frozen=True, kw_only=True)
class RandomTable:
    """A random table and a model of it. The defaults are those of Figure 4."""

    p: float = 0.5
    """Probability of each column's majority value."""
    others: int = 1000
    """s."""
    columns: int = 5
    """n."""
    categories: int = 5
    """k."""
    steps: int = 20
    """T."""
    schedule: CategorySchedule = Linear()
    """The noise."""
    epsilon: float = 10.0
    """pDP's."""
    condition: Condition = "relaxed"
    """Of the radius."""

    @property
    def release(self) -> ReleasedRows:
        """Clean rows of the model."""
        kernel = Kernel(alpha=self.schedule.alpha(self.steps).tolist(), categories=self.categories)
        return ReleasedRows(kernel=kernel, epsilon=self.epsilon, condition=self.condition)

    def table(self, rng: torch.Generator) -> Ints:
        """(s + 1, n): the record, then the others."""
        others = skewed(self.others, self.columns, self.categories, p=self.p, rng=rng)
        return np.concatenate([np.ones((1, self.columns), dtype=np.int64), others])


def skewed(rows: int, columns: int, categories: int, *, p: float, rng: torch.Generator) -> Ints:
    """A (rows, columns) table."""
    major = torch.rand(rows, columns, dtype=torch.float64, generator=rng) < p
    others = torch.randint(1, categories, (rows, columns), generator=rng)
    return np.asarray(torch.where(major, 0, others).numpy(), dtype=np.int64)


def growing(setting: RandomTable, sizes: Sequence[int], rng: torch.Generator) -> tuple[Floats, Ints]:
    """The main term of each step and its radius, (sizes, T), when rows that agree with the record nowhere are added.

    sizes: s with the added rows, at least the setting's.
    """
    data = distinct(setting.table(rng))
    base = histograms(data, data.index[:1])
    near = np.repeat(base.near.astype(np.int64), len(sizes), axis=0)
    near[:, -1] += np.array(sizes) - setting.others
    release = setting.release
    result = bounds(Histograms(near=near, sharing=np.repeat(base.sharing, len(sizes), axis=0)), release)
    inside = np.take_along_axis(np.cumsum(near, axis=1), result.radius, axis=1)
    fraction = np.minimum(4 * inside / np.array(sizes)[:, None], 1)
    return release.price * fraction * result.leak, result.radius


def slopes(values: Floats, sizes: Sequence[int]) -> Floats:
    """Of log(values), (sizes, T), over log(sizes): least squares, (T,); nan where a value is 0."""
    x = np.log(np.array(sizes, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(values)
        return np.asarray((x - x.mean()) @ (y - y.mean(axis=0)) / ((x - x.mean()) ** 2).sum())


# --- what `python -m analysis.theory pdp` prints of it ---


def curve(figure: str, quantity: str, label: str, x: Sequence[float], y: Sequence[Interval]) -> Iterator[Point]:
    """One line of a panel of the paper's `figure`, y over x: `quantity` says both."""
    return ((figure, quantity, label, float(at), *of) for at, of in zip(x, y, strict=True))


def report(out: Path, *, seeds: int = 5) -> list[str]:
    """Lines of text; writes pdp-bound.csv and pdp-bound.png into the folder `out`."""
    grown: Grown = {}
    for n in COLUMNS:
        setting = RandomTable(columns=n, steps=100)
        grown[n] = [growing(setting, SIZES, generator(seed, "pdp", "table")) for seed in range(seeds)]
    points = [*by_similarity(), *by_step(seeds), *by_size(grown), *by_rate(seeds), *by_skew(seeds)]
    table = out / "pdp-bound.csv"
    picture = out / "pdp-bound.png"
    curves = pd.DataFrame(points, columns=["figure", "quantity", "curve", "x", "mean", "low", "high"])
    write_csv(table, curves, form="%.6g")
    _draw(curves, picture)
    return [
        f"The pDP bound on delta of one record of random tables, mean [95 % interval] of {seeds} tables.",
        "No majority value in the record; unless said k = n = 5, T = 20, s = 1000, p = 0.5, linear, epsilon 10, m = 1",
        *CAVEATS[:1],
        "",
        *_tables(curves),
        "",
        *_slopes(grown),
        "",
        f"written: {table}",
        f"written: {picture}",
    ]


def audits(setting: RandomTable, seeds: int, *, alone: bool) -> list[Audit]:
    """The audit of a table of each seed: of the first record `alone`, or of all."""
    tables = (setting.table(generator(seed, "pdp", "table")) for seed in range(seeds))
    return [audit_rows(table, setting.release, records=np.array([0]) if alone else None) for table in tables]


def by_similarity() -> Iterator[Point]:
    """Figure 3: all records of one table, for each p."""
    for p in PS:
        (result,) = audits(RandomTable(p=p), 1, alone=False)
        y = [(d, d, d) for d in result.delta.tolist()]
        yield from curve("3", "delta over similarity", f"p = {p}", result.similarity[:, STEP - 1].tolist(), y)


def by_step(seeds: int) -> Iterator[Point]:
    """Figures 4 and 8: leak, radius and contribution of each step."""
    settings = [("4", f"p = {p}", RandomTable(p=p)) for p in PS]
    for p, condition in itertools.product((0.3, 0.9), get_args(Condition)):
        setting = RandomTable(p=p, others=30_000, epsilon=1.0, condition=condition)
        settings.append(("8", f"p = {p}, {condition}", setting))
    for figure, label, setting in settings:
        results = audits(setting, seeds, alone=True)
        for quantity, name in (("n / s^psi_t", "leak"), ("radius", "radius"), ("contribution", "terms")):
            y = [student(v) for v in zip(*(getattr(each, name)[0].tolist() for each in results), strict=True)]
            yield from curve(figure, f"{quantity} over t", label, setting.release.steps, y)


def by_size(grown: Grown) -> Iterator[Point]:
    """Figure 5, left and middle: the main term of two steps over s, when rows that agree nowhere are added."""
    for (n, tables), t in itertools.product(grown.items(), EXPECTED):
        y = [student([float(values[i, t - 1]) for values, _ in tables]) for i in range(len(SIZES))]
        yield from curve("5", "main term over s", f"t = {t}, n = {n}", SIZES, y)


def by_rate(seeds: int) -> Iterator[Point]:
    """Figure 5, right: delta over the schedules' rate."""
    for name, schedules in RATES.items():
        results = [audits(RandomTable(schedule=schedule), seeds, alone=True) for schedule in schedules]
        y = [student([float(each.delta[0]) for each in tables]) for tables in results]
        yield from curve("5", "delta over rate", name, [schedule.rate for schedule in schedules], y)


def by_skew(seeds: int) -> Iterator[Point]:
    """Figure 11: delta of the most and the least exposed record of each table, over p."""
    for n, k, steps in CONFIGURATIONS:
        results = [audits(RandomTable(p=p, columns=n, categories=k, steps=steps), seeds, alone=False) for p in PS]
        for which, of in (("most", np.max), ("least", np.min)):
            y = [student([float(of(each.delta)) for each in tables]) for tables in results]
            yield from curve("11", "delta over p", f"n = {n}, k = {k}, T = {steps}, {which}", PS, y)


def _tables(curves: pd.DataFrame) -> Iterator[str]:
    for (figure, quantity, label), points in curves.groupby(["figure", "quantity", "curve"], sort=False):
        cells = []
        for x, mean, low, high in points[["x", "mean", "low", "high"]].itertuples(index=False):
            if figure != "4":
                cells.append(f"{x:g}: {bracket(mean, low, high, '.3g')}")
            elif x in (1, 2, 3, 5, 8, 12):
                cells.append(f"{x:g}: {mean:.2g}")
        if figure == "4" or quantity in ("delta over rate", "delta over p"):
            yield f"{quantity} ({label}): {', '.join(cells)}"


def _slopes(grown: Grown) -> Iterator[str]:
    yield f"log-log slope of the main term over s = {SIZES[0]:g} .. {SIZES[-1]:g}, T = 100 (radius at both ends):"
    for (n, tables), (t, expected) in itertools.product(grown.items(), EXPECTED.items()):
        slope = student([float(slopes(values, SIZES)[t - 1]) for values, _ in tables])
        ends = " -> ".join(f"{np.mean([radius[i, t - 1] for _, radius in tables]):g}" for i in (0, -1))
        yield f"  n = {n:2}, t = {t:2}: {bracket(*slope, '.3g')}, the paper's {expected} ({ends})"


PANELS = (
    ("3", "delta over similarity", "log", "log"),
    ("4", "n / s^psi_t over t", "linear", "log"),
    ("4", "radius over t", "linear", "linear"),
    ("4", "contribution over t", "linear", "log"),
    ("8", "contribution over t", "linear", "log"),
    ("5", "main term over s", "log", "log"),
    ("5", "delta over rate", "log", "log"),
    ("11", "delta over p", "linear", "log"),
)
"""(the paper's figure, quantity, scales of x and y)."""


def _draw(table: pd.DataFrame, path: Path) -> None:
    """Figures 3, 4, 5, 8 and 11 from the rows of pdp-bound.csv: figure, quantity, curve, x, mean, low, high."""
    figure, panels = plots.panels(2, 4, size=(17, 8), dpi=110)
    for axes, (number, quantity, *scales) in zip(panels.flat, PANELS, strict=True):
        points = table[(table["figure"] == number) & (table["quantity"] == quantity)]
        for label, curve in points.groupby("curve", sort=False):
            axes.plot(curve["x"], curve["mean"], "." if number == "3" else "o-", markersize=3, label=label)
            if number != "3":  # A logarithmic axis has no place for a band's part at or below 0.
                axes.fill_between(curve["x"], curve["low"], curve["high"], where=curve["low"] > 0, alpha=0.15)
        y, x = quantity.split(" over ")
        axes.set(xlabel=x, ylabel=y, xscale=scales[0], yscale=scales[1])
        axes.set_title(f"Figure {number}: {quantity}", fontsize=10)
        axes.legend(fontsize=7)
    figure.suptitle("Bound on delta (pDP) on random tables, mean and 95 % interval (if above 0); no training error")
    plots.save_figure(figure, path)
