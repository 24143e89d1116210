"""Generated pictures as parquet files in the Hugging Face image layout."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from raydiff.data.records import label_numbers
from raydiff.formats.json_files import dumps
from raydiff.tree import finite

if TYPE_CHECKING:
    from PIL.Image import Image


def to_bytes(images: Tensor) -> Tensor:
    """Map [-1, 1] to 0..255, rounded: (..., C, H, W) float -> (..., H, W, C) uint8."""
    return ((finite(images, "pictures").clamp(-1, 1) + 1) * 127.5).round().byte().movedim(-3, -1)


def picture(pixels: Tensor) -> Image:
    """Return pixels (H, W, C) uint8 as a PIL image. Raises ValueError unless C is 1 (grey) or 3 (RGB)."""
    from PIL import Image

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
        picture(each).save(buffer, format="PNG")
        images.append({"bytes": buffer.getvalue(), "path": None})
    columns = {c: [numbers[c][v] for v in values.tolist()] for c, values in zip(names, labels.T, strict=True)}
    pq.write_table(pa.Table.from_pydict({"image": images, **columns}, schema=schema), path)
