"""What is measured of a trial; the rest of it is seen in test_trial.py."""

import pytest

from raydiff.data.datasets import load
from raydiff.experiment.client_records import shares
from raydiff.experiment.config import Experiment
from raydiff.experiment.measurements import _label_distance
from raydiff.experiment.trial import resolve


def test_labels_that_differ_raise_the_ceiling_by_their_total_variation(tiny: Experiment) -> None:
    """Two clients with all classes, five often and five seldom, are together like the test split; one is not."""
    resolved = resolve(tiny)
    dataset = load(resolved.data)
    parts = shares(resolved, dataset)
    test = dataset.splits["test"].labels[:, 0].bincount(minlength=10).double()
    mixes = [dataset.splits["train"].labels[part, 0].bincount(minlength=10).double() for part in parts]
    apart = float((mixes[0] / mixes[0].sum() - test / test.sum()).abs().sum() / 2)
    assert _label_distance(resolved, [0]) == pytest.approx(apart) and apart > 0.2
    each = [m / m.sum() for m in mixes]  # both have more records than are attacked
    together = float(((each[0] + each[1]) / 2 - test / test.sum()).abs().sum() / 2)
    assert _label_distance(resolved, [0, 1]) == pytest.approx(together, abs=1e-12) and together < apart / 1.5
    assert _label_distance(resolved, []) == 0
