"""What could PFDM reach if its denoisers were perfect? Predictions in seconds, without training.

    raydiff theory                  theory, mixture and digits
    raydiff theory theory           Theorem 5.2 and Eq. 9 against Monte-Carlo, both samplers
    raydiff theory mixture          the hierarchical mixture of the paper's Figure 5, as pictures over t
    raydiff theory digits           minority W2^2 of each arm, for any data set that raydiff knows
    raydiff theory collaboration    the same for a preset's data and minority sizes: raydiff collaboration reads it
    raydiff theory mnist --size 14 --covariance own --out mine.csv
    raydiff theory spire            SPIRE's theory (Figure 3, Theorems 4.2 and 4.3), measured; not about PFDM
    raydiff theory feddistr         FedDistr's Theorems 1 and 2, measured where the truth is known; nor this one
    raydiff theory pdp              the per-instance privacy bound of discrete diffusion on random tables

Pictures and csv go to the folder --out. Columns of the csv: data, minority, epsilon, sampler, arm, w2_squared, w2_low,
w2_high, gain_over_local, gain_low, gain_high: means over seeds with 95 % t intervals; the gain is paired by seed, and
positive where the arm is better than local training. The arms and the assumptions: raydiff/evaluation/oracle_data.py.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch

from raydiff.cli import theory_feddistr, theory_pdp, theory_spire
from raydiff.data.datasets import Data, load
from raydiff.experiment.presets import names
from raydiff.models.ddpm import alphas_bar
from raydiff.privacy.accountants import depth
from raydiff.seeding import generator
from raydiff.theory import pfdm, pfdm_data, pfdm_mixture, pfdm_theorems
from raydiff.theory.pfdm_data import ARMS, SAMPLERS, Depth, Prediction, Truth

WORDS = ("theory", "mixture", "spire", "feddistr", "pdp")  # anything else is a data set
MINORITIES = (3, 20, 100)
EPSILONS = (10.0, 50.0, 200.0, None)
MIXTURE_SEEDS = 4
TIMESTEPS = 1000  # of the linear schedule: the budget fixes abar_t0, other schedules differ in t0's grid alone
DIMENSIONS = 8  # of the theory's table
FIELDS = ("data", "minority", "epsilon", "sampler", "arm", "w2_squared", "w2_low", "w2_high")
CUT = ("size", "train", "public", "test")
GAIN_FIELDS = ("gain_over_local", "gain_low", "gain_high")


def main(argv: Sequence[str]) -> int:
    """Print the tables, write the files and say where they are."""
    given = _parser().parse_args(argv)
    if given.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {given.seeds}")
    one_file = given.out.suffix == ".csv"
    if one_file and given.what in ("all", *WORDS):
        raise ValueError(f"--out must be a folder unless a data set is named, got {given.out}")
    if given.what in ("all", "theory"):
        print("\n".join(theory()) + "\n")
    if given.what in ("all", "mixture"):
        given.out.mkdir(parents=True, exist_ok=True)
        print("\n".join(mixture(given.out)) + "\n")
    if given.what == "spire":
        given.out.mkdir(parents=True, exist_ok=True)
        print("\n".join(theory_spire.spire(given.out)))
    if given.what == "feddistr":
        given.out.mkdir(parents=True, exist_ok=True)
        print("\n".join(theory_feddistr.feddistr(given.out)))
    if given.what == "pdp":
        given.out.mkdir(parents=True, exist_ok=True)
        print("\n".join(theory_pdp.pdp(given.out)))
    if given.what not in WORDS:
        name = "digits" if given.what == "all" else given.what
        path = given.out if one_file else given.out / f"{Path(name).name}.csv"
        config, minorities = _preset(name) or (_data(name), MINORITIES)
        cut = {field: value for field in CUT if (value := getattr(given, field)) is not None}
        shared = given.covariance == "shared"
        print("\n".join(data(replace(config, **cut), path, minorities, shared=shared, seeds=given.seeds)))
    return 0


# --- theory ---


def theory(trials: int = 200) -> list[str]:
    """The client's weight, then the gain of collaboration by epsilon, n and N."""
    return [*_weights(), "", *_gains(trials)]


def _weights() -> list[str]:
    abar = alphas_bar("linear", TIMESTEPS)
    lines = [
        "The global model's share of the mean after the client's chain: the limit, and raydiff's own chain",
        _row(("t0", 6), ("lambda", 8), ("sampler", 11), ("limit", 9), ("all steps", 11), ("50 steps", 10)),
    ]
    for (t0, value), sampler in itertools.product(((740, 1.0), (690, 5.0)), SAMPLERS):
        limit = float(pfdm.weight(torch.tensor(value, dtype=torch.float64), float(abar[t0]), sampler))
        chains = [pfdm.measured_weight(value, abar, t0, sampler=sampler, steps=steps) for steps in (None, 50)]
        cells = [(f"{limit:.4f}", 9), (f"{chains[0]:.4f}", 11), (f"{chains[1]:.4f}", 10)]
        lines.append(_row((str(t0), 6), (f"{value:g}", 8), (sampler, 11), *cells))
    return lines


