"""Table, csv and picture of `raydiff theory feddistr`: Theorems 1 and 2 of FedDistr, measured."""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import torch
from torch import Tensor

from raydiff.seeding import generator
from raydiff.theory import feddistr as oracle_feddistr
from raydiff.theory.feddistr import Base, Setting

CLIENTS, RECORDS, XIS = (5, 10, 20), (10, 50), (0.0, 0.003, 0.057, 0.385)
WIDTHS = (1.0, 100.0)  # of the csv and the picture
ALL_WIDTHS = torch.logspace(-1, 4, 101, dtype=torch.float64)
EPS = torch.logspace(-4, 4, 401, dtype=torch.float64)
DRAWN = Setting(clients=20, records=50)  # in the picture, one base per client: where all versions of Theorem 1 can hold
FIELDS = ("clients", "bases", "records_per_base", "xi", "width", "epsilon", "measured", "low", "high")
BOUNDS = ("theorem1_printed", "theorem1_appendix", "theorem2_printed", "theorem2_with_range")


def feddistr(out: Path, *, repetitions: int = 2000) -> list[str]:
    """The table and the counter-examples; a csv and a picture into the folder `out`."""
    grid = [Setting(clients=k, records=n, xi=xi) for k, n, xi in itertools.product(CLIENTS, RECORDS, XIS)]
    found = {setting: _losses(setting, repetitions) for setting in grid}
    table, picture = out / "feddistr-theory.csv", out / "feddistr-theory.png"
    _write(table, found)
    _draw(picture, found)
    lines = [
        f"FedDistr's Theorems 1 and 2 where the truth is known: 20 bases, {repetitions} repetitions, L = 1.",
        "Epsilon that eps_u stays below with probability 0.95 at b - a = 1: measured, as promised (-: never); then the",
        "b - a from which a theorem as printed, which does not know b - a, is violated (95 % interval below the bound)",
        _row(("K", 4), ("n/m", 5), ("xi", 7), ("measured", 10), *((title, 12) for title in _TITLES)),
    ]
    lines += [_row(*_cells(setting, losses)) for setting, losses in found.items()]
    return [*lines, "", *_many_bases(repetitions), *_counter_examples(), f"written: {table}", f"written: {picture}"]


_TITLES = ("Thm 1", "appendix", "Thm 2", "1 fails at", "2 fails at")


def _losses(setting: Setting, repetitions: int) -> Tensor:
    path = ("feddistr", repr(setting))
    counts = setting.counts(generator(0, *path, "counts"))
    return oracle_feddistr.utility_losses(counts, Base(), repetitions=repetitions, rng=generator(0, *path, "losses"))


def _cells(setting: Setting, losses: Tensor) -> list[tuple[str, int]]:
    bounds = _bounds(setting, EPS, 1.0)
    fails = [oracle_feddistr.fails_from(losses, setting, ALL_WIDTHS, theorem=theorem) for theorem in (1, 2)]
    shown = [oracle_feddistr.promised(bounds[name], EPS) for name in BOUNDS[:3]]
    if setting.xi > 0:
        shown[:2], fails[0] = [math.inf, math.inf], math.inf
    values = [f"{value:.3g}" if value < math.inf else "-" for value in (*shown, *fails)]
    head = [(str(setting.clients), 4), (str(setting.records), 5), (f"{setting.xi:g}", 7)]
    return [*head, (f"{float(losses.quantile(0.95)):.5f}", 10), *((value, 12) for value in values)]


def _bounds(setting: Setting, eps: Tensor, width: float) -> dict[str, Tensor]:
    """Each of BOUNDS at `eps`, for b - a = `width`; Theorem 1's mean something at xi = 0 alone."""
    return {
        "theorem1_printed": oracle_feddistr.theorem1(setting.fewest, eps, width=None),
        "theorem1_appendix": oracle_feddistr.theorem1(setting.fewest, eps, width=width),
        "theorem2_printed": oracle_feddistr.theorem2(setting, eps),
        "theorem2_with_range": oracle_feddistr.theorem2(setting, eps, width=width),
    }


def _many_bases(repetitions: int) -> list[str]:
    """The appendix's own bound, where a client has one record of each of many bases."""
    setting = Setting(clients=2, bases=800, records=1)
    losses = _losses(setting, repetitions)
    eps = losses.quantile(torch.tensor([0.01], dtype=torch.float64))
    shares = [float(v) for v in oracle_feddistr.probability(losses, eps)]
    bound = float(oracle_feddistr.theorem1(setting.fewest, eps, width=1.0))
    return [
        "Theorem 1 in the appendix's form, with n_k records of 400 bases at each of two clients, one of each base: at",
        f"epsilon = {float(eps):.4f} it says {bound:.3f}; measured {shares[0]:.3f} [{shares[1]:.3f} {shares[2]:.3f}]",
    ]


