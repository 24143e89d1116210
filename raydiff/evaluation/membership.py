"""Membership inference by the proximal initialisation attack, with everything chosen on a calibration split.

PIA: Kong et al., ICLR 2024; used against PFDM = Patel et al., CVPR 2026 (arXiv 2504.00952), appendix D.2.
Published numbers often take the best timestep and threshold on the rows they report; here both come from
other rows, so that an attack on a model that leaks nothing reads 0.5 on average and not more.

Scores are low for members. Shapes: N records, K label columns, S timesteps tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from raydiff.data.datasets import Records
from raydiff.method import Denoiser

Z95 = 1.959963984540054
"""Two-sided 95 % point of the standard normal law."""
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an attack achieves on rows that took no part in setting it up; intervals are at 95 %."""

    timestep_index: int
    """Column of the score matrices that the calibration rows chose."""
    threshold: float
    """A record with a score at or below it is called a member; chosen on the calibration rows."""
    auc: float
    """P(a member scores lower than a non-member), ties counting half."""
    auc_interval: Interval
    """DeLong et al. 1988, clipped to [0, 1]; of width 0 where the scores separate perfectly."""
    balanced_accuracy: float
    """(true positive rate + true negative rate) / 2 at `threshold`."""
    balanced_accuracy_interval: Interval
    """Newcombe 1998, method 10: that of the difference TPR - FPR, moved to (1 + TPR - FPR) / 2."""
    tpr_at_1pct_fpr: float
    """True positive rate where at most 1 % of the non-members are called members: see `tpr_calibrated`."""
    tpr_at_1pct_fpr_interval: Interval
    """Wilson 1927, for the threshold as it is."""
    tpr_calibrated: bool
    """Whether the calibration's non-members set that threshold, which takes at least 100 of them.

    If not, it is a read-out of the evaluation's ROC curve, which flatters the attack; with fewer than 100
    evaluation non-members too, at the point where none of them is called a member.
    """
    fpr_reached: float
    """False positive rate on the evaluation non-members at that threshold: not exactly 1 %."""
    n_members: int
    """Members among the evaluation rows."""
    n_nonmembers: int
    """Non-members among the evaluation rows."""

    def metrics(self, prefix: str) -> dict[str, float]:
        """Flat numbers under `prefix/`; an interval gives two, `_low` and `_high`."""
        out: dict[str, float] = {}
        for name, value in asdict(self).items():
            if isinstance(value, tuple):
                base = name.removesuffix("_interval")
                out[f"{prefix}/{base}_low"], out[f"{prefix}/{base}_high"] = value
            else:
                out[f"{prefix}/{name}"] = float(value)
        return out


def grid(timesteps: int) -> list[int]:
    """Timesteps to try for a model with T = `timesteps`: T/25, 2T/25, ..., 0.4 T, without repeats.

    At T = 1000 they contain t = 200, which the papers use.
    """
    return sorted({max(1, round(timesteps * k / 25)) for k in range(1, 11)})


@torch.no_grad()
def pia_scores(
    denoiser: Denoiser, records: Records, *, alphas_bar: Tensor, timesteps: Sequence[int], batch: int = 256
) -> Tensor:
    """R_t = || e0 - z(sqrt(abar_t) x0 + sqrt(1 - abar_t) e0, t) ||_4^4 with e0 = z(x0, 1): (N, S) float64.

    Kong et al. with p = 4, summed over channels and pixels. Their timesteps start at 0 and ours at 1, so
    their "t = 0" is our 1. `alphas_bar` is (T + 1,) with abar_0 = 1. Raises ValueError on a timestep
    outside 1 .. T.
    """
    steps = len(alphas_bar) - 1
    wrong = [t for t in timesteps if not 1 <= t <= steps]
    if wrong or not timesteps:
        raise ValueError(f"timesteps must be one or more numbers in 1 .. {steps}, got {list(timesteps)}")
    if len(records) == 0:
        raise ValueError("records must hold at least one record to score")
    rows = []
    for x0, labels in zip(torch.split(records.images, batch), torch.split(records.labels, batch), strict=True):
        e0 = denoiser(x0, _times(x0, 1), labels)
        columns = []
        for t in timesteps:
            abar = float(alphas_bar[t])
            x_t = math.sqrt(abar) * x0 + math.sqrt(1 - abar) * e0
            error = e0 - denoiser(x_t, _times(x0, t), labels)
            columns.append(error.double().pow(4).flatten(1).sum(1))
        rows.append(torch.stack(columns, dim=1))
    return torch.cat(rows)


