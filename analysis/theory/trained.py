"""Effect of one record on TRAINED models, and their distance from perfect ones, by enumeration of k^n states.

A model is its predictions p_phi(v_0^i | v_t) for every state and step. For the perfect models of `exact` all errors but
`gaps` are 0.

| paper | here |
|---|---|
| gamma_t, Assumption 1 | Trained.gamma |
| gammatilde_t, Assumption 2; TV is half of sum abs(q - p) | Exact.gaps |
| O(sqrt(gamma_t) + gammatilde_t), Theorem 1 | Trained.error, from `error_factors` |

delta is that of two fixed models. The delta of a mixture over random trainings is at most its expectation (the hockey
stick is jointly convex), whichever runs are paired.

Deviations:

- f_1 is twice the printed one: the last line of Lemma K.3's proof loses a factor of 2. It is that of Appendix J.3,
  mu-_t, not Lemma A.3's, mubar-_t.
- f_1 and f_2 are infinite at t = 1, where Rbar_0 is: with the constants of its proof, Theorem 1's error term says
  something only for rows that are released at step 1 or later.

`stages` trains both from the same parameters on the same batches and noise; where the record is drawn, the training
without it sees another record.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Eq. 4, 5 and 6, Lemmas A.3, K.2 and K.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from analysis.theory.exact import (
    Exact,
    clean_chances,
    compare,
    exact,
    kl,
    matrix,
    matrix_since,
    neighbours,
    noise,
    states,
)
from analysis.theory.random_tables import RandomTable
from analysis.theory.theory_tables import Rows
from raydiff.data.records import images_of
from raydiff.formats.tables import aligned
from raydiff.models.compute import device
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training, optimize
from raydiff.papers.discrete.bound import ReleasedRows, audit_rows
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel
from raydiff.seeding import generator
from raydiff.tree import Params

Predictions = Callable[[int], Floats]
"""t in 1..T -> p_phi(v_0^i = l | v_t), (k^n, n, k), v_t in the order of `states`."""

TINY = RandomTable(p=0.6, others=100, columns=3, categories=3, steps=10, epsilon=0.1)  # 27 states, enumerated
MARKS = (0, 30, 100, 300)  # steps of the training of its models
RUNS = 2  # how often they are trained


@dataclass(frozen=True, kw_only=True)
class Trained(Exact):
    """Two models, with the record and without, against each other and against the perfect ones.

    The errors are those of the worse of the two models, by `ReleasedRows.steps`.
    """

    gamma: Floats
    """(steps,) max KL(q(v_0^i | v_t) || p_phi(v_0^i | v_t)) over v_t and i, nats: Assumption 1."""
    mean: Floats
    """(steps,) the same, mean over v_t ~ q and i: how far the training loss is above its minimum."""
    error: float
    """Theorem 1's error term with the constants of its proof: path <= forward of perfect models + error."""


def trained(table: Ints, record: int, release: ReleasedRows, models: Sequence[Predictions]) -> Trained:
    """Compare two models of a (rows, n) table, with row number `record` and without one copy of it, in this order.

    Raises ValueError for too many states, and for a kernel whose first step adds no noise, where the conditionals have
    no meaning.
    """
    kernel = release.kernel
    if kernel.alpha[1] == 1:
        raise ValueError("trained models need noise in the first step, got alpha_1 = 1")
    tables = neighbours(table, record, kernel)
    gamma = []
    mean = []
    for t in release.steps:
        noised = [noise(counts, matrix_since(kernel, t)).reshape(-1) for counts in tables]
        pairs = zip(tables, models, strict=True)
        off = [kl(clean_chances(counts, kernel, t), model(t)) for counts, model in pairs]  # (states, n) each
        gamma.append(max(float(each.max()) for each in off))
        mean.append(max(float(q @ each.mean(axis=1)) for q, each in zip(noised, off, strict=True)))
    pair = compare(tables, release, lambda t: [transitions(model(t), kernel, t) for model in models])
    error = release.price * table.shape[1] * _error(gamma, pair.gaps, release)
    return Trained(**vars(pair), gamma=np.array(gamma), mean=np.array(mean), error=error)


def error_factors(kernel: Kernel, t: int) -> tuple[float, float]:
    """a and b such that a sqrt(gamma_t) + b gammatilde_t is f_1 + f_2 of Lemma A.3, per column; infinite at t = 1.

    With c_1 and c_2 the smallest and largest q(v_{t-1}^i | v_t, v_0) (Lemma K.2), a = 2 sqrt(2) k c_2^2 / c_1 and
    b = 2 ln(c_2 / c_1).
    """
    once = matrix(kernel, t)
    smallest = once[0, 1] * kernel.other_since[t - 1] / kernel.same_since[t]
    largest = once[0, 0] * kernel.same_since[t - 1] / kernel.same_since[t]
    if smallest == 0:
        return math.inf, math.inf
    first = 2 * math.sqrt(2) * kernel.categories * largest**2 / smallest
    return float(first), 2 * math.log(largest / smallest)


