"""Lines of `raydiff bench cohort`: CPU seconds of a client's training step, by itself and in lock-step.

Random pictures of 8x8; AdamW. Both ways are `fit` with the same draws, interleaved, and the fastest of each counts. How
far the results are apart is told by the mean losses: AdamW makes whole steps of gradients that are nothing but
rounding, so weights on which the loss does not depend are far apart at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from raydiff import seeding
from raydiff.models.ddpm import DDPM
from raydiff.models.lockstep import in_step
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Fitted, Training, fit

AGREEMENT = 1e-3  # relative, of the mean losses
RECORDS = 64


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Clients that train the same network."""

    network: MLP | UNet
    """The denoiser."""
    clients: int
    """Their number."""
    batch: int
    """Records per step."""
    target: float | None = None
    """What the ratio should stay below."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure."""

    cohorts: Sequence[Cohort] = (
        Cohort(network=UNet(widths=(8, 16)), clients=8, batch=16, target=0.5),
        Cohort(network=UNet(widths=(8, 16)), clients=16, batch=4, target=0.25),
        Cohort(network=MLP(width=128, depth=3), clients=8, batch=16),
        Cohort(network=MLP(width=128, depth=3), clients=16, batch=4),
        Cohort(network=MLP(width=32, depth=1), clients=8, batch=16),
        Cohort(network=MLP(width=32, depth=1), clients=16, batch=4),
    )
    steps: int = 3
    repetitions: int = 3


QUICK = Effort(cohorts=(Cohort(network=MLP(width=8, depth=1), clients=2, batch=4, target=1.0),), repetitions=1)


def lines(effort: Effort) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each line is about, and its fields."""
    for cohort in effort.cohorts:
        yield "cohort", measured(cohort, effort)


def measured(cohort: Cohort, effort: Effort) -> dict[str, Any]:
    """CPU seconds per client and step of both ways, their ratio, and whether they find the same."""
    trainings = [_training(cohort, effort.steps, client) for client in range(cohort.clients)]
    ways: dict[str, Callable[[], list[Fitted]]] = {
        "alone": lambda: [train() for train in trainings],
        "together": lambda: [fitted for fitted, _ in in_step(trainings)],
    }
    found = {name: way() for name, way in ways.items()}
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(effort.repetitions):
        for name, way in ways.items():
            started = time.process_time()
            way()
            took = time.process_time() - started
            seconds[name] = min(seconds[name], took / (cohort.clients * effort.steps))
    ratio = seconds["together"] / seconds["alone"]
    alone, together = (torch.tensor([loss for _, _, loss in found[name]]) for name in ("alone", "together"))
    return {
        "network": type(cohort.network).__name__,
        "parameters": sum(v.numel() for v in found["alone"][0][0].values()),
        "clients": cohort.clients,
        "batch": cohort.batch,
        **{f"{name}_cpu_s": s for name, s in seconds.items()},
        "together_over_alone": ratio,
        "target": cohort.target,
        "met": cohort.target is None or ratio <= cohort.target,
        "agree": bool(torch.allclose(alone, together, rtol=AGREEMENT, atol=0)),
    }


def _training(cohort: Cohort, steps: int, client: int) -> Callable[[], Fitted]:
    """A client's training, ready to be run as often as one likes: what comes before its first step is not timed."""
    model, rng = DDPM(network=cohort.network, timesteps=100), seeding.generator(0, "bench", "cohort", client)
    images = torch.rand(RECORDS, *model.shape, generator=rng) * 2 - 1
    labels = torch.randint(model.labels[0], (RECORDS, 1), generator=rng)
    training = Training(steps=steps, batch=cohort.batch)
    first = model.init(seeding.generator(0, "bench", "cohort"))

    def train() -> Fitted:
        draws = seeding.generator(0, "bench", "cohort", client, "draws")
        return fit(model, first, images, labels, training=training, rng=draws)

    return train
