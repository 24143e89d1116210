"""Image data sets, cut once into disjoint splits: train, public, validation, calibration, test.

Five splits, so that nothing is chosen on the rows that judge it: clients hold `train`; `public` is what the
parameters of a mechanism may be taken from; `validation` chooses checkpoints; `calibration` sets attack
thresholds; `test` gives the final numbers.

Sources are scikit-learn's embedded digits, and folders of parquet files in the Hugging Face image layout: a
column `image` or `img` (encoded bytes, or a struct with a field `bytes`), a column `label` or `fine_label`
(integers), and class names in the schema's `huggingface` metadata where there are any. Nothing is downloaded.

Shapes: N records, C channels, H x W pixels, K label columns.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff import tree
from raydiff.seeding import generator

SPLITS = ("train", "public", "validation", "calibration", "test")
FOLDERS = {"mnist": "mnist", "cifar10": "cifar10", "cifar100": "cifar100", "faces": "orl_faces_64"}
"""Known names -> folder below the root. Any other folder goes by its own name."""
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""One picture as decoded: (H, W) or (H, W, 3)."""


@dataclass(frozen=True, eq=False)
class Records:
    """Some records of a data set. The tensors are shared and never written to."""

    images: Tensor
    """(N, C, H, W) float32 on [-1, 1]."""
    labels: Tensor
    """(N, K) int64; column 0 is the class."""
    numbers: Tensor
    """(N,) int64: row numbers in the data set, the records' identity."""

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, index: Tensor) -> Records:
        """The records at `index` (positions or a boolean mask), in that order."""
        return Records(self.images[index], self.labels[index], self.numbers[index])


def public_mean(public: Records | None) -> Tensor:
    """The mean of the public pictures, (C, H, W). Raises ValueError where there are none."""
    if public is None or len(public) == 0:
        raise ValueError("clipping around a center needs public records: data.public is 0")
    return public.images.mean(0)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which data set, and how it is cut. The default sizes suit digits (1797 rows)."""

    name: str = "digits"
    """digits, mnist, cifar10, cifar100, faces, another folder below the root, or a path to one (with a /)."""
    root: str | None = None
    """Folder of data sets; None: the environment variable RAYDIFF_DATA."""
    size: int | None = None
    """Resize to size x size pixels by area averaging, whatever the shape was; None: as stored."""
    train: int | None = None
    """Training records of all clients together; None: all that the other splits leave."""
    public: int = 250
    """Records declared public: a clip norm and the like may be taken from them."""
    validation: int = 200
    """Records for the choice of checkpoints."""
    calibration: int = 100
    """Records for attack thresholds."""
    test: int = 400
    """Records for final numbers; from the source's own test rows where it has some."""
    split_seed: int = 0
    """Seed of the cut, apart from the experiment's: trials that differ in that one share their splits."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"data.name must name a data set or a folder, got {self.name!r}")
        least = {"size": 1, "train": 1, "public": 0, "validation": 0, "calibration": 0, "test": 0}
        for field, low in least.items():
            value = getattr(self, field)
            if value is not None and value < low:
                raise ValueError(f"data.{field} must be at least {low}, got {value}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, cut into splits."""

    name: str
    splits: dict[str, Records]
    """The five `SPLITS`: disjoint, stratified by class, and so is any run of neighbouring records in one."""
    label_names: tuple[tuple[str, ...], ...]
    """For each label column the names of its values 0, 1, ..."""
    digest: str
    """Hex SHA-256 over images, labels and row numbers of every split."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.splits["train"].images.shape[1:]
        return channels, height, width

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of values of each label column."""
        return tuple(len(names) for names in self.label_names)


def load(config: Data) -> Dataset:
    """The data set that `config` describes.

    Cached in the process, so warm workers read a data set once; files are taken not to change meanwhile.
    Raises ValueError, in one sentence, on an unknown name, a missing, damaged or malformed file, a picture
    that cannot be decoded, and splits larger than the data.
    """
    return _load(config, None if config.name == "digits" else _folder(config.name, config.root).resolve())


@functools.lru_cache(maxsize=8)
def _load(config: Data, folder: Path | None) -> Dataset:
    source = _digits() if folder is None else _parquet(folder)
    rows = _cut(source, config)
    pixels = source.decode(torch.cat(list(rows.values())))
    splits, start = {}, 0
    for split, numbers in rows.items():
        images = _scaled(pixels[start : start + len(numbers)], source.top, config.size)
        splits[split] = Records(images, source.labels[numbers].unsqueeze(1), numbers)
        start += len(numbers)
    leaves = {f"{split}/{k}": v for split, records in splits.items() for k, v in vars(records).items()}
    return Dataset(config.name, splits, (source.names,), tree.digest(leaves))


def _scaled(pixels: Tensor, top: int, size: int | None) -> Tensor:
    """0..top -> [-1, 1], resized; never a view, so that a pickled split does not carry the others' pixels."""
    images = pixels.float().div_(top / 2).sub_(1)
    return images if size is None else F.interpolate(images, size=(size, size), mode="area")


