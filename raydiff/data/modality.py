"""Modalities: what one record is, pictures or rows of a table.

A data set's modality is chosen once, where its source is read. Callers use its functions and never ask which one it is.
Shapes: N records (N, C, H, W), of which rows of a table have the form (N, 1, 1, n); K label columns.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.data import overview, picture_files, pictures
from raydiff.data.pictures import Picture, PictureOptions
from raydiff.data.records import Center, Records, codes_of, half_counts
from raydiff.data.tables import encode, rows_file
from raydiff.data.tables.rows_file import Numbers
from raydiff.formats.csv_files import write_csv

if TYPE_CHECKING:
    import pandas as pd

MAPPING = "mapping.json"  # the file of a table's mapping beside a saved sampler
Stored = Callable[[Tensor], Iterator[Picture]]
"""Row numbers (n,), ascending -> n stored pictures."""
Encoded = dict[str, tuple[Tensor, Tensor]]
"""Split -> (images (N, C, H, W), row numbers (N,)) of the rows that can be read."""


class Modality(Protocol):
    """What one record is."""

    @property
    def name(self) -> str:
        """The word for messages: pictures, rows."""

    @property
    def measures(self) -> tuple[str, ...]:
        """Metrics (`evaluation_settings.METRICS`) of such samples, in the order in which they are measured."""

    @property
    def attacks(self) -> tuple[str, ...]:
        """What can be attacked or audited of such samples: denoisers, rows, audit."""

    @property
    def is_shown(self) -> bool:
        """Whether samples are drawn in a sample grid."""

    @property
    def labels_are_public(self) -> bool:
        """Whether labels are public by declaration."""

    @property
    def fewer_public(self) -> str:
        """How a user declares fewer of the own records public."""

    @property
    def part_suffix(self) -> str:
        """Suffix of the files that `write_part` writes."""

    @property
    def whole_file(self) -> str:
        """The file that the parts are joined to; empty where the parts stay."""

    @property
    def columns(self) -> dict[str, str]:
        """Type (double, string) of each column of decoded samples; empty where samples are arrays."""

    def encode(
        self, rows: dict[str, Tensor], options: PictureOptions, *, stored: Stored, top: int, codes: Tensor | None
    ) -> tuple[Encoded, tuple[str, ...]]:
        """Return the rows of each split as tensors, and notes on conversions."""

    def describe(self, shape: Sequence[int]) -> str:
        """Return one line about records of this shape (C, H, W)."""

    def describe_public(self, public: Records, *, center: Center, clip: float | None) -> str:
        """Return what the public records tell: norms, or counts of cells."""

    def describe_fit(self, fitted_columns: Sequence[str], private_fit: str) -> str:
        """Return where categories come from; empty where there are none."""

    def draw(self, public: Records, class_names: Sequence[str], path: Path) -> None:
        """Draw public records, where they can be drawn."""

    def configure(self, model: Any, shape: Sequence[int], labels: tuple[int, ...]) -> Any:
        """Return the model for records of this shape. Raises ValueError for a model of other records."""

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """Return label rows (n, K) of the samples that are measured, of a client with its `own` records."""

    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> NDArray[Any] | pd.DataFrame:
        """Return samples (N, C, H, W) with labels (N, K) as their users read them."""

    def check_numbers(self, numbers: Numbers) -> None:
        """Raise ValueError where the choice of numbers within bins has no meaning."""

    def write_part(
        self,
        path: Path,
        samples: Tensor,
        labels: Tensor,
        *,
        names: Mapping[str, Sequence[str]],
        about: Mapping[str, str],
        rng: torch.Generator | None,
        is_first: bool,
    ) -> None:
        """Write one file of samples, with label columns of these `names` and with `about` in its metadata."""

    def card(self, numbers: Numbers, *, parts: int, categories: str, conditional: bool) -> dict[str, Any]:
        """Return a card's fields about the written samples."""

    def read_options(self, folder: Path, label: str, numbers: Numbers) -> str:
        """Return the options of commands that read the written samples of this folder."""

    def save(self, folder: Path) -> None:
        """Write what `load_modality` needs."""


