"""Norms and pictures of the public split, checked by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raydiff.data import public_preview
from raydiff.data.records import Records


def records(values: list[float], classes: list[int], *, channels: int = 1) -> Records:
    """Pictures of 2 x 2, each of one value."""
    images = torch.tensor(values).view(-1, 1, 1, 1).expand(-1, channels, 2, 2).contiguous()
    return Records(images, torch.tensor(classes).unsqueeze(1), torch.arange(len(values)))


def test_norms_are_of_flattened_pictures() -> None:
    public = records([-1.0, 0.0, 0.5, 0.5], [0, 1, 0, 1])  # the mean is 0
    assert public_preview.measure_norms(public, None).tolist() == [2.0, 0.0, 1.0, 1.0]  # of 4 pixels of value v: 2 |v|
    assert public_preview.measure_norms(public, torch.tensor(-1.0)).tolist() == [0.0, 2.0, 3.0, 3.0]
    assert public_preview.suggest_clip(public, "grey") == public_preview.suggest_clip(public, "public") == 1.0
    assert public_preview.suggest_clip(public, "black") == 2.5
    for clip, part in ((0.5, "75.0%"), (1.0, "25.0%"), (1.5, "25.0%"), (2.0, "0.0%")):
        says = public_preview.describe_norms(public, center="grey", clip=clip)
        assert says.endswith(f"clip {clip:g} clips {part} of the public pictures")


@pytest.mark.parametrize(("channels", "names"), [(1, ["ant", "bee", "cat"]), (3, ["a", "b", "c", "d", "e", "f"])])
def test_pictures_are_written(tmp_path: Path, channels: int, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_preview, "CLASSES_SHOWN", 5)
    public = records([-1.0, 1.0, 0.0], [0, 1, 1], channels=channels)
    public_preview.draw_pictures(public, names, tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.text["privacy"] == "public split"
        assert 100 < image.width < 3000 and 100 < image.height < 3000
        shades = set(np.unique(np.asarray(image.convert("L"))).tolist())
    assert {0, 128, 255} <= shades  # the three pictures
