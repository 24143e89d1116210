"""PFDM with perfect denoisers on the first two moments of a real data set.

The truth: every class (a combination of label values) is Gaussian with the mean and covariance of its records in all
splits. Simulated records are dealt to two clients as by `MajorityMinority` (`minority` records of a minority class to
one, the rest to the other), and every denoiser's score is exact for its fit.

A fit, of a client or the server, has the mean of each class's records and one covariance for all classes, as a network
has one set of weights. It is well estimated, but leaves a distance that no number of records removes.

`w2_squared` is between the samples' Gaussian and the truth, in pixels on [-1, 1]; mean over all classes, each on the
client that holds it as minority.

| arm | x_t0 | then |
|---|---|---|
| localonly | - | samples of the client's fit |
| pfdm | fit of the clipped, noised uploads of this class | client's chain from t0 |
| no-server | pure noise | client's chain from t0 |
| shuffled | fit of the uploads of all classes | client's chain from t0 |
| collafuse | fit of the records as they are, diffused to the same t0 (not private) | client's chain from t0 |
| gaussian | `deconvolved` fit of PFDM's uploads, one covariance for each class, noised again | client's chain |
| centre | as pfdm, but clipped around the mean of the public split: less clip norm, so a smaller t0 | client's chain |

epsilon None: images are sent as they are, t0 = 1, and x_1 is the global fit diffused to abar_1; centre is then pfdm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from analysis.theory import closed_forms as forms
from analysis.theory.closed_forms import ABAR, Gauss
from analysis.theory.theory_tables import Rows
from raydiff.data.datasets import Data, Dataset, load_dataset
from raydiff.data.partition import TEN_CLASSES
from raydiff.formats.csv_files import write_csv
from raydiff.formats.intervals import interval
from raydiff.formats.tables import aligned
from raydiff.models.samplers import MEASURED
from raydiff.seeding import generator

ARMS = ("localonly", "pfdm", "no-server", "shuffled", "collafuse", "gaussian", "centre")
EPSILONS = (10.0, 50.0, 200.0, None)
Key = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Truth:
    """A data set as Gaussian classes, and what its public split says."""

    classes: Gauss  # (K, d)
    cluster: Tensor  # (K,) bool: the classes that client 0 holds as majority, client 1 as minority
    centre: Tensor  # (d,), mean of the public split
    clip: float  # median norm of the public split, to one decimal as in the presets
    centred_clip: float  # the same around `centre`
    records: int  # training records of a class, all clients together (mean over the classes)

    def pooled(self, minority: int) -> int:
        """Records of a class in all: as many as the data has, and at least twice the minority client's."""
        return max(self.records, 2 * minority)


