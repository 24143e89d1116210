"""A warning where a trial's samples are hardly better than noise."""

import math
from dataclasses import replace
from pathlib import Path

from raydiff.evaluation.sample_metrics import LABEL_ACCURACY
from raydiff.experiment import config, overrides
from raydiff.formats.json_files import outcomes
from raydiff.formats.metric_records import metric_values, read_metrics

ACCURACIES = (
    replace(LABEL_ACCURACY, split="eval", group="all"),
    replace(LABEL_ACCURACY, split="eval", group="real", role="real"),
)
LEAST = 0.2  # of the way from chance to a classifier's accuracy on real pictures
CURES = ("local.steps", "server.steps", "training.steps", "model.network.width", "epsilon")  # fields of the method


def noise(folder: Path) -> str:
    """Return which of a sweep's trials have samples that a classifier of real pictures takes for noise, or ""."""
    noisy = []
    count = 0
    for path, outcome in outcomes(folder):
        accuracy, ceiling = metric_values(read_metrics(outcome.get("final", [])), *ACCURACIES)
        if math.isnan(accuracy) or math.isnan(ceiling):
            continue
        count += 1
        experiment = config.read_config(path / "config.json")
        classes, *_ = getattr(experiment.method.model, "labels", ()) or (1,)
        chance = 1 / max(1, classes)
        if accuracy < chance + LEAST * (ceiling - chance):
            noisy.append((accuracy, ceiling, chance, experiment))
    if not noisy:
        return ""
    accuracy, ceiling, chance, experiment = min(noisy, key=lambda trial: trial[0])
    flat = {f"method.{cure}": overrides.flatten_settings(experiment).get(f"method.{cure}") for cure in CURES}
    cures = " or ".join(f"--{path} (now {overrides.format_value(v)})" for path, v in flat.items() if v is not None)
    subject = "the samples are" if count == 1 else f"the samples of {len(noisy)} of {count} trials are"
    return (
        f"{subject} hardly better than noise: a classifier that is right about {ceiling:.0%} of real pictures is "
        f"right about {accuracy:.0%} of these ({chance:.0%} by chance); raise {cures}, or let raydiff init choose"
    )
