"""Table, csv and picture of `raydiff theory pdp`: the per-instance bound (pDP) on random tables.

What Figures 3, 4, 5, 8 and 11 of Wei et al. (arXiv 2310.15524) show. Where the paper does not say a setting, it is that
of Figure 4: k = n = 5, T = 20, s = 1000, pDP epsilon 10.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from raydiff.models.d3pm_kernel import Linear, Schedule, Sigmoid
from raydiff.models.training import Training
from raydiff.privacy.pdp.bound import CAVEATS, audit
from raydiff.privacy.pdp.kernel import Floats, Ints
from raydiff.report.papers import pdp_plot
from raydiff.seeding import generator
from raydiff.theory import pdp as oracle_pdp
from raydiff.theory import pdp_tables
from raydiff.theory.pdp import Setting
from raydiff.theory.pdp_exact import exact
from raydiff.theory.pfdm_data import Interval, interval

SEEDS = 5
PS = (0.3, 0.5, 0.7, 0.9)
SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000, 3_162_278, 10_000_000)
COLUMNS = (5, 10, 20)
RATES: dict[str, tuple[Schedule, ...]] = {
    "linear": tuple(Linear(rate=r) for r in (0.1, 0.3, 0.5, 0.7, 0.9)),
    "sigmoid": tuple(Sigmoid(rate=r) for r in (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)),
}
SAMPLES = (1, 10, 100, 1000)
STEP = 5  # at which Figure 3's similarity is taken
EXPECTED = {1: -1, 50: -2}  # slopes over s, by step
CONFIGURATIONS = ((5, 5, 20), (10, 5, 20), (20, 5, 100))
"""(n, k, T) of Figure 11."""
TINY = Setting(p=0.6, others=100, columns=3, categories=3, steps=10, epsilon=0.1)  # 27 states, enumerated
MARKS, RUNS = (0, 30, 100, 300), 2  # steps of the training of its models, how often they are trained
Grown = dict[int, list[tuple[Floats, Ints]]]  # by n: of each table, the main terms and the radii
FIELDS = ("figure", "quantity", "curve", "x", "mean", "low", "high")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a panel."""

    figure: str
    """The paper's."""
    quantity: str
    """What is on the y axis."""
    over: str
    """What is on the x axis."""
    label: str
    """Of the curve."""
    x: Sequence[float]
    """Where."""
    y: Sequence[Interval]
    """Mean and 95 % interval over table seeds."""


def pdp(out: Path, *, seeds: int = SEEDS) -> list[str]:
    """The tables; a csv and a picture into the folder `out`."""
    grown = {n: _grown(n, seeds) for n in COLUMNS}
    curves = [*by_similarity(), *by_step(seeds), *by_size(grown), *by_rate(seeds), *by_samples(seeds), *by_skew(seeds)]
    table, picture = out / "pdp-bound.csv", out / "pdp-bound.png"
    _write(table, curves)
    pdp_plot.bound(pd.read_csv(table, keep_default_na=False, dtype={"figure": str}), picture)
    return [
        f"The pDP bound on delta of one record of random tables, mean [95 % interval] of {seeds} tables.",
        "No majority value in the record; unless said k = n = 5, T = 20, s = 1000, p = 0.5, linear, epsilon 10, m = 1",
        *CAVEATS[:1],
        *_similarity(seeds),
        "",
        *_tables(curves),
        "",
        *_slopes(grown),
        "",
        *trained(),
        "",
        f"written: {table}",
        f"written: {picture}",
    ]


def by_similarity() -> Iterator[Curve]:
    """Figure 3: all records of one table, for each p."""
    for p in PS:
        found = oracle_pdp.everyone(Setting(p=p), generator(0, "pdp", "table"))
        y = [Interval(d, d, d) for d in found.delta.tolist()]
        x = found.similarity[:, STEP - 1].tolist()
        yield Curve(figure="3", quantity="delta", over="similarity", label=f"p = {p}", x=x, y=y)


