"""Discrete diffusion of category vectors: D3PM with the uniform kernel.

Austin et al. 2021, arXiv 2107.03006, in the form of Wei et al. (TMLR 2024, arXiv 2310.15524).

The n columns are noised independently; the network predicts each column of the clean row from the whole noised row.
Generation draws the columns of a step independently (Wei et al., Eq. 3):

    p(v_{t-1}^i | v_t) = sum_l q(v_{t-1}^i | v_t, v_0^i = l) p(v_0^i = l | v_t).

All columns have k categories, the largest number of any column, as in the paper: noised rows may hold codes that their
column does not use, clean rows never. A chain begins with uniform rows, as in the paper, even if the schedule leaves
some signal at T.

Deviations: layer normalisation, since batch statistics are an unnoised disclosure in DP-SGD and do not average over
clients; categorical cross-entropy, where the paper says "binary"; a learned embedding of the step.

Shapes: B rows, n columns, k categories, K conditions. A batch of rows is a batch of images (B, 1, 1, n) of codes.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge, MinLen
from torch import Tensor, nn
from torch.nn import functional as F

from raydiff.data.records import codes_of, images_of
from raydiff.models.compute import frozen
from raydiff.models.d3pm_kernel import CATEGORY_SCHEDULES, CategorySchedule, Linear, abar
from raydiff.models.functional import call, fresh
from raydiff.settings import Count, Natural, settings
from raydiff.tree import Params

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]


@settings(frozen=True, kw_only=True)
class DiscreteDiffusion:
    """A denoiser of category vectors: an MLP and a schedule, without parameters.

    Raises:
        ValueError: If `release` is beyond the last step.

    Examples:
        >>> import torch
        >>> model = rd.DiscreteDiffusion(hidden=32, steps=4, counts=(2, 3))
        >>> len(model.init(torch.Generator())) > 0
        True
    """

    hidden: Count = 256
    """Units of each hidden layer."""
    layers: Annotated[int, Ge(2)] = 4
    """Linear layers, including the last, which outputs logits."""
    schedule: Annotated[CategorySchedule, CATEGORY_SCHEDULES] = Linear()
    """Noise schedule."""
    steps: Count = 10
    """T."""
    release: Natural = 0
    """T_rl in 0..T: samples are rows of this step; 0: clean rows, T: uniform rows."""
    counts: Annotated[tuple[Count, ...], MinLen(1)] = (2,)
    """Number of categories of each column; filled in from the data when an experiment is built."""
    labels: tuple[Count, ...] = ()
    """Number of values of each condition, each with its own embedding; filled in from the data."""
    conditional: bool = True
    """Condition on the table's label."""

    def __post_init__(self) -> None:
        _schedule(self)
        if self.release > self.steps:
            raise ValueError(f"release must be in 0..{self.steps} (steps), got {self.release}")

    @property
    def k(self) -> int:
        return max(self.counts)

    @property
    def abar(self) -> Tensor:
        """abar_0 .. abar_T, (T + 1,) float64."""
        return _schedule(self)[1]

    def for_table(self, counts: tuple[int, ...], labels: tuple[int, ...]) -> "DiscreteDiffusion":
        """The same for a table with so many categories in each column and values in each label column."""
        return replace(self, counts=counts, labels=labels if self.conditional else ())

    def for_data(self, shape: tuple[int, int, int], labels: tuple[int, ...]) -> "DiscreteDiffusion":
        raise ValueError("discrete diffusion is for tables: data.name must be adult, german, loan or a table's file")

    def init(self, rng: torch.Generator) -> Params:
        return fresh(self, rng)

    def build(self) -> nn.Module:
        return _Denoiser(self)

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """The random part of a step: t ~ Uniform{1..T} (B,); u, other (B, n): `other` replaces values if u >= abar."""
        size = (count, len(self.counts))
        return {
            "t": torch.randint(1, self.steps + 1, (count,), generator=rng),
            "u": torch.rand(size, generator=rng),
            "other": torch.randint(self.k, size, generator=rng),
        }

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Cross-entropy of the clean columns, mean over rows and columns. Needs no extras."""
        clean = codes_of(batch[0])
        noised = self.add_noise(clean, draws)
        logits = self._call(params, noised, draws["t"], batch[1])
        return F.cross_entropy(logits.flatten(0, 1), clean.flatten())

    def features(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params) -> Tensor:
        """The last hidden layer on the noised rows, (B, hidden), for MOON."""
        noised = self.add_noise(codes_of(batch[0]), draws)
        return self._call(params, noised, draws["t"], batch[1], features=True)

    def add_noise(self, clean: Tensor, draws: Params) -> Tensor:
        """v_t (B, n) from v_0 (B, n) and `draws`."""
        stay = self.abar.to(clean.device, draws["u"].dtype)[draws["t"]].unsqueeze(-1)
        return torch.where(draws["u"] < stay, clean, draws["other"])

    def posterior(self, clean: Tensor, noised: Tensor, t: Tensor) -> Tensor:
        """q(v_{t-1} | v_t, v_0) of each column, averaged over v_0 ~ `clean`: (B, n, k).

        clean (B, n, k) are probabilities, noised (B, n) codes, t (B,) in 1..T.
        """
        alpha, bar = (values.to(clean.device) for values in _schedule(self))
        now, before, step = (a[i].to(clean.dtype)[:, None, None] for a, i in ((bar, t), (bar, t - 1), (alpha, t)))
        hot = _one_hot(noised, self.k, clean.dtype)
        weight = clean / (now * hot + (1 - now) / self.k)  # p(l) / q(v_t | v_0 = l)
        mixed = before * weight + (1 - before) / self.k * weight.sum(-1, keepdim=True)
        return (step * hot + (1 - step) / self.k) * mixed

    def denoiser(self, params: Params) -> Predict:
        """p(v_0 | v_t), (N, n, k) float64, of (codes (N, n), t (N,) in 1..T, labels (N, K)); as `frozen`."""
        return frozen(lambda bound, *inputs: self._call(bound, *inputs).double().softmax(-1), params)

    def sample(self, predict: Predict, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Rows (N, n) int64 of step `release` from uniform rows by a `denoiser`, for labels (N, K)."""
        rows = torch.randint(self.k, (len(labels), len(self.counts)), generator=rng)
        for step in range(self.steps, self.release, -1):
            t = torch.full((len(rows),), step)
            rows = draw_codes(self.posterior(predict(rows, t, labels), rows, t), rng)
        return rows

    def sampler(self, params: Params) -> Callable[[Tensor, torch.Generator], Tensor]:
        """`sample` as a function of (labels (N, K), rng) to codes in the records' form, (N, 1, 1, n)."""
        predict = self.denoiser(params)
        return lambda labels, rng: images_of(self.sample(predict, labels, rng))

    def _call(self, params: Params, noised: Tensor, t: Tensor, labels: Tensor, *, features: bool = False) -> Tensor:
        return call(self, params, noised, t, labels[:, : len(self.labels)], features)