def _counter_examples() -> list[str]:
    limit = oracle_feddistr.literal_limit()
    lines = [
        "Lemma 2 with the sample mean as the parameter mu of phi(0, 0.5, 0, 1): eps_u tends to "
        f"{limit:.4f}, not to 0, as n grows",
        "Lemma 3 for Definition 1's cosine, K clients with `own` bases each and one that all share evenly:",
        _row(("K", 4), ("own", 5), ("xi", 9), ("1/(K-1)^2", 11), ("share", 8), ("Lemma 3", 9), ("xi m/K", 9)),
    ]
    for clients, own in ((2, 1), (5, 1), (5, 4), (20, 1)):
        values = oracle_feddistr.dominant_share(oracle_feddistr.one_shared(clients, own))
        xi, share, printed, proved = (f"{value:.4f}" for value in values)
        head = ((str(clients), 4), (str(own), 5), (xi, 9), (f"{1 / (clients - 1) ** 2:.4f}", 11))
        lines.append(_row(*head, (share, 8), (printed, 9), (proved, 9)))
    return lines


def _write(path: Path, found: dict[Setting, Tensor]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS + BOUNDS)
        for (setting, losses), width in itertools.product(found.items(), WIDTHS):
            eps = EPS[::20].contiguous()
            columns = [*oracle_feddistr.probability(losses * width, eps), *_bounds(setting, eps, width).values()]
            key = (setting.clients, setting.bases, setting.records, setting.xi, width)
            for e, *row in zip(eps.tolist(), *(column.tolist() for column in columns), strict=True):
                cells = [f"{value:.6g}" for value in row]
                cells[3:5] = cells[3:5] if setting.xi == 0 else ["", ""]
                writer.writerow((*key, f"{e:.6g}", *cells))


def _draw(path: Path, found: dict[Setting, Tensor]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    *curves, blow_up = figure.subplots(1, 3)
    losses = found[DRAWN]
    for axes, width in zip(curves, WIDTHS, strict=True):
        low, high = width * float(losses.min()) / 2, max(3.0, 5 * width) / math.sqrt(DRAWN.records)
        eps = torch.logspace(math.log10(min(low, 0.02)), math.log10(high), 200, dtype=torch.float64)
        axes.semilogx(eps, oracle_feddistr.probability(losses * width, eps)[0], "k", linewidth=2, label="measured")
        bounds = _bounds(DRAWN, eps, width)
        axes.semilogx(eps, bounds["theorem1_printed"], "C3", label="Theorem 1, Eq. 8")
        axes.semilogx(eps, bounds["theorem2_printed"], "C1--", label="Theorem 2, Eq. 9")
        axes.semilogx(eps, bounds["theorem1_appendix"], "C0:", linewidth=2, label="appendix's proof, with b - a")
        axes.set(ylim=(-0.05, 1.05), xlabel="epsilon", ylabel="Pr(eps_u <= epsilon)")
        axes.set_title(f"K = m = 20, n/m = {DRAWN.records}, xi = 0, b - a = {width:g}")
        axes.legend(fontsize=8)
    for colour, clients in enumerate(CLIENTS):
        mine = [s for s in found if (s.clients, s.records) == (clients, DRAWN.records)]
        measured = [float(found[s].quantile(0.95)) for s in mine]
        blow_up.plot([s.xi + 1e-3 for s in mine], measured, "o-", color=f"C{colour}", label=f"K = {clients}, measured")
        xi = torch.linspace(0, 1, 400, dtype=torch.float64)[:-1].square() / (clients - 1) ** 2
        promised = [math.sqrt(2 * math.log(40) / (DRAWN.records * (1 - (clients - 1) * x**0.5))) for x in xi.tolist()]
        blow_up.plot(xi + 1e-3, promised, "--", color=f"C{colour}", label=f"K = {clients}, Theorem 2, to 1/(K-1)^2")
    blow_up.set(xscale="log", yscale="log", ylim=(5e-4, 20), xlabel="xi + 0.001", ylabel="epsilon")
    blow_up.set_title(f"epsilon at probability 0.95, n/m = {DRAWN.records}, b - a = 1")
    blow_up.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _row(*cells: tuple[str, int]) -> str:
    return "".join(f"{text:>{width}}" for text, width in cells)
