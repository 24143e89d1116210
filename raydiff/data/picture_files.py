"""Generated pictures as parquet files in the Hugging Face image layout, and as sample grids."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin
from torch import Tensor

from raydiff.data.records import label_numbers
from raydiff.formats.json_files import dumps
from raydiff.tree import finite

ROWS = 8  # clients shown
SCALE = 4  # small pictures are enlarged by this


def to_bytes(images: Tensor) -> Tensor:
    """Map [-1, 1] to 0..255, rounded: (..., C, H, W) float -> (..., H, W, C) uint8."""
    return ((finite(images, "pictures").clamp(-1, 1) + 1) * 127.5).round().byte().movedim(-3, -1)


def to_picture(pixels: Tensor) -> Image.Image:
    """Return pixels (H, W, C) uint8 as a PIL image. Raises ValueError unless C is 1 (grey) or 3 (RGB)."""
    if pixels.shape[2] not in (1, 3):
        raise ValueError(f"a picture has 1 or 3 channels, got {pixels.shape[2]}")
    array = pixels.numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def write_parquet(
    path: Path, pixels: Tensor, labels: Tensor, *, names: Mapping[str, Sequence[str]], about: Mapping[str, str]
) -> None:
    """Write one file: pixels (n, H, W, C) uint8, labels (n, K) as the numbers that classes are called by."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = {column: label_numbers(values) for column, values in names.items()}
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    for column, values in names.items():
        features[column] = {"_type": "Value", "dtype": "int64"}
        if numbers[column] == list(range(len(values))):  # as a ClassLabel counts
            features[column] = {"_type": "ClassLabel", "names": list(values)}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", image), *((column, pa.int64()) for column in names)],
        metadata={"huggingface": dumps({"info": {"features": features}}), "raydiff": dumps(about)},
    )
    images = []
    for each in pixels:
        buffer = io.BytesIO()
        to_picture(each).save(buffer, format="PNG")
        images.append({"bytes": buffer.getvalue(), "path": None})
    columns = {c: [numbers[c][v] for v in values.tolist()] for c, values in zip(names, labels.T, strict=True)}
    pq.write_table(pa.Table.from_pydict({"image": images, **columns}, schema=schema), path)


def sample_grid(
    pictures: Sequence[Tensor], path: Path, *, privacy: str, most: int = ROWS, names: Sequence[str] = ()
) -> None:
    """Write one row per client (the first `most`), one column per picture; pictures (n, C, H, W) on [-1, 1].

    `names` are written before the rows, `privacy` into the PNG's metadata.
    """
    columns = max(len(p) for p in pictures)
    c, h, w = pictures[0].shape[1:]
    grid = torch.full((len(pictures[:most]), columns, c, h + 1, w + 1), -1.0)  # with lines between pictures
    for row, p in zip(grid, pictures, strict=False):
        row[: len(p), :, :h, :w] = p
    image = to_picture(to_bytes(grid.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)))
    scale = max(1, SCALE * 8 // w)
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    if names:
        image = _write_names(image, names[:most])
    text = PngImagePlugin.PngInfo()
    text.add_text("privacy", privacy)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, pnginfo=text)


def _write_names(image: Image.Image, names: Sequence[str]) -> Image.Image:
    """The picture with the rows' names in a left margin."""
    font = ImageFont.load_default(size=12)
    row = image.height // len(names)
    margin = 8 + max(round(font.getlength(name)) for name in names)
    wide = Image.new(image.mode, (margin + image.width, image.height))
    wide.paste(image, (margin, 0))
    for i, name in enumerate(names):
        ImageDraw.Draw(wide).text((4, i * row + row // 2), name, font=font, anchor="lm", fill="white")
    return wide
