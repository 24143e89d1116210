"""Train on synthetic, test on real; and the real ones choose nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.evaluation.quality import downstream
from raydiff.evaluation.quality.downstream import NETWORKS, readings, train
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator

GROUPS = {"all": (0, 1, 2), "major": (0, 1), "minor": (2,), "nobody": (7,)}


def stripes(n: int, *path: str, classes: int = 3, noise: float = 0.3, turn: int = 0) -> tuple[Tensor, Tensor]:
    """Class c is bright in row c (+ turn) of eight."""
    rng = generator(0, *path)
    of = torch.arange(n) % classes
    images = noise * torch.randn(n, 1, 8, 8, generator=rng) - 0.5
    images[torch.arange(n), 0, (of + turn) % classes] += 1
    return images, of


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the work, at ten times the rate."""
    monkeypatch.setattr(downstream, "EPOCHS", 5)
    monkeypatch.setattr(downstream, "LEAST_STEPS", 8)
    monkeypatch.setattr(downstream, "RATE", 3e-3)


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_what_is_learned_from_synthetic_records_is_measured_on_real_ones(name: str) -> None:
    test = stripes(60, "test")
    result = columns(readings([name], stripes(90, "a"), stripes(90, "b"), test, groups=GROUPS, classes=4))
    assert set(result) == {f"downstream/{name}/{end}" for end in ("all", "major", "minor", "real")}
    assert min(result.values()) > 0.9


def test_a_classifier_is_as_wrong_as_what_it_learned_from() -> None:
    made, own, test = stripes(90, "a", turn=1), stripes(90, "b"), stripes(60, "test")
    result = columns(readings(["linear"], made, own, test, groups=GROUPS, classes=4))
    assert result["downstream/linear/all"] < 0.1 < 0.9 < result["downstream/linear/real"]


def test_the_epoch_is_the_one_that_held_out_synthetic_records_like_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed from the parameters after every epoch."""
    seen: list[Any] = []
    original = downstream.fit

    def recorded(*args: Any, **more: Any) -> Any:
        out = original(*args, **more)
        seen.append(out[0])
        return out

    monkeypatch.setattr(downstream, "fit", recorded)
    monkeypatch.setattr(downstream, "RATE", 0.05)  # so fast that it gets worse
    images, of = stripes(40, "a", noise=1.5)
    result = train("mlp", images, of, classes=3, rng=generator(3))
    rng = generator(3)
    _, held = downstream._hold_out(of, rng)
    losses = [float(F.cross_entropy(result.model.classify(p)(images[held]), of[held])) for p in seen]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert result.epoch == best + 1 < len(seen) == downstream.EPOCHS
    assert all(torch.equal(result.params[k], v) for k, v in seen[best].items())
    assert not torch.equal(result.params["head.weight"], seen[-1]["head.weight"])


def test_the_real_test_records_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels and other images in the test set: the same parameters."""
    kept: list[downstream.TrainedClassifier] = []
    original = downstream.train

    def recorded(*args: Any, **more: Any) -> downstream.TrainedClassifier:
        kept.append(original(*args, **more))
        return kept[-1]

    monkeypatch.setattr(downstream, "train", recorded)
    made, own, (images, of) = stripes(40, "a", noise=1.0), stripes(40, "b"), stripes(30, "t")
    honest = columns(readings(["mlp"], made, own, (images, of), groups=GROUPS, classes=3))
    poisoned = columns(readings(["mlp"], made, own, (-images, (of + 1) % 3), groups=GROUPS, classes=3))
    for first, second in zip(kept[:2], kept[2:], strict=True):
        assert first.epoch == second.epoch
        assert all(torch.equal(v, second.params[k]) for k, v in first.params.items())
    assert honest != poisoned


@pytest.mark.parametrize(("n", "classes"), [(200, 10), (2, 2), (3, 2), (4, 2), (5, 2)])
def test_a_fifth_of_each_class_or_one_record_is_held_out(n: int, classes: int) -> None:
    labels = torch.arange(n) % classes
    trained, held = downstream._hold_out(labels, generator(0))
    if n == 200:
        assert labels[trained].bincount().tolist() == [16] * 10 and labels[held].bincount().tolist() == [4] * 10
    else:
        assert (len(trained), len(held)) == (n - 1, 1)


def test_dropout_is_in_training_alone() -> None:
    rng = generator(0)
    model = downstream.Classifier(network=NETWORKS["cnn"], labels=(3,))
    params, (images, of) = model.init(rng), stripes(8, "a")
    width = params["head.weight"].shape[1]
    student = downstream._Dropping(model, 0.5, width)
    keep = student.draws(400, rng)["keep"]
    assert keep.shape == (400, width) and set(keep.unique().tolist()) == {0.0, 2.0}
    assert abs(float(keep.mean()) - 1) < 0.02
    batch = (images, of[:, None])
    whole = student.loss(params, batch, {"keep": torch.ones(8, width)}, {})
    assert torch.allclose(whole, model.loss(params, batch, {}, {}))
    assert not torch.allclose(student.loss(params, batch, student.draws(8, rng), {}), whole)


def test_refusals() -> None:
    for names in (["mlp", "x"], ["mlp", "mlp"]):
        with pytest.raises(ValueError, match="downstream must name"):
            downstream.check(names)
    with pytest.raises(ValueError, match="at least 2 records"):
        train("linear", *stripes(1, "a"), classes=3, rng=generator(0))
    assert len(train("linear", *stripes(2, "a"), classes=3, rng=generator(0)).right(*stripes(6, "t"))) == 6