# --- splits ---


@dataclass(frozen=True)
class _Source:
    """All rows of a data set: labels at hand, pictures on demand."""

    labels: Tensor
    """(N,) int64."""
    own_test: int
    """So many rows at the end are the source's own test rows (0: it has none)."""
    names: tuple[str, ...]
    decode: Callable[[Tensor], Tensor]
    """rows (n,) -> pixels (n, C, H, W) uint8 in 0..top."""
    top: int


def _cut(source: _Source, config: Data) -> dict[str, Tensor]:
    """Row numbers of each split, in stratified order."""
    own, seed, name = len(source.labels) - source.own_test, config.split_seed, repr(config.name)
    order = _stratified(source.labels[:own], generator(seed, "splits", "train"))
    test: dict[str, int | None] = {"test": config.test}
    rest = {"public": config.public, "validation": config.validation, "calibration": config.calibration}
    others = {**rest, "train": config.train}  # train last: another cap moves no other split
    if source.own_test:
        test_order = own + _stratified(source.labels[own:], generator(seed, "splits", "test"))
        rows = _deal(test_order, test, f"test rows in {name}") | _deal(order, others, f"train rows in {name}")
    else:
        rows = _deal(order, test | others, f"rows in {name}")
    return {split: rows[split] for split in SPLITS}


def _deal(order: Tensor, sizes: dict[str, int | None], pool: str) -> dict[str, Tensor]:
    """Cut `order` into pieces of the given sizes; None is all that is left, at least one row."""
    least = {split: 1 if n is None else n for split, n in sizes.items()}
    if sum(least.values()) > len(order):
        wanted = " + ".join(f"data.{split}{'>=1' if n is None else f'={n}'}" for split, n in sizes.items())
        raise ValueError(f"there are {len(order)} {pool}, too few for {wanted}: lower one of these")
    pieces, start = {}, 0
    for split, n in sizes.items():
        stop = len(order) if n is None else start + n
        pieces[split] = order[start:stop].clone()
        start = stop
    return pieces


def _stratified(labels: Tensor, rng: torch.Generator) -> Tensor:
    """All rows in a random order in which every run of neighbours holds each class in its share.

    The i-th of the n rows of a class stands at the relative place (i + 1/2) / n.
    """
    shuffled = torch.randperm(len(labels), generator=rng)
    rename = torch.randperm(int(labels.max()) + 1, generator=rng)  # so that no class wins all ties
    classes = rename[labels[shuffled]]
    by_class = shuffled[torch.argsort(classes, stable=True)]
    counts = torch.bincount(classes)
    rank = torch.cat([torch.arange(n) for n in counts.tolist()])
    place = (rank + 0.5).double() / counts.repeat_interleave(counts)
    return by_class[torch.argsort(place, stable=True)]


# --- sources ---


