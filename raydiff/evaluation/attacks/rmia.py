"""RMIA: membership by likelihood ratios against a population (Zarifzadeh et al., ICML 2024, arXiv 2312.03262).

A record is a member if it gained more from the attacked model, over LiRA's shadow models, than population records z
that nobody trained on.

| paper | here |
|---|---|
| Pr(x given theta), the model's likelihood of x | exp(-L), L the loss of `lira.statistics` at one timestep |
| Pr(x), online: its mean over models, half of them with x | (out + in) / 2: means over the shadows without and with x |
| Pr(x), offline: ((1 + a) out + 1 - a) / 2 | the same with in = a out + 1 - a |
| a, by attacking one of the reference models | `interpolation`: by attacking shadow 0, timestep by timestep |
| LR(x, z) = (Pr(x given theta) / Pr(x)) / (Pr(z given theta) / Pr(z)) | the ratio of two records' ratios |
| score: Pr over z of LR(x, z) >= gamma | `rmia_scores`: the fraction of z with LR(x, z) < gamma, low for members |

Deviations: the paper's likelihood is a classifier's confidence. exp(-L) is, up to a constant, the geometric mean over
pixels of the normal density of the added noise around the predicted one, with variance 1/2. Half of the shadows were
trained on each population record, in place of none. gamma is 1, the smallest in the paper: at one timestep the score
orders records as Pr(x given theta) / Pr(x) does, so a larger one only makes more records equal.

Shapes: N records, M shadows, S timesteps.
"""

import torch
from torch import Tensor

from raydiff.evaluation.attacks import lira
from raydiff.evaluation.attacks.membership import best_column

GRID = tuple(i / 10 for i in range(11))  # values of a


def rmia_scores(target: Tensor, shadows: Tensor, inside: Tensor, population: Tensor, *, online: bool = False) -> Tensor:
    """Return scores in [0, 1] as `lira.lira_scores`; `population` (N,) bool: non-members of the target, at least 2."""
    likelihood = (-shadows.exp()).exp()
    without = lira.mean_of(likelihood, ~inside)
    a = interpolation(shadows, inside)
    within = lira.mean_of(likelihood, inside) if online else a * without + 1 - a
    ratio = _log_ratio(target, without, within)
    return lira.with_mean(torch.stack([_beaten_by(r, population) for r in ratio.T.contiguous()], dim=1))


def interpolation(shadows: Tensor, inside: Tensor) -> Tensor:
    """Return a at each timestep, (S,): the value in `GRID` with the best AUC of an attack on shadow 0."""
    without = lira.mean_of((-shadows[1:].exp()).exp(), ~inside[1:])
    tried = torch.stack([-_log_ratio(shadows[0], without, a * without + 1 - a) for a in GRID], dim=-1)  # (N, S, grid)
    best = [best_column(tried[inside[0], s], tried[~inside[0], s]) for s in range(tried.shape[1])]
    return torch.tensor([GRID[i] for i in best], dtype=torch.float64)


def _log_ratio(statistics: Tensor, without: Tensor, within: Tensor) -> Tensor:
    """log of Pr(x given theta) / Pr(x), (N, S)."""
    return -statistics.exp() - ((without + within) / 2).clamp_min(lira.TINY).log()


def _beaten_by(ratio: Tensor, population: Tensor) -> Tensor:
    """Fraction of the population, without the record itself, whose log ratio exceeds the record's (N,)."""
    ranked = ratio[population].sort().values
    beaten = torch.searchsorted(ranked, ratio, right=True) - population.long()  # itself, whose ratio is 1
    return 1 - beaten.double() / (len(ranked) - population.long())