def truth(data: Dataset) -> Truth:
    """The moments of `data`. Raises ValueError without a public split, or for a class with fewer than 2 records."""
    if not len(data.splits["public"]):
        raise ValueError("the oracle takes its clip norm from the public split, so data.public must be at least 1")
    images = torch.cat([s.images.flatten(1).double() for s in data.splits.values()])
    labels = torch.cat([s.labels for s in data.splits.values()])
    conditions, which = labels.unique(dim=0, return_inverse=True)
    counts = which.bincount()
    if int(counts.min()) < 2:
        raise ValueError(f"the oracle needs 2 records of each class, got {int(counts.min())} in {data.name!r}")
    firsts = conditions[:, 0].unique().tolist()
    cluster = TEN_CLASSES if firsts == list(range(10)) else firsts[: len(firsts) // 2]  # as MajorityMinority
    public = data.splits["public"].images.flatten(1).double()
    centre = public.mean(0)
    return Truth(
        forms.fitted_classes([images[which == c] for c in range(len(conditions))], shared=False),
        torch.isin(conditions[:, 0], torch.tensor(cluster)),
        centre,
        _median_norm(public),
        _median_norm(public - centre),
        len(data.splits["train"]) // len(conditions),
    )


def predict(
    world: Truth, *, minority: int, epsilons: Sequence[float | None], seed: int
) -> dict[float | None, dict[Key, float]]:
    """Mean W2^2 over the classes by epsilon and (sampler, arm), for one draw of the records and the noise.

    All epsilons and arms see the same records and the same noise, so their differences are paired.
    """
    rng = generator(seed, "oracle", minority)
    x = world.classes.sample(world.pooled(minority), rng)
    noise = torch.randn(x.shape, dtype=torch.float64, generator=rng)
    clients = []
    for classes in (~world.cluster, world.cluster):  # the minority classes of client 0 and of client 1
        held = [x_c[:minority] if few else x_c[minority:] for x_c, few in zip(x, classes.tolist(), strict=True)]
        fit = forms.fitted_classes(held)[classes]
        target = world.classes[classes]
        clients.append((classes, fit, target, forms.w2_squared(fit, target)))
    out = {}
    for epsilon in epsilons:
        starts = _server(world, x, noise, epsilon)
        of_class: dict[Key, list[Tensor]] = {(s, a): [] for s in MEASURED for a in ARMS}
        for classes, client, target, local in clients:
            for sampler in MEASURED:
                of_class[sampler, "localonly"].append(local)
                for arm, (start, abar) in starts.items():
                    samples = forms.refine(start[classes], client, abar=abar, sampler=sampler)
                    of_class[sampler, arm].append(forms.w2_squared(samples, target))
        out[epsilon] = {key: float(torch.cat(parts).mean()) for key, parts in of_class.items()}
    return out


def _server(world: Truth, x: Tensor, noise: Tensor, epsilon: float | None) -> dict[str, tuple[Gauss, float]]:
    """x_t0's distribution and abar_t0 by arm, from all clients' records x (K, N, d)."""
    abar, centred_abar = (float(ABAR[forms.depth(epsilon, clip)]) for clip in (world.clip, world.centred_clip))
    (count, d), public = x.shape[1:], forms.fitted_classes(list(x)).noised(abar)
    noise_alone = Gauss(torch.zeros(len(x), d, dtype=torch.float64), torch.eye(d, dtype=torch.float64))
    starts = {"no-server": (noise_alone, abar), "collafuse": (public, abar)}
    if epsilon is None:
        mixed = forms.fitted(x.flatten(0, 1)).noised(abar)
        starts |= dict.fromkeys(("pfdm", "centre", "gaussian"), starts["collafuse"])
    else:
        sent = forms.uploads(x, noise, abar=abar, clip=world.clip)
        mixed = forms.fitted(sent.flatten(0, 1))
        signal = forms.deconvolved(forms.fitted_classes(list(sent), shared=False), abar=abar, count=count)
        shifted = forms.uploads(x - world.centre, noise, abar=centred_abar, clip=world.centred_clip)
        shifted = shifted + math.sqrt(centred_abar) * world.centre
        starts["pfdm"] = forms.fitted_classes(list(sent)), abar
        starts["centre"] = forms.fitted_classes(list(shifted)), centred_abar
        starts["gaussian"] = signal.noised(abar), abar
    starts["shuffled"] = (Gauss(mixed.mean.expand(len(x), -1), mixed.cov), abar)
    return starts


def predictions(
    world: Truth, minorities: Sequence[int], epsilons: Sequence[float | None], *, seeds: int
) -> pd.DataFrame:
    """A row for every minority size, epsilon, sampler and arm.

    Columns: W2^2 to the truth, and what it is less than localonly's on the same draws (positive: better); mean over
    seeds and 95 % Student interval.

    localonly depends on neither sampler nor epsilon: it repeats, as the baseline of every cell.
    """
    rows = []
    for minority in minorities:
        runs = [predict(world, minority=minority, epsilons=epsilons, seed=s) for s in range(seeds)]
        for epsilon, cells in runs[0].items():
            for sampler, arm in cells:
                local, w2 = (pd.Series([run[epsilon][sampler, a] for run in runs]) for a in ("localonly", arm))
                row = {"minority": minority, "epsilon": _budget(epsilon), "sampler": sampler, "arm": arm}
                row |= interval(w2, "w2_squared", "w2_") | interval(local - w2, "gain_over_local", "gain_")
                rows.append(row)
    return pd.DataFrame(rows)


def _median_norm(x: Tensor) -> float:
    return max(round(float(x.norm(dim=1).median()), 1), 0.1)


# --- what `python -m analysis.theory DATA` prints ---


def report(config: Data, path: Path, minorities: Sequence[int], *, seeds: int) -> list[str]:
    """Write the predictions for a data set to the csv `path`; a table of them."""
    world = truth(load_dataset(config))
    table = predictions(world, minorities, EPSILONS, seeds=seeds)
    path.parent.mkdir(parents=True, exist_ok=True)
    table.insert(0, "data", config.name)
    write_csv(path, table, form="%.6g")
    classes, d = world.classes.mean.shape
    pools = ", ".join(f"{world.pooled(n)} at n = {n}" for n in minorities)
    t0s = ", ".join(
        f"{_budget(e)}: {forms.depth(e, world.clip)} (centre {forms.depth(e, world.centred_clip)})" for e in EPSILONS
    )
    return [
        f"{config.name}: W2^2 to the truth of a client's minority classes, perfect denoisers, {seeds} seeds.",
        f"{classes} classes, {d} pixels; two clients, n records of each minority class; of a class in all: {pools}",
        f"clip {world.clip:g} (centre {world.centred_clip:g}); t0 by epsilon: {t0s}",
        "+ better, - worse than localonly (95 % interval of the difference, paired by seed)",
        *_lines(table),
        f"written: {path}",
    ]


def _lines(table: pd.DataFrame) -> list[str]:
    rows: Rows = [("n", "epsilon", "sampler", *ARMS)]
    for (n, epsilon, sampler), arms in table.groupby(["minority", "epsilon", "sampler"], sort=False):
        numbers = arms[["w2_squared", "gain_low", "gain_high"]].itertuples(index=False)
        cells = (f"{w2:.3f}{'+' if low > 0 else '-' if high < 0 else ' '}" for w2, low, high in numbers)
        rows.append((str(n), str(epsilon), str(sampler), *cells))
    return aligned(rows, words=0)


def _budget(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"
