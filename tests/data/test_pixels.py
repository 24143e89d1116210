"""Stored pictures of every format and mode: refused by name, or read as their pixels are."""

import io
import itertools
import struct
import zlib
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from raydiff.data.datasets import Data
from raydiff.data.pictures import FORMATS, Colour, decode, resize_by_area, stack

Pixels = NDArray[Any]
RGB = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
GREY, SMALL = RGB[..., 0], np.random.default_rng(1).integers(0, 256, (6, 9, 3)).astype(np.uint16)  # black if cut to 8


def read(data: bytes, colour: Colour = "stored") -> Pixels:
    """(C, H, W)."""
    return stack([(0, ("it", decode(data, "it")))], 1, Data(colour=colour), top=255)[0][0].numpy()


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def png(pixels: Pixels, kind: int, *, bits: int = 16, more: bytes = b"") -> bytes:
    """Of rows (H, W, C) or (H, packed) as big-endian numbers of this many bits."""
    raw = b"".join(b"\0" + row.astype(">u2" if bits == 16 else np.uint8).tobytes() for row in pixels)
    size = struct.pack(">IIBBBBB", 9, 6, bits, kind, 0, 0, 0)

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    parts = part(b"IHDR", size) + more + part(b"IDAT", zlib.compress(raw)) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff(pixels: Pixels, photometric: int, *, order: str = "<", extra: int | None = None) -> bytes:
    """One uncompressed strip of (H, W, C)."""
    channels, bits = pixels.shape[2], pixels.dtype.itemsize * 8
    strip = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    tags = [(256, [9]), (257, [6]), (258, [bits] * channels), (259, [1]), (262, [photometric]), (273, [0])]
    tags += [(277, [channels]), (278, [6]), (279, [len(strip)]), *([(338, [extra])] if extra is not None else [])]
    more, end = b"", 8 + 2 + 12 * len(tags) + 4
    entries = b""
    for tag, values in tags:
        packed = struct.pack(f"{order}{len(values)}H", *values)
        if len(packed) > 4:
            packed, more = struct.pack(f"{order}I", end + len(more)), more + packed
        entries += struct.pack(f"{order}HHI", tag, 3, len(values)) + packed.ljust(4, b"\0")
    place = struct.pack(f"{order}HHIH", 273, 3, 1, 0)
    entries = entries.replace(place, struct.pack(f"{order}HHIH", 273, 3, 1, end + len(more)))
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(tags))
    return head + entries + bytes(4) + more + strip


def pnm(magic: str, most: int, values: Pixels) -> bytes:
    body = values.astype(">u2" if most > 255 else np.uint8).tobytes()
    plain = " ".join(map(str, values.flatten().tolist())).encode()
    return f"{magic}\n9 6\n{most}\n".encode() + (plain if magic in ("P2", "P3") else body)


WITH_ALPHA = np.dstack([SMALL, SMALL[..., 0]])
DEEP = {
    "PNG grey": png(SMALL[..., :1], 0),
    "PNG RGB": png(SMALL, 2),
    "PNG grey, alpha": png(SMALL[..., :2], 4),
    "PNG RGB, alpha": png(WITH_ALPHA, 6),
    **{f"TIFF RGB {order}": tiff(SMALL, 2, order=order) for order in "<>"},
    **{f"TIFF RGBA {extra}": tiff(WITH_ALPHA, 2, extra=extra) for extra in (0, 1, 2)},
    "TIFF CMYK": tiff(WITH_ALPHA, 5),
    **{f"TIFF grey {order}": tiff(SMALL[..., :1], 1, order=order) for order in "<>"},
    **{f"TIFF {mode}": saved(Image.new(mode, (9, 6)), "TIFF") for mode in ("I", "F", "I;16", "I;16B")},
    **{f"{m} {most}": pnm(m, most, SMALL) for m, most in itertools.product(("P3", "P6"), (256, 1023, 65535))},
    **{f"{m} {most}": pnm(m, most, SMALL[..., 0]) for m, most in itertools.product(("P2", "P5"), (256, 4095, 65535))},
    "PNM of floats": saved(Image.new("F", (9, 6)), "PPM"),
}


