"""Downstream accuracy: classifiers trained on synthetic records, tested on real ones.

The classifiers are those of DPDM (Dockhorn et al., TMLR 2023, arXiv 2210.09929), the ResNet-18 of PFDM (Patel et al.,
CVPR 2026) without batch normalisation, and LeNet. The epoch is the best one on held-out synthetic records: one chosen
on the real test records overstates the accuracy (DPImageBench, arXiv 2503.14681).

Shapes: images (N, C, H, W) on [-1, 1], classes (N,) int64.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff import seeding
from raydiff.formats.metric_records import FRACTION, Metric, Role
from raydiff.models.classifier import CNN, Classifier, LeNet, Perceptron, ResNet18
from raydiff.models.training import Model, Training, fit
from raydiff.tree import Params

NETWORKS: Mapping[str, CNN | LeNet | Perceptron | ResNet18] = {
    "linear": Perceptron(widths=()),
    "mlp": Perceptron(widths=(100,)),
    "cnn": CNN(widths=(32, 64, 128), hidden=128),
    "resnet18": ResNet18(),
    "lenet": LeNet(),
}
DROPOUT = {"cnn": 0.5}
EPOCHS = 50
LEAST_STEPS = 20  # per epoch: 50 passes over few records are too few steps
BATCH = 64
RATE = 3e-4
HELD_OUT = 5  # one record in five


@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier at its best epoch."""

    model: Classifier
    params: Params
    epoch: int  # 1 .. EPOCHS

    def right(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return for which images (N,) bool it tells the right class."""
        return self.model.classify(self.params)(images).argmax(1) == classes


def readings(
    names: Sequence[str],
    synthetic: tuple[Tensor, Tensor],
    local: tuple[Tensor, Tensor] | None,
    test: tuple[Tensor, Tensor],
    *,
    groups: Mapping[str, Sequence[int]],
    classes: int,
) -> list[Metric]:
    """Return accuracies on real test records; each argument is (images, classes).

    Of each group of classes the accuracy of the classifier trained on synthetic records; `real` is that of one trained
    on the client's own (`local`).
    """
    metrics: list[Metric] = []
    images, labels = test
    masks = {k: torch.isin(labels, torch.tensor(list(v), dtype=torch.int64)) for k, v in groups.items()}
    for name in names:
        accuracy = Metric(name=f"downstream/{name}", lower_is_better=False, bounds=FRACTION)
        for records, tested in ((synthetic, masks), (local, {"real": torch.ones_like(labels).bool()})):
            if records is None:
                continue
            rng = seeding.generator(0, "evaluation", "downstream", name)  # the same weights and batches for all clients
            right = train(name, *records, classes=classes, rng=rng).right(images, labels).double()
            for group, mask in tested.items():
                if mask.any():
                    role: Role = "real" if group == "real" else "value"
                    metrics.append(accuracy.with_value(right[mask].mean(), group=group, role=role))
    return metrics


def train(name: str, images: Tensor, labels: Tensor, *, classes: int, rng: torch.Generator) -> TrainedClassifier:
    """Train a classifier on four fifths of the records, 2 at least, up to the epoch with the least loss on the rest."""
    if len(images) < 2:
        raise ValueError(f"a classifier needs at least 2 records, one of them held out, got {len(images)}")
    channels, height, width = images.shape[1:]
    model = Classifier(network=NETWORKS[name]).for_data((channels, height, width), (classes,))
    trained, held = _hold_out(labels, rng)
    batch = min(BATCH, len(trained))
    steps = max(LEAST_STEPS, math.ceil(len(trained) / batch))
    training = Training(steps=EPOCHS * steps, batch=batch, learning_rate=RATE, decay="constant")
    params = model.init(rng)
    moments: Params = {}
    width = params["head.weight"].shape[1]
    student: Model = _Dropping(model, DROPOUT[name], width) if name in DROPOUT else model
    best = (math.inf, 0, params)
    for epoch in range(EPOCHS):
        params, moments, _ = fit(
            student,
            params,
            images[trained],
            labels[trained, None],
            training=training,
            rng=rng,
            steps=training.part(epoch, EPOCHS),
            moments=moments,
        )
        loss = float(F.cross_entropy(model.classify(params)(images[held]), labels[held]))
        best = min(best, (loss, epoch + 1, params), key=lambda candidate: candidate[0])
    return TrainedClassifier(model, best[2], best[1])


def labels_per_class(labels: Tensor, count: int) -> Tensor:
    """Return `count` rows of labels (N, K) of each class, repeated as needed: (classes * count, K)."""
    rows = (labels[labels[:, 0] == c] for c in labels[:, 0].unique())
    return torch.cat([of_class[torch.arange(count) % len(of_class)] for of_class in rows])


def check_classifier_names(names: Sequence[str]) -> None:
    """Raise ValueError unless these are classifiers, each named once."""
    if not {*names} <= NETWORKS.keys() or len({*names}) < len(names):
        raise ValueError(f"downstream must name some of {', '.join(NETWORKS)}, each once, got {' '.join(names)}")


def check_shape(names: Sequence[str], shape: tuple[int, int, int]) -> None:
    """Raise ValueError where pictures (C, H, W) are too small for one of these classifiers."""
    for name in names:
        try:
            with torch.device("meta"):  # no numbers are drawn
                NETWORKS[name].build(shape, 1)
        except ValueError as e:
            raise ValueError(f"downstream must not name {name} for such pictures: {e}") from None


@dataclass(frozen=True)
class _Dropping:
    """A classifier with dropout before its last layer during training."""

    model: Classifier
    dropout: float  # probability, of the inputs of the last layer
    width: int  # number of these inputs

    def init(self, rng: torch.Generator) -> Params:
        return self.model.init(rng)

    def draws(self, count: int, rng: torch.Generator) -> Params:
        return {"keep": (torch.rand(count, self.width, generator=rng) >= self.dropout).float() / (1 - self.dropout)}

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        inputs = self.model.features(params, batch, draws) * draws["keep"]
        return F.cross_entropy(F.linear(inputs, params["head.weight"], params["head.bias"]), batch[1][:, 0])


def _hold_out(classes: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stratified rows to train on, and rows held out: the i-th of a class's n rows is at the place (i + 1/2) / n."""
    shuffled = torch.randperm(len(classes), generator=rng)  # also breaks ties between classes
    labels = classes[shuffled]
    rank = F.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0]
    order = shuffled[torch.argsort((rank - 0.5).double() / labels.bincount()[labels], stable=True)]
    held = max(1, len(order) // HELD_OUT)
    return order[held:], order[:held]
