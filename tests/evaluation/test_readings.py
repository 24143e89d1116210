"""Which readings there are, under which names, in a client's report."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff.data.datasets import Dataset
from raydiff.data.records import Records
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.quality import downstream, features
from raydiff.evaluation.quality.distances import split_halves
from raydiff.evaluation.quality.neighbours import coverage
from raydiff.evaluation.sample_metrics import Drawn, sample_coverage
from raydiff.evaluation.suite import Instruments
from raydiff.federated.method import Deployed
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator
from raydiff.tree import Params

METRICS = ("accuracy", "kernel", "coverage", "labels", "memorization", "downstream")
KERNEL = Evaluation(metrics=METRICS, attacks=None, neighbours=2)
KINDS = ("precision", "recall", "density", "coverage")


def records(*counts: int, path: str) -> Records:
    """Class c is bright in row c."""
    of = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return Records(picture(of[:, None], generator(0, path)), of[:, None], torch.arange(len(of)))


def picture(labels: Tensor, rng: torch.Generator) -> Tensor:
    images = 0.3 * torch.randn(len(labels), 1, 8, 8, generator=rng) - 0.5
    images[torch.arange(len(labels)), 0, labels[:, 0]] += 1
    return images


SPLITS = {
    "train": records(1, path="train"),
    "public": records(20, 20, 20, path="public"),
    "validation": records(8, 8, 8, path="validation"),
    "calibration": records(1, path="calibration"),
    "test": records(20, 20, 4, path="test"),
}
DATASET = Dataset("made", SPLITS, (("a", "b", "c"),), "digest")
OWN = records(20, 20, 3, path="own")


@pytest.fixture(scope="module")
def cnn() -> Params:
    return features.train_cnn(SPLITS["public"], classes=3, dim=4, steps=5)


class Counting:
    """A sampler of true pictures that remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[Tensor] = []

    def __call__(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        self.asked.append(labels)
        return picture(labels, rng)


def report(cnn: Params, config: Evaluation, deployed: Deployed, split: str = "test") -> dict[str, float]:
    return columns(Instruments(config, DATASET, cnn).of_client(split)(deployed, OWN, generator(1)).metrics)


def test_coverage_is_read_for_groups_with_enough_records(cnn: Params) -> None:
    """Halves have 10, 10 and 2 records: the minority has a kernel distance, but no third nearest of two."""
    result = report(cnn, KERNEL, Deployed({"ddim": picture, "ancestral": picture}))
    for kind in KINDS:
        for group in ("all", "major", "all_real", "major_real"):
            assert math.isfinite(result[f"{kind}/{group}"]), (kind, group)
        assert f"ddim/{kind}/all" in result and f"ancestral/{kind}/all" in result
        assert f"{kind}/minor" not in result and f"ddim/{kind}/all_real" not in result
    assert "kd_cnn/minor" in result
    wide = report(cnn, replace(KERNEL, neighbours=9), Deployed({"ddim": picture}))
    assert not any(name.startswith("ddim/") for name in wide)  # The only sampler is what is measured anyhow.
    assert wide["coverage/all"] != result["coverage/all"] and "coverage/major" in wide
    assert "coverage/all" not in report(cnn, replace(KERNEL, neighbours=22), Deployed({"ddim": picture}))


def test_coverage_is_the_mean_over_both_halves() -> None:
    made, real = torch.randn(6, 2, generator=generator(0)), torch.arange(24.0).view(12, 2) / 10
    of = torch.zeros(12).long()
    reference = Records(torch.zeros(12, 1, 8, 8), of[:, None], torch.arange(12))
    drawn = Drawn(
        images=torch.zeros(6, 1, 8, 8),
        labels=of[:6, None],
        reference=reference,
        client_records=OWN,
        groups={"all": (0,)},
        deployed=Deployed(),
        dataset=DATASET,
        split="test",
        config=KERNEL,
        cnn={},
        rng=generator(0),
    )
    vars(drawn)["features"] = (made, real)
    result = columns(sample_coverage(drawn))
    a, b = (real[half] for half in split_halves(of, generator(0, "reference halves")))
    each = [coverage(made, half, neighbours=2) for half in (a, b)]
    assert result["recall/all"] == sum(c["recall"] for c in each) / 2
    assert result["coverage/all_real"] == coverage(a, b, neighbours=2)["coverage"]


def test_fed_back_the_training_images_are_all_flagged(cnn: Params) -> None:
    result = report(cnn, KERNEL, Deployed({"ddim": picture}))
    assert result["memorized_fraction/sanity"] == 1.0 and result["memorized_fraction"] == 0.0
    assert "memorized_fraction/sanity" not in report(cnn, KERNEL, Deployed({"ddim": picture}), "validation")


def test_downstream_is_of_the_final_samples(cnn: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "EPOCHS", 3)
    monkeypatch.setattr(downstream, "RATE", 3e-2)
    config = replace(KERNEL, downstream=("linear",))
    sampler = Counting()
    result = report(cnn, config, Deployed({"ddim": sampler}))
    names = {k for k in result if k.startswith("downstream")}
    assert names == {f"downstream/linear/{end}" for end in ("all", "major", "minor", "real")}
    assert result["downstream/linear/major"] > 0.8 and [len(labels) for labels in sampler.asked] == [22]
    plain = report(cnn, KERNEL, Deployed({"ddim": picture}))
    others = {k: v for k, v in result.items() if k not in names}
    assert others == pytest.approx(plain, rel=0, abs=0, nan_ok=True)  # two records have no jackknife
    assert not [k for k in report(cnn, config, Deployed({"ddim": picture}), "validation") if "downstream" in k]
    assert not [k for k in report(cnn, config, Deployed({"ddim": picture}, conditional=False)) if "downstream" in k]


def test_a_classifier_on_samples_alone_needs_no_features_and_no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "EPOCHS", 3)
    monkeypatch.setattr(downstream, "RATE", 3e-2)
    sizes: list[int] = []
    original = downstream.train

    def recorded(name: str, images: Tensor, of: Tensor, **more: Any) -> downstream.TrainedClassifier:
        sizes.append(len(images))
        return original(name, images, of, **more)

    monkeypatch.setattr(downstream, "train", recorded)
    config = Evaluation(metrics=("downstream",), attacks=None, downstream=("linear",), per_class=30, ceiling=False)
    result = report({}, config, Deployed({"ddim": picture}))
    assert set(result) == {f"downstream/linear/{end}" for end in ("all", "major", "minor")}
    assert result["downstream/linear/major"] > 0.8 and sizes == [3 * 30]  # and never on the client's own


def test_labels_per_class_are_rows_that_the_client_has() -> None:
    own = torch.tensor([[1, 5], [0, 6], [1, 7], [0, 6]])
    dealt = downstream.labels_per_class(own, 3)
    assert dealt.tolist() == [[0, 6], [0, 6], [0, 6], [1, 5], [1, 7], [1, 5]]


BAD = [{"neighbours": 0}, {"per_class": 1}, {"downstream": ("vgg",)}, {"metrics": ()}, {"attacks": ()}]


@pytest.mark.parametrize("settings", BAD)
def test_refusals(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Evaluation(**settings)
