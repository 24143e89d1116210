"""Modalities: what one record is, pictures or rows of a table.

A data set's modality is chosen once, where its source is read. Callers use its functions and never ask which one it is.
Shapes: N records (N, C, H, W), of which rows of a table have the form (N, 1, 1, n); K label columns.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.data import picture_files, pictures, public_preview
from raydiff.data.pictures import Picture, PictureOptions
from raydiff.data.records import Center, Records, codes_of, half_counts, images_of
from raydiff.data.tables import encode, rows_file
from raydiff.data.tables.rows_file import Numbers
from raydiff.formats.csv_files import write_csv

if TYPE_CHECKING:
    import pandas as pd

MAPPING = "mapping.json"  # the file of a table's mapping beside a saved sampler
Stored = Callable[[Tensor], Iterator[Picture]]
"""Row numbers (n,), ascending -> n stored pictures."""


@dataclass(frozen=True)
class SamplePart:
    """One file of generated samples."""

    path: Path
    samples: Tensor  # (n, C, H, W)
    labels: Tensor  # (n, K)
    names: Mapping[str, Sequence[str]]  # label column -> the names of its values
    about: Mapping[str, str]  # metadata
    rng: torch.Generator | None  # draws numbers within bins; None: bins are written
    is_first: bool


class Modality(ABC):
    """What one record is. Functions that are not abstract say what holds for most modalities."""

    name: str
    """The word for messages: pictures, rows."""
    measures: tuple[str, ...]
    """Metrics (`evaluation.metrics.METRICS`) of such samples, in the order in which they are measured."""
    attacks: tuple[str, ...] = ()
    """What can be attacked or audited of such samples: denoisers, rows, audit."""
    is_shown: bool = False
    """Whether samples are drawn in a sample grid."""
    labels_are_public: bool = False
    """Whether labels are public by declaration."""
    fewer_public: str
    """How a user declares fewer of the own records public."""
    part_suffix: str
    """Suffix of the files that `write_part` writes."""
    whole_file: str = ""
    """The file that the parts are joined to; empty where the parts stay."""

    @property
    def columns(self) -> dict[str, str]:
        """Type (double, string) of each column of decoded samples; empty where samples are arrays."""
        return {}

    @abstractmethod
    def encode(
        self, rows: dict[str, Tensor], options: PictureOptions, *, stored: Stored, top: int, codes: Tensor | None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the rows of each split as tensors (n, C, H, W), and which rows (n,) these are."""

    @abstractmethod
    def describe(self, shape: Sequence[int]) -> str:
        """Return one line about records of this shape (C, H, W)."""

    @abstractmethod
    def describe_public(self, public: Records, *, center: Center, clip: float | None) -> str:
        """Return what the public records tell: norms, or counts of cells."""

    def describe_fit(self, fitted_columns: Sequence[str], private_fit: str) -> str:
        """Return where categories come from; empty where there are none."""
        return ""

    def draw(self, public: Records, class_names: Sequence[str], path: Path) -> None:  # noqa: B027
        """Draw public records, where they can be drawn."""

    @abstractmethod
    def configure(self, model: Any, shape: Sequence[int], labels: tuple[int, ...]) -> Any:
        """Return the model for records of this shape. Raises ValueError for a model of other records."""

    @abstractmethod
    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """Return label rows (n, K) of the samples that are measured, of a client with its `own` records."""

    @abstractmethod
    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> NDArray[Any] | pd.DataFrame:
        """Return samples (N, C, H, W) with labels (N, K) as their users read them."""

    @abstractmethod
    def write_part(self, part: SamplePart) -> None:
        """Write one file of samples."""

    @abstractmethod
    def card(self, numbers: Numbers, *, parts: int, categories: str, conditional: bool) -> dict[str, Any]:
        """Return a card's fields about the written samples."""

    @abstractmethod
    def read_options(self, folder: Path, label: str, numbers: Numbers) -> str:
        """Return the options of commands that read the written samples of this folder."""

    def save(self, folder: Path) -> None:  # noqa: B027
        """Write what `load_modality` needs."""


