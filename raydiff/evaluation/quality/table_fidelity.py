"""Fidelity of synthetic rows of a table: total variation of columns and pairs of columns, and downstream accuracy.

Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from raydiff.formats.metric_records import FRACTION, Metric

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

HIDDEN = (64,)  # the paper (Wei et al., appendix H.2.2) gives no width
MOST_ITERATIONS = 60
TV_COLUMNS = Metric(name="tv_columns", lower_is_better=True, bounds=FRACTION)
TV_PAIRS = Metric(
    name="tv_pairs",
    lower_is_better=True,
    bounds=FRACTION,
    shown="distance_all",
    rank=5,
    description="total variation of pairs of columns",
)
ACCURACY = Metric(name="accuracy", lower_is_better=False, bounds=FRACTION, shown="accuracy")
UTILITY_LOSS = Metric(
    name="utility_loss",
    lower_is_better=True,
    bounds=FRACTION,
    rank=6,
    description="1 - accuracy on the test split",
)

Rows = tuple[Tensor, Tensor]
"""Codes (N, n) int64 and labels (N,) int64."""


def quality(samples: Rows, local: Rows, real: Rows, *, classes: int) -> list[Metric]:
    """Measure synthetic rows, and the client's own (`local`), against real rows that nobody trained on.

    TV_COLUMNS and TV_PAIRS are means over columns and pairs, including the label, their floors those of the local rows.
    ACCURACY is a classifier's, trained on the synthetic rows and tested on the real ones; `real` is that of one trained
    on the local rows, `majority` that of their majority class.
    """
    whole = [torch.cat([codes, labels[:, None]], dim=1) for codes, labels in (samples, local, real)]
    columns, pairs = total_variation(whole[0], whole[2])
    local_columns, local_pairs = total_variation(whole[1], whole[2])
    right = downstream_accuracy(*samples, *real)
    first = local[1].bincount(minlength=classes).argmax()
    return [
        TV_COLUMNS.with_value(columns.mean()),
        TV_PAIRS.with_value(pairs.mean()),
        TV_COLUMNS.beside(local_columns.mean(), role="floor"),
        TV_PAIRS.beside(local_pairs.mean(), role="floor"),
        ACCURACY.with_value(right),
        UTILITY_LOSS.with_value(1 - right),
        ACCURACY.with_value(downstream_accuracy(*local, *real), group="real", role="real", shown=""),
        ACCURACY.with_value((real[1] == first).double().mean(), group="majority", shown=""),
    ]


def total_variation(rows: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return total variation of (s, n) and (s', n): per column (n,), and per pair i < j (n (n - 1) / 2,), float64."""
    k = int(max(rows.max(), others.max())) + 1
    n = rows.shape[1]

    def distance(codes: Tensor, other_codes: Tensor, size: int) -> Tensor:
        one, other = (c.bincount(minlength=size).double() / len(c) for c in (codes, other_codes))
        return (one - other).abs().sum() / 2

    columns = torch.stack([distance(rows[:, i], others[:, i], k) for i in range(n)])
    pairs = [
        distance(rows[:, i] * k + rows[:, j], others[:, i] * k + others[:, j], k * k)
        for i, j in itertools.combinations(range(n), 2)
    ]
    return columns, torch.stack(pairs) if pairs else torch.zeros(0, dtype=torch.float64)


def downstream_accuracy(rows: Tensor, labels: Tensor, real: Tensor, real_labels: Tensor) -> float:
    """Return the accuracy on real rows (s', n) of scikit-learn's MLP, trained on rows (s, n), both one-hot."""
    if len(labels.unique()) < 2:
        return float((real_labels == labels[0]).double().mean())
    k = int(max(rows.max(), real.max())) + 1
    options = {"hidden_layer_sizes": HIDDEN, "max_iter": MOST_ITERATIONS, "n_iter_no_change": 5}
    network = classifier_of(rows, labels, k, seed=0, **options)
    return float(np.mean(network.predict(one_hot(real, k)) == real_labels.numpy()))


def classifier_of(rows: Tensor, labels: Tensor, k: int, *, seed: int, **options: Any) -> MLPClassifier:
    """Return scikit-learn's MLP with these options, trained on one-hot rows (s, n) of codes below k, labels (s,)."""
    from sklearn.exceptions import ConvergenceWarning  # a second to import: only where it is used
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier(random_state=seed, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # MOST_ITERATIONS are enough
        network.fit(one_hot(rows, k), labels.numpy())
    return network


def one_hot(rows: Tensor, k: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return codes (s, n) below k as (s, n k)."""
    return torch.nn.functional.one_hot(rows, k).flatten(1).float().numpy()