@pytest.mark.parametrize("colour", get_args(Colour))
@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_are_refused(name: str, colour: Colour) -> None:
    with pytest.raises(
        ValueError, match=r"^it has the mode .*, more than 8 bits a channel: convert it to 8 bits first$"
    ):
        read(DEEP[name], colour)


def packed(values: Pixels, bits: int) -> Pixels:
    """(H, W) numbers of so many bits as rows of bytes."""
    each = ((values[..., None] >> np.arange(bits - 1, -1, -1)) & 1).astype(np.uint8)
    return np.packbits(each.reshape(len(values), -1), axis=1)


FEW = {bits: GREY >> (8 - bits) for bits in (2, 4)}
EXACT: dict[str, tuple[bytes, Pixels]] = {
    **{f"{form} grey": (saved(Image.fromarray(GREY), form), GREY[None]) for form in ("PNG", "BMP", "PPM", "TIFF")},
    **{
        f"{form} RGB": (saved(Image.fromarray(RGB), form, **({"lossless": True} if form == "WEBP" else {})), RGB)
        for form in ("PNG", "BMP", "PPM", "TIFF", "WEBP")
    },
    **{f"PNG of {b} bits": (png(packed(v, b), 0, bits=b), (v * (255 // (2**b - 1)))[None]) for b, v in FEW.items()},
    **{f"PGM of {2**b} values": (pnm("P5", 2**b - 1, v), (v * (255 // (2**b - 1)))[None]) for b, v in FEW.items()},
    "PPM of 16 values": (pnm("P6", 15, RGB >> 4), (RGB >> 4) * 17),
    "TIFF of a big-endian": (tiff(RGB, 2, order=">"), RGB),
}


@pytest.mark.parametrize("name", EXACT)
def test_8_bits_and_fewer_are_read_as_they_are(name: str) -> None:
    data, pixels = EXACT[name]
    expected = pixels if len(pixels) == 1 else pixels.transpose(2, 0, 1)
    assert np.array_equal(read(data), expected)
    assert np.array_equal(read(data, "rgb"), np.broadcast_to(expected, (3, 6, 9)))
    if len(expected) == 1:
        assert np.array_equal(read(data, "grey"), expected)


OF_MODE = {"GIF": ("P",), "PNG": ("1", "P", "LA", "RGBA"), "WEBP": ("RGBA",), "JPEG": ("CMYK",), "BMP": ("1", "P")}
OF_MODE |= {"PPM": ("1",), "TIFF": ("1", "P", "PA", "LA", "RGBA", "RGBX", "CMYK", "YCbCr")}
OTHER = [(form, mode) for form, modes in OF_MODE.items() for mode in modes]


@pytest.mark.parametrize(("form", "mode"), OTHER)
def test_other_modes_are_converted_on_request(form: str, mode: str) -> None:
    image = Image.fromarray(RGB).convert("P").convert("PA") if mode == "PA" else Image.fromarray(RGB).convert(mode)
    data = saved(image, form, **({"lossless": True} if form == "WEBP" else {"quality": 100} if form == "JPEG" else {}))
    stored = Image.open(io.BytesIO(data)).mode
    if stored not in ("L", "RGB"):
        with pytest.raises(ValueError, match=f"^it has the mode {stored}, but .* set data.colour to grey or rgb"):
            read(data)
    expected = np.asarray(image.convert("RGB"))
    difference = read(data, "rgb").transpose(1, 2, 0).astype(int) - expected
    assert abs(difference).max() <= (8 if form == "JPEG" else 0)
    assert read(data, "grey").shape == (1, 6, 9)


def test_what_is_not_converted_is_said() -> None:
    assert set(FORMATS) == {"BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"}
    for mode, data in (("LAB", tiff(RGB, 8)), ("La", tiff(RGB[..., :2], 1, extra=1))):
        with pytest.raises(ValueError, match=f"^it has the mode {mode}, which is not converted: save it as RGB first$"):
            read(data, "grey")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_transparency_is_dropped_on_request_only(mode: str) -> None:
    """Also that of a colour, which Pillow keeps beside the pixels."""
    image = Image.fromarray(RGB).convert(mode)
    transparent = bytes(range(256)) if mode == "P" else (5, 6, 7) if mode == "RGB" else 5
    data = saved(image, "PNG", transparency=transparent)
    with pytest.raises(ValueError, match=f"^it has the mode {mode} with transparency, but"):
        read(data)
    assert np.array_equal(read(data, "rgb").transpose(1, 2, 0), np.asarray(image.convert("RGB")))
    assert np.array_equal(read(data, "grey")[0], np.asarray(image.convert("L")))


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "WEBP"])
def test_several_frames_are_refused(form: str) -> None:
    data = saved(Image.fromarray(RGB), form, save_all=True, append_images=[Image.fromarray(255 - RGB)])
    for colour in get_args(Colour):
        with pytest.raises(ValueError, match=r"^it has several frames: save one of them as a picture of its own$"):
            read(data, colour)


def test_a_photo_with_a_preview_is_the_photo() -> None:
    photo = saved(Image.fromarray(GREY), "MPO", save_all=True, append_images=[Image.fromarray(255 - GREY)])
    assert np.array_equal(read(photo), np.asarray(Image.open(io.BytesIO(photo)))[None])


TURNED = {
    1: RGB,
    2: RGB[:, ::-1],
    3: RGB[::-1, ::-1],
    4: RGB[::-1],
    5: RGB.transpose(1, 0, 2),
    6: np.rot90(RGB, -1),
    7: RGB[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(RGB),
}


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", TURNED)
def test_pictures_are_upright(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"quality": 100, "subsampling": 0} if form == "JPEG" else {"lossless": True} if form == "WEBP" else {}
    result = read(saved(Image.fromarray(RGB), form, exif=exif, **lossless)).transpose(1, 2, 0).astype(int)
    assert result.shape == TURNED[orientation].shape
    assert abs(result - TURNED[orientation]).max() <= (12 if form == "JPEG" else 0)


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage, no directory", b"Exif\0\0MM\0*\0\0\0\x08\0\x05cut"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_damaged_orientation_turns_nothing(exif: bytes) -> None:
    assert read(saved(Image.fromarray(RGB), "JPEG", exif=exif)).shape == (3, 6, 9)


@pytest.mark.parametrize("keep", [0, 1, 40, -30])
def test_a_damaged_picture_is_refused(keep: int) -> None:
    left_out = "leave such pictures out by --data.skip-damaged true"
    with pytest.raises(ValueError, match=rf"^it cannot be decoded .* {left_out}$"):
        read(saved(Image.fromarray(RGB), "PNG")[:keep])


@pytest.mark.parametrize(
    ("n", "size"), [(28, 8), (28, 14), (28, 32), (8, 16), (8, 3), (7, 7), (5, 12), (64, 10), (3, 1), (1, 4), (17, 16)]
)
def test_resizing_is_the_mean_of_the_covered_area(n: int, size: int) -> None:
    """Of n pixels repeated `size` times, each new pixel is the mean of n."""
    pixels = torch.randint(0, 256, (2, n, n), generator=torch.Generator().manual_seed(n)).float()
    fine = pixels.double().repeat_interleave(size, 1).repeat_interleave(size, 2)
    expected = fine.view(2, size, n, size, n).mean((2, 4))
    torch.testing.assert_close(resize_by_area(pixels, size), expected.float(), rtol=0, atol=3e-5)


def test_whole_ratios_keep_their_bits() -> None:
    """The published results are of 14 x 14 pixels of MNIST's 28 x 28."""
    pixels = torch.randint(0, 256, (1, 28, 28), generator=torch.Generator().manual_seed(0)).float()
    for size in (28, 14, 7, 56):
        area = torch.nn.functional.interpolate(pixels[None], size=(size, size), mode="area")[0]
        assert torch.equal(resize_by_area(pixels, size), area)