@dataclass(frozen=True)
class Pictures(Modality):
    """Pictures (C, H, W) on [-1, 1]."""

    name = "pictures"
    measures = ("accuracy", "frechet", "kernel", "coverage", "labels", "memorization", "downstream")
    attacks = ("denoisers",)
    is_shown = True
    labels_are_public = True
    fewer_public = "--data.public-from NAME takes pictures of another data set, --data.public 0 none"
    part_suffix = "parquet"

    def encode(
        self, rows: dict[str, Tensor], options: PictureOptions, *, stored: Stored, top: int, codes: Tensor | None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        return pictures.read_pictures(stored, rows, options, top=top)

    def describe(self, shape: Sequence[int]) -> str:
        return f"pictures: {pictures.form(shape)}, values on [-1, 1]"

    def describe_public(self, public: Records, *, center: Center, clip: float | None) -> str:
        return public_preview.describe_norms(public, center=center, clip=clip)

    def draw(self, public: Records, class_names: Sequence[str], path: Path) -> None:
        if len(public):
            public_preview.draw_pictures(public, class_names, path)

    def configure(self, model: Any, shape: Sequence[int], labels: tuple[int, ...]) -> Any:
        if hasattr(model, "for_table"):
            raise ValueError("the data are pictures: method.model must be a model of pictures")
        return model.for_data(tuple(shape), labels)

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """As many of each class as one half of the reference has: distances compare equal counts."""
        classes = reference.labels[:, 0]
        counts = sorted(half_counts(classes).items())
        return torch.cat([reference.labels[classes == c][:count] for c, count in counts])

    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> NDArray[Any]:
        array: NDArray[Any] = samples.numpy()
        return array

    def write_part(self, part: SamplePart) -> None:
        """A parquet file in the Hugging Face image layout."""
        picture_files.write_parquet(
            part.path, picture_files.to_bytes(part.samples), part.labels, names=part.names, about=part.about
        )

    def card(self, numbers: Numbers, *, parts: int, categories: str, conditional: bool) -> dict[str, Any]:
        return {"parts": parts, "pixels": "8-bit PNG: round((x + 1) * 127.5) of a sample x clamped to [-1, 1]"}

    def read_options(self, folder: Path, label: str, numbers: Numbers) -> str:
        return f"--data.name {shlex.quote(str(folder))}"


@dataclass(frozen=True)
class TableRows(Modality):
    """Rows of a table, as codes (1, 1, n) of which `mapping` is the meaning."""

    mapping: encode.Mapping
    name = "rows"
    measures = ("accuracy", "table", "blackbox")
    attacks = ("rows", "audit")
    fewer_public = "--data.public N makes them fewer"
    part_suffix = "csv"
    whole_file = rows_file.FILE

    @property
    def columns(self) -> dict[str, str]:
        numbers = [c.name for c in self.mapping.columns if c.kind in ("number", "duration")]
        return {c.name: "double" if c.name in numbers else "string" for c in self.mapping.decoded}

    def encode(
        self, rows: dict[str, Tensor], options: PictureOptions, *, stored: Stored, top: int, codes: Tensor | None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        if options.size is not None or options.colour != "stored":
            raise ValueError("a table has no pictures: data.size must be none and data.colour stored")
        assert codes is not None
        return {split: (images_of(codes[numbers]), numbers) for split, numbers in rows.items()}

    def describe(self, shape: Sequence[int]) -> str:
        return "a table"

    def describe_public(self, public: Records, *, center: Center, clip: float | None) -> str:
        return public_preview.describe_columns(self.mapping.columns, public)

    def describe_fit(self, fitted_columns: Sequence[str], private_fit: str) -> str:
        if private_fit:
            return f"{private_fit}, before any mechanism: no guarantee covers them"
        edges = "edges of bins and names of groups"
        if fitted_columns:
            return f"of {', '.join(fitted_columns)}: {edges} come from public records alone; the others' are given"
        return f"{edges} are given, taken from no record"

    def configure(self, model: Any, shape: Sequence[int], labels: tuple[int, ...]) -> Any:
        if not hasattr(model, "for_table"):
            raise ValueError(
                "the data are a table: method.model must be discretediffusion (the method marginals has a model of "
                "rows by itself)"
            )
        return model.for_table(tuple(len(column.categories) for column in self.mapping.columns), labels)

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """Those of the client's own rows."""
        return own.labels

    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> pd.DataFrame:
        return rows_file.rows(self.mapping, codes_of(samples).numpy(), labels[:, 0].numpy(), rng)

    def write_part(self, part: SamplePart) -> None:
        """A part of a CSV file."""
        write_csv(part.path, self.decode(part.samples, part.labels, part.rng), header=part.is_first)

    def card(self, numbers: Numbers, *, parts: int, categories: str, conditional: bool) -> dict[str, Any]:
        label = "what a row was made for" if conditional else "apart from the row: the model knows of no label"
        return {**rows_file.describe_values(self.mapping, numbers), "categories": categories, "label": label}

    def read_options(self, folder: Path, label: str, numbers: Numbers) -> str:
        bins = 1 + max(len(column.categories) for column in self.mapping.columns)  # one more, for unknown values
        drawn = {c.name: c.kind for c in self.mapping.columns} if numbers == "drawn" else {}
        kinds = {c.name: drawn.get(c.name, "text").replace("duration", "number") for c in self.mapping.decoded}
        types = shlex.join([f"{name}={kind}" for name, kind in kinds.items()])  # durations in seconds
        return (  # only empty cells are missing
            f"--data.name {shlex.quote(str(folder / rows_file.FILE))} --data.labels {shlex.quote(label)} --data.bins "
            f"{bins} --data.types {types} --data.csv.missing ''"
        )

    def save(self, folder: Path) -> None:
        self.mapping.save(folder / MAPPING)


PICTURES = Pictures()


def load_modality(folder: Path) -> Modality:
    """Return the modality that was saved in this folder."""
    path = folder / MAPPING
    return TableRows(encode.Mapping.load(path)) if path.exists() else PICTURES
