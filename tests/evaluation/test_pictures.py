"""Pictures: from the data's scale to 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raydiff.evaluation.grids import picture, to_bytes


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
