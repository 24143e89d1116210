"""Performance of a membership attack's scores, with everything chosen on a calibration split.

Timestep and threshold come from other rows than the reported ones. Intervals are at 95 % and analytic: on few rows and
near an AUC of 1 a bootstrap covers too seldom (20 members, 20 non-members, AUC 0.98: its percentiles in 78 % of
samples, DeLong's interval in 73 %, the one here in all).

Scores are low for members. Shapes: S columns, one for each timestep, or timestep and attack, that was tried.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raydiff.formats.metric_records import FRACTION, Metric

Z95 = 1.959963984540054  # two-sided 95 % point of the standard normal law
Interval = tuple[float, float]
LOW_FPRS = (0.01, 0.001)  # false positive rates at which the true positive rate is reported
ROLES = ("calibration_members", "calibration_nonmembers", "members", "nonmembers")  # arguments of `attack_membership`
# attacks that are derived from the others
COMBINED = "combined"
BEST = "best"
ENOUGH = 20  # calibration rows of each side that combining scores takes
FOLDS = 5
PENALTY = 0.1  # scikit-learn's C of the combination: the inverse weight of the squared coefficients


def needed(fpr: float) -> int:
    """Return the non-members that it takes to set, and to verify, a threshold of this false positive rate."""
    return round(5 / fpr)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The true positive rate at a low false positive rate; the threshold is the calibration's."""

    fpr: float  # target false positive rate, on the calibration non-members
    tpr: float  # fraction of the evaluation members called members at that threshold
    interval: Interval  # of the true positive rate at exactly `fpr`, see `_rate`
    fpr_reached: float  # false positive rate on the evaluation non-members at that threshold


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """Performance on rows that took no part in setting the attack up."""

    timestep_index: int  # column of the score matrices that the calibration rows chose
    threshold: float  # a record with a score at or below it is called a member; chosen on the calibration rows
    auc: float  # p(a member scores lower than a non-member), ties counting half
    auc_interval: Interval  # hull of Newcombe's (2006, method 5), for few rows and near 1, and DeLong's (1988)
    balanced_accuracy: float  # (true positive rate + true negative rate) / 2 at `threshold`
    balanced_accuracy_interval: Interval  # Newcombe 1998, method 10: of TPR - FPR, moved to (1 + TPR - FPR) / 2
    low_fpr: tuple[Rate, ...]  # at each of `LOW_FPRS` for which both splits have the `needed` non-members
    n_members: int  # members among the evaluation rows
    n_nonmembers: int  # non-members among the evaluation rows

    def metrics(self, **where: Any) -> list[Metric]:
        """Return all numbers, those with an interval with its ends; `where` is the target and the attack."""
        measured = [
            ("auc", self.auc, self.auc_interval),
            ("balanced_accuracy", self.balanced_accuracy, self.balanced_accuracy_interval),
            *((f"tpr_at_{100 * rate.fpr:g}pct_fpr", rate.tpr, rate.interval) for rate in self.low_fpr),
        ]
        chosen = {
            "timestep_index": self.timestep_index,
            "threshold": self.threshold,
            **{f"fpr_reached_at_{100 * rate.fpr:g}pct": rate.fpr_reached for rate in self.low_fpr},
        }
        metrics = [
            *(Metric(name=name, role="calibration", **where).with_value(value) for name, value in chosen.items()),
            Metric(name="n_members", role="count", **where).with_value(self.n_members),
            Metric(name="n_nonmembers", role="count", **where).with_value(self.n_nonmembers),
        ]
        for name, value, (low, high) in measured:
            metric = Metric(name=name, bounds=FRACTION, **where)
            metrics += [
                metric.with_value(value),
                metric.with_value(low, role="low"),
                metric.with_value(high, role="high"),
            ]
        return metrics


