"""A warning where a trial's samples are hardly better than noise."""

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
    """Return which of a sweep's trials have samples that a classifier of real pictures takes for noise, or ""."""
    noisy, count = [], 0
    for path, outcome in outcomes(folder):
        final = outcome.get("final") or {}
        accuracy, ceiling = (final.get(f"eval/label_accuracy/{records}") for records in ("all", "real"))
        if accuracy is None or ceiling is None:
            continue
        count += 1
        experiment = config.read(path / "config.json")
        chance = 1 / max(1, _classes(experiment))
        if accuracy < chance + LEAST * (ceiling - chance):
            noisy.append((accuracy, ceiling, chance, experiment))
    if not noisy:
        return ""
    accuracy, ceiling, chance, experiment = min(noisy, key=lambda trial: trial[0])
    subject = "the samples are" if count == 1 else f"the samples of {len(noisy)} of {count} trials are"
    return (
        f"{subject} hardly better than noise: a classifier that is right about {ceiling:.0%} of real pictures is "
        f"right about {accuracy:.0%} of these ({chance:.0%} by chance); raise {_cures(experiment)}, or let raydiff "
        "init choose"
    )


def _classes(experiment: Experiment) -> int:
    labels: Sequence[int] = getattr(experiment.method.model, "labels", ())
    return labels[0] if labels else 1


def _cures(experiment: Experiment) -> str:
    flat = overrides.flat(experiment)
    return " or ".join(f"--{path} (now {overrides.short(flat[path])})" for path in CURES if flat.get(path) is not None)
