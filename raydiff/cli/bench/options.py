"""Lines of `raydiff bench options`: what a training step takes under each of the model's options for speed.

A UNet on random 28x28 pictures, AdamW. All take the same steps with the same draws, interleaved; the fastest of each
counts. Seconds are CPU seconds without a GPU; with one, those that pass. The first run of each is apart: it compiles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from raydiff import seeding
from raydiff.models.ddpm import DDPM, device
from raydiff.models.networks import UNet
from raydiff.models.training import Training, fit

NETWORK = UNet(widths=(32, 64))
OPTIONS: Mapping[str, DDPM] = {
    "float32": DDPM(network=NETWORK, shape=(1, 28, 28)),
    "bfloat16": DDPM(network=NETWORK, shape=(1, 28, 28), precision="bfloat16"),
    "channels_last": DDPM(network=replace(NETWORK, channels_last=True), shape=(1, 28, 28)),
    "compile": DDPM(network=NETWORK, shape=(1, 28, 28), compile=True),
}
"""Name -> model; the first is what the others are compared with."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure."""

    options: Mapping[str, DDPM] = field(default_factory=lambda: OPTIONS)
    batch: int = 32
    steps: int = 4
    repetitions: int = 5


SMALL = UNet(widths=(8, 8))
QUICK = Effort(
    options={
        "float32": DDPM(network=SMALL),
        "bfloat16": DDPM(network=SMALL, precision="bfloat16"),
        "channels_last": DDPM(network=replace(SMALL, channels_last=True)),
    },
    batch=4,
    steps=2,
    repetitions=1,
)


def lines(effort: Effort) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each line is about, and its fields."""
    ways = {name: _training(model, effort) for name, model in effort.options.items()}
    losses: dict[str, float] = {}
    first: dict[str, float] = {}
    seconds = dict.fromkeys(ways, math.inf)
    for name, way in ways.items():
        first[name], losses[name] = way()
    for _ in range(effort.repetitions):
        for name, way in ways.items():
            seconds[name] = min(seconds[name], way()[0] / effort.steps)
    plain = next(iter(ways))
    for name, model in effort.options.items():
        yield (
            "options",
            {
                "option": name,
                "device": device().type,
                "parameters": sum(v.numel() for v in model.init(seeding.generator(0, "count")).values()),
                "batch": effort.batch,
                "step_s": seconds[name],
                "over_float32": seconds[name] / seconds[plain],
                "first_run_s": first[name],
                "loss": losses[name],
                "loss_off_by": abs(losses[name] / losses[plain] - 1),
            },
        )


def _training(model: DDPM, effort: Effort) -> Callable[[], tuple[float, float]]:
    """A training that can be run again and again: (seconds, mean loss)."""
    rng = seeding.generator(0, "bench", "options")
    images = torch.rand(4 * effort.batch, *model.shape, generator=rng) * 2 - 1
    labels = torch.randint(model.labels[0], (len(images), 1), generator=rng)
    start, training = model.init(seeding.generator(0, "bench")), Training(steps=effort.steps, batch=effort.batch)
    clock = time.perf_counter if device().type == "cuda" else time.process_time

    def train() -> tuple[float, float]:
        began = clock()
        _, _, loss = fit(model, start, images, labels, training=training, rng=seeding.generator(0, "bench", "draws"))
        return clock() - began, loss  # the loss is a number, so the device is done

    return train
