"""A small table's model while it is trained, with the record and without: what `privacy.pdp_trained` finds on the way.

Both trainings start from the same parameters and see the same batches and noise, but that where the record is drawn the
one without it sees another record. Each is a plain training of its own table by itself, and what differs between them
comes from the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from raydiff.models.d3pm import DiscreteDiffusion, images_of
from raydiff.models.ddpm import device
from raydiff.models.training import Training, optimize
from raydiff.privacy.pdp.kernel import Ints
from raydiff.seeding import generator
from raydiff.theory.pdp import Setting
from raydiff.theory.pdp_trained import Trained, predictions, trained
from raydiff.tree import Params


def stages(
    setting: Setting, table: Ints, marks: Sequence[int], *, training: Training, seed: int, hidden: int = 64
) -> Iterator[Trained]:
    """After each number of steps in `marks`, ascending: the two models of the table, row 0 being the record.

    Raises ValueError for too many states, and Diverged when a loss is no longer finite.
    """
    model = DiscreteDiffusion(
        hidden=hidden,
        layers=3,
        schedule=setting.schedule,
        steps=setting.steps,
        counts=(setting.categories,) * setting.columns,
    )
    pairs = zip(*(_trainings(model, table, marks, training, seed, without=w) for w in (False, True)), strict=True)
    for pair in pairs:
        known = [predictions(model.denoiser(params), setting.columns, setting.categories) for params in pair]
        yield trained(table, 0, setting.release, known)


def _trainings(
    model: DiscreteDiffusion, table: Ints, marks: Sequence[int], training: Training, seed: int, *, without: bool
) -> Iterator[Params]:
    where, rng = device(), generator(seed, "pdp", "training")
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

    params, moments, done = model.init(generator(seed, "pdp", "model")), None, 0
    for mark in marks:
        if mark > done:
            params, moments, _ = optimize(params, gradient, training=training, steps=range(done, mark), moments=moments)
            done = mark
        yield params
