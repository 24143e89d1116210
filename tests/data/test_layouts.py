"""Folders as archives, clones and downloads leave them, with what systems put beside the data, and damaged pictures."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sets import FEW, grey_set, message, pictures, png, write

from raydiff.data import parquet, source_registry
from raydiff.data.datasets import SPLITS, Data, load_dataset
from raydiff.data.unseen_client import Choice, choose_client
from raydiff.experiment.config import resolve_shapes
from raydiff.experiment.presets import PRESETS

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def animals(folder: Path, *, first: int = 0, each: int = 20) -> Path:
    for c, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for i, pixels in enumerate(pictures(each, first=first + c * each)):
            (folder / name / f"{name}{i}.png").write_bytes(png(pixels))
    return folder


def with_test_rows(folder: Path, train: str = "train", test: str = "test") -> Path:
    animals(folder / train)
    animals(folder / test, first=100, each=6)
    return folder


def clone(folder: Path) -> Path:
    """A repository of the hub: parquet files in data/, and what git and the hub's client add."""
    grey_set(folder / "data")
    (folder / "README.md").write_text("# birds")
    for name in (".git", ".cache/huggingface", "__MACOSX/data"):
        (folder / name).mkdir(parents=True)
    write(folder / ".cache" / "huggingface" / "old.parquet", [png(pictures(1)[0])], [0])
    (folder / "__MACOSX" / "data" / "train-0.parquet").write_bytes(b"none")
    return folder


def littered(folder: Path) -> Path:
    """A class folder's neighbours from macOS, Windows and Jupyter."""
    animals(folder)
    shutil.copytree(folder, folder / "__MACOSX")
    for place in (folder, folder / "ant"):
        for name in ("._ant0.png", ".DS_Store"):
            (place / name).write_bytes(b"none")
        shutil.copytree(folder / "bee", place / ".ipynb_checkpoints")
    return folder


def renamed(folder: Path) -> Path:
    for path in list(animals(folder).rglob("*.png")):
        path.rename(path.with_suffix(".PNG"))
    return folder


def linked(folder: Path) -> Path:
    animals(folder.with_name("real"))
    folder.symlink_to(folder.with_name("real"))
    return folder


def linked_classes(folder: Path) -> Path:
    folder.mkdir()
    for path in animals(folder.with_name("real")).iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def upper(folder: Path) -> Path:
    for path in list(grey_set(folder).iterdir()):
        path.rename(path.with_suffix(".PARQUET"))
    return folder


def with_hidden_parquet(folder: Path) -> Path:
    grey_set(folder)
    (folder / "._train-00000-of-00002.parquet").write_bytes(b"none")
    return folder


def with_empty_shards(folder: Path) -> Path:
    """One with a group of no rows and types that pandas guesses, one without groups."""
    grey_set(folder)
    empty = pa.table({"image": pa.array([], pa.null()), "label": pa.array([], pa.null())})
    pq.write_table(empty, folder / "train-00002-of-00003.parquet")
    pq.ParquetWriter(folder / "test-00001-of-00002.parquet", empty.schema).close()
    return folder


def with_validation(folder: Path) -> Path:
    path = grey_set(folder) / "test-00000-of-00001.parquet"
    path.rename(folder / "validation-0.parquet")
    return folder


