"""`raydiff tune`: every arm alike, on the validation split alone, with seeds of its own; then the preset has what was
chosen."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from trial_folders import written

import raydiff as rd
from raydiff.data import datasets
from raydiff.data.partition import Iid
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment import presets as names, tuning
from raydiff.experiment.config import Runtime
from raydiff.experiment.study import Arm, Study, trials
from raydiff.formats.json_files import read_json
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.localonly import LocalOnly
from raydiff.models.classifier import CNN, Classifier
from raydiff.models.training import Training
from raydiff.report import after_sweep, page
from raydiff.report.sweep_view import open_sweep

Command = Callable[..., tuple[int, str, str]]
RATE = "method.local.learning_rate"
GOOD, BAD, WRITTEN = 1e-2, 1e-7, 1e-3


def study() -> Study:
    """Two methods with a space of two settings and one without, after 20 steps; the second rate learns nothing."""
    method = FedAvg(
        model=Classifier(network=CNN(widths=(4,), hidden=16)),
        rounds=2,
        local=Training(steps=20, batch=16, learning_rate=WRITTEN, decay="constant"),
    )
    base = rd.Experiment(
        method=method,
        data=datasets.Data(train=120, public=0, validation=60, calibration=0, test=60),
        partition=Iid(),
        evaluation=Evaluation(metrics=("accuracy",), attacks=None, clients=1),
        runtime=Runtime(pool="local"),
    )
    once = Arm(method=FedProx, changes={"method.rounds": 1})
    prox = Arm(method=FedProx, space={(RATE, "method.mu"): ((BAD, 0.1), (GOOD, 0.01))})
    beside = (Arm(method=LocalOnly), once, prox)
    return Study(experiment=base, grid={"seed": (0, 1)}, beside=beside, space={RATE: (BAD, GOOD)})


@pytest.fixture
def preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`small` is a preset; gives the folder where what is chosen for it lies."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(tuning, "FOLDER", tmp_path / "tuned")
    monkeypatch.setitem(names.PRESETS.entries, "small", lambda: tuning.apply_tuned("small", study))
    return tmp_path / "tuned"


def kept(folder: Path, settings: Any) -> Path:
    """What a tuning would have written."""
    return tuning.keep(folder, "small", settings, {}, pd.DataFrame())


CHOSEN = {"FedAvg": {RATE: GOOD}, "FedProx": {RATE: GOOD, "method.mu": 0.01}}


def test_the_better_rate_is_chosen_on_the_validation_split_and_the_preset_has_it(
    preset: Path, command: Command, tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record of the test split is read, for it has none that could be."""
    (tmp_path / "mlflow.db").write_bytes(migrated.read_bytes())
    load = datasets.load_dataset

    def without_test(config: datasets.Data) -> datasets.Dataset:
        dataset = load(config)
        unreadable = replace(dataset.splits["test"], images=torch.full_like(dataset.splits["test"].images, torch.nan))
        return replace(dataset, splits={**dataset.splits, "test": unreadable})

    monkeypatch.setattr(datasets, "load_dataset", without_test)
    words = ["tune", "small", "--trials", 2, "--seeds", "10,11", "--name", "t", "--out", preset]
    words += ["--runtime.storage", tmp_path, "--method.local.batch", 16]
    code, out, _ = command(*words)
    assert code == 0 and "FedAvg: method.local.learning_rate 0.01 (eval/utility_loss" in out

    used = json.loads((preset / "small.json").read_text())
    assert used["settings"] == CHOSEN
    search = used["search"]
    assert search["command"] == " ".join(map(str, ["raydiff", *words])) and search["made_by"]["raydiff"]
    described = [search[k] for k in ("metric", "split", "seeds", "trials_per_arm")]
    assert described == ["eval/utility_loss", "validation", [10, 11], 2]
    table = pd.read_csv(preset / "small.csv")
    assert set(table["seed"]) == {10, 11} and set(table["outcome"]) == {"finished"}
    for _, rows in table.groupby(["method", "setting"]):
        assert rows["mean"].tolist() == pytest.approx([rows["eval/utility_loss"].mean()] * 2)
    for method, rows in table.groupby("method"):
        best = rows.loc[rows["mean"].idxmin()]
        assert best[RATE] == GOOD and rows["mean"].min() < rows["mean"].max() - 0.2, method

    configs = [read_json(p) for p in (tmp_path / "sweeps" / "t").glob("trials/*/config.json")]
    assert len(configs) == 8 and {c["evaluation"]["split"] for c in configs} == {"validation"}
    assert {c["method"]["rounds"] for c in configs} == {2}  # by the arm that declares the space

    used = names.PRESETS["small"]()
    rates = [(type(e.method).__name__, e.method.local.learning_rate) for e in trials(used.experiment, {}, used.beside)]  # type: ignore[attr-defined]
    assert rates == [("FedAvg", GOOD), ("LocalOnly", GOOD), ("FedProx", GOOD), ("FedProx", GOOD)]


