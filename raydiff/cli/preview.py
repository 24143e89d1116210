"""Look at a data set as a trial would use it: pictures, labels, splits, norms, partition. Nothing is trained.

    raydiff preview digits                                 # a preset
    raydiff preview path/to/folder --data.size 32          # a data set, by its name or path
    raydiff preview mnist-cpu --clients 4 --partition dirichlet

Overrides are those of raydiff run. Pictures and norms are of the public split alone; labels are public by declaration.
For FedDistr on superclasses also: latents of the test split, which no client holds, and whether clusters of them find
the hidden classes.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from raydiff import seeding
from raydiff.cli import arguments as command
from raydiff.cli.parser import Parser
from raydiff.data import datasets, overview, partition
from raydiff.data.datasets import SPLITS, Data, Dataset
from raydiff.data.pictures import form
from raydiff.evaluation import figures
from raydiff.experiment import overrides as settings
from raydiff.experiment import presets, suggested, trial
from raydiff.experiment.config import Experiment
from raydiff.formats.tables import aligned
from raydiff.lookup import Table
from raydiff.storage import staging as away

MOST_ROWS = 24
"""A table with more rows or columns than this is left to the picture."""

BESIDE: Table[Callable[[Any, Dataset, Path], str]] = Table({"FedDistr": "raydiff.papers.feddistr.preview:draw_latents"})
"""Method -> what draws one more picture of the data, and says what is on it."""


def main(argv: Sequence[str]) -> int:
    """Load, measure, draw, say where the files are."""
    subject, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("digits", argv)
    parser = _options()
    options, overrides = parser.parse_known_args(command.shorthand(rest))
    start = _start(subject)
    if options.help:
        print(command.help_text(__doc__, parser.format_help(), start))
        return 0
    values = settings.parse_overrides(start, overrides)
    experiment: Experiment = settings.override(start, values)
    if subject not in presets.PRESETS and not any(f"data.{split}" in values for split in SPLITS):
        sizes = suggested.splits(experiment.data)
        experiment = settings.override(experiment, {f"data.{split}": n for split, n in sizes.items()})
    clips = hasattr(experiment.method, "center")  # clips records
    known = clips and (subject in presets.PRESETS or "method.clip" in values)  # a data set's own is yet to be chosen
    clip = getattr(experiment.method, "clip", None) if known else None
    dataset = datasets.load(experiment.data)
    if dataset.mapping is not None:
        raise ValueError(f"data set {dataset.name!r} is a table: a preview shows pictures")
    counts = _counts(experiment, dataset)
    public, center = dataset.splits["public"], bool(getattr(experiment.method, "center", False))
    measured = overview.norms(public, center=center) if len(public) else None
    folder = options.out or away.root(experiment.runtime.storage) / "previews" / Path(subject).absolute().name
    print(_source(dataset), _labels(dataset), _norms(measured, clip), _clients(dataset, counts), sep="\n\n")
    files = _draw(dataset, counts, measured, clip=clip, folder=folder)
    if (draw := BESIDE.get(type(experiment.method).__name__)) and dataset.splits["test"].base is not None:
        print(f"\n{draw(experiment.method, dataset, folder / 'latents.png')}")
        files.append("latents.png")
    print(f"\nfiles in {folder}: {', '.join(files) or 'none'}")
    print(_next(subject, overrides, experiment))
    return 0


def _options() -> Parser:
    p = Parser("preview [PRESET or DATA SET]", __doc__, fields=True)
    p.add_argument("--out", type=Path, default=None, help="folder for the pictures (default: <storage>/previews/NAME)")
    return p


def _start(subject: str) -> Experiment:
    """A preset's experiment, or that of digits with another data set."""
    if subject in presets.PRESETS:
        return presets.PRESETS[subject]().experiment
    return dataclasses.replace(presets.PRESETS["digits"]().experiment, data=Data(name=subject))


