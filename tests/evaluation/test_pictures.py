"""Pictures from the data's scale to 8 bits; curves of a new client's training and of attacks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from raydiff.data.picture_files import picture, to_bytes
from raydiff.evaluation.figures import draw_curves, draw_roc, roc


def test_the_scale_of_the_data_becomes_bytes() -> None:
    x = torch.tensor([-2.0, -1.0, -1 + 0.6 / 127.5, 0.0, 1.0, 3.0]).view(1, 1, 2, 3)
    pixels = to_bytes(x)
    assert pixels.shape == (1, 2, 3, 1) and pixels.flatten().tolist() == [0, 0, 1, 128, 255, 255]


def test_bytes_are_what_a_data_set_reads_back() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    read = pixels.float() / 127.5 - 1
    assert torch.equal(to_bytes(read.view(1, 16, 16)).flatten(), pixels)


def test_grey_and_colour() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).view(2, 4, 3)
    assert np.array_equal(np.asarray(picture(pixels)), pixels.numpy()) and picture(pixels).size == (4, 2)
    assert picture(pixels[:, :, :1]).mode == "L"
    with pytest.raises(ValueError, match=r"^a picture has 1 or 3 channels, got 2$"):
        picture(pixels[:, :, :2])


def row(rate: float, epoch: int, kd: float) -> dict[str, float]:
    return {"learning_rate": rate, "epoch": epoch, "kd_cnn": kd, "kd_cnn_floor": -0.25}


def test_a_line_for_each_rate_in_the_order_of_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    rows = [row(0.1, 0, 3.0), row(0.1, 2, 90.0), row(0.1, 1, 2.0), row(0.01, 0, 3.0), row(0.01, 1, 2.5)]
    draw_curves(rows, tmp_path / "curves.png", title="a client")
    (axes,) = figures[0].axes
    lines = {line.get_label(): ([*line.get_xdata()], [*line.get_ydata()]) for line in axes.lines}
    assert lines["0.1"] == ([0, 1, 2], [3.0, 2.0, 90.0]) and lines["0.01"] == ([0, 1], [3.0, 2.5])
    assert lines["floor"][1] == [-0.25, -0.25]
    assert axes.get_ylim()[1] == 6.0  # twice the distance at epoch 0: not as far as 90
    assert Image.open(tmp_path / "curves.png").info["privacy"] == "none"


def test_the_roc_curve_and_its_picture(tmp_path: Path) -> None:
    fpr, tpr = roc(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0, 4.0, 5.0]))
    assert fpr.tolist() == [0, 0, 0.25, 0.5, 0.75, 1] and tpr.tolist() == [0, 0.5, 0.5, 1, 1, 1]
    draw_roc({"loss": (torch.arange(3.0), torch.arange(4.0))}, tmp_path / "roc.png", title="of something")
    assert Image.open(tmp_path / "roc.png").info["privacy"] == "none"
