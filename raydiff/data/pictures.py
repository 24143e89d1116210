"""Decoding, conversion and resizing of n pictures to one tensor, of C channels and H x W pixels."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, PngImagePlugin, PpmImagePlugin, TiffImagePlugin
from torch import Tensor
from torch.nn import functional as F

from raydiff.data import sizes as limits
from raydiff.settings import Count, settings


class DamagedPicture(ValueError):
    """A stored picture that cannot be decoded."""


Picture = tuple[str, Image.Image | DamagedPicture]  # (location, stored picture)
Colour = Literal["stored", "grey", "rgb"]
MODES = {"grey": "L", "rgb": "RGB"}
MANY = 5000  # pictures from which on reading is announced
# Pillow has 43 formats, and hands some, such as EPS, to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
POINTER = b"version https://git-lfs.github.com/"  # first bytes of what git-lfs puts in place of a large file
LARGE = f"a picture may have {limits.MOST_PIXELS:,} pixels, and it has"
DEEP = "more than 8 bits a channel: convert it to 8 bits first"


@settings(frozen=True, kw_only=True)
class PictureOptions:
    """How stored pictures are converted."""

    size: Count | None = None
    """Crop pictures to the central square and resize them to size x size by area averaging; None: as stored."""
    colour: Colour = "stored"
    """Convert all pictures to grey or rgb; stored: no conversion."""
    skip_damaged: bool = False
    """Leave out pictures that cannot be decoded; False: refuse them. The other records keep their splits."""


def read_pictures(
    stored: Callable[[Tensor], Iterator[Picture]], rows: dict[str, Tensor], options: PictureOptions, *, top: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the pictures (n, C, H, W) on [-1, 1] of each split and their rows (n,). Raises as `decode` and `stack`."""
    every = torch.cat(list(rows.values()))
    if len(every) >= MANY:
        print(f"reading {len(every):,} pictures ...", file=sys.stderr, flush=True)
    order = every.argsort()
    images, intact = stack(zip(order.tolist(), stored(every[order]), strict=True), len(every), options, top=top)
    out = {}
    start = 0
    for split, numbers in rows.items():
        end = start + len(numbers)
        kept = intact[start:end]
        mine = images[start:end][kept]  # Copied: a view's pickle has the pixels of other splits.
        out[split] = mine if mine.is_floating_point() else scale_pixels(mine, top), numbers[kept]
        start = end
    return out


def decode(data: bytes | None, where: str) -> Image.Image | DamagedPicture:
    """Return the picture in these bytes, upright by its EXIF orientation, or why it cannot be decoded.

    Raises ValueError for other pictures that would not be read rightly, large ones before they are unpacked.
    """
    remedy = "mend it, or leave such pictures out by --data.skip-damaged true"
    if data is None:
        return DamagedPicture(f"{where} holds no picture: {remedy}")
    check_stored(len(data), where)
    check_is_file(data, where)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        problem = _problem(image)
        if not problem:
            image.load()
            return ImageOps.exif_transpose(image)
    except Image.DecompressionBombError:
        problem = f": {LARGE} far more pixels than that: make it smaller"
    except Exception as error:  # Each kind of damage has its own exception.
        return DamagedPicture(f"{where} cannot be decoded as a picture ({type(error).__name__}): {remedy}")
    raise ValueError(f"{where}{problem}")


def _problem(image: Image.Image) -> str:
    """Why an opened picture, not yet unpacked, would not be read rightly; "" if it would."""
    if (pixels := image.width * image.height) > limits.MOST_PIXELS:
        return f": {LARGE} {pixels:,} pixels: make it smaller"
    if getattr(image, "is_animated", False) and image.format != "MPO":  # a photo, then its previews
        return " has several frames: save one of them as a picture of its own"
    # Pillow cuts the 16 bits of a channel to 8 in modes such as RGB.
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        deep = max(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))) > 8
    elif isinstance(image, PngImagePlugin.PngImageFile | PpmImagePlugin.PpmImageFile):
        args = image.tile[0].args
        deep = int(args[1]) > 255 if isinstance(args, tuple) else str(args).endswith(";16B")
    else:
        deep = False
    return f" has the mode {image.mode}, {DEEP}" if deep else ""


def check_is_file(head: bytes, where: str) -> None:
    """Raises ValueError if a file begins like a git-lfs pointer."""
    if bytes(head[: len(POINTER)]) == POINTER:
        raise ValueError(f"{where} is a git-lfs pointer, not the file itself: run git lfs pull in its repository")


def check_stored(nbytes: int, where: str) -> None:
    """Raises ValueError if a stored picture takes more than `sizes.MOST_BYTES`."""
    if nbytes > limits.MOST_BYTES:
        raise ValueError(
            f"{where} takes {limits.format_bytes(nbytes)}, but a picture may take "
            f"{limits.format_bytes(limits.MOST_BYTES)}: make it smaller"
        )


