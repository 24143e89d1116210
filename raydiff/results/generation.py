"""Labelled samples of a finished trial as a data set: parquet in the Hugging Face image layout, or CSV; and a card.

    card.json                        description of the samples, and their guarantee
    train-00000-of-00010.parquet     PART pictures each: image (PNG), label, and the other label columns if any
    rows.csv                         all rows of a table, the label last; parts while incomplete: train-*.csv

The card is written first, then the parts, atomically and from streams of their own: a killed run continues with the
missing parts, with the same files as an uninterrupted one.
"""

import itertools
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from raydiff import seeding
from raydiff.data.modality import SamplePart
from raydiff.data.tables import rows_file
from raydiff.data.tables.rows_file import Numbers
from raydiff.experiment import overrides
from raydiff.formats.json_files import dumps, read_json, trial_folders
from raydiff.models.compute import device
from raydiff.results.finished import DRAWN, Draw, Finished, SampleSource
from raydiff.results.spent import composed_guarantee
from raydiff.settings import settings
from raydiff.storage.atomic_files import write_atomically, write_text

PART = 1000  # samples of a part
MOST = 10**9  # samples of a request, or of each class


@settings(frozen=True, kw_only=True)
class GenerationRequest:
    """How many samples, with which labels."""

    num: Annotated[int, Ge(1), Le(MOST)] = 1000
    """Samples in all, or of each class."""
    per_class: bool = False
    """`num` of each class that the labels drawn from have; else classes in their proportions."""
    seed: int = 0
    """Of these samples; apart from the experiment's."""
    labels: Draw | None = None
    """What labels are drawn from. uniform: every value alike often; of several label columns every combination that a
    public record has. Of one column, or without public records: those of training records where labels are public,
    else all. public: the public records' labels. as-data: those of the records behind the samples, which no guarantee
    covers: epsilon is inf. None: as-data for a client's own model, uniform for the server's."""
    numbers: Numbers = "drawn"
    """Of a table: numbers drawn uniformly within their bins, or the bins' names."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The label rows of all samples: those of the source, repeated in a random order."""

    pools: Sequence[Tensor]  # row i takes from pool i mod P: all label rows, or one pool per class; (n_p, K) each
    rows: int

    def of(self, start: int, stop: int) -> Tensor:
        """Return rows start .. stop - 1: (stop - start, K)."""
        count = len(self.pools)
        return torch.stack([self.pools[i % count][i // count % len(self.pools[i % count])] for i in range(start, stop)])

    def per_class(self, classes: int) -> list[int]:
        """Return the number of rows of each value of column 0."""
        total = torch.zeros(classes, dtype=torch.long)
        for p, pool in enumerate(self.pools):
            rows = (self.rows - p + len(self.pools) - 1) // len(self.pools)  # rows that take from this pool
            whole, rest = divmod(rows, len(pool))
            total += whole * pool[:, 0].bincount(minlength=classes) + pool[:rest, 0].bincount(minlength=classes)
        return total.tolist()


def plan(source: SampleSource, request: GenerationRequest) -> Labels:
    """Return the labels of all samples, in combinations that the source's rows have."""
    shuffled = torch.randperm(len(source.labels), generator=_generator(source, request, "labels"))
    labels = source.labels[shuffled]
    if not request.per_class:
        return Labels([labels], request.num)
    pools = [labels[labels[:, 0] == c] for c in labels[:, 0].unique().tolist()]
    return Labels(pools, request.num * len(pools))


def part_of(source: SampleSource, request: GenerationRequest, labels: Labels, part: int) -> tuple[Tensor, Tensor]:
    """Return label rows (N, K) of part 0, 1, ... and their samples."""
    rows = labels.of(part * PART, part * PART + _count(part, labels.rows))
    return rows, source.sample(rows, _generator(source, request, part))


@dataclass(frozen=True, eq=False)
class Maker:
    """Writes the parts of one folder."""

    finished: Finished
    source: SampleSource
    out: Path
    request: GenerationRequest
    labels: Labels

    def write(self, part: int) -> None:
        """Write part 0, 1, ... atomically."""
        modality = self.finished.dataset.modality
        labels, samples = part_of(self.source, self.request, self.labels, part)
        is_drawn = self.request.numbers == "drawn"
        rng = _generator(self.source, self.request, f"numbers {part}") if is_drawn else None
        about = {"privacy": self.source.privacy, "about": self.source.about}
        names = self.finished.label_names
        with write_atomically(self.out / _names(self.labels.rows, modality.part_suffix)[part]) as file:
            modality.write_part(SamplePart(file, samples, labels, names, about, rng, is_first=part == 0))


def maker(finished: Finished, client: int | None, out: Path, request: GenerationRequest) -> Maker:
    """Return the writer of samples. Raises ValueError as `Finished.source`."""
    modality = finished.dataset.modality
    if request.numbers != "drawn" and not modality.columns:
        raise ValueError(f"numbers has no meaning for {modality.name}, got {request.numbers}")
    source = finished.source(client, request.labels)
    return Maker(finished, source, out, request, plan(source, request))


Spread = Callable[[Maker, Sequence[int]], Iterable[int]]  # write these parts; yield the number of each when complete


def one_by_one(make: Maker, parts: Sequence[int]) -> Iterator[int]:
    """A `Spread` in this process."""
    for part in parts:
        make.write(part)
        yield part


def write_samples(
    finished: Finished,
    client: int | None,
    out: Path,
    request: GenerationRequest,
    *,
    code: Mapping[str, str],
    on_progress: Callable[[int, int], None] = lambda done, rows: None,
    spread: Spread = one_by_one,
) -> str:
    """Write, or continue to write, the folder `out`; return the samples' privacy.

    Raises ValueError where it has other contents. `code` are versions for the card; `on_progress` gets (rows written,
    rows in all) at the start and after each part.
    """
    make = maker(finished, client, out, request)
    modality = finished.dataset.modality
    source = make.source
    labels = make.labels
    card = _card(finished, source, labels, request, code)
    _claim(out, card)
    whole = bool(modality.whole_file) and (out / modality.whole_file).exists()
    existing = {path.name for path in out.glob("train-*")}
    done = labels.rows if whole else sum(_count(int(name.split("-")[1]), labels.rows) for name in existing)
    write_text(out / "card.json", dumps(card, indent=1))
    on_progress(done, labels.rows)
    names = [] if whole else _names(labels.rows, modality.part_suffix)
    for part in spread(make, [part for part, name in enumerate(names) if name not in existing]):
        done += _count(part, labels.rows)
        on_progress(done, labels.rows)
    if modality.whole_file:
        if not whole:
            with write_atomically(out / modality.whole_file) as temporary:
                rows_file.join([out / name for name in names], temporary)
        for path in out.glob(f"train-*.{modality.part_suffix}"):
            path.unlink()
    return source.privacy


def _generator(source: SampleSource, request: GenerationRequest, what: int | str) -> torch.Generator:
    return seeding.generator(request.seed, "generate", "global" if source.client is None else source.client, what)


def _count(part: int, rows: int) -> int:
    return min(PART, rows - part * PART)


def _names(rows: int, suffix: str) -> list[str]:
    parts = -(-rows // PART)
    return [f"train-{part:05d}-of-{parts:05d}.{suffix}" for part in range(parts)]


def _card(
    finished: Finished, source: SampleSource, labels: Labels, request: GenerationRequest, code: Mapping[str, str]
) -> dict[str, Any]:
    """The card, which does not change when samples are made again."""
    experiment = finished.trial.experiment
    names = finished.dataset.label_names[0]
    asked = {name: value for name, value in asdict(request).items() if name != "numbers"}  # see `Modality.card`
    parts = -(-labels.rows // PART)
    is_told = bool(getattr(experiment.method.model, "conditional", True))
    of_modality = finished.dataset.modality.card(
        request.numbers, parts=parts, categories=finished.categories, conditional=is_told
    )
    shared = source.client is None
    uploads = str(finished.uploads)
    return {
        "about": source.about,
        "privacy": source.privacy,
        "guarantee": source.guarantee and {**vars(source.guarantee), "says": str(source.guarantee)},
        "covers": "every client's records" if shared else f"other clients' records, as the uploads are: {uploads}",
        "rows": labels.rows,
        "classes": dict(zip(names, labels.per_class(len(names)), strict=True)),
        "labels": DRAWN[source.draw],
        "request": {**asked, "labels": source.draw, "client": source.client},
        **of_modality,
        "chosen": _describe_choice(finished.trial.sweep),
        "trial": experiment.digest,
        "sweep": finished.trial.sweep.name,
        "method": overrides.to_dict(experiment.method),
        "experiment_seed": experiment.seed,
        "clients": experiment.clients,
        "data": {"name": Path(experiment.data.name).name, "digest": experiment.data_digest},
        "made_by": {
            **code,
            "torch": torch.__version__,
            "device": device().type,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }


def _describe_choice(sweep: Path) -> dict[str, Any]:
    """The number of trials from which this one was chosen, and their composed guarantee against the server."""
    try:
        composition = composed_guarantee(sweep, keep=False)
    except ValueError as e:  # a damaged trial, or no theorem
        composition = f"the composed epsilon of all trials is unknown: {e}"
    trials = len(trial_folders(sweep))
    says = "no epsilon covers which of them was chosen"
    return {"from_trials": trials, "spent_together": composition.splitlines(), "says": says}


def _claim(out: Path, card: Mapping[str, Any]) -> None:
    """Raise ValueError unless the folder is new or of the same request; delete temporary files of a killed run."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder")
    files = ("train-*.parquet", "train-*.csv", rows_file.FILE, "card.json")
    left = list(itertools.chain.from_iterable(out.glob(f".{name}.*") for name in files))
    if (out / "card.json").exists():
        then = read_json(out / "card.json")
        keys = sorted({*then, *card} - {"chosen"})  # there may be more trials by now
        differ = ", ".join(k for k in keys if then.get(k) != json.loads(dumps(card)).get(k))
        if differ:
            raise ValueError(f"{out} holds other samples ({differ} differ in its card.json): give another --out")
    elif out.exists() and set(out.iterdir()) - set(left):
        raise ValueError(f"{out} is not empty and holds no card.json: give another --out")
    for path in left:
        path.unlink()
