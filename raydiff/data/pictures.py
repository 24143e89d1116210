"""Decoding, conversion and resizing of n pictures to one tensor, of C channels and H x W pixels."""

from __future__ import annotations

import io
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, PngImagePlugin, PpmImagePlugin, TiffImagePlugin
from torch import Tensor
from torch.nn import functional as F

from raydiff.data import sizes as limits
from raydiff.lookup import refuse
from raydiff.settings import Count, settings

Picture = tuple[str, Image.Image]  # (location, stored picture)
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


class PictureError(ValueError):
    """A stored picture that would not be read rightly."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}{problem}")
        self.kind = re.sub(r"\d[\d,]*", "", problem)  # without its sizes


class DamagedPictureError(PictureError):
    """A stored picture that cannot be decoded."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, f"{problem}: mend it, or leave such pictures out by --data.skip-damaged true")


def read_pictures(
    stored: Callable[[Tensor], Iterator[Picture]], rows: dict[str, Tensor], options: PictureOptions, *, top: int
) -> tuple[dict[str, tuple[Tensor, Tensor]], tuple[str, ...]]:
    """Return (pictures (n, C, H, W) on [-1, 1], their row numbers) of each split, and notes on conversions.

    With `skip_damaged` rows of damaged pictures are missing from their split, and no other row moves. Raises ValueError
    as `stack`.
    """
    every = torch.cat(list(rows.values()))
    if len(every) >= MANY:
        print(f"reading {len(every):,} pictures ...", file=sys.stderr, flush=True)
    images, intact = stack(_decoded(stored, every, options), len(every), options, top=top)
    out, start = dict[str, tuple[Tensor, Tensor]](), 0
    for split, asked in rows.items():
        part = slice(start, start + len(asked))
        start = part.stop
        kept = intact[part]
        mine = images[part][kept]  # Copied: a view's pickle has the pixels of other splits.
        out[split] = mine if mine.is_floating_point() else scaled(mine, top), asked[kept]
    return out, _notes(options, damaged=int((~intact).sum()))


def _decoded(
    stored: Callable[[Tensor], Iterator[Picture]], rows: Tensor, options: PictureOptions
) -> Iterator[tuple[int, Picture | PictureError]]:
    """(position in `rows`, picture or what is wrong with it), in the order of the source."""
    left = rows.argsort()
    while len(left):  # A generator ends at its first error: a new one goes on behind that picture.
        try:
            for place, picture in zip(left.tolist(), stored(rows[left]), strict=True):
                left = left[1:]
                yield place, picture
        except PictureError as error:
            if not (options.skip_damaged and isinstance(error, DamagedPictureError)):
                yield int(left[0]), error
            left = left[1:]


def decode(data: bytes | None, where: str) -> Image.Image:
    """The picture in these bytes, upright by its EXIF orientation. Raises PictureError, for large pictures before
    they are unpacked."""
    if data is None:
        raise DamagedPictureError(where, " holds no picture")
    check_stored(len(data), where)
    check_is_file(data, where)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if not (problem := _problem(image)):
            image.load()
            return ImageOps.exif_transpose(image)
    except Image.DecompressionBombError:
        problem = f": {LARGE} far more pixels than that: make it smaller"
    except Exception as error:  # Each kind of damage has its own exception.
        raise DamagedPictureError(where, f" cannot be decoded as a picture ({type(error).__name__})") from error
    raise PictureError(where, problem)


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
    """Raises PictureError if a file begins like a git-lfs pointer."""
    if bytes(head[: len(POINTER)]) == POINTER:
        raise PictureError(where, " is a git-lfs pointer, not the file itself: run git lfs pull in its repository")


def check_stored(nbytes: int, where: str) -> None:
    """Raises PictureError if a stored picture takes more than `sizes.MOST_BYTES`."""
    if nbytes > limits.MOST_BYTES:
        most = limits.shown(limits.MOST_BYTES)
        problem = f" takes {limits.shown(nbytes)}, but a picture may take {most}: make it smaller"
        raise PictureError(where, problem)


