"""Decoding, conversion and resizing of n pictures to one tensor, of C channels and H x W pixels."""

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
MANY = 5000  # pictures from which on reading is announced
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded. Pillow has 43, and hands some, such as EPS, to other programs."""


def read(
    source: Source, rows: dict[str, Tensor], *, size: int | None, colour: Colour
) -> tuple[dict[str, Records], tuple[str, ...]]:
    """The records of each split and notes on conversions. Raises ValueError for a table with a size, and as `stack`."""
    if source.codes is not None:
        if size is not None or colour != "stored":
            raise ValueError(f"{source.says} are no pictures: data.size must be none and data.colour stored")
        codes = source.codes.float()[:, None, None, :]
        return {k: Records(codes[numbers], source.labels[numbers], numbers) for k, numbers in rows.items()}, ()
    every = torch.cat(list(rows.values()))
    if len(every) >= MANY:
        print(f"reading {len(every):,} pictures ...", file=sys.stderr, flush=True)
    order = every.argsort()
    encoded = source.pictures(every[order])
    images, notes = stack(encoded, order.tolist(), top=source.top, size=size, colour=colour)
    splits, start = {}, 0
    for split, numbers in rows.items():
        mine = images[start : start + len(numbers)]
        # Copy: the pickle of a view would carry the pixels of the other splits.
        mine = mine.clone() if mine.is_floating_point() else scaled(mine, source.top)
        base = None if source.base is None else source.base[numbers]
        splits[split] = Records(mine, source.labels[numbers], numbers, base)
        start += len(numbers)
    return splits, notes


def decode(data: bytes | None, where: str) -> Image.Image:
    """The picture in these bytes. Raises ValueError naming `where`, for large pictures before they are unpacked."""
    if data is None:
        raise ValueError(f"{where} holds no picture")
    check_stored(len(data), where)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        pixels = image.width * image.height
        if pixels <= limits.MOST_PIXELS:
            image.load()
            return image
        got = f"{pixels:,} pixels"
    except Image.DecompressionBombError:
        got = "far more pixels than that"
    except Exception as error:  # Each kind of damage has its own exception.
        raise ValueError(f"{where} cannot be decoded as a picture ({type(error).__name__})") from error
    raise ValueError(f"{where}: a picture may have {limits.MOST_PIXELS:,} pixels, and it has {got}: make it smaller")


def check_stored(nbytes: int, where: str) -> None:
    """Raises ValueError if a stored picture takes more than `sizes.MOST_BYTES`."""
    if nbytes > limits.MOST_BYTES:
        most = limits.shown(limits.MOST_BYTES)
        raise ValueError(f"{where} takes {limits.shown(nbytes)}, but a picture may take {most}: make it smaller")


def stack(
    pictures: Iterable[Picture], places: Sequence[int], *, top: int, size: int | None, colour: Colour
) -> tuple[Tensor, tuple[str, ...]]:
    """(n, C, H, W) with the i-th picture at places[i], and notes on conversions.

    uint8 in 0..top, or with `size` float32 on [-1, 1], cropped to the central square and resized by area averaging.
    Raises ValueError for pictures of unequal size or mode.
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
    """0..top -> [-1, 1], float32, a copy."""
    return pixels.float().div_(top / 2).sub_(1)


def resized(image: Tensor, size: int) -> Tensor:
    """(C, H, W) -> (C, size, size) by area averaging."""
    return F.interpolate(image.unsqueeze(0), size=(size, size), mode="area")[0]


def _pixels(image: Image.Image, where: str, *, size: int | None, colour: Colour) -> Tensor:
    """(C, H, W) uint8, C = 1 or 3."""
    if image.mode[0] in "IF":  # Pillow would truncate to 8 bits.
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
    size = "data.size to crop and resize them" if shape[1:] != other[1:] else ""
    mode = "data.colour to grey or rgb to convert them" if shape[0] != other[0] else ""
    remedies = " and ".join(filter(None, (size, mode)))
    says = f"{where} is {form(shape)}, but {first} is {form(other)}"
    return f"pictures must have one size and mode: {says} (set {remedies})"


def form(shape: Sequence[int]) -> str:
    """(C, H, W) as "W x H L" or "W x H RGB"."""
    return f"{shape[2]} x {shape[1]} {'L' if shape[0] == 1 else 'RGB'}"


def _notes(size: int | None, colour: Colour) -> tuple[str, ...]:
    """Conversions by the settings, not by the (private) pictures that need them."""
    converted = "" if colour == "stored" else f"converted to {MODES[colour]}, transparency dropped"
    cropped = f"cropped to the central square and resized to {size} x {size} by area averaging" if size else ""
    return tuple(filter(None, (converted, cropped)))
