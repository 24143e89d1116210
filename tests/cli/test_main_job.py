"""What README says of the main job, run again."""

from pathlib import Path

import pandas as pd
import pytest

from raydiff.experiment import trial
from raydiff.experiment.overrides import override
from raydiff.experiment.presets import MAIN, study
from raydiff.experiment.study import trials
from raydiff.models.schedules import LinearBetas

TABLE = Path(__file__).parents[2] / "docs" / "data" / "main-job.csv"
SPREAD = 0.2
"""Twice the standard deviation of such a distance over seeds: another processor adds floats in another order, and after
a thousand steps that is as another seed. On one like that of the table nine digits are equal."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["LocalOnly", "PFDM", "FedAvg"])
def test_the_numbers_without_noise_come_out_again(method: str, tmp_path: Path) -> None:
    """Noise is drawn from a sweep's own secret, so that what is noised never comes out again."""
    job = study(MAIN)
    every = trials(job.experiment, job.grid, job.beside)
    (experiment,) = [
        e
        for e in every
        if (type(e.method).__name__, e.clients) == (method, 4)
        and e.method.model.schedule == LinearBetas()
        and getattr(e.method, "epsilon", None) is None
    ]
    this = trial.open_trial(override(experiment, {"runtime.pool": "local"}), tmp_path)
    *_, final = trial.run_trial(this, trial.local_executor(this))
    table = pd.read_csv(TABLE)
    at = (table["method"] == method) & (table["clients"] == 4) & (table["schedule"] == "linear")
    (row,) = table[at & ~table["method.epsilon"].isin(["10.0", "50.0", "200.0"])].to_dict("records")
    for name in ("fd_cnn/minor", "fd_cnn/all"):
        assert final[f"eval/{name}"] == pytest.approx(row[name], abs=SPREAD)
    assert final["eval/label_accuracy/all"] == pytest.approx(row["label_accuracy"], abs=0.05)
    assert final["comm/bytes_up"] == row["bytes_up"]