def attack(
    *, calibration_members: Tensor, calibration_nonmembers: Tensor, members: Tensor, nonmembers: Tensor
) -> Attack:
    """Set the attack up on the calibration rows, then measure it on the others.

    Each argument is a matrix of scores (n, S), low for members, the same S columns in all. The timestep
    with the highest AUC and the threshold with the best balanced accuracy are the calibration rows' alone.
    Raises ValueError on fewer than 2 rows, different columns, or NaN scores.
    """
    _check(calibration_members, calibration_nonmembers, members, nonmembers)
    column = _best_column(calibration_members, calibration_nonmembers)
    set_in, set_out, inside, outside = (
        m[:, column].double() for m in (calibration_members, calibration_nonmembers, members, nonmembers)
    )
    threshold = _best_threshold(set_in, set_out)
    value, auc_interval = _auc(inside, outside)
    hits, rejections = int((inside <= threshold).sum()), int((outside > threshold).sum())
    calibrated = len(set_out) >= 100
    bar = _one_percent_bar(set_out if calibrated else outside)
    caught = int((inside < bar).sum())
    return Attack(
        timestep_index=column,
        threshold=threshold,
        auc=value,
        auc_interval=auc_interval,
        balanced_accuracy=(hits / len(inside) + rejections / len(outside)) / 2,
        balanced_accuracy_interval=_mean_of_two((hits, len(inside)), (rejections, len(outside))),
        tpr_at_1pct_fpr=caught / len(inside),
        tpr_at_1pct_fpr_interval=wilson(caught, len(inside)),
        tpr_calibrated=calibrated,
        fpr_reached=float((outside < bar).double().mean()),
        n_members=len(inside),
        n_nonmembers=len(outside),
    )


def _best_column(members: Tensor, nonmembers: Tensor) -> int:
    """The column with the highest AUC, the first of equals."""
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
    """AUC and its interval from DeLong's placements, in O(n log n)."""
    placed_members = 1 - _share_below(members, nonmembers)  # share of non-members above each member
    placed_nonmembers = _share_below(nonmembers, members)  # share of members below each non-member
    auc = float(placed_members.mean())
    variance = placed_members.var() / len(members) + placed_nonmembers.var() / len(nonmembers)
    half = Z95 * math.sqrt(float(variance))
    return auc, (max(0.0, auc - half), min(1.0, auc + half))


def _share_below(values: Tensor, others: Tensor) -> Tensor:
    """For each value the share of `others` below it, equals counting half."""
    ranked, values = others.sort().values.contiguous(), values.contiguous()
    below, up_to = torch.searchsorted(ranked, values), torch.searchsorted(ranked, values, right=True)
    return (below + up_to).double() / (2 * len(others))


def _one_percent_bar(nonmembers: Tensor) -> float:
    """The score below which lie at most 1 % of the non-members: none of them when they are fewer than 100."""
    return float(nonmembers.sort().values[len(nonmembers) // 100])


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval for a proportion."""
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean_of_two(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Interval for the mean of two independent proportions (successes, n), from Wilson's arms."""
    p, q = first[0] / first[1], second[0] / second[1]
    (p_low, p_high), (q_low, q_high) = wilson(*first), wilson(*second)
    low = p + q - math.hypot(p - p_low, q - q_low)
    high = p + q + math.hypot(p_high - p, q_high - q)
    return low / 2, high / 2


def _times(x: Tensor, t: int) -> Tensor:
    return torch.full((len(x),), t, dtype=torch.int64, device=x.device)


def _check(*scores: Tensor) -> None:
    if any(s.dim() != 2 or len(s) < 2 or s.shape[1] != scores[0].shape[1] for s in scores):
        shapes = ", ".join(str(tuple(s.shape)) for s in scores)
        raise ValueError(f"scores must be matrices of at least 2 rows with the same columns, got shapes {shapes}")
    if any(s.isnan().any() for s in scores):
        raise ValueError("scores must not be NaN: the attacked model's output is not a number")