def _digits() -> _Source:
    """scikit-learn's digits: 1797 pictures of 8 x 8 pixels in 0..16."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    return _Source(labels, 0, tuple("0123456789"), pixels.__getitem__, 16)


def _folder(name: str, root: str | None) -> Path:
    """The folder that `name` means."""
    if "/" in name and Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    root = root or os.environ.get("RAYDIFF_DATA")
    if not root:
        what = f"data set {name!r}" if name in FOLDERS else f"unknown data set {name!r}{_hint(name, FOLDERS)}"
        raise ValueError(f"{what}: all but digits need a folder of data sets, set RAYDIFF_DATA or data.root")
    parent = Path(root).expanduser()
    if not parent.is_dir():
        raise ValueError(f"the folder of data sets (data.root, else RAYDIFF_DATA) does not exist: {root}")
    folder = parent / FOLDERS.get(name, name)
    if folder.is_dir():
        return folder
    where = f"no folder {folder} (data.root, else RAYDIFF_DATA, is {root})"
    if name in FOLDERS:
        raise ValueError(f"data set {name!r} is missing: {where}")
    there = (file.parent.name for file in sorted(parent.glob("*/*.parquet")))
    raise ValueError(f"unknown data set {name!r}{_hint(name, [*FOLDERS, *there])}: {where}")


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(dict.fromkeys(["digits", *known]))
    near = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else f" (known: {', '.join(names)})"


@dataclass(frozen=True)
class _File:
    """A parquet file, with the little that is read of it before rows are chosen."""

    path: Path
    image: str
    """Name of the picture column."""
    labels: Tensor
    names: tuple[str, ...] | None


def _parquet(folder: Path) -> _Source:
    """The rows of train*.parquet, then of test*.parquet; without train files, one pool of what there is."""
    train, test = sorted(folder.glob("train*.parquet")), sorted(folder.glob("test*.parquet"))
    if not train:
        train, test = sorted(folder.glob("*.parquet")), []
    if not train:
        raise ValueError(f"there are no parquet files in {folder}")
    files = [_open(path) for path in train + test]
    labels = torch.cat([file.labels for file in files])
    own_test = sum(len(file.labels) for file in files[len(train) :])
    return _Source(labels, own_test, _names(files), functools.partial(_decode, files), 255)


def _open(path: Path) -> _File:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _reading(path):
        schema = pq.read_schema(path)
    image = _column(path, schema.names, ("image", "img"))
    label = _column(path, schema.names, ("label", "fine_label"))
    with _reading(path):
        column = pq.ParquetFile(path).read(columns=[label]).column(0)
    if not pa.types.is_integer(column.type) or column.null_count:
        found = f"{column.null_count} nulls" if column.null_count else column.type
        raise ValueError(f"column {label!r} of {path} must hold integers, got {found}")
    if not len(column):
        raise ValueError(f"{path} holds no rows")
    labels = torch.from_numpy(column.to_numpy().astype(np.int64))
    if int(labels.min()) < 0:
        raise ValueError(f"row {int(labels.argmin())} of {path} has the label {int(labels.min())}, below 0")
    return _File(path, image, labels, _class_names(schema.metadata or {}, label))


def _column(path: Path, columns: Sequence[str], names: Sequence[str]) -> str:
    """The first of `names` that the file has."""
    for name in names:
        if name in columns:
            return name
    wanted = " or ".join(repr(name) for name in names)
    raise ValueError(f"{path} has no column {wanted}; its columns are {', '.join(columns)}")


def _class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """Class names from the schema's Hugging Face metadata; None where there are none."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _names(files: Sequence[_File]) -> tuple[str, ...]:
    """The class names that the files agree on, else "0", "1", ... up to the largest label."""
    classes = 1 + max(int(file.labels.max()) for file in files)
    named = {file.names: file.path for file in files if file.names is not None}
    if len(named) > 1:
        raise ValueError(f"{' and '.join(str(path) for path in named.values())} name their classes differently")
    for names, path in named.items():
        if classes > len(names):
            raise ValueError(f"{path} names {len(names)} classes, but there is a label {classes - 1}")
        return names
    return tuple(str(c) for c in range(classes))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """One sentence that names the file, in place of what pyarrow raises on a damaged one."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(f"{path} cannot be read as parquet (truncated or damaged?): {reason}") from error


# --- pictures ---


def _decode(files: Sequence[_File], rows: Tensor) -> Tensor:
    """Pixels (n, C, H, W) uint8 of `rows`, numbered through all files; only these rows are decoded."""
    order = torch.argsort(rows)
    out, first = np.empty(0, np.uint8), ""
    for place, (where, pixels) in zip(order.tolist(), _pictures(files, rows[order]), strict=True):
        if not first:
            out, first = np.empty((len(rows), *pixels.shape), np.uint8), where
        if pixels.shape != out.shape[1:]:
            here, there = _form(pixels.shape), _form(out.shape[1:])
            raise ValueError(f"pictures must have one size and mode: {where} is {here}, but {first} is {there}")
        out[place] = pixels
    images = torch.from_numpy(out)
    return images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()


def _form(shape: Sequence[int]) -> str:
    return f"{shape[1]} x {shape[0]} {'L' if len(shape) == 2 else 'RGB'}"


def _pictures(files: Sequence[_File], rows: Tensor) -> Iterator[tuple[str, Pixels]]:
    """(where it is from, its pixels) for each of `rows` (ascending), reading one row group at a time."""
    import pyarrow.parquet as pq

    end = 0
    for file in files:
        first = end  # row 0 of this file
        with _reading(file.path):
            parquet = pq.ParquetFile(file.path)
        for group in range(parquet.num_row_groups):
            start, end = end, end + parquet.metadata.row_group(group).num_rows
            mine = rows[(rows >= start) & (rows < end)]
            if len(mine):
                with _reading(file.path):
                    column = parquet.read_row_group(group, columns=[file.image]).column(0)
                encoded = _encoded(file, column.take((mine - start).numpy()))
                for row, data in zip((mine - first).tolist(), encoded, strict=True):
                    where = f"row {row} of {file.path}"
                    yield where, _picture(data, where)


def _encoded(file: _File, column: Any) -> list[bytes | None]:
    """The encoded pictures of a picture column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pc.struct_field(column, "bytes")
    if column.type not in (pa.binary(), pa.large_binary()):
        raise ValueError(f"column {file.image!r} of {file.path} must hold encoded pictures, got {column.type}")
    encoded: list[bytes | None] = column.to_pylist()
    return encoded


def _picture(data: bytes | None, where: str) -> Pixels:
    from PIL import Image

    if data is None:
        raise ValueError(f"{where} holds no picture")
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except Exception as error:  # by kind of damage: OSError, SyntaxError, ValueError, zlib.error, ...
        raise ValueError(f"{where} cannot be decoded as a picture ({type(error).__name__})") from error
    if image.mode not in ("L", "RGB"):
        raise ValueError(f"{where} has the mode {image.mode}, but pictures must be L (grey) or RGB")
    return np.asarray(image)