def _gains(trials: int) -> list[str]:
    d, abar = DIMENSIONS, alphas_bar("linear", TIMESTEPS)
    mean = torch.ones(d, dtype=torch.float64)
    clip = math.sqrt(2 * d)  # about the median norm of N(mean, I)
    lines = [
        f"A class N(mu, I) in {d} dimensions, |mu|^2 = {d}: W2^2 of local training, and what PFDM takes off it (gain).",
        f"[95 % interval of {trials} draws]; order 1/n: the formula, for n well above {d} only; clipped: the gain with",
        f"images clipped to C = {clip:.2f}, for which t0 is chosen (exact accountant, delta 1e-5) in either case",
    ]
    head = [("epsilon", 8), ("t0", 5), ("n", 5), ("N", 6), ("local", 8)]
    each = [("gain", 26), ("order 1/n", 11), ("clipped", 26)]
    lines += [_row(("", 32), *((sampler, 63) for sampler in SAMPLERS)), _row(*head, *each * len(SAMPLERS))]
    for epsilon in (10.0, 50.0, 200.0):
        t0 = depth(epsilon=epsilon, delta=1e-5, clip=clip, alphas_bar=abar, accountant="exact")
        for n in MINORITIES:
            for pooled in dict.fromkeys((n, 10 * n, 1000)):
                row = [(f"{epsilon:g}", 8), (str(t0), 5), (str(n), 5), (str(pooled), 6)]
                lines.append(_row(*row, *_gain_cells(n, pooled, float(abar[t0]), mean, clip, trials)))
        lines += _regime(epsilon, float(abar[t0]))
    return lines


def _gain_cells(
    n: int, pooled: int, abar: float, mean: torch.Tensor, clip: float, trials: int
) -> list[tuple[str, int]]:
    plain, clipped = (
        pfdm_theorems.trials(
            len(mean), n, pooled, abar=abar, mean=mean, clip=c, count=trials, rng=generator(0, "theory", n, pooled)
        )
        for c in (None, clip)
    )
    cells = [(f"{float(plain[0].mean()):.3f}", 8)]
    for sampler in SAMPLERS:
        formula = pfdm_theorems.first_order_gain(len(mean), n, pooled, abar=abar, sampler=sampler)
        gains = [_signed(pfdm_data.interval((local - mine[sampler]).tolist())) for local, mine in (plain, clipped)]
        cells += [(gains[0], 26), (f"{formula:+.3f}", 11), (gains[1], 26)]
    return cells


def _regime(epsilon: float, abar: float) -> list[str]:
    sigma2 = (1 - abar) / abar
    ratios = {s: pfdm_theorems.break_even(abar, s) for s in SAMPLERS}
    promised, pooled, least = pfdm_theorems.eq9(DIMENSIONS, 1, sigma2)
    weights = pfdm_theorems.theorem_weights(sigma2).items()
    on = "; ".join(f"as {name} {few:.3f} d^2/N + {own:.3f} d^2/n" for name, (few, own) in weights)
    from_ratio = ", ".join(f"{s} N > {m:.2f} n (means), {c:.2f} n (covariances)" for s, (m, c) in ratios.items())
    return [
        f"    epsilon {epsilon:g}: sigma^2 = {sigma2:.3g}; helps from {from_ratio}",
        f"    Theorem 5.2, up to a constant: {on}",
        f"    Eq. 9 needs N >= {pooled:,.0f} n and n >= {least:,.0f}, and promises {promised:.2g} / n",
    ]


# --- the mixture ---


def mixture(out: Path) -> list[str]:
    """Write the pictures into the folder `out`; a table of W2^2 over t0."""
    abar, t0s = alphas_bar("linear", TIMESTEPS), (10, 40, 90, 260, 500)
    branches, twigs, leaves = pfdm_mixture.merge_times(abar)
    lines = [
        f"The hierarchical mixture: siblings merge at t = {leaves} (leaves), {twigs} (twigs), {branches} (branches).",
        "A client with n records of one branch; the global chain hands over at t0. W2^2 by assignment, mean and half",
        f"of the 95 % interval over {MIXTURE_SEEDS} draws:",
        _row(("n", 4), ("sampler", 11), ("local", 14), *((f"t0 = {t0}", 14) for t0 in t0s), ("floor", 14)),
    ]
    paths = [out / "hierarchy.png"]
    pfdm_mixture.draw_hierarchy(paths[0], abar=abar)
    for n, sampler in itertools.product(MINORITIES[:2], SAMPLERS):
        cases = [
            pfdm_mixture.hand_overs(minority=n, depths=t0s, abar=abar, sampler=sampler, seed=seed)
            for seed in range(MIXTURE_SEEDS)
        ]
        columns = zip(*([c.local, *(hand.w2_squared for hand in c.depths), c.floor] for c in cases), strict=True)
        lines.append(_row((str(n), 4), (sampler, 11), *((_half_width(column), 14) for column in columns)))
        paths.append(out / f"hand-over-{n}-{sampler}.png")
        pfdm_mixture.draw_hand_overs(cases[0], paths[-1], title=f"{n} records, {sampler}, one draw")
    return [*lines, *(f"written: {path}" for path in paths)]


