"""From encoded pictures to one tensor: decoded, converted and resized only where that was asked for.

Shapes: n pictures, C channels, H x W pixels.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from raydiff.data import sizes as limits
from raydiff.data.records import Records
from raydiff.data.source import Picture, Source

Colour = Literal["stored", "grey", "rgb"]
MODES = {"grey": "L", "rgb": "RGB"}
MANY = 5000
"""Pictures whose reading takes so long that it is said."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a picture may be stored as: Pillow knows 43 formats, and hands some of them, such as EPS, to other programs."""


def read(
    source: Source, rows: dict[str, Tensor], *, size: int | None, colour: Colour
) -> tuple[dict[str, Records], tuple[str, ...]]:
    """The records at the row numbers of each split, and notes on what was done to their pictures.

    Of a table, the codes of its rows. Raises ValueError where a table is to have a size or colour.
    """
    if source.codes is not None:
        if size is not None or colour != "stored":
            raise ValueError(f"{source.says} are no pictures: data.size must be none and data.colour stored")
        codes = source.codes.float()[:, None, None, :]
        return {k: Records(codes[numbers], source.labels[numbers], numbers) for k, numbers in rows.items()}, ()
    together = torch.cat(list(rows.values()))
    if len(together) >= MANY:
        print(f"reading {len(together):,} pictures ...", file=sys.stderr, flush=True)
    order = together.argsort()
    encoded = source.pictures(together[order])
    images, notes = stack(encoded, order.tolist(), top=source.top, size=size, colour=colour)
    splits, start = {}, 0
    for split, numbers in rows.items():
        mine = images[start : start + len(numbers)]
        # This must copy: the pickle of a view would carry the pixels of the other splits.
        mine = mine.clone() if mine.is_floating_point() else scaled(mine, source.top)
        base = None if source.base is None else source.base[numbers]
        splits[split] = Records(mine, source.labels[numbers], numbers, base)
        start += len(numbers)
    return splits, notes


def decode(data: bytes | None, where: str) -> Image.Image:
    """The picture in these bytes, of one of the `FORMATS`. Raises ValueError that says `where` it is from, before it is
    unpacked where it is too large."""
    if data is None:
        raise ValueError(f"{where} holds no picture")
    check_stored(len(data), where)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        pixels = image.width * image.height
        if pixels <= limits.MOST_PIXELS:
            image.load()
            return image
        found = f"{pixels:,} pixels"
    except Image.DecompressionBombError:
        found = "far more pixels than that"
    except Exception as error:  # Each kind of damage has its own exception.
        raise ValueError(f"{where} cannot be decoded as a picture ({type(error).__name__})") from error
    raise ValueError(f"{where}: a picture may have {limits.MOST_PIXELS:,} pixels, and it has {found}: make it smaller")


def check_stored(nbytes: int, where: str) -> None:
    """Raises ValueError where a picture takes more than `sizes.MOST_BYTES` as it is stored."""
    if nbytes > limits.MOST_BYTES:
        most = limits.shown(limits.MOST_BYTES)
        raise ValueError(f"{where} takes {limits.shown(nbytes)}, but a picture may take {most}: make it smaller")


def stack(
    pictures: Iterable[Picture], places: Sequence[int], *, top: int, size: int | None, colour: Colour
) -> tuple[Tensor, tuple[str, ...]]:
    """(n, C, H, W) with the i-th picture at places[i], and notes on what is done to pictures.

    uint8 in 0..top, or, where `size` is given, float32 on [-1, 1]: each picture is then cropped to its central square
    and resized by area averaging before it is stacked. Raises ValueError on pictures that do not go together.
    """
    out, first = torch.empty(0), ""
    for place, (where, image) in zip(places, pictures, strict=True):
        pixels = _pixels(image, where, size=size, colour=colour)
        if size is not None:
            pixels = resized(scaled(pixels, top), size)
        if not first:
            what, remedy = f"{len(places):,} pictures like {where}", "set data.size, or fewer in data.train"
            limits.check_fits(what, 4 * len(places) * pixels.numel(), remedy)
            out, first = torch.empty(len(places), *pixels.shape, dtype=pixels.dtype), where
        if pixels.shape != out.shape[1:]:
            raise ValueError(_misfit(where, pixels.shape, first, out.shape[1:]))
        out[place] = pixels
    return out, _notes(size, colour)


def scaled(pixels: Tensor, top: int) -> Tensor:
    """0..top -> [-1, 1], float32; never a view."""
    return pixels.float().div_(top / 2).sub_(1)


def resized(image: Tensor, size: int) -> Tensor:
    """(C, H, W) -> (C, size, size), each new pixel the mean of the area that it covers."""
    return F.interpolate(image.unsqueeze(0), size=(size, size), mode="area")[0]


def _pixels(image: Image.Image, where: str, *, size: int | None, colour: Colour) -> Tensor:
    """(C, H, W) uint8, C = 1 or 3."""
    if image.mode[0] in "IF":  # Pillow would cut off what does not fit into 8 bits
        raise ValueError(f"{where} has the mode {image.mode}, more than 8 bits a channel: convert it to 8 bits first")
    if colour != "stored":
        image = image.convert(MODES[colour])
    elif image.mode not in ("L", "RGB"):
        remedy = "set data.colour to grey or rgb to convert"
        raise ValueError(f"{where} has the mode {image.mode}, but pictures must be L (grey) or RGB: {remedy}")
    if size is not None and image.width != image.height:
        side = min(image.size)
        left, upper = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, upper, left + side, upper + side))
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1).contiguous()


def _misfit(where: str, shape: Sequence[int], first: str, other: Sequence[int]) -> str:
    remedies = []
    if shape[1:] != other[1:]:
        remedies.append("data.size to crop and resize them")
    if shape[0] != other[0]:
        remedies.append("data.colour to grey or rgb to convert them")
    says = f"{where} is {form(shape)}, but {first} is {form(other)}"
    return f"pictures must have one size and mode: {says} (set {' and '.join(remedies)})"


def form(shape: Sequence[int]) -> str:
    """(C, H, W) as "W x H L" or "W x H RGB"."""
    return f"{shape[2]} x {shape[1]} {'L' if shape[0] == 1 else 'RGB'}"


def _notes(size: int | None, colour: Colour) -> tuple[str, ...]:
    """What is done to pictures that need it: which ones do is theirs to know."""
    resized = f"cropped to the central square and resized to {size} x {size} by area averaging"
    converted = "" if colour == "stored" else f"converted to {MODES[colour]}, transparency dropped"
    return tuple(filter(None, [converted, resized if size else ""]))
