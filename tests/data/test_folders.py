"""Folders of pictures: what is read, what is told, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sets import message, pictures

from raydiff.data.datasets import Data, load_dataset

FEW: dict[str, Any] = {"train": 2, "public": 4, "validation": 0, "calibration": 0, "test": 4}


def save(path: Path, pixels: Any, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)
    return path


def animals(folder: Path, *, first: int = 0, names: tuple[str, ...] = ("ant", "bee"), each: int = 6) -> Path:
    """`each` grey pictures of 4 x 4 for each class."""
    for c, name in enumerate(names):
        for i, pixels in enumerate(pictures(each, first=first + each * c)):
            save(folder / name / f"{i}.png", pixels)
    return folder


def test_the_class_is_the_folder(tmp_path: Path) -> None:
    data = load_dataset(Data(name=str(animals(tmp_path / "zoo")), **FEW))
    assert (data.label_columns, data.label_names, data.shape) == (("class",), (("ant", "bee"),), (1, 4, 4))
    of_class = torch.from_numpy(np.stack([pictures(6), pictures(6, first=6)], axis=1)).float()
    source = of_class.view(12, 1, 4, 4) / 127.5 - 1  # by the pictures' own names: of each the ant, then the bee
    for records in data.splits.values():
        torch.testing.assert_close(records.images, source[records.numbers], rtol=0, atol=1e-6)
        assert records.labels[:, 0].tolist() == (records.numbers % 2).tolist()
    assert data.says == f"12 pictures in 2 class folders of {tmp_path}/zoo" and data.notes == ()


def test_a_picture_in_another_class_folder_moves_no_other(tmp_path: Path) -> None:
    """Where each has a name of its own: so its place among the rows, and its split, do not tell of its class."""
    of_row = {}
    for moved in (False, True):
        zoo = tmp_path / f"{moved}"
        for i, pixels in enumerate(pictures(40)):
            save(zoo / ("bee" if i % 2 or (moved and i == 8) else "ant") / f"{i}.png", pixels)
        data = load_dataset(Data(name=str(zoo), public=12, validation=4, calibration=4, test=8))
        of_row[moved] = {name: r.images for name, r in data.splits.items()}
        labels = {int(n): int(c) for r in data.splits.values() for n, c in zip(r.numbers, r.labels[:, 0], strict=True)}
        assert sum(labels.values()) == 20 + moved
    assert all(torch.equal(of_row[False][split], of_row[True][split]) for split in of_row[False])


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    animals(tmp_path / "zoo" / "train")
    animals(tmp_path / "zoo" / "test", first=50, each=2)
    animals(tmp_path / "zoo" / "val", first=70, each=1)
    data = load_dataset(Data(name=str(tmp_path / "zoo"), **FEW))
    assert all((split == "test") == bool((r.numbers >= 12).all()) for split, r in data.splits.items() if len(r))
    assert data.notes == ("files left unread: 2, such as val/ant/0.png",)


def test_any_format_and_what_is_no_picture_is_told(tmp_path: Path) -> None:
    zoo = animals(tmp_path / "zoo")
    for suffix in ("bmp", "JPG", "gif"):
        save(zoo / "bee" / f"more.{suffix}", np.full((4, 4), 128, np.uint8))
    (zoo / "bee" / "notes.txt").write_text("none")
    (zoo / "bee" / ".hidden.png").write_text("none")
    (zoo / "cow").mkdir()
    data = load_dataset(Data(name=str(zoo), colour="grey", fitted_on="all", **FEW | {"train": None}))
    assert data.label_names == (("ant", "bee"),)
    assert sum(len(r) for r in data.splits.values()) == 15
    unread = "files left unread: 1, such as bee/notes.txt"
    assert data.notes == (unread, "converted to L, transparency dropped")  # the GIF has a palette


def test_size_crops_to_the_central_square_and_averages(tmp_path: Path) -> None:
    wide = np.zeros((2, 6), np.uint8)
    wide[:, 2:4] = [[0, 100], [200, 100]]  # the central square; its mean is 100
    for c in "ab":
        save(tmp_path / "zoo" / c / "0.png", np.full((4, 4), 60, np.uint8))
        save(tmp_path / "zoo" / c / "1.png", wide)
    sizes = {"train": None, "public": 0, "validation": 0, "calibration": 0, "test": 1}
    data = load_dataset(Data(name=str(tmp_path / "zoo"), size=1, fitted_on="all", **sizes))
    result = {
        int(n): float(v) for r in data.splits.values() for n, v in zip(r.numbers, r.images.flatten(), strict=True)
    }
    assert result == pytest.approx({0: 60 / 127.5 - 1, 1: 60 / 127.5 - 1, 2: 100 / 127.5 - 1, 3: 100 / 127.5 - 1})
    assert data.notes == ("cropped to the central square and resized to 1 x 1 by area averaging",)


def test_notes_tell_nothing_of_any_picture(tmp_path: Path) -> None:
    """They are the same whatever size and mode one picture has."""
    notes = []
    for name, odd, mode in (("a", (4, 4), None), ("b", (9, 5), None), ("c", (31, 31, 4), "RGBA"), ("d", (4, 4), "P")):
        zoo = animals(tmp_path / name)
        save(zoo / "bee" / "5.png", pictures(1, shape=odd)[0], mode)
        notes += [
            load_dataset(Data(name=str(zoo), size=4, colour="rgb", fitted_on="all", **FEW | {"train": None})).notes
        ]
    assert len(set(notes)) == 1 and notes[0]


@pytest.mark.parametrize(
    ("odd", "mode", "says"),
    [
        ((5, 4), None, "{bee}/5.png is 4 x 5 L, but {first} is 4 x 4 L (set data.size to crop and resize them"),
        (
            (4, 4, 3),
            None,
            "{bee}/5.png is 4 x 4 RGB, but {first} is 4 x 4 L (set data.size to crop",
        ),
        ((5, 4, 3), None, "(set data.size to crop and resize them, or data.colour to grey or rgb to convert them)"),
        ((4, 4, 3), "P", "{bee}/5.png has the mode P, but pictures must be L (grey) or RGB: set data.colour to grey"),
        ((4, 4), "I;16", "{bee}/5.png has the mode I;16, more than 8 bits a channel: convert it to 8 bits first"),
    ],
)
def test_pictures_that_do_not_go_together(tmp_path: Path, odd: Any, mode: str | None, says: str) -> None:
    zoo = animals(tmp_path / "zoo")
    save(zoo / "bee" / "5.png", pictures(1, shape=odd)[0], mode)
    sizes = FEW | {"train": None}
    assert says.format(bee=zoo / "bee", first=zoo / "ant" / "0.png") in message(Data(name=str(zoo), **sizes))


def test_a_format_that_is_not_allowed_is_not_opened(tmp_path: Path) -> None:
    """Pillow hands EPS to Ghostscript, a program of its own: neither by its ending nor under another's."""
    zoo = animals(tmp_path / "zoo")
    for name in ("4.eps", "5.tga"):
        save(zoo / "bee" / name, np.zeros((4, 4), np.uint8))
    data = load_dataset(Data(name=str(zoo), fitted_on="all", **FEW | {"train": None}))
    assert data.notes == ("files left unread: 2, such as bee/4.eps",)
    (zoo / "bee" / "5.tga").rename(zoo / "bee" / "3.png")
    other = str(zoo.rename(tmp_path / "other"))
    assert f"{other}/bee/3.png cannot be decoded as a picture" in message(Data(name=other, **FEW | {"train": None}))


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    save(zoo / "1.png", pictures(1)[0])
    said = "holds 1 pictures but no folders of pictures: put each class in a folder"
    assert message(Data(name=str(zoo), **FEW)) == f"{zoo} {said}"
    animals(zoo / "deep" / "deeper")
    animals(zoo / "shallow")
    assert message(Data(name=str(zoo), **FEW)).startswith(
        f"{zoo}/deep holds the folder deeper, but pictures must lie as"
    )
    alone = animals(tmp_path / "alone", names=("ant",), each=12)
    assert message(Data(name=str(alone), **FEW)).endswith("has one class only, 'ant': there is nothing to condition on")
    few = message(Data(name=str(animals(tmp_path / "few"))))
    assert few.startswith(f"there are 12 rows in '{tmp_path}/few', too few for data.test=400")