LAYOUTS: dict[str, tuple[Callable[[Path], Path], int, tuple[str, ...]]] = {
    "folders": (animals, 0, ()),
    "littered": (littered, 0, ()),
    "upper-case suffixes": (renamed, 0, ()),
    "a link": (linked, 0, ()),
    "links to classes": (linked_classes, 0, ()),
    "train and test": (with_test_rows, 12, ()),
    "train and val": (lambda f: with_test_rows(f, test="val"), 12, ("test rows are those of val",)),
    "Training and Testing": (lambda f: with_test_rows(f, "Training", "Testing"), 12, ()),
    "train and validation": (
        lambda f: with_test_rows(f, test="validation"),
        12,
        ("test rows are those of validation",),
    ),
    "an archive": (lambda f: with_test_rows(f / "pets").parent, 12, ()),
    "an archive in data": (lambda f: animals(f / "data" / "pets").parents[1], 0, ()),
    "a clone": (clone, 20, ()),
    "upper-case parquet": (upper, 20, ()),
    "hidden parquet": (with_hidden_parquet, 20, ()),
    "empty shards": (
        with_empty_shards,
        20,
        ("left unread: test-00001-of-00002.parquet, train-00002-of-00003.parquet",),
    ),
    "parquet of validation": (with_validation, 20, ("test rows are those of validation",)),
    "parquet and pictures": (lambda f: animals(grey_set(f) / "raw").parent, 20, ("left unread: raw",)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_data_set_is_read_wherever_it_lies(name: str, tmp_path: Path) -> None:
    make, own_test, notes = LAYOUTS[name]
    folder = make(tmp_path / "set")
    data = load_dataset(Data(name=str(folder), **FEW))
    assert (data.label_names[0][:2], data.notes) == (("ant", "bee"), notes)
    source = source_registry.open_source(str(folder), folder.resolve(), ())
    assert (len(source.labels) - source.own_test, source.own_test) == (40, own_test)


def test_folders_that_are_ambiguous_or_hold_nothing(tmp_path: Path) -> None:
    for name in ("large", "small"):
        grey_set(tmp_path / "two" / name)
    both = f"name {tmp_path}/two/large or {tmp_path}/two/small"
    assert message(Data(name=f"{tmp_path}/two")) == f"{tmp_path}/two has parquet files in several folders: {both}"
    assert load_dataset(Data(name=f"{tmp_path}/two/small", **FEW)).says.startswith("3 parquet files")
    (tmp_path / "none" / ".git").mkdir(parents=True)
    assert "holds no parquet files and no folders of pictures" in message(Data(name=f"{tmp_path}/none"))


def test_a_snapshot_lies_in_a_hidden_folder(tmp_path: Path) -> None:
    assert load_dataset(Data(name=str(clone(tmp_path / ".cache" / "set")), **FEW)).says.startswith("3 parquet files")
    assert parquet.folders_below(tmp_path / ".cache" / "set") == [tmp_path / ".cache" / "set" / "data"]


def test_a_git_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    path = grey_set(tmp_path / "set") / "train-00001-of-00002.parquet"
    picture = animals(tmp_path / "zoo") / "bee" / "bee3.png"
    for pointer, folder in ((path, tmp_path / "set"), (picture, tmp_path / "zoo")):
        pointer.write_bytes(POINTER)
        config = Data(name=str(folder), skip_damaged=True, **FEW)
        says = "is a git-lfs pointer, not the file itself: run git lfs pull in its repository"
        assert message(config) == f"{pointer} {says}"


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_damaged_pictures_are_refused_by_name_or_left_out_and_move_no_other(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    rows = [4, 5, 29, 39]
    bad = [png(pictures(1)[0])[:-30], b"", b"<html>not found</html>", None if kind == "parquet" else b"\xff\xd8"]
    if kind == "parquet":
        encoded: list[bytes | None] = [png(p) for p in pictures(40)]
        write(folder / "x.parquet", encoded, [0, 1] * 20)
        whole = load_dataset(Data(name=str(folder), **FEW))
        for row, data in zip(rows, bad, strict=True):
            encoded[row] = data
        write(tmp_path / "other" / "x.parquet", encoded, [0, 1] * 20)
        where = f"row 4 of {tmp_path}/other/x.parquet"
    else:
        files = sorted(animals(folder).rglob("*.png"), key=lambda path: path.name)
        whole = load_dataset(Data(name=str(folder), **FEW))
        shutil.copytree(folder, tmp_path / "other")
        damaged = [tmp_path / "other" / files[row].relative_to(folder) for row in rows]
        for path, data in zip(damaged, bad, strict=True):
            path.write_bytes(data or b"")
        where = str(damaged[0])
    config = Data(name=str(tmp_path / "other"), **FEW)
    remedy = "mend it, or leave such pictures out by --data.skip-damaged true"
    why = r"\((OSError|SyntaxError|UnidentifiedImageError)\)"
    assert re.fullmatch(f"{re.escape(where)} cannot be decoded as a picture {why}: {remedy}", message(config))
    data = load_dataset(replace(config, skip_damaged=True))
    assert data.notes == (*whole.notes, "damaged pictures left out: 4")
    for split in SPLITS:
        before, after = whole.splits[split], data.splits[split]
        kept = ~torch.isin(before.numbers, torch.tensor(rows))
        assert torch.equal(after.numbers, before.numbers[kept]) and torch.equal(after.images, before.images[kept])
        assert torch.equal(after.labels, before.labels[kept])
    assert sum(map(len, data.splits.values())) == 36


def test_damaged_pictures_of_another_set_and_of_a_new_client(tmp_path: Path) -> None:
    animals(tmp_path / "zoo")
    config = Data(name=str(tmp_path / "zoo"), **FEW | {"train": 10}, skip_damaged=True)
    public = animals(tmp_path / "public", first=60) / "ant" / "ant1.png"
    public.write_bytes(b"")
    other = load_dataset(replace(config, public_from=str(tmp_path / "public"), public=40))
    assert "public records: damaged pictures left out: 1" in other.notes and len(other.splits["public"]) == 39
    client = choose_client(Choice(data=str(tmp_path / "public")), config, load_dataset(config), usual=5)
    assert len(client.records) + len(client.held_out) < 40
    none = animals(tmp_path / "none")
    for path in none.rglob("*.png"):
        path.write_bytes(b"")
    assert message(replace(config, name=str(none))) == "none of 34 pictures can be decoded"


def test_a_bare_name_is_a_folder_here_unless_a_data_set_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    animals(tmp_path / "pets")
    grey_set(tmp_path / "root" / "birds")
    for name in ("birds", "digits"):
        animals(tmp_path / name)
    config = Data(name="pets", root=str(tmp_path / "root"), **FEW)
    assert load_dataset(config).digest == load_dataset(replace(config, name="./pets")).digest
    assert source_registry.identity("pets") == source_registry.identity("./pets") == str(tmp_path / "pets")
    for name in ("birds", "digits"):
        data = load_dataset(replace(config, name=name))
        assert "class folders" not in data.says
        assert f"this is the data set {name}; the folder here is ./{name}" in data.notes
    assert load_dataset(replace(config, name="./birds")).notes == ()
    assert source_registry.identity("birds", config.root) == "birds"
    start = replace(PRESETS["digits"]().experiment, data=config)
    assert resolve_shapes(start, load_dataset(config)).data.name == str(tmp_path / "pets")
    assert resolve_shapes(replace(start, data=replace(config, name="birds")), load_dataset(config)).data.name == "birds"
