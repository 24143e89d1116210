"""Norms and pictures of the public split, checked by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raydiff.data import overview
from raydiff.data.records import Records


def records(values: list[float], classes: list[int], *, channels: int = 1) -> Records:
    """Pictures of 2 x 2, each of one value."""
    images = torch.tensor(values).view(-1, 1, 1, 1).expand(-1, channels, 2, 2).contiguous()
    return Records(images, torch.tensor(classes).unsqueeze(1), torch.arange(len(values)))


def test_norms_are_of_flattened_pictures() -> None:
    result = overview.norms(records([-1.0, 0.0, 0.5, 0.5], [0, 1, 0, 1]))
    assert result.around.tolist() == [0.0, 1.0, 1.0, 2.0]  # the norm of 4 pixels of value v is 2 |v|
    assert result.centred.tolist() == [0.0, 1.0, 1.0, 2.0]  # the mean is 0
    assert result.suggested_clip == 1.0
    assert [result.clipped(c) for c in (0.5, 1.0, 1.5, 2.0)] == [0.75, 0.25, 0.25, 0.0]
    black = overview.norms(records([-1.0, 0.0, 0.5, 0.5], [0, 1, 0, 1]), center="black")
    assert black.around.tolist() == [0.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(("channels", "names"), [(1, ["ant", "bee", "cat"]), (3, ["a", "b", "c", "d", "e", "f"])])
def test_pictures_are_written(tmp_path: Path, channels: int, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "CLASSES_SHOWN", 5)
    public = records([-1.0, 1.0, 0.0], [0, 1, 1], channels=channels)
    overview.draw_pictures(public, names, tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.text["privacy"] == "public split"
        assert 100 < image.width < 3000 and 100 < image.height < 3000
        shades = set(np.unique(np.asarray(image.convert("L"))).tolist())
    assert {0, 128, 255} <= shades  # the three pictures
