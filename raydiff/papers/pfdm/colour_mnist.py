"""The data set `colour-mnist`, on which PFDM's paper has its main figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from raydiff.data.partition import TEN_CLASSES
from raydiff.data.pictures import Picture
from raydiff.data.source import Source
from raydiff.data.source_registry import files


def read_colour_mnist(folder: Path | None, labels: Sequence[str]) -> Source:
    """MNIST with the digit drawn in one colour channel and zero in the others; labels (digit, colour).

    PFDM's Figure 6 shows client 1 with red 0, 1, 6, 7, 9 as majority and blue 2, 3, 4, 5, 8 as minority, and does not
    state the other clients' colours. Here these digits are red, the others blue, at every client.
    """
    mnist = files(folder, ())
    digit = mnist.labels[:, 0]
    blue = (~torch.isin(digit, torch.tensor(TEN_CLASSES))).long()

    def pictures(rows: Tensor) -> Iterator[Picture]:
        for row, (where, image) in zip(rows.tolist(), mnist.pictures(rows), strict=True):
            if isinstance(image, Image.Image):  # A damaged picture stays one.
                dark = Image.new("L", image.size)
                channels = (dark, dark, image) if blue[row] else (image, dark, dark)
                image = Image.merge("RGB", channels)
            yield where, image

    return Source(
        labels=torch.stack([digit, blue], dim=1),
        columns=("digit", "colour"),
        names=(mnist.names[0], ("red", "blue")),
        own_test=mnist.own_test,
        pictures=pictures,
        says=f"MNIST in colour, from {mnist.says}",
        notes=(*mnist.notes, f"coloured by digit: {' '.join(map(str, TEN_CLASSES))} red, the others blue"),
    )