def transitions(guess: Floats, kernel: Kernel, t: int) -> Floats:
    """p_phi(v_{t-1}^i = j | v_t) of predictions p_phi(v_0^i = l | v_t), (states, n, k) both: Eq. 4."""
    once = matrix(kernel, t)
    early = matrix_since(kernel, t - 1)
    late = matrix_since(kernel, t)
    posterior = once.T[:, None, :] * early / late.T[:, :, None]  # (v_t, v_0, v_{t-1})
    n = guess.shape[1]
    return np.asarray(np.einsum("sil,silj->sij", guess, posterior[states(n, kernel.categories)]))


def predictions(predict: Callable[[Tensor, Tensor, Tensor], Tensor], columns: int, categories: int) -> Predictions:
    """Predictions of a denoiser without conditions, of codes (N, n), steps (N,), labels (N, 0), in all states."""
    rows = torch.from_numpy(states(columns, categories))

    def at(t: int) -> Floats:
        none = torch.zeros(len(rows), 0, dtype=torch.long)
        return np.asarray(predict(rows, torch.full((len(rows),), t), none).numpy(), dtype=np.float64)

    return at


def _error(gamma: Sequence[float], gaps: Floats, release: ReleasedRows) -> float:
    """sum f_1 + f_2; an error of 0 costs nothing at an infinite price."""
    total = 0.0
    for t, one, other in zip(release.steps, gamma, gaps, strict=True):
        first, second = error_factors(release.kernel, t)
        total += (first * math.sqrt(one) if one > 0 else 0.0) + (second * float(other) if other > 0 else 0.0)
    return total


# --- trainings ---


def stages(
    setting: RandomTable, table: Ints, marks: Sequence[int], *, training: Training, seed: int
) -> Iterator[Trained]:
    """After each number of steps in `marks`, ascending: the two models of the table, row 0 being the record.

    Raises ValueError for too many states, and Diverged when a loss is no longer finite.
    """
    counts = (setting.categories,) * setting.columns
    model = DiscreteDiffusion(hidden=64, layers=3, schedule=setting.schedule, steps=setting.steps, counts=counts)
    pairs = zip(*(_trainings(model, table, marks, training, seed, without=w) for w in (False, True)), strict=True)
    for pair in pairs:
        models = [predictions(model.denoiser(params), setting.columns, setting.categories) for params in pair]
        yield trained(table, 0, setting.release, models)


def _trainings(
    model: DiscreteDiffusion, table: Ints, marks: Sequence[int], training: Training, seed: int, *, without: bool
) -> Iterator[Params]:
    where = device()
    rng = generator(seed, "pdp", "training")
    images = images_of(torch.from_numpy(np.asarray(table))).to(where)
    none = torch.zeros(training.batch, 0, dtype=torch.long, device=where)

    def gradient(theta: Params) -> tuple[Params, Tensor]:
        rows = torch.randint(len(table), (training.batch,), generator=rng)
        others = torch.randint(1, len(table), (training.batch,), generator=rng)
        rows = torch.where(rows == 0, others, rows) if without else rows
        draws = {k: v.to(where) for k, v in model.draws(training.batch, rng).items()}
        loss = model.loss(theta, (images[rows.to(where)], none), draws, {})
        loss.backward()
        return {k: v.grad for k, v in theta.items() if v.grad is not None}, loss.detach()

    params = model.init(generator(seed, "pdp", "model"))
    done = 0
    moments: Params = {}
    for mark in marks:
        if mark > done:
            params, moments, _ = optimize(params, gradient, training=training, steps=range(done, mark), moments=moments)
            done = mark
        yield params


def report() -> list[str]:
    """What the record really changes in one tiny table: perfect models, then trained ones, step by step."""
    table = TINY.table(generator(0, "pdp", "tiny"))
    one = TINY.release
    perfect = exact(table, 0, one)
    bound = audit_rows(table, one, records=np.array([0])).delta[0]
    rule = Training(steps=MARKS[-1], learning_rate=5e-3, decay="constant")
    runs = [list(stages(TINY, table, MARKS, training=rule, seed=run)) for run in range(RUNS)]
    rows: Rows = [("steps", "delta", "KL bound", "gamma_t", "mean KL", "gammatilde_t")]
    for steps, stage in zip(MARKS, zip(*runs, strict=True), strict=True):
        values = [(r.delta, r.path, float(r.gamma.max()), float(r.mean.max()), float(r.gaps.max())) for r in stage]
        rows.append((str(steps), *(f"{value:.3g}" for value in np.mean(values, axis=0))))
    return [
        "One record, all states enumerated: k = n = 3, T = 10, s = 100, p = 0.6, linear, epsilon 0.1, m = 1;",
        f"perfect models: exact delta {perfect.delta:.3g}, KL bound {perfect.output:.3g} (of the outputs) and "
        f"{perfect.path:.3g} (of the chains), Theorem 1 {bound:.3g}, largest gammatilde_t {perfect.gaps.max():.3g}",
        f"trained with and without the record on the same batches, mean of {RUNS} runs; errors: the largest over t;",
        "Theorem 1's error term, with the constants of its proof, is infinite at t = 1:",
        *aligned(rows, words=0),
    ]