@pytest.mark.slow
def test_the_sweep_and_its_report_say_what_was_chosen(
    preset: Path, command: Command, tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlflow.db").write_bytes(migrated.read_bytes())
    monkeypatch.setattr(after_sweep, "FULL", replace(after_sweep.FULL, write=lambda *_: ""))  # Pictures take seconds.
    kept(preset, CHOSEN)
    quick = ["--method.local.steps", 2, "--grid", "seed=0", "--runtime.storage", tmp_path]
    _, out, _ = command("sweep", "small", "--name", "s", *quick)
    lines = ["FedAvg: local.learning_rate 0.01", "FedProx: local.learning_rate 0.01, mu 0.01"]
    assert [line for line in out.splitlines() if line.startswith("tuned: ")] == [f"tuned: {line}" for line in lines]
    report = page.write_page(tmp_path / "report", open_sweep(tmp_path / "sweeps" / "s")).read_text()
    assert all(line in report for line in lines)
    more = ["--no-baselines", f"--{RATE}", 0.5]
    assert "tuned: " not in command("sweep", "small", "--name", "given", *more, *quick)[1]


def test_without_a_file_a_preset_is_as_written(preset: Path) -> None:
    used = names.PRESETS["small"]()
    assert used.tuned == {} and used.experiment.digest == study().experiment.digest
    assert used.beside == study().beside


def test_an_arm_that_is_to_be_as_written_keeps_its_settings(preset: Path) -> None:
    """Of the experiment's method, whose settings the others take from it, and of another."""
    kept(preset, CHOSEN)
    first, second = (Arm(method=m, changes={"method.rounds": 1}, as_written=True) for m in (None, FedProx))
    used = tuning.apply_tuned("small", lambda: replace(study(), beside=(*study().beside, first, second)))
    as_they_are = [arm.apply(used.experiment).method for arm in used.beside[-2:]]
    assert as_they_are == [arm.apply(study().experiment).method for arm in (first, second)]


def test_settings_are_drawn_once_each_and_more_trials_begin_with_the_same() -> None:
    space = {RATE: tuple(i / 100 for i in range(1, 11)), "method.rounds": (1, 2, 3)}
    wide = replace(study(), beside=(), space=space)
    few, many = (tuning.candidates(wide, trials=n)["FedAvg"].settings for n in (5, 30))
    assert few == many[:5] and len({tuple(s.items()) for s in many}) == 30
    planned = tuning.study_of(tuning.candidates(study(), trials=2), seeds=(7,))
    every = [planned.experiment, *(e for e in planned.others({}))]
    assert {type(e.method).__name__ for e in every[:3]} == {"FedAvg", "FedProx"}  # every method's first come first


def test_a_setting_without_one_of_its_trials_has_no_mean(tmp_path: Path) -> None:
    of = tuning.candidates(study(), trials=2)
    first = tuning.study_of(of, seeds=(7, 8))
    every = trials(first.experiment, first.grid) + first.others({})
    for number, experiment in enumerate(every):
        ended = (
            {"outcome": "failed"} if number == 0 else {"outcome": "finished", "final": written({"m": float(number)})}
        )
        at = tmp_path / "trials" / experiment.digest
        at.mkdir(parents=True)
        (at / "outcome.json").write_text(json.dumps(ended))
    rows = tuning.tabulate_trials(of, every, tmp_path, "m").set_index(["method", "setting"])
    assert rows.loc[("FedAvg", 0), "mean"].isna().all() and rows.loc[("FedAvg", 0), "m"].notna().sum() == 1
    assert rows.loc[("FedProx", 0), "mean"].tolist() == [2.5] * 2  # the trials 2 and 3


def test_a_setting_that_failed_somewhere_is_not_chosen() -> None:
    of = tuning.candidates(study(), trials=2)
    rows = pd.DataFrame(
        {"method": ["FedAvg"] * 2 + ["FedProx"] * 2, "setting": [0, 1] * 2, "mean": [float("nan"), 0.9, 0.2, 0.3]}
    )
    chosen = tuning.chosen(of, rows, lower_is_better=True)
    assert chosen == {"FedAvg": of["FedAvg"].settings[1], "FedProx": of["FedProx"].settings[0]}
    assert tuning.chosen(of, rows, lower_is_better=False)["FedProx"] == of["FedProx"].settings[1]
    with pytest.raises(ValueError, match=r"^no setting of FedAvg finished in every cell and with every seed$"):
        tuning.chosen(of, rows.assign(mean=[float("nan")] * 2 + [0.2, 0.3]), lower_is_better=True)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"space": {}, "beside": ()}, [], "the preset declares no space to choose settings from"),
        ({"space": {"method.sigma": (1, 2)}}, [], "unknown field --method.sigma"),
        ({"beside": (Arm(space={RATE: (1.0, 2.0)}),)}, [], "two arms of FedAvg declare a space: its settings can be"),
        ({}, ["--trials", 3], "--trials must be in 1..2, the settings that the space of FedAvg has, got 3"),
        ({}, ["--data.validation", 0], "settings are chosen on validation records, and data.validation is 0"),
        ({}, ["--protocol-only"], "settings are chosen by the evaluation, which --protocol-only switches off"),
        ({}, ["--seeds", "1,10"], "--seeds must be apart from those that are reported (0, 1), got (1, 10)"),
        ({"space": {RATE: (-1.0, 1.0)}}, [], "method.local.learning_rate must be above 0, got -1.0"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_one_sentence(
    changed: Any, options: list[Any], message: str, command: Command, tmp_path: Path, preset: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(names.PRESETS.entries, "small", lambda: replace(study(), **changed))
    code, _, err = command("tune", "small", "--trials", 2, *options, "--runtime.storage", tmp_path)
    assert code == 2 and err.startswith(f"error: {message}") and err.count("\n") == 1 and not preset.exists()


def test_an_out_that_cannot_be_written_is_said_before_anything_is_run(
    command: Command, tmp_path: Path, preset: Path
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "presets"
    code, output, err = command("tune", "small", "--trials", 2, "--out", out, "--runtime.storage", tmp_path / "s")
    assert (code, output) == (2, "") and err.startswith(f"error: --out {out} cannot be written")
    assert not (tmp_path / "s" / "sweeps").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", " is not valid JSON ("),
        ("{}", " has no field 'settings'"),
        ({"settings": CHOSEN | {"FedAvg": {"method.rounds": 3}}}, " has not the methods and fields that"),
        ({"settings": CHOSEN | {"FedAvg": {RATE: -1}}}, " does not fit the preset: method.local.learning_rate must"),
        ({"settings": CHOSEN | {"FedProx": {RATE: 0.1, "method.mu": -1}}}, " does not fit the preset: "),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(text: Any, message: str, preset: Path, command: Command) -> None:
    preset.mkdir()
    (preset / "small.json").write_text(text if isinstance(text, str) else json.dumps(text))
    code, _, err = command("sweep", "small", "--dry-run")
    assert code == 2 and err.startswith(f"error: {preset / 'small.json'}{message}") and err.count("\n") == 1
    assert "raydiff tune small" in err


@pytest.mark.parametrize("name", [n for n in names.PRESETS if (tuning.FOLDER / f"{n}.json").exists()])
def test_what_is_kept_for_a_preset_is_the_best_of_its_table(name: str) -> None:
    """With as many trials for every method, and seeds that the preset does not report."""
    used = json.loads((tuning.FOLDER / f"{name}.json").read_text())
    table, search = pd.read_csv(tuning.FOLDER / f"{name}.csv"), used["search"]
    assert len(set(table.groupby("method").size())) == 1 and search["split"] == "validation"
    study = names.PRESETS[name]()
    assert set(table["seed"]) == set(search["seeds"]) and not set(search["seeds"]) & set(study.grid["seed"])
    assert set(table["method"]) == set(used["settings"]) == set(study.tuned)
    for method, group in table.groupby("method"):
        assert group.groupby("setting").ngroups == search["trials_per_arm"]
        best = group.loc[group["mean"].idxmin()]
        assert {path: best[path] for path in used["settings"][method]} == used["settings"][method]
