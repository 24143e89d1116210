"""Whether what a finished trial samples is worth looking at: said in a sentence where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydiff.experiment import config, overrides
from raydiff.experiment.config import Experiment
from raydiff.formats.json_files import outcomes

LEAST = 0.2  # of the way from chance to a classifier's accuracy on real pictures
CURES = (
    "method.local.steps",
    "method.server.steps",
    "method.training.steps",
    "method.model.network.width",
    "method.epsilon",
)


def noise(folder: Path) -> str:
    """Of a sweep's finished trials, those whose samples a classifier of real pictures can hardly tell from noise, and
    what to change; "" where there is none."""
    found = []
    for at, outcome in outcomes(folder):
        final = outcome.get("final") or {}
        made, real = (final.get(f"eval/label_accuracy/{of}") for of in ("all", "real"))
        if made is None or real is None:
            continue
        experiment = config.read(at / "config.json")
        chance = 1 / max(1, _classes(experiment))
        found.append((made < chance + LEAST * (real - chance), made, real, chance, experiment))
    noisy = [(made, real, chance, experiment) for is_noise, made, real, chance, experiment in found if is_noise]
    if not noisy:
        return ""
    made, real, chance, experiment = min(noisy, key=lambda one: one[0])
    whose = "the samples are" if len(found) == 1 else f"the samples of {len(noisy)} of {len(found)} trials are"
    return (
        f"{whose} hardly better than noise: a classifier that is right about {real:.0%} of real pictures is right "
        f"about {made:.0%} of these ({chance:.0%} by chance); raise {_cures(experiment)}, or let raydiff init choose"
    )


def _classes(experiment: Experiment) -> int:
    labels: Sequence[int] = getattr(experiment.method.model, "labels", ())
    return labels[0] if labels else 1


def _cures(experiment: Experiment) -> str:
    flat = overrides.flat(experiment)
    return " or ".join(f"--{path} (now {overrides.short(flat[path])})" for path in CURES if flat.get(path) is not None)