def draw_codes(probabilities: Tensor, rng: torch.Generator) -> Tensor:
    """One code for each distribution (N, n, k): (N, n), never one of probability 0."""
    up_to = probabilities.double().cumsum(-1)
    u = torch.rand(*probabilities.shape[:-1], 1, generator=rng, dtype=torch.float64) * up_to[..., -1:]
    return (up_to <= u).sum(-1)


def _one_hot(codes: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """(..., k); `F.one_hot` reads values, which torch.func.vmap does not allow."""
    return (codes.unsqueeze(-1) == torch.arange(k, device=codes.device)).to(dtype)


class _Denoiser(nn.Module):
    def __init__(self, model: DiscreteDiffusion) -> None:
        super().__init__()
        width = model.hidden
        n = len(model.counts)
        self.k = model.k
        self.step = nn.Embedding(model.steps, width)
        self.conditions = nn.ModuleList(nn.Embedding(count, width) for count in model.labels)
        self.enter = nn.Linear(n * self.k, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(model.layers - 2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(model.layers - 1))
        self.leave = nn.Linear(width, n * self.k)
        used = torch.arange(self.k) < torch.tensor(model.counts)[:, None]
        self.register_buffer("used", used, persistent=False)  # (n, k)
        self.used: Tensor

    def forward(self, noised: Tensor, t: Tensor, labels: Tensor, features: bool = False) -> Tensor:
        h = self.enter(_one_hot(noised, self.k, self.enter.weight.dtype).flatten(1)) + self.step(t - 1)
        for i, table in enumerate(self.conditions):
            h = h + table(labels[:, i])
        h = F.leaky_relu(self.norms[0](h))
        for layer, norm in zip(self.hidden, list(self.norms)[1:], strict=True):
            h = F.leaky_relu(norm(layer(h)))
        if features:
            return h
        logits: Tensor = self.leave(h).unflatten(1, self.used.shape)
        return logits.masked_fill(~self.used.to(logits.device), -torch.inf)


@functools.lru_cache(maxsize=16)
def _schedule(model: DiscreteDiffusion) -> tuple[Tensor, Tensor]:
    """alpha_0 .. alpha_T and abar_0 .. abar_T, (T + 1,) float64."""
    return model.schedule.alpha(model.steps), abar(model.schedule, model.steps)