def by_step(seeds: int) -> Iterator[Curve]:
    """Figures 4 and 8: leak, radius and contribution of each step."""
    for p in PS:
        yield from _steps("4", f"p = {p}", Setting(p=p), seeds)
    for p in (0.3, 0.9):
        for condition in ("theorem", "relaxed"):
            setting = Setting(p=p, others=30_000, epsilon=1.0, condition=condition)
            yield from _steps("8", f"p = {p}, {condition}", setting, seeds)


def _steps(figure: str, label: str, setting: Setting, seeds: int) -> Iterator[Curve]:
    audits = [oracle_pdp.exposed(setting, generator(seed, "pdp", "table")) for seed in range(seeds)]
    t = list(setting.release.steps)
    for quantity, name in (("n / s^psi_t", "leak"), ("radius", "radius"), ("contribution", "terms")):
        columns = zip(*(getattr(found, name)[0].tolist() for found in audits), strict=True)
        y = [interval(values) for values in columns]
        yield Curve(figure=figure, quantity=quantity, over="t", label=label, x=t, y=y)


def by_size(grown: Grown) -> Iterator[Curve]:
    """Figure 5, left and middle: the main term of two steps over s, when rows that agree nowhere are added."""
    for n, found in grown.items():
        for t in EXPECTED:
            y = [interval([float(values[i, t - 1]) for values, _ in found]) for i in range(len(SIZES))]
            yield Curve(figure="5", quantity="main term", over="s", label=f"t = {t}, n = {n}", x=SIZES, y=y)


def _grown(n: int, seeds: int) -> list[tuple[Floats, Ints]]:
    setting = Setting(columns=n, steps=100)
    return [oracle_pdp.growing(setting, SIZES, generator(seed, "pdp", "table")) for seed in range(seeds)]


def by_rate(seeds: int) -> Iterator[Curve]:
    """Figure 5, right: delta over the schedules' rate."""
    for name, schedules in RATES.items():
        y = [_delta(Setting(schedule=schedule), seeds) for schedule in schedules]
        x = [schedule.rate for schedule in schedules if isinstance(schedule, Linear | Sigmoid)]
        yield Curve(figure="5", quantity="delta", over="rate", label=name, x=x, y=y)


def by_samples(seeds: int) -> Iterator[Curve]:
    """delta over m."""
    y = [_delta(Setting(samples=m), seeds) for m in SAMPLES]
    yield Curve(figure="", quantity="delta", over="m", label="p = 0.5", x=SAMPLES, y=y)


def by_skew(seeds: int) -> Iterator[Curve]:
    """Figure 11: delta of the most and the least exposed record of each table, over p."""
    for n, k, steps in CONFIGURATIONS:
        deltas = [_deltas(Setting(p=p, columns=n, categories=k, steps=steps), seeds) for p in PS]
        for which, of in (("most", np.max), ("least", np.min)):
            y = [interval([float(of(values)) for values in found]) for found in deltas]
            label = f"n = {n}, k = {k}, T = {steps}, {which}"
            yield Curve(figure="11", quantity="delta", over="p", label=label, x=PS, y=y)


def _deltas(setting: Setting, seeds: int) -> list[Floats]:
    return [oracle_pdp.everyone(setting, generator(seed, "pdp", "table")).delta for seed in range(seeds)]


def _delta(setting: Setting, seeds: int) -> Interval:
    audits = [oracle_pdp.exposed(setting, generator(seed, "pdp", "table")) for seed in range(seeds)]
    return interval([float(found.delta[0]) for found in audits])


def _similarity(seeds: int) -> list[str]:
    """Figure 3 in one number per p."""
    from scipy.stats import spearmanr

    cells = []
    for p in PS:
        found = [oracle_pdp.everyone(Setting(p=p), generator(seed, "pdp", "table")) for seed in range(seeds)]
        ranks = [
            float(spearmanr(a.of_records(a.similarity)[:, STEP - 1], a.of_records(a.delta)).statistic) for a in found
        ]
        cells.append(f"{_shown(interval(ranks))} at p = {p}")
    return [f"Rank correlation of all records' similarity at t = {STEP} and delta (Figure 3): " + ", ".join(cells)]


