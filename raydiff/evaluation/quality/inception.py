"""clean-fid's Inception (Parmar et al., CVPR 2022), whose distances are called FID and KID.

Pictures are rounded to 8 bits, as in a file, and resized in clean-fid's mode "clean"; grey ones get three equal
channels.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raydiff.data.picture_files import to_bytes
from raydiff.models.compute import device, with_progress

FILE = "inception-2015-12-05.pt"
USUAL = Path("/tmp")  # clean-fid's folder
URL = f"https://nvlabs-fi-cdn.nvidia.com/stylegan2-ada-pytorch/pretrained/metrics/{FILE}"
BATCH = 64


def find_weights(path: str | None) -> Path:
    """Return the file of weights: `path` or in this folder, else in clean-fid's folder.

    Raises ValueError where it is missing, and where another user owns clean-fid's: TorchScript is code.
    """
    if path is not None:
        file = Path(path).expanduser()
        file = file / FILE if file.is_dir() else file
        if not file.is_file():
            raise ValueError(f"evaluation.weights must be the file {FILE} or its folder, got {path}")
        return file
    file = USUAL / FILE
    if not file.is_file():
        raise ValueError(f"evaluation.features = inception needs {file}: download {URL}, or give evaluation.weights")
    if file.stat().st_uid not in (0, os.getuid()):
        raise ValueError(
            f"{file} belongs to another user of this machine, and holds code that would run here: remove it, "
            "or give evaluation.weights"
        )
    return file


def check_weights(path: str | None) -> None:
    """Raise ValueError where `inception` would; does not use the accelerator."""
    _open_network(find_weights(path))


def inception(images: Tensor, weights: str | None) -> Tensor:
    """Return features (N, 2048) float32 of images (N, 1 or 3, H, W) on [-1, 1]. Raises as `find_weights`."""
    return _load(find_weights(weights).absolute())(images)


@functools.lru_cache(maxsize=1)
def _load(path: Path) -> Callable[[Tensor], Tensor]:
    from cleanfid.resize import build_resizer

    where = device()
    resize = build_resizer("clean")
    network = _open_network(path).to(where)

    @torch.no_grad()
    def features(images: Tensor) -> Tensor:
        three = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        batches = []
        for pixels in with_progress(to_bytes(three).split(BATCH)):
            large = torch.from_numpy(np.stack([resize(picture.numpy()) for picture in pixels])).movedim(3, 1).to(where)
            batches.append(network(large).cpu())
        return torch.cat(batches)

    return features


@functools.lru_cache(maxsize=1)
def _open_network(path: Path) -> torch.nn.Module:
    """clean-fid's wrapper of the network, on the CPU."""
    from cleanfid.inception_torchscript import InceptionV3W

    with tempfile.TemporaryDirectory() as folder:  # clean-fid takes a folder
        (Path(folder) / FILE).symlink_to(path.absolute())
        try:
            network: torch.nn.Module = InceptionV3W(folder, download=False).eval()
        except (RuntimeError, AttributeError) as e:  # no TorchScript, or another network
            raise ValueError(f"{path} does not hold clean-fid's Inception ({type(e).__name__})") from None
    return network