def _counts(experiment: Experiment, dataset: Dataset) -> Tensor | None:
    """(clients, classes): how the training records are dealt; None where they cannot be."""
    rng = seeding.generator(experiment.seed, "partition")
    train = dataset.splits["train"]
    try:
        parts = partition.partition(train, experiment.clients, how=experiment.partition, rng=rng)
    except ValueError:  # `_train` says why
        return None
    return partition.counts(train, parts, len(dataset.base_names))


def _source(dataset: Dataset) -> str:
    splits = ", ".join(f"{split} {len(dataset.splits[split])}" for split in SPLITS)
    lines = [f"{dataset.name}: {dataset.says}", *(f"  {note}" for note in dataset.notes)]
    return "\n".join([*lines, f"pictures: {form(dataset.shape)}, values on [-1, 1]", f"splits: {splits}"])


def _labels(dataset: Dataset) -> str:
    """For each label column a table: records of each value in each split."""
    blocks = []
    for k, (column, named) in enumerate(zip(dataset.label_columns, dataset.label_names, strict=True)):
        of = [dataset.splits[split].labels[:, k].bincount(minlength=len(named)).tolist() for split in SPLITS]
        role = "the class" if k == 0 else "a condition"
        head = f"label column {column} ({role}): {len(named)} values"
        if len(named) > MOST_ROWS:
            blocks.append(f"{head}, {min(of[0])} to {max(of[0])} training records each")
            continue
        rows = [[name, *map(str, counts)] for name, counts in zip(named, zip(*of, strict=True), strict=True)]
        blocks.append("\n".join([head, *_table([["", *SPLITS], *rows])]))
    return "\n".join(blocks)


def _norms(measured: overview.Norms | None, clip: float | None) -> str:
    if measured is None:
        return "norms: none, for there is no public split (data.public is 0) and private records have none to give"
    head = ["", *("min", "5 %", "25 %", "median", "75 %", "95 %", "max")]
    rows = [
        [label, *(f"{v:.2f}" for v in overview.quantiles(values))]
        for label, values in (("as they are", measured.plain), ("less the public mean", measured.centred))
    ]
    title = f"L2 norms of the {len(measured.plain)} public pictures, flattened, on [-1, 1]; of private ones, nothing"
    suggested = f"suggested clip: {measured.suggested_clip:.2f}, the public median"
    suggested += "" if measured.center else f"; {measured.centred.quantile(0.5):.2f} with --method.center true"
    judged = [] if clip is None else [f"clip {clip:g} clips {measured.clipped(clip):.1%} of the public pictures"]
    return "\n".join([title, *_table([head, *rows]), suggested, *judged])


def _clients(dataset: Dataset, counts: Tensor | None) -> str:
    if counts is None:
        return "partition: none, see below"
    title = f"partition: training records of {len(counts)} clients by class (seed and partition as in the trial)"
    if max(counts.shape) > MOST_ROWS:
        return f"{title}: see partition.png; {int(counts.sum(1).min())} to {int(counts.sum(1).max())} records a client"
    rows = [[f"client {m}", *map(str, row), str(sum(row))] for m, row in enumerate(counts.tolist())]
    return "\n".join([title, *_table([["", *dataset.base_names, "all"], *rows])])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows, words=1)]


def _draw(
    dataset: Dataset, counts: Tensor | None, measured: overview.Norms | None, *, clip: float | None, folder: Path
) -> list[str]:
    """Write the pictures; their file names."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    if measured is not None:
        overview.draw_pictures(dataset.splits["public"], dataset.label_names[0], folder / "pictures.png")
        overview.draw_norms(measured, folder / "norms.png", clip=clip)
        files += ["pictures.png", "norms.png"]
    if counts is not None:
        figures.draw_counts(counts, dataset.base_names, folder / "partition.png")
        files.append("partition.png")
    return files


def _next(subject: str, given: Sequence[str], experiment: Experiment) -> str:
    """The command that goes on from here, or why a trial would be refused."""
    try:
        trial.resolve(experiment)
    except ValueError as e:
        return f"raydiff run would refuse it: {e}"
    if subject in presets.PRESETS:
        return f"train on it: raydiff run {shlex.join([subject, *given])}"
    return f"train on it: raydiff init {shlex.join([subject, *given])}"