# --- a data set ---


def data(config: Data, path: Path, minorities: Sequence[int], *, shared: bool, seeds: int) -> list[str]:
    """Write the predictions for a data set to the csv `path`; a table of them."""
    world = pfdm_data.truth(load(config))
    budgets = pfdm_data.depths(world, EPSILONS, schedule="linear", timesteps=TIMESTEPS)
    found = pfdm_data.predictions(world, minorities, budgets, shared=shared, seeds=seeds)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS + GAIN_FIELDS)
        for p in found:
            key = (config.name, p.minority, _budget(p.epsilon), p.sampler, p.arm)
            writer.writerow((*key, *(f"{v:.6g}" for i in (p.w2, p.gain) for v in (i.mean, i.low, i.high))))
    heading = _heading(config.name, world, budgets, minorities, shared=shared, seeds=seeds)
    return [*heading, *_table(found), f"written: {path}"]


def _preset(name: str) -> tuple[Data, tuple[int, ...]] | None:
    """The data and the minority sizes of a preset that varies these."""
    if name not in names.PRESETS:
        return None
    study = names.PRESETS[name]()
    sizes = tuple(int(n) for n in study.grid.get("partition.minority", ()))
    return (study.experiment.data, sizes) if sizes else None


def _data(name: str) -> Data:
    """Digits cut as in its preset; others at 14 x 14 pixels with 2,000 training records. All rows make the truth."""
    if name == "digits":
        return Data()
    return Data(name=name, size=14, train=2000, public=1000, validation=0, calibration=0, test=4000)


def _heading(
    name: str, world: Truth, budgets: Sequence[Depth], minorities: Sequence[int], *, shared: bool, seeds: int
) -> list[str]:
    classes, d = world.classes.mean.shape
    pools = ", ".join(f"{pfdm_data.pooled_records(world, n)} at n = {n}" for n in minorities)
    t0s = ", ".join(f"{_budget(b.epsilon)}: {b.t0} (centre {b.centred_t0})" for b in budgets)
    kind = "one covariance for all classes" if shared else "each class's own covariance"
    return [
        f"{name}: W2^2 to the truth of a client's minority classes, perfect denoisers, {kind}, {seeds} seeds.",
        f"{classes} classes, {d} pixels; two clients, n records of each minority class; of a class in all: {pools}",
        f"clip {world.clip:g} (centre {world.centred_clip:g}); t0 by epsilon: {t0s}",
        "+ better, - worse than localonly (95 % interval of the difference, paired by seed)",
    ]


def _table(found: Sequence[Prediction]) -> list[str]:
    lines = [_row(("n", 5), ("epsilon", 8), ("sampler", 11), *((arm, 11) for arm in ARMS))]
    for (n, epsilon, sampler), arms in itertools.groupby(found, lambda p: (p.minority, p.epsilon, p.sampler)):
        cells = [(f"{p.w2.mean:.3f}{'+' if p.gain.low > 0 else '-' if p.gain.high < 0 else ' '}", 11) for p in arms]
        lines.append(_row((str(n), 5), (_budget(epsilon), 8), (sampler, 11), *cells))
    return lines


def _budget(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def _signed(i: pfdm_data.Interval) -> str:
    return f"{i.mean:+.3f} [{i.low:+.3f} {i.high:+.3f}]"


def _half_width(values: Sequence[float]) -> str:
    i = pfdm_data.interval(values)
    return f"{i.mean:.3f}±{i.high - i.mean:.3f}"


def _row(*cells: tuple[str, int]) -> str:
    return "".join(f"{text:>{width}}" for text, width in cells)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> _Parser:
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument(
        "what",
        nargs="?",
        default="all",
        help="theory, mixture, spire, feddistr, pdp or a data set (default: theory, mixture, digits)",
    )
    parser.add_argument("--out", type=Path, default=Path("oracle-report"), help="folder; for a data set also x.csv")
    parser.add_argument("--seeds", type=int, default=20, help="draws of the clients' records (default 20)")
    parser.add_argument("--size", type=int, help="resize images to size x size (default: 14, digits as stored)")
    parser.add_argument("--train", type=int, help="training records of all clients (default: 2000, of digits 847)")
    parser.add_argument("--public", type=int, help="public records, for the clip norm (default: 1000, of digits 250)")
    parser.add_argument("--test", type=int, help="more records for the truth (default: 4000, of digits 400)")
    parser.add_argument(
        "--covariance", choices=("shared", "own"), default="shared", help="of a fit: one for all classes, or its own"
    )
    return parser
