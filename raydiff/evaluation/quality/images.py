"""What is read off pictures beside real ones: distances, coverage, label accuracy, for groups of classes.

Shapes: N images, K label columns; column 0 is the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff import seeding
from raydiff.data.records import Records
from raydiff.evaluation.quality import distances, features, inception
from raydiff.evaluation.quality.coverage import NEIGHBOURS, coverage
from raydiff.federated.method import Metrics
from raydiff.tree import Params

Groups = Mapping[str, tuple[int, ...]]
"""Classes by the name of their group."""
OF_SAMPLES = ("fd_", "kd_", "fid/", "kid/", "precision/", "recall/", "density/", "coverage/", "label_accuracy/")
OF_REAL = ("_floor", "_real", "/real")


@dataclass(frozen=True)
class Reader:
    """The networks by which pictures are read."""

    name: str
    """Of the features, as the distances are to be called after it."""
    cnn: Params
    """Tells the classes."""
    features: Callable[[Tensor], Tensor]
    """Images (N, C, H, W) -> (N, dim)."""
    gaussian: bool = True
    """Whether the Frechet distance is read too."""
    neighbours: int = NEIGHBOURS

    def read(self, images: Tensor, labels: Tensor, reference: Records, groups: Groups) -> Metrics:
        """All readings of images (N, C, H, W) made for labels (N, K) beside the real reference."""
        classes = labels[:, 0]
        rng = seeding.generator(0, "reference halves")  # Every trial has the same halves.
        groups = {k: v for k, v in groups.items() if v}
        made, real = self.features(images), self.features(reference.images)
        of_real = reference.labels[:, 0]
        metrics = distances.class_distances(
            made, classes, real, of_real, groups=groups, features=self.name, gaussian=self.gaussian, rng=rng
        )
        metrics |= self._coverage(made, classes, real, of_real, groups)
        logits, logits_real = (features.cnn_logits(self.cnn, x) for x in (images, reference.images))
        metrics["own_classes"] = float(torch.isin(logits.argmax(1), of_real.unique()).double().mean())
        metrics["label_accuracy/real"] = distances.label_accuracy(logits_real, of_real)  # its ceiling
        for name, members in groups.items():
            mask = torch.isin(classes, torch.tensor(members))
            if mask.any():
                metrics[f"label_accuracy/{name}"] = distances.label_accuracy(logits[mask], classes[mask])
        return metrics

    def _coverage(self, made: Tensor, classes: Tensor, real: Tensor, of_real: Tensor, groups: Groups) -> Metrics:
        """Mean over both halves of the reference, so at equal counts; `_real` is what one half has beside the other.

        A group with too few records for the neighbours is left out.
        """
        halves = distances.halves(of_real, seeding.generator(0, "reference halves"))
        metrics: Metrics = {}
        for name, members in groups.items():
            wanted = torch.tensor(members)
            a, b = (real[half[torch.isin(of_real[half], wanted)]] for half in halves)
            if len(a) <= self.neighbours:
                continue
            own = made[torch.isin(classes, wanted)]
            found = [coverage(own, half, neighbours=self.neighbours).metrics(name) for half in (a, b)]
            metrics |= {k: (found[0][k] + found[1][k]) / 2 for k in found[0]}
            metrics |= coverage(a, b, neighbours=self.neighbours).metrics(f"{name}_real")
        return metrics


def reader(name: str, cnn: Params, *, weights: str | None, gaussian: bool, neighbours: int) -> Reader:
    """The reader whose features are the cnn's, or Inception's. Raises ValueError where its weights are missing."""
    if name == "inception":
        return Reader(name, cnn, inception.load(weights), gaussian, neighbours)
    return Reader(name, cnn, lambda images: features.cnn_features(cnn, images), gaussian, neighbours)


def of_samples(name: str) -> bool:
    """Whether this reading changes with the sampler, and is not one of the real records alone."""
    return name.startswith((*OF_SAMPLES, "own_classes")) and not name.endswith(OF_REAL)
