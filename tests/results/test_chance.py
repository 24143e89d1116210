"""A trial whose samples are noise says so."""

import json
from pathlib import Path

import pytest
from trial_folders import written

from raydiff.experiment import overrides
from raydiff.experiment.presets import PRESETS
from raydiff.results.chance import noise


def sweep(folder: Path, *accuracies: float | None, method: str = "pfdm") -> Path:
    experiment = PRESETS["digits"]().experiment
    experiment = overrides.override(experiment, {"method": overrides.convert(experiment, "method", method)})
    for number, accuracy in enumerate(accuracies):
        at = folder / "trials" / str(number)
        at.mkdir(parents=True)
        (at / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))
        final = {} if accuracy is None else {"eval/label_accuracy/all": accuracy, "eval/label_accuracy/real": 0.96}
        (at / "outcome.json").write_text(json.dumps({"outcome": "finished", "final": written(final)}))
    return folder


def test_one_trial_at_chance(tmp_path: Path) -> None:
    message = noise(sweep(tmp_path, 0.11))
    assert message.startswith("the samples are hardly better than noise")
    assert "about 96% of real pictures" in message and "about 11% of these (10% by chance)" in message
    assert "--method.local.steps (now 1000) or --method.server.steps (now 1000)" in message


def test_of_several_trials_it_counts_those_and_shows_the_worst(tmp_path: Path) -> None:
    message = noise(sweep(tmp_path, 0.2, 0.6, 0.12, None))
    assert message.startswith("the samples of 2 of 3 trials are") and "about 12% of these" in message


@pytest.mark.parametrize("accuracies", [(), (None,), (0.28, 0.9)])
def test_nothing_is_said_of_samples_that_are_better(tmp_path: Path, accuracies: tuple[float | None, ...]) -> None:
    (tmp_path / "trials").mkdir()
    assert noise(sweep(tmp_path, *accuracies)) == ""
