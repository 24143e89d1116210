"""Data sets: what is read, how it is cut, and what is said of bad files."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sets import FEW, assert_cut, grey_set, message, pictures, png, write

from raydiff.data.datasets import SPLITS, Data, load_dataset

DIGITS = "0fe42d79a86fd82ce17acffc59998121a24224d25ac3bdb5bf151c85400a7394"


def test_digits_are_what_they_were() -> None:
    data = load_dataset(Data())
    assert data.digest == DIGITS
    assert (data.name, data.shape, data.cardinalities) == ("digits", (1, 8, 8), (10,))
    assert {split: len(r) for split, r in data.splits.items()} == {
        "train": 847, "public": 250, "validation": 200, "calibration": 100, "test": 400,
    }  # fmt: skip
    capped = load_dataset(Data(train=100))  # A prefix; no other split moves.
    for split in SPLITS:
        kept = 100 if split == "train" else len(data.splits[split])
        assert torch.equal(capped.splits[split].numbers, data.splits[split].numbers[:kept])


def test_rows_come_with_their_own_pixels_and_labels(tmp_path: Path) -> None:
    data = load_dataset(Data(name=str(grey_set(tmp_path / "set")), **FEW))
    source = torch.from_numpy(pictures(60)).float().unsqueeze(1) / 127.5 - 1
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2] * 6)
    for records in data.splits.values():
        assert torch.equal(records.labels.squeeze(1), labels[records.numbers])
        torch.testing.assert_close(records.images, source[records.numbers], rtol=0, atol=1e-6)
    assert data.label_names == (("ant", "bee", "cat"),)
    assert_cut(data, [(("test",), labels[40:]), ([s for s in SPLITS if s != "test"], labels[:40])])


def test_classes_that_nobody_names_are_those_of_public_records(tmp_path: Path) -> None:
    """That there is a class must not be known from one private record: it is refused, or has its event."""
    encoded, labels = [png(p) for p in pictures(30)], [0, 1] * 15
    write(tmp_path / "few" / "x.parquet", encoded, labels)
    public = load_dataset(Data(name=str(tmp_path / "few"), **FEW)).splits["public"].numbers.tolist()
    labels[next(row for row in range(30) if row not in public)] = 2
    write(tmp_path / "numbered" / "x.parquet", encoded, labels)
    write(tmp_path / "named" / "x.parquet", encoded, labels, names=["ant", "bee", "hiv"])
    config = Data(name=str(tmp_path / "numbered"), **FEW)
    output = message(config)
    assert output.startswith("none of the 6 public records has the label '2' of 1 parquet file")
    assert "raise data.public" in output and "data.fitted_on" in output
    everybody = load_dataset(replace(config, fitted_on="all"))
    assert (everybody.fitted_columns, everybody.private_fit) == (("label",), "the classes, taken from all records")
    named = load_dataset(replace(config, name=str(tmp_path / "named")))
    assert (named.fitted_columns, named.private_fit, named.label_names) == ((), "", (("ant", "bee", "hiv"),))
    few = load_dataset(replace(config, name=str(tmp_path / "few")))
    assert (few.fitted_columns, few.private_fit, few.label_names) == (("label",), "", (("0", "1"),))


def test_the_public_rows_of_a_table_are_drawn_without_a_look_at_it(tmp_path: Path) -> None:
    """Also where the labels are others, and rows of other classes."""
    frame = pd.DataFrame({"age": range(60), "pays": ["yes", "no"] * 30})
    sets = []
    for name, pays in (("a", frame["pays"]), ("b", frame["pays"].replace("yes", "no").where(frame.index > 5, "yes"))):
        frame.assign(pays=pays).to_csv(tmp_path / f"{name}.csv", index=False)
        sets.append(load_dataset(Data(name=str(tmp_path / f"{name}.csv"), labels=("pays",), **FEW | {"public": 30})))
    one, other = (data.splits for data in sets)
    assert torch.equal(one["public"].numbers, other["public"].numbers)
    numbers = torch.cat([records.numbers for records in one.values()])
    assert {split: len(r) for split, r in one.items()} == {**FEW, "public": 30, "train": 12}
    assert len(numbers.unique()) == 60


def test_test_rows_are_the_sources_own(tmp_path: Path) -> None:
    splits = load_dataset(Data(name=str(grey_set(tmp_path / "set")), **FEW)).splits
    assert all((split == "test") == bool((r.numbers >= 40).all()) for split, r in splits.items())
    assert (len(splits["test"]), len(splits["train"])) == (9, 40 - 6 - 6 - 3)


def test_colour_raw_bytes_and_other_column_names(tmp_path: Path) -> None:
    pixels = pictures(30, shape=(4, 6, 3))
    columns = {"image": "img", "label": "fine_label", "raw": True}
    write(tmp_path / "set" / "x.parquet", [png(p) for p in pixels], [0, 1, 4] * 10, **columns)
    data = load_dataset(Data(name=str(tmp_path / "set"), **FEW))
    train = data.splits["train"]
    assert (data.shape, data.label_names) == ((3, 4, 6), (("0", "1", "4"),))
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)[train.numbers].float() / 127.5 - 1
    torch.testing.assert_close(train.images, expected, rtol=0, atol=1e-6)


def test_digest_depends_on_pixels_labels_and_cut(tmp_path: Path) -> None:
    encoded, labels = [png(p) for p in pictures(30)], [0, 1, 2] * 10
    other_pixels = [png(255 - pictures(1)[0]), *encoded[1:]]
    sets = {"same": (encoded, labels), "pixels": (other_pixels, labels), "labels": (encoded, [0, 1, 1] * 10)}
    digests = {}
    for name, (pngs, classes) in {"set": (encoded, labels), **sets}.items():
        write(tmp_path / name / "x.parquet", pngs, classes)
        digests[name] = load_dataset(Data(name=name, root=str(tmp_path), **FEW)).digest
    digests["cut"] = load_dataset(Data(name="set", root=str(tmp_path), split_seed=1, **FEW)).digest
    assert digests["set"] == digests["same"]
    assert len(set(digests.values())) == len(digests) - 1


@pytest.mark.skipif("RAYDIFF_DATA" not in os.environ, reason="RAYDIFF_DATA, the folder of data sets, is not set")
@pytest.mark.parametrize(
    ("name", "shape", "classes", "first"),
    [
        ("mnist", (1, 28, 28), 10, "0"),
        ("cifar10", (3, 32, 32), 10, "airplane"),
        ("cifar100", (3, 32, 32), 100, "apple"),
        ("faces", (1, 64, 64), 40, "s1"),
    ],
)
def test_real_sets(name: str, shape: tuple[int, int, int], classes: int, first: str) -> None:
    sizes: dict[str, Any] = {"train": 160, "public": 40, "validation": 40, "calibration": 40, "test": 80}
    data = load_dataset(Data(name=name, **sizes))
    assert (data.shape, data.cardinalities, data.label_names[0][0]) == (shape, (classes,), first)
    assert {split: len(r) for split, r in data.splits.items()} == sizes
    numbers = torch.cat([r.numbers for r in data.splits.values()])
    assert len(set(numbers.tolist())) == len(numbers)
    images = data.splits["train"].images
    assert images.min() >= -1 and images.max() <= 1 and images.std() > 0.2
    assert len(data.splits["train"].labels.unique()) > 0.7 * classes  # 160 rows at random hold 0.8 of 100 classes


def test_unknown_name_offers_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grey_set(tmp_path / "my_birds")
    assert message(Data(name="mnits", root=str(tmp_path))).endswith("; did you mean mnist?")
    assert "did you mean my_birds?" in message(Data(name="my_bird", root=str(tmp_path)))
    monkeypatch.delenv("RAYDIFF_DATA", raising=False)
    assert message(Data(name="digit")).endswith("; did you mean digits?")
    assert "known: digits, mnist, cifar10, cifar100, faces, colour-mnist, my_birds" in message(
        Data(name="qqqq", root=str(tmp_path))
    )


def test_root_must_be_set_and_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYDIFF_DATA", raising=False)
    assert "RAYDIFF_DATA" in message(Data(name="mnist"))
    gone = str(tmp_path / "gone")
    assert message(Data(name="mnist", root=gone)).endswith(f"(data.root, else RAYDIFF_DATA, is {gone})")
    assert f"data set 'mnist' is missing: no folder {tmp_path}/mnist" in message(Data(name="mnist", root=str(tmp_path)))


def test_splits_larger_than_the_data(tmp_path: Path) -> None:
    assert message(Data(test=1247)) == (
        "there are 1797 rows in 'digits', too few for data.test=1247 + data.public=250 + data.validation=200"
        " + data.calibration=100 + data.train>=1: lower some of these"
    )
    assert len(load_dataset(Data(test=1246)).splits["train"]) == 1
    grey_set(tmp_path / "set")
    sizes = FEW | {"test": 21}
    assert "20 test rows in 'set', too few for data.test=21:" in message(Data(name="set", root=str(tmp_path), **sizes))
    assert "40 train rows in 'set'" in message(Data(name="set", root=str(tmp_path), train=26, **FEW))


def test_empty_folder_and_empty_file(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    config = Data(name="set", root=str(tmp_path), **FEW)
    assert message(config) == f"{tmp_path}/set holds no parquet files and no folders of pictures"
    table = pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    pq.write_table(table, tmp_path / "set" / "x.parquet")
    assert message(config) == f"{tmp_path}/set/x.parquet holds no rows"


@pytest.mark.parametrize("keep", [0, 100, -100])
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    path = grey_set(tmp_path / "set") / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    assert message(Data(name=str(tmp_path / "set"), **FEW)).startswith(f"{path} cannot be read as parquet")


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (png(pictures(1)[0])[:-30], "cannot be decoded as a picture"),
        (b"no picture", "cannot be decoded as a picture"),
        (None, "holds no picture"),
        (png(pictures(1)[0], "RGBA"), "has the mode RGBA"),
    ],
    ids=["truncated", "not a picture", "null", "RGBA"],
)
def test_undecodable_picture(tmp_path: Path, bad: bytes | None, found: str) -> None:
    encoded = [png(p) for p in pictures(30)]
    write(tmp_path / "set" / "a.parquet", encoded, [0] * 30)
    path = write(tmp_path / "set" / "b.parquet", [*encoded[:12], bad, *encoded[13:]], [0] * 30)
    assert f"row 12 of {path} {found}" in message(Data(name=str(tmp_path / "set"), **FEW))
