"""clean-fid's Inception without clean-fid's weights: another network in their file, and no file at all."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from raydiff.data.datasets import Dataset
from raydiff.data.modality import PICTURES
from raydiff.data.records import Records
from raydiff.evaluation import suite
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.quality import inception
from raydiff.evaluation.quality.distances import frechet_metric, kernel_metric


class Means(nn.Module):
    """Mean of each channel, then zeros: 2048 numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x.mean(dim=[2, 3]), [0, 2045])


class Fake(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = Means()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / inception.FILE
    torch.jit.save(torch.jit.script(Fake()), str(path))
    return path


def records(*classes: int) -> Records:
    of = torch.tensor(classes)[:, None]
    return Records(torch.zeros(len(classes), 1, 8, 8), of, torch.arange(len(classes)))


def dataset() -> Dataset:
    splits = {name: records(*[0, 1] * 20) for name in ("train", "public", "validation", "calibration", "test")}
    return Dataset("made", splits, (("a", "b"),), "digest")


def test_pictures_are_resized_and_scaled_as_clean_fid_does_it(file: Path) -> None:
    """From 8 bits, by PIL's bicubic filter without rounding, to (x - 128) / 128."""
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    result = inception.inception(images, str(file))
    assert result.shape == (3, 2048)
    for picture, features in zip(images, result, strict=True):
        pixels = ((picture[0] + 1) * 127.5).round().numpy().astype(np.float32)
        large = np.asarray(Image.fromarray(pixels, mode="F").resize((299, 299), Image.Resampling.BICUBIC)).clip(0, 255)
        expected = (float(large.mean(dtype=np.float64)) - 128) / 128
        assert features[:3].tolist() == pytest.approx([expected] * 3, abs=1e-4) and not features[3:].any()
    assert torch.equal(inception.inception(images.expand(-1, 3, -1, -1), str(file.parent)), result)


def test_only_its_distances_are_fid_and_kid() -> None:
    assert (frechet_metric("cnn", "all").name, kernel_metric("cnn", "all").name) == ("fd_cnn", "kd_cnn")
    assert str(Evaluation(features="inception").headline(PICTURES)) == "eval/fid/all"
    assert str(Evaluation(features="inception", metrics=("kernel",)).headline(PICTURES)) == "eval/kid/all"


def test_without_weights_it_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inception, "USUAL", tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path}/{inception.FILE}: download https.* or give evaluation.weights$"):
        suite.check(Evaluation(features="inception", attacks=None), dataset(), [records(0, 1)])
    suite.check(Evaluation(dim=4, attacks=None), dataset(), [records(0, 1)])


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^evaluation.weights must be the file inception-2015-12-05.pt or its folder"):
        inception.check(str(tmp_path / "gone.pt"))
    (tmp_path / "x.pt").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"x.pt does not hold clean-fid's Inception \(RuntimeError\)$"):
        inception.check(str(tmp_path / "x.pt"))
    torch.jit.save(torch.jit.script(Means()), str(tmp_path / "means.pt"))
    with pytest.raises(ValueError, match=r"means.pt does not hold clean-fid's Inception \(AttributeError\)$"):
        inception.check(str(tmp_path / "means.pt"))