def attack_membership(
    *, calibration_members: Tensor, calibration_nonmembers: Tensor, members: Tensor, nonmembers: Tensor
) -> AttackResult:
    """Choose column (by AUC) and threshold (by balanced accuracy) on the calibration rows; measure on the others.

    Each argument is a matrix of scores (n, S). Raises ValueError for fewer than 2 rows, different columns, or NaN.
    """
    _check(calibration_members, calibration_nonmembers, members, nonmembers)
    column = best_column(calibration_members, calibration_nonmembers)
    set_in, set_out, inside, outside = (
        m[:, column].double() for m in (calibration_members, calibration_nonmembers, members, nonmembers)
    )
    threshold = _best_threshold(set_in, set_out)
    value, auc_interval = _auc(inside, outside)
    hits = int((inside <= threshold).sum())
    rejections = int((outside > threshold).sum())
    return AttackResult(
        timestep_index=column,
        threshold=threshold,
        auc=value,
        auc_interval=auc_interval,
        balanced_accuracy=(hits / len(inside) + rejections / len(outside)) / 2,
        balanced_accuracy_interval=_mean_of_two((hits, len(inside)), (rejections, len(outside))),
        low_fpr=tuple(
            _rate(fpr, set_out, inside, outside) for fpr in LOW_FPRS if min(len(set_out), len(outside)) >= needed(fpr)
        ),
        n_members=len(inside),
        n_nonmembers=len(outside),
    )