def stack(
    pictures: Iterable[tuple[int, Picture | PictureError]], count: int, options: PictureOptions, *, top: int
) -> tuple[Tensor, Tensor]:
    """(count, C, H, W) with each picture at its place, uint8 in 0..top, or with `size` float32 on [-1, 1]; (count,)
    whether there is a picture for the place. Raises ValueError with all that is wrong, or without any picture."""
    out, first, filled = torch.empty(0), "", torch.zeros(count, dtype=torch.bool)
    problems = defaultdict[str, list[str]](list)
    for place, picture in pictures:
        try:
            if isinstance(picture, PictureError):
                raise picture
            where, pixels = picture[0], _pixels(*picture, options, top)
        except PictureError as error:
            problems[error.kind].append(str(error))
            continue
        if not first:
            what, remedy = f"{count:,} pictures like {where}", "set data.size, or fewer in data.train"
            limits.check_fits(what, 4 * count * pixels.numel(), remedy)
            out, first = torch.empty(count, *pixels.shape, dtype=pixels.dtype), where
        if pixels.shape == (wanted := out.shape[1:]):
            out[place], filled[place] = pixels, True
            continue
        crop = "data.size to crop and resize them" if pixels.shape[1:] != wanted[1:] else ""
        convert = "data.colour to grey or rgb to convert them" if pixels.shape[0] != wanted[0] else ""
        remedies = " and ".join(filter(None, (crop, convert)))
        says = f"{where} is {form(pixels.shape)}, but {first} is {form(wanted)}"
        problems[remedies].append(f"pictures must have one size and mode: {says} (set {remedies})")
    refuse(problems)
    if not first:
        raise ValueError(f"none of {count:,} pictures can be decoded")
    return out, filled


def scaled(pixels: Tensor, top: int) -> Tensor:
    """0..top -> [-1, 1], float32, a copy."""
    return pixels.float().div_(top / 2).sub_(1)


def resized(image: Tensor, size: int) -> Tensor:
    """(C, H, W) -> (C, size, size), each pixel the mean of the area that it covers."""
    if all(n % size == 0 or size % n == 0 for n in image.shape[1:]):
        return F.interpolate(image.unsqueeze(0), size=(size, size), mode="area")[0]
    # Torch's "area" averages whole pixels, also those that are covered in part.
    height, width = (_covered(n, size) for n in image.shape[1:])
    return (height @ image.double() @ width.T / (height[0].sum() * width[0].sum())).float()


def _covered(n: int, size: int) -> Tensor:
    """(size, n) float64: how much of each of n pixels each of `size` pixels covers, in 1 / size of a pixel."""
    start, pixel = n * torch.arange(size)[:, None], size * torch.arange(n)
    overlap = torch.minimum(start + n, pixel + size) - torch.maximum(start, pixel)
    return overlap.clamp_min(0).double()


def _pixels(where: str, image: Image.Image, options: PictureOptions, top: int) -> Tensor:
    """(C, H, W) as in `stack`, C = 1 or 3. Raises PictureError."""
    if image.mode[0] in "IF":  # Pillow would truncate to 8 bits.
        raise PictureError(where, f" has the mode {image.mode}, {DEEP}")
    mode = image.mode + " with transparency" * ("transparency" in image.info)
    if options.colour != "stored":
        image.info.pop("transparency", None)
        try:
            image = image.convert(MODES[options.colour])
        except ValueError:
            raise PictureError(where, f" has the mode {mode}, which is not converted: save it as RGB first") from None
    elif mode not in ("L", "RGB"):
        remedy = "set data.colour to grey or rgb to convert"
        raise PictureError(where, f" has the mode {mode}, but pictures must be L (grey) or RGB: {remedy}")
    if options.size is not None and image.width != image.height:
        side = min(image.size)
        left, upper = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, upper, left + side, upper + side))
    pixels = torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1).contiguous()
    return pixels if options.size is None else resized(scaled(pixels, top), options.size)


def form(shape: Sequence[int]) -> str:
    """(C, H, W) as "W x H L" or "W x H RGB"."""
    return f"{shape[2]} x {shape[1]} {'L' if shape[0] == 1 else 'RGB'}"


def _notes(options: PictureOptions, *, damaged: int) -> tuple[str, ...]:
    """Conversions by the settings, not by the (private) pictures that need them; and damaged pictures, if skipped."""
    notes = [f"damaged pictures left out: {damaged}"] if damaged else []
    if options.colour != "stored":
        notes.append(f"converted to {MODES[options.colour]}, transparency dropped")
    if (size := options.size) is not None:
        notes.append(f"cropped to the central square and resized to {size} x {size} by area averaging")
    return tuple(notes)