def stack(
    pictures: Iterable[tuple[int, Picture]], count: int, options: PictureOptions, *, top: int
) -> tuple[Tensor, Tensor]:
    """Return (count, C, H, W) with each picture at its place, and (count,) bool whether there is one.

    They are uint8 in 0..top, or with `size` float32 on [-1, 1]. Raises ValueError for a picture of another size or mode
    than the first, for a damaged one unless these are skipped, and without any.
    """
    out = torch.empty(0)
    intact = torch.zeros(count, dtype=torch.bool)
    first = ""
    for place, (where, image) in pictures:
        if isinstance(image, DamagedPicture):
            if options.skip_damaged:
                continue
            raise image
        pixels = _pixels(where, image, options, top)
        if not first:
            first = where
            remedy = "set data.size, or fewer in data.train"
            limits.check_memory(f"{count:,} pictures like {where}", 4 * count * pixels.numel(), remedy)
            out = torch.empty(count, *pixels.shape, dtype=pixels.dtype)
        if pixels.shape != out.shape[1:]:
            raise ValueError(
                f"pictures must have one size and mode: {where} is {form(pixels.shape)}, but {first} is "
                f"{form(out.shape[1:])} (set data.size to crop and resize them, or data.colour to grey or rgb to "
                "convert them)"
            )
        out[place] = pixels
        intact[place] = True
    if not first:
        raise ValueError(f"none of {count:,} pictures can be decoded")
    return out, intact


def scale_pixels(pixels: Tensor, top: int) -> Tensor:
    """0..top -> [-1, 1], float32, a copy."""
    return pixels.float().div_(top / 2).sub_(1)


def resize_by_area(image: Tensor, size: int) -> Tensor:
    """(C, H, W) -> (C, size, size), each pixel the mean of the area that it covers."""
    if all(n % size == 0 or size % n == 0 for n in image.shape[1:]):
        return F.interpolate(image.unsqueeze(0), size=(size, size), mode="area")[0]
    # Torch's "area" averages whole pixels, also those that are covered in part.
    height, width = (_covered(n, size) for n in image.shape[1:])
    return (height @ image.double() @ width.T / (height[0].sum() * width[0].sum())).float()


def _covered(n: int, size: int) -> Tensor:
    """(size, n) float64: how much of each of n pixels each of `size` pixels covers, in 1 / size of a pixel."""
    start = n * torch.arange(size)[:, None]
    pixel = size * torch.arange(n)
    return (torch.minimum(start + n, pixel + size) - torch.maximum(start, pixel)).clamp_min(0).double()


def _pixels(where: str, image: Image.Image, options: PictureOptions, top: int) -> Tensor:
    """(C, H, W) as in `stack`, C = 1 or 3. Raises ValueError."""
    if image.mode[0] in "IF":  # Pillow would truncate to 8 bits.
        raise ValueError(f"{where} has the mode {image.mode}, {DEEP}")
    mode = image.mode + " with transparency" * ("transparency" in image.info)
    if options.colour != "stored":
        image.info.pop("transparency", None)
        try:
            image = image.convert(MODES[options.colour])
        except ValueError:
            raise ValueError(f"{where} has the mode {mode}, which is not converted: save it as RGB first") from None
    elif mode not in ("L", "RGB"):
        raise ValueError(
            f"{where} has the mode {mode}, but pictures must be L (grey) or RGB: set data.colour to grey or rgb to "
            "convert"
        )
    if options.size is not None and image.width != image.height:
        side = min(image.size)
        left = (image.width - side) // 2
        upper = (image.height - side) // 2
        image = image.crop((left, upper, left + side, upper + side))
    pixels = torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1).contiguous()
    return pixels if options.size is None else resize_by_area(scale_pixels(pixels, top), options.size)


def form(shape: Sequence[int]) -> str:
    """(C, H, W) as "W x H L" or "W x H RGB"."""
    return f"{shape[2]} x {shape[1]} {'L' if shape[0] == 1 else 'RGB'}"


def describe_conversion(
    options: PictureOptions, asked: Mapping[str, Sized], read: Mapping[str, Sized]
) -> tuple[str, ...]:
    """Return notes on conversions by the settings, not by the (private) pictures that need them, and on damaged ones.

    Of the rows that were `asked` for, by split, damaged pictures are missing in what was `read`.
    """
    damaged = sum(map(len, asked.values())) - sum(map(len, read.values()))
    notes = [f"damaged pictures left out: {damaged}"] if damaged else []
    if options.colour != "stored":
        notes.append(f"converted to {MODES[options.colour]}, transparency dropped")
    if options.size is not None:
        notes.append(f"cropped to the central square and resized to {options.size} x {options.size} by area averaging")
    return tuple(notes)