def derived(scores: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the attacks derived from all columns (n, S), by role: `combined`, one column (n, 1), and `best`.

    combined: the log odds that a record is no member, by a balanced logistic regression on normal quantiles of the
    calibration scores' ranks; those of a calibration row by a fit to the other folds. Left out with fewer than `ENOUGH`
    calibration rows of a side, or one column. best: combined, or all columns where the best one, chosen on the other
    folds, has a higher AUC. Raises as `attack_membership` does.
    """
    _check(*scores.values())
    roles = [scores[role] for role in ROLES]
    sizes = [len(rows) for rows in roles]
    if min(sizes[:2]) < ENOUGH or roles[0].shape[1] < 2:
        return {BEST: {**scores}}
    rows = torch.cat(roles[:2]).double()
    outside = torch.cat([torch.zeros(sizes[0]), torch.ones(sizes[1])]).bool()
    fold = torch.cat([torch.arange(n) for n in sizes[:2]]) % FOLDS
    odds = torch.empty(len(rows), dtype=torch.float64)
    gain = 0.0
    for held in (fold == k for k in range(FOLDS)):
        odds[held] = _log_odds(rows[~held], outside[~held], rows[held])
        column = best_column(rows[~held & ~outside], rows[~held & outside])
        single, together = (_auc(s[held & ~outside], s[held & outside])[0] for s in (rows[:, column], odds))
        gain += together - single
    new = _log_odds(rows, outside, torch.cat(roles[2:]).double())
    combined = dict(zip(ROLES, torch.cat([odds, new])[:, None].split(sizes), strict=True))
    return {COMBINED: combined, BEST: combined if gain >= 0 else {**scores}}


def _log_odds(rows: Tensor, outside: Tensor, new: Tensor) -> Tensor:
    from sklearn.linear_model import LogisticRegression  # a second to import: only where it is used

    def normal_ranks(values: Tensor) -> Tensor:
        """The normal quantile of each value's rank among the rows', column by column."""
        below = [_fraction_below(column, others) for column, others in zip(values.T, rows.T, strict=True)]
        quantiles: Tensor = torch.special.ndtri((torch.stack(below, dim=1) * len(rows) + 0.5) / (len(rows) + 1))
        return quantiles

    model = LogisticRegression(C=PENALTY, class_weight="balanced", max_iter=1000)
    model.fit(normal_ranks(rows).numpy(), outside.numpy())
    odds: Tensor = torch.from_numpy(model.decision_function(normal_ranks(new).numpy()))
    return odds


def _rate(fpr: float, calibration: Tensor, members: Tensor, nonmembers: Tensor) -> Rate:
    """Measure the true positive rate at a false positive rate.

    The interval is Wilson's for the fraction of members, combined (Newcombe 1998, method 10) with that fraction at both
    ends of Wilson's interval of the threshold's false positive rate.
    """
    ranked = calibration.sort().values
    allowed = math.floor(fpr * len(calibration) + 1e-9)
    low, high = (len(ranked) * end for end in wilson(allowed, len(ranked)))
    at, least, most = (
        float((members < ranked[rank]).double().mean())
        for rank in (allowed, math.floor(low), min(math.ceil(high), len(ranked) - 1))
    )
    wilson_low, wilson_high = wilson(round(at * len(members)), len(members))
    interval = at - math.hypot(at - wilson_low, at - least), at + math.hypot(wilson_high - at, most - at)
    reached = float((nonmembers < ranked[allowed]).double().mean())
    return Rate(fpr=fpr, tpr=at, interval=(max(0.0, interval[0]), min(1.0, interval[1])), fpr_reached=reached)


def best_column(members: Tensor, nonmembers: Tensor) -> int:
    """Return the column with the highest AUC, the first of equals."""
    aucs = [_auc(members[:, s].double(), nonmembers[:, s].double())[0] for s in range(members.shape[1])]
    return aucs.index(max(aucs))


def _best_threshold(members: Tensor, nonmembers: Tensor) -> float:
    """The threshold of best balanced accuracy, halfway between two scores; the lowest of equals."""
    scores = torch.unique(torch.cat([members, nonmembers]))  # sorted
    cuts = torch.cat([(scores[:-1] + scores[1:]) / 2, scores[-1:]])
    tpr = torch.searchsorted(members.sort().values, cuts, right=True) / len(members)
    fpr = torch.searchsorted(nonmembers.sort().values, cuts, right=True) / len(nonmembers)
    return float(cuts[int((tpr - fpr).argmax())])


def _auc(members: Tensor, nonmembers: Tensor) -> tuple[float, Interval]:
    """AUC and its interval, in O(n log n) by DeLong's placements."""
    placed_members = 1 - _fraction_below(members, nonmembers)
    placed_nonmembers = _fraction_below(nonmembers, members)
    auc = float(placed_members.mean())
    half = Z95 * math.sqrt(float(placed_members.var() / len(members) + placed_nonmembers.var() / len(nonmembers)))
    low, high = _newcombe(auc, len(members), len(nonmembers))
    return auc, (max(0.0, min(low, auc - half)), min(1.0, max(high, auc + half)))


def _newcombe(auc: float, m: int, n: int) -> Interval:
    """Newcombe, Statistics in Medicine 25 (2006) 559, method 5: all theta within `Z95` standard errors of `auc`."""
    balanced = (m + n) / 2 - 1

    def furthest(outside: float) -> float:
        """By bisection between `auc`, which is inside the interval, and `outside`."""
        inside = auc
        for _ in range(50):
            theta = (inside + outside) / 2
            spread = 1 + balanced * ((1 - theta) / (2 - theta) + theta / (1 + theta))
            holds = abs(auc - theta) <= Z95 * math.sqrt(theta * (1 - theta) * spread / (m * n))
            inside, outside = (theta, outside) if holds else (inside, theta)
        return inside

    return furthest(0.0), furthest(1.0)


def _fraction_below(values: Tensor, others: Tensor) -> Tensor:
    """Fraction of `others` below each value, ties counting half."""
    ranked = others.sort().values.contiguous()
    values = values.contiguous()
    below = torch.searchsorted(ranked, values)
    return (below + torch.searchsorted(ranked, values, right=True)).double() / (2 * len(others))


def wilson(successes: int, n: int) -> Interval:
    """Return Wilson's 95 % score interval for a proportion."""
    p = successes / n
    z2 = Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean_of_two(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Interval for the mean of two independent proportions (successes, n)."""
    p = first[0] / first[1]
    q = second[0] / second[1]
    (p_low, p_high), (q_low, q_high) = wilson(*first), wilson(*second)
    return (p + q - math.hypot(p - p_low, q - q_low)) / 2, (p + q + math.hypot(p_high - p, q_high - q)) / 2


def _check(*scores: Tensor) -> None:
    if any(s.dim() != 2 or len(s) < 2 or s.shape[1] != scores[0].shape[1] for s in scores):
        shapes = ", ".join(str(tuple(s.shape)) for s in scores)
        raise ValueError(f"scores must be matrices of at least 2 rows with the same columns, got shapes {shapes}")
    if any(s.isnan().any() for s in scores):
        raise ValueError("scores must not be NaN: the attacked model's output is not a number")