@dataclass(frozen=True)
class Pictures:
    """Pictures (C, H, W) on [-1, 1]."""

    name: str = "pictures"
    measures: tuple[str, ...] = ("accuracy", "frechet", "kernel", "coverage", "labels", "memorization", "downstream")
    attacks: tuple[str, ...] = ("denoisers",)
    is_shown: bool = True
    labels_are_public: bool = True
    fewer_public: str = "--data.public-from NAME takes pictures of another data set, --data.public 0 none"
    part_suffix: str = "parquet"
    whole_file: str = ""

    @property
    def columns(self) -> dict[str, str]:
        return {}

    def encode(
        self, rows: dict[str, Tensor], options: PictureOptions, *, stored: Stored, top: int, codes: Tensor | None
    ) -> tuple[Encoded, tuple[str, ...]]:
        return pictures.read_pictures(stored, rows, options, top=top)

    def describe(self, shape: Sequence[int]) -> str:
        return f"pictures: {pictures.form(shape)}, values on [-1, 1]"

    def describe_public(self, public: Records, *, center: Center, clip: float | None) -> str:
        return overview.describe_norms(public, center=center, clip=clip)

    def describe_fit(self, fitted_columns: Sequence[str], private_fit: str) -> str:
        return ""

    def draw(self, public: Records, class_names: Sequence[str], path: Path) -> None:
        if len(public):
            overview.draw_pictures(public, class_names, path)

    def configure(self, model: Any, shape: Sequence[int], labels: tuple[int, ...]) -> Any:
        if hasattr(model, "for_table"):
            raise ValueError("the data are pictures: method.model must be a model of pictures")
        return model.for_data(tuple(shape), labels)

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """As many of each class as one half of the reference has: distances compare equal counts."""
        classes, counts = reference.labels[:, 0], sorted(half_counts(reference.labels[:, 0]).items())
        return torch.cat([reference.labels[classes == c][:count] for c, count in counts])

    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> NDArray[Any]:
        array: NDArray[Any] = samples.numpy()
        return array

    def check_numbers(self, numbers: Numbers) -> None:
        if numbers != "drawn":
            raise ValueError(f"numbers has no meaning for pictures, got {numbers}")

    def write_part(
        self,
        path: Path,
        samples: Tensor,
        labels: Tensor,
        *,
        names: Mapping[str, Sequence[str]],
        about: Mapping[str, str],
        rng: torch.Generator | None,
        is_first: bool,
    ) -> None:
        """A parquet file in the Hugging Face image layout."""
        picture_files.write_parquet(path, picture_files.to_bytes(samples), labels, names=names, about=about)

    def card(self, numbers: Numbers, *, parts: int, categories: str, conditional: bool) -> dict[str, Any]:
        return {"parts": parts, "pixels": "8-bit PNG: round((x + 1) * 127.5) of a sample x clamped to [-1, 1]"}

    def read_options(self, folder: Path, label: str, numbers: Numbers) -> str:
        return f"--data.name {shlex.quote(str(folder))}"

    def save(self, folder: Path) -> None:
        """Nothing: pictures mean what they show."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a table, as codes (1, 1, n) of which `mapping` is the meaning."""

    mapping: encode.Mapping
    name: str = "rows"
    measures: tuple[str, ...] = ("accuracy", "table", "blackbox")
    attacks: tuple[str, ...] = ("rows", "audit")
    is_shown: bool = False
    labels_are_public: bool = False
    fewer_public: str = "--data.public N makes them fewer"
    part_suffix: str = "csv"
    whole_file: str = rows_file.FILE

    @property
    def columns(self) -> dict[str, str]:
        types = {c.name: "double" if c.kind in ("number", "duration") else "string" for c in self.mapping.columns}
        return {c.name: types.get(c.name, "string") for c in self.mapping.decoded}

    def encode(
        self, rows: dict[str, Tensor], options: PictureOptions, *, stored: Stored, top: int, codes: Tensor | None
    ) -> tuple[Encoded, tuple[str, ...]]:
        if options.size is not None or options.colour != "stored":
            raise ValueError("a table has no pictures: data.size must be none and data.colour stored")
        assert codes is not None
        images = codes.float()[:, None, None, :]
        return {split: (images[numbers], numbers) for split, numbers in rows.items()}, ()

    def describe(self, shape: Sequence[int]) -> str:
        return "a table"

    def describe_public(self, public: Records, *, center: Center, clip: float | None) -> str:
        return overview.describe_columns(self.mapping.columns, public)

    def describe_fit(self, fitted_columns: Sequence[str], private_fit: str) -> str:
        if private_fit:
            return f"{private_fit}, before any mechanism: no guarantee covers them"
        edges = "edges of bins and names of groups"
        if fitted_columns:
            return f"of {', '.join(fitted_columns)}: {edges} come from public records alone; the others' are given"
        return f"{edges} are given, taken from no record"

    def draw(self, public: Records, class_names: Sequence[str], path: Path) -> None:
        """Nothing: rows are printed."""

    def configure(self, model: Any, shape: Sequence[int], labels: tuple[int, ...]) -> Any:
        if not hasattr(model, "for_table"):
            of_rows = "discretediffusion (the method marginals has a model of rows by itself)"
            raise ValueError(f"the data are a table: method.model must be {of_rows}")
        return model.for_table(tuple(len(column.categories) for column in self.mapping.columns), labels)

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """Those of the client's own rows."""
        return own.labels

    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> pd.DataFrame:
        return rows_file.rows(self.mapping, codes_of(samples).numpy(), labels[:, 0].numpy(), rng)

    def check_numbers(self, numbers: Numbers) -> None:
        """Both choices have a meaning."""

    def write_part(
        self,
        path: Path,
        samples: Tensor,
        labels: Tensor,
        *,
        names: Mapping[str, Sequence[str]],
        about: Mapping[str, str],
        rng: torch.Generator | None,
        is_first: bool,
    ) -> None:
        """A part of a CSV file."""
        write_csv(path, self.decode(samples, labels, rng), header=is_first)

    def card(self, numbers: Numbers, *, parts: int, categories: str, conditional: bool) -> dict[str, Any]:
        label = "what a row was made for" if conditional else "apart from the row: the model knows of no label"
        return {**rows_file.describe(self.mapping, numbers), "categories": categories, "label": label}

    def read_options(self, folder: Path, label: str, numbers: Numbers) -> str:
        bins = 1 + max(len(column.categories) for column in self.mapping.columns)  # one more, for unknown values
        drawn = {c.name: c.kind for c in self.mapping.columns} if numbers == "drawn" else {}
        kinds = {c.name: drawn.get(c.name, "text").replace("duration", "number") for c in self.mapping.decoded}
        types = shlex.join([f"{name}={kind}" for name, kind in kinds.items()])  # durations in seconds
        how = f"--data.bins {bins} --data.types {types} --data.csv.missing ''"  # only empty cells
        return f"--data.name {shlex.quote(str(folder / rows_file.FILE))} --data.labels {shlex.quote(label)} {how}"

    def save(self, folder: Path) -> None:
        self.mapping.save(folder / MAPPING)


PICTURES = Pictures()


def load_modality(folder: Path) -> Modality:
    """Return the modality that was saved in this folder."""
    path = folder / MAPPING
    return TableRows(encode.Mapping.load(path)) if path.exists() else PICTURES