def _tables(curves: Sequence[Curve]) -> list[str]:
    lines = []
    for curve in curves:
        if curve.over in ("rate", "m", "p"):
            shown = ", ".join(f"{x:g}: {_shown(y)}" for x, y in zip(curve.x, curve.y, strict=True))
            lines.append(f"delta over {curve.over} ({curve.label}): {shown}")
        elif curve.figure == "4":
            shown = ", ".join(f"{t}: {curve.y[t - 1].mean:.2g}" for t in (1, 2, 3, 5, 8, 12))
            lines.append(f"{curve.quantity} over t ({curve.label}): {shown}")
    return lines


def _slopes(grown: Grown) -> list[str]:
    lines = [f"log-log slope of the main term over s = {SIZES[0]:g} .. {SIZES[-1]:g}, T = 100 (radius at both ends):"]
    for n, found in grown.items():
        for t, expected in EXPECTED.items():
            slope = interval([float(oracle_pdp.slopes(values, SIZES)[t - 1]) for values, _ in found])
            ends = " -> ".join(f"{np.mean([radius[i, t - 1] for _, radius in found]):g}" for i in (0, -1))
            lines.append(f"  n = {n:2}, t = {t:2}: {_shown(slope)}, the paper's {expected} ({ends})")
    return lines


def trained() -> list[str]:
    """What the record really changes in one tiny table: perfect models, then trained ones, step by step."""
    table, one = TINY.table(generator(0, "pdp", "tiny")), TINY.release
    found, bound = exact(table, 0, one), audit(table, one, records=np.array([0])).delta[0]
    more = {m: exact(table, 0, replace(one, samples=m)) for m in (1, 2, 5, 10)}
    rule = Training(steps=MARKS[-1], learning_rate=5e-3, decay="constant")
    runs = [list(pdp_tables.stages(TINY, table, MARKS, training=rule, seed=run)) for run in range(RUNS)]
    lines = [
        "One record, all states enumerated: k = n = 3, T = 10, s = 100, p = 0.6, linear, epsilon 0.1, m = 1;",
        f"perfect models: exact delta {found.delta:.3g}, KL bound {found.output:.3g} (of the outputs) and "
        f"{found.path:.3g} (of the chains), Theorem 1 {bound:.3g}, largest gammatilde_t {found.gap:.3g}",
        "exact delta over m: " + ", ".join(f"{m}: {each.least:.4g} .. {each.delta:.4g}" for m, each in more.items()),
        f"trained with and without the record on the same batches, mean of {RUNS} runs; errors: the largest over t;",
        "Theorem 1's error term, with the constants of its proof, is infinite at t = 1:",
        f"{'steps':>7}{'delta':>10}{'KL bound':>10}{'gamma_t':>10}{'mean KL':>10}{'gammatilde_t':>14}",
    ]
    for steps, stage in zip(MARKS, zip(*runs, strict=True), strict=True):
        values = [(r.delta, r.path, float(r.gamma.max()), float(r.mean.max()), float(r.gap.max())) for r in stage]
        cells = zip(np.mean(values, axis=0), (10, 10, 10, 10, 14), strict=True)
        lines.append(f"{steps:>7}" + "".join(f"{value:>{width}.3g}" for value, width in cells))
    return lines


def _shown(i: Interval) -> str:
    return f"{i.mean:.3g} [{i.low:.3g} {i.high:.3g}]"


def _write(path: Path, curves: Sequence[Curve]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for c in curves:
            for x, y in zip(c.x, c.y, strict=True):
                values = [f"{v:.6g}" for v in (y.mean, y.low, y.high)]
                writer.writerow((c.figure, f"{c.quantity} over {c.over}", c.label, f"{x:g}", *values))
