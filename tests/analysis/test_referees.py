"""A benchmark beside what others published: which trial stands beside which number, by hand."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from trial_folders import written

from analysis import referees
from analysis.claims import rows_of, values, where
from analysis.referee_presets import dpimagebench, niid_bench
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override, to_dict
from raydiff.experiment.study import trials
from raydiff.report import load

pytestmark = pytest.mark.slow

NIID, DPIMAGEBENCH = (
    trials(study.experiment, {**study.grid, "seed": (0,)}, study.beside) for study in (niid_bench(), dpimagebench())
)


def write(
    sweep: Path, number: int, seed: int, accuracy: float | None, *, of: list[Experiment] = NIID, **changes: float
) -> None:
    """The study's trial of this number, with this seed."""
    experiment, changes = of[number], {"seed": seed, **changes}
    folder = sweep / "trials" / f"{number}-{seed}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_dict(override(experiment, changes))))
    (folder / "metrics.jsonl").write_text("")
    if accuracy is not None:
        final = dict.fromkeys(("eval/accuracy", "eval/downstream/lenet/all"), accuracy)
        views = {view: {"epsilon": 0.0} for view in ("server", "outsiders")}
        end = {"outcome": "finished", "final": written(final), **views}
        (folder / "outcome.json").write_text(json.dumps(end))


def test_the_difference_is_in_points_over_our_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.9879, 0.9889, 0.9899)):
        write(tmp_path, 0, seed, accuracy)  # FedAvg, Dirichlet
    write(tmp_path, 3, 0, 0.1)  # SCAFFOLD, one label a party
    write(tmp_path, 1, 0, None)  # FedAvg, one label a party: it has not ended
    cells = referees.beside(load.runs(tmp_path)).set_index(["method", "source"])
    assert len(cells) == 4 and set(cells.index.get_level_values("method")) == {"FedAvg", "SCAFFOLD"}
    row = cells.loc["FedAvg", "Flower's baseline niid_bench"]
    half = 4.302652729911275 * 0.1 / math.sqrt(3)  # t at 97.5 %, 2 degrees of freedom
    assert (row["theirs"], row["printed"], row["n"]) == (98.89, "98.89 ± 0.07", 3)
    assert row["ours"] == pytest.approx(98.89) and row["difference"] == pytest.approx(0, abs=1e-9)
    assert (row["low"], row["high"]) == (pytest.approx(-half), pytest.approx(half))
    alone = cells.loc["SCAFFOLD", "FedBench's page"]
    assert alone["difference"] == pytest.approx(10 - 10.99) and math.isnan(alone["low"])
    text = str(referees.shown_table(cells.reset_index()))
    assert "| MNIST, Dirichlet 0.5 | FedAvg | Flower's baseline niid_bench | 98.89 ± 0.07 | 50 | 98.89 |" in text
    assert "| 10.00 | -0.99 |" in text and "n = 1 to 3 seeds of ours" in text


def test_every_published_cell_is_one_of_the_preset_s(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path, number, 0, 0.5)
    runs = load.runs(tmp_path)
    cells = [row for row in rows_of("published") if row["preset"] == "niid_bench"]
    rows = [values(runs, row["ours"], where(row["config"])) for row in cells]
    assert [row is not None and len(row) for row in rows] == [1] * 14
    assert {row["digest"].iloc[0] for row in rows if row is not None} == set(runs["digest"])


def test_samples_are_judged_by_a_classifier_at_each_epsilon(tmp_path: Path) -> None:
    """Two benchmarks on one page: what has no rounds says none."""
    methods = [(type(e.method).__name__, e.method.epsilon) for e in DPIMAGEBENCH]  # type: ignore[attr-defined]
    assert methods == [(name, epsilon) for name in ("DPMERF", "Sketch") for epsilon in (0.2, 1.0, 10.0)]
    for number, accuracy in enumerate((0.5, 0.81, 0.82, 0.5, 0.85, 0.86)):
        write(tmp_path, number, 0, accuracy, of=DPIMAGEBENCH)
    write(tmp_path / "other", 1, 0, 0.9, of=DPIMAGEBENCH, **{"data.public": 100})  # not the same records
    write(tmp_path / "shared", 1, 0, 0.9, of=DPIMAGEBENCH, clients=10)
    runs = [load.runs(folder) for folder in (tmp_path, tmp_path / "other", tmp_path / "shared")]
    cells = referees.beside(pd.concat(runs))
    assert cells["ours"].tolist() == [pytest.approx(x) for x in (81, 82, 85, 86)] and cells["rounds"].isna().all()
    assert cells["difference"].tolist() == [pytest.approx(x) for x in (0.7, 0.7, -9.0, -7.6)]
    text = str(referees.shown_table(cells))
    assert "| MNIST, epsilon 1 | DP-MERF | DPImageBench | 80.3 | - | 81.00 | +0.70 |" in text
