"""Settings of a trial's evaluation, and of the per-instance audit (pDP) of a table's rows."""

import itertools
from dataclasses import field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

from raydiff.data.modality import Modality
from raydiff.evaluation.attacks import targets
from raydiff.evaluation.metrics import ALL, METRICS, check_metrics
from raydiff.evaluation.quality import distances, downstream
from raydiff.evaluation.quality.features import FEATURES
from raydiff.evaluation.quality.neighbours import NEIGHBOURS
from raydiff.evaluation.quality.table_fidelity import TV_PAIRS, UTILITY_LOSS
from raydiff.formats.metric_records import Metric
from raydiff.settings import Count, Natural, Positive, settings

Split = Literal["test", "validation"]
Condition = Literal["theorem", "relaxed"]
"""Condition of the radius: see `papers.discrete.radius`."""
AUDIT = "raydiff.papers.discrete.client_audit"  # computes the audit


@settings(frozen=True, kw_only=True)
class Evaluation:
    """Which instruments are read, and when.

    Raises:
        ValueError: If an attack, a metric or a classifier has no such name.

    Examples:
        >>> rd.Evaluation(metrics=("kernel", "coverage"), attacks=None).features
        'cnn'
    """

    features: Annotated[str, FEATURES] = "cnn"
    """Feature network of the distances: a small classifier trained on the public split (cnn), clean-fid's Inception, or
    module:name from anywhere. Only of cnn groups are left out: the floor tells by how much a distance is too large."""
    weights: str | None = field(default=None, metadata={"location": "value"})
    """File of the feature network's weights; of Inception also its folder, none: clean-fid's."""
    dim: Count = 16
    """Its feature dimension. Of Frechet distances, groups with fewer than five records a dimension are left out."""
    neighbours: Count = NEIGHBOURS
    """k of precision, recall, density and coverage: 3 to 5 in the literature. Smaller groups are left out."""
    downstream: tuple[str, ...] = ()
    """Classifiers (linear, mlp, cnn, resnet18, lenet) trained on samples, and tested on real records at the end."""
    ceiling: bool = True
    """Train each of them on the client's own records too: the accuracy of real ones."""
    per_class: Annotated[int, Ge(2)] | None = None
    """Samples of each class that they are trained on; none: those that the distances are measured of."""
    every: Natural = 0
    """Rounds between distances measured on the validation split, for ASHA and Optuna; 0: only at the end."""
    samplers: bool = True
    """Also measure the distances of the model's other samplers (`models.samplers.MEASURED`)."""
    clusters: bool = False
    """Also measure each model's distance to both clusters of classes of a MajorityMinority partition."""
    attacks: Annotated[tuple[str, ...], MinLen(1)] | None = ("pia", "sima")
    """Membership attacks on denoisers of pictures (`targets`): any of loss, pia, secmi, sima, or module:name from
    anywhere; of a table its rows are attacked (`blackbox`). None: nothing is attacked."""
    metrics: Annotated[tuple[str, ...], MinLen(1)] = (ALL,)
    """What is measured (`METRICS`, or module:name from anywhere); all: each metric of such data. The Frechet
    distance leaves small groups out; the kernel distance has no bias that depends on the number of records."""
    split: Split = "test"
    """Whose records the final models are measured beside. validation: for a trial by which settings are chosen, which
    reads no test record: nothing is attacked, and downstream and memorization are left out."""
    clients: Count | None = None
    """Measure the first so many clients only; None: every one."""
    members: Annotated[int, Ge(4)] = 500
    """Member records per client that an attack uses at most, half of them for calibration."""

    def __post_init__(self) -> None:
        targets.check_attack_names(self.attacks or ())
        check_metrics(self.metrics)
        downstream.check_classifier_names(self.downstream)

    @property
    def least(self) -> int:
        """Records that half of a measured group's reference needs."""
        return 5 * self.dim if ("frechet" in self.metrics or ALL in self.metrics) and self.features == "cnn" else 2

    def metrics_of(self, modality: Modality) -> tuple[str, ...]:
        """Return the metrics that are measured of records of this modality, in the order of measuring.

        Raises ValueError for one that the modality has not.
        """
        unknown = [name for name in self.metrics if name in METRICS and name not in modality.measures]
        if unknown:
            raise ValueError(
                f"evaluation.metrics must be of {modality.name} ({', '.join(modality.measures)}), got {unknown[0]}"
            )
        named = (modality.measures if name == ALL else (name,) for name in self.metrics)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))

    def headline(self, modality: Modality) -> Metric:
        """The default metric of a sweep over data of this modality."""
        names = self.metrics_of(modality)
        ranking = {
            "frechet": distances.frechet_metric(self.features, "all"),
            "kernel": distances.kernel_metric(self.features, "all"),
            "table": TV_PAIRS,
        }
        first = next((ranking[name] for name in ranking if name in names), UTILITY_LOSS)
        return replace(first, split="eval")


@settings(frozen=True, kw_only=True)
class RowAudit:
    """Bounds on delta (pDP, Theorem 1) for rows of the model, at the step that it releases."""

    remove: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Fraction of each client's records that is left out of training, those with the largest bound first."""
    batch: Annotated[float, Gt(0), Le(1)] = 0.01
    """Fraction of the records removed at a time; the rest is audited again before each batch. 1: one pass."""
    epsilon: Positive = 1.0
    """pDP's, at which delta is stated; not the ledger's."""
    samples: Count = 1
    """m, rows that are released, of a conditional model each perhaps of the record's label; delta is linear in it."""
    condition: Condition = "relaxed"
    """Condition of the radius."""
