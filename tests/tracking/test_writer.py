"""JSON lines, and the thread that follows them into a real MLflow store."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import shutil
import threading
import types
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raydiff.evaluation.grids import sample_grid
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.federated import heartbeat
from raydiff.federated.heartbeat import Heartbeat
from raydiff.federated.method import Method
from raydiff.formats import json_files as files
from raydiff.formats.json_files import read_lines
from raydiff.formats.jsonl import Jsonl
from raydiff.methods import METHODS
from raydiff.methods.fedavg import FedAvg
from raydiff.models.classifier import Classifier
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.d3pm_kernel import Sigmoid
from raydiff.seeding import generator
from raydiff.tracking import mlflow_store, trial_run, writer
from raydiff.tracking.writer import Mlflow

# --- JSON lines ---


def test_a_line_per_round(tmp_path: Path) -> None:
    log = Jsonl(tmp_path / "deep" / "metrics.jsonl")
    log.log(0, {"loss": 0.5, "epsilon": math.inf})
    log.log(1, {"loss": 0.25})
    lines = read_lines(log.path)
    assert [(line["step"], line["loss"]) for line in lines] == [(0, 0.5), (1, 0.25)]
    assert lines[0]["epsilon"] == math.inf and lines[0]["time"] <= lines[1]["time"]


def test_a_replayed_round_is_ignored_also_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        log = Jsonl(path)
        log.log(0, {"loss": 0.5})
        log.log(0, {"loss": 9.0})
    assert [line["loss"] for line in read_lines(path)] == [0.5]


def test_totals_are_over_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Jsonl(path).log(0, {"seconds": 2.0})
    log = Jsonl(path)
    log.log(1, {"seconds": 3.0})
    log.log(2, {})
    assert log.total("seconds") == 5.0


@pytest.mark.parametrize("cut", ['{"step": 1, "time": 17, "lo', '{"step": 1, "time": 17, "loss": 0.25}'])
def test_a_line_cut_short_spoils_no_other(tmp_path: Path, cut: str) -> None:
    """The second lacks but its end of line, and counts."""
    path = tmp_path / "metrics.jsonl"
    Jsonl(path).log(0, {"loss": 0.5})
    with path.open("a") as f:
        f.write(cut)
    assert [line["step"] for line in read_lines(path)] == ([0, 1] if cut.endswith("}") else [0])
    log = Jsonl(path)
    log.log(1, {"loss": 0.25})
    log.log(2, {"loss": 0.125})
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(0, 0.5), (1, 0.25), (2, 0.125)]


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none") == []


# --- MLflow ---


class Sweep:
    """A sweep's folder, and its runs in an MLflow store of its own."""

    def __init__(self, root: Path, migrated: Path) -> None:
        shutil.copy(migrated, root / "mlflow.db")
        self.uri, self.folder = f"sqlite:///{root / 'mlflow.db'}", root / "sweeps" / "mine"
        self.artifacts = root / "artifacts"
        self.folder.mkdir(parents=True)
        (self.folder / "sweep.json").write_text(json.dumps({"id": "an id of its own"}))

    def follower(self) -> Mlflow:
        return Mlflow(
            self.uri,
            experiment="digits",
            sweep=self.folder,
            tags={"raydiff.preset": "p"},
            artifacts=str(self.artifacts),
        )

    def follow(self, error: type = types.NoneType) -> Mlflow:
        """One follower from its start to its end, at which it may have this error."""
        follower = self.follower()
        follower.start()
        follower.wait_ready()
        follower.begin()
        follower.close()
        assert not follower.is_alive() and isinstance(follower.error, error)
        return follower

    def trial(self, experiment: Experiment) -> Path:
        folder = self.folder / "trials" / experiment.digest
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))
        return folder

    def runs(self, kind: str) -> list[Any]:
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("digits")
        assert experiment is not None
        return list(client.search_runs([experiment.experiment_id], f"tags.`raydiff.kind` = '{kind}'"))

    def history(self, run: Any, metric: str) -> list[tuple[int, float]]:
        from mlflow import MlflowClient

        return [(m.step, m.value) for m in MlflowClient(self.uri).get_metric_history(run.info.run_id, metric)]


@pytest.fixture
def sweep(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(writer, "PERIOD_S", 0.01)
    return Sweep(tmp_path, migrated)


@pytest.fixture
def experiment(tiny: Experiment) -> Experiment:
    return replace(tiny, data_digest="hmac:" + "0123456789abcdef" * 4)


def finish(folder: Path, outcome: str = "finished", **more: Any) -> None:
    says: dict[str, Any] = {"says": "epsilon inf", "server": {"epsilon": math.inf}}
    (folder / "outcome.json").write_text(json.dumps({"outcome": outcome, **says, **more}))


OF_ANOTHER_KIND = {
    "FedDistr": "LatentModel",
    "Sketch": "Gaussians",
    "DPMERF": "Generator",
    "Evolution": "Population",
    "Marginals": "Forest",
}
"""Methods whose model is no DDPM."""


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((cls(), OF_ANOTHER_KIND.get(cls.__name__, "linear")) for cls in METHODS.values()),
        (FedAvg(model=Classifier()), "Classifier"),
        (FedAvg(model=DiscreteDiffusion()), "Linear"),
    ],
)
def test_every_method_has_a_run_name(experiment: Experiment, method: Method, model: str) -> None:
    name = trial_run.run_name(overrides.to_dict(replace(experiment, method=method)))
    assert name.startswith(type(method).__name__) and name.endswith(f"2 clients, {model}, seed 0")


def test_a_schedule_with_a_rate_has_a_name(experiment: Experiment) -> None:
    method = FedAvg(model=DiscreteDiffusion(schedule=Sigmoid(rate=2.0)))
    name = trial_run.run_name(overrides.to_dict(replace(experiment, method=method)))
    assert name == "FedAvg, 2 clients, Sigmoid, seed 0"


def test_runs_are_found_again_however_many_pages_they_fill(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_store, "PAGE", 1)
    for seed in range(3):
        folder = sweep.trial(replace(experiment, seed=seed))
        Jsonl(folder / "metrics.jsonl").log(0, {"server/loss": 1.0})
    sweep.follow()
    before = {run.info.run_id for kind in ("sweep", "trial") for run in sweep.runs(kind)}
    sweep.follow()
    assert {run.info.run_id for kind in ("sweep", "trial") for run in sweep.runs(kind)} == before and len(before) == 4


def test_a_trial_becomes_a_nested_run(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment)
    log = Jsonl(folder / "metrics.jsonl")
    for step in range(3):
        log.log(step, {"server/loss": 1.0 / (step + 1), "nan": math.nan, "privacy/epsilon_server": math.inf})
    finish(folder, final={"eval/fd_cnn/all": 2.5})
    sweep.follow()
    (parent,), (run,) = sweep.runs("sweep"), sweep.runs("trial")
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (parent.info.run_name, run.info.run_name) == ("mine", "PFDM, epsilon inf, 2 clients, linear, seed 0")
    assert run.info.status == "FINISHED"
    expected = {
        "raydiff.sweep": "mine",
        "raydiff.trial": experiment.digest,
        "raydiff.outcome": "finished",
        "raydiff.privacy": "epsilon inf",
        "raydiff.epsilon": "inf",
        "raydiff.preset": "p",
        "raydiff.data": "0123456789abcdef",
        "mlflow.note.content": "epsilon inf",
    }
    assert expected.items() <= run.data.tags.items()
    assert sweep.history(run, "server/loss") == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert sweep.history(run, "round") == [(0, 0), (1, 1), (2, 2)]
    assert sweep.history(run, "final/eval/fd_cnn/all") == [(3, 2.5)]
    assert set(run.data.metrics) == {"server/loss", "round", "final/eval/fd_cnn/all"}  # numbers that can be drawn
    assert {
        "method": "PFDM",
        "method.epsilon": "10.0",
        "method.model.network": "MLP",
        "clients": "2",
    }.items() <= run.data.params.items()
    assert set(run.data.params) == set(files.flatten(overrides.to_dict(experiment)))


def test_a_runs_metrics_begin_with_its_epsilon(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment)
    line = {"upload/clipped": 0.5, "privacy/tpr_ceiling_at_1pct_fpr": 0.1, "privacy/mu": 1.0}
    Jsonl(folder / "metrics.jsonl").log(0, {**line, "privacy/epsilon_server": 9.7})
    finish(folder, final={"eval/fd_cnn/all": 2.5})
    sweep.follow()
    metrics = sweep.runs("trial")[0].data.metrics
    assert next(iter(metrics)) == "privacy/epsilon_server"
    assert {"upload/clipped", "privacy/mu"} < set(metrics) and not any("tpr_ceiling" in name for name in metrics)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("stopped", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED"), (None, "RUNNING")],
)
def test_a_run_has_the_status_of_its_trial(
    sweep: Sweep, experiment: Experiment, outcome: str | None, status: str
) -> None:
    folder = sweep.trial(experiment)
    Jsonl(folder / "metrics.jsonl").log(0, {"server/loss": 1.0})
    if outcome:
        finish(folder, outcome, reason="because")
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.info.status == status
    assert run.data.tags.get("raydiff.outcome") == outcome
    assert run.data.tags.get("raydiff.reason") == ("because" if outcome else None)
    assert run.data.tags.get("raydiff.privacy") == ("epsilon inf" if outcome else None)


def test_a_run_is_named_after_what_it_spent_and_until_then_after_its_target(
    sweep: Sweep, experiment: Experiment
) -> None:
    folder = sweep.trial(experiment)
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.info.run_name == "PFDM, target epsilon 10, 2 clients, linear, seed 0"
    finish(folder, says="epsilon 9.51", server={"epsilon": 9.5117})
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.info.run_name == "PFDM, epsilon 9.52, 2 clients, linear, seed 0"
    assert run.data.tags["raydiff.epsilon"] == "9.52"


def test_artifacts_carry_their_privacy(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment)
    pictures = torch.rand(4, 1, 8, 8, generator=generator(0))
    sample_grid([pictures], folder / "artifacts" / "samples.png", privacy="none")
    (folder / "artifacts" / "ledger.json").write_text(json.dumps({"columns": ["client"], "data": [["0"]]}))
    finish(folder)
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.data.tags["raydiff.privacy.samples"] == "none"
    files = [p.name for p in sweep.artifacts.rglob("*") if p.is_file()]
    assert "ledger.json" in files and any(name.startswith("samples") for name in files)


def test_what_qualifies_a_number_is_in_the_runs_table_and_no_metric(sweep: Sweep, experiment: Experiment) -> None:
    telling = {
        "eval/fd_cnn/minor": 1.0,
        "eval/fd_cnn/minor_floor": 0.1,
        "eval/label_accuracy/all": 0.9,
        "eval/vendi/all": 2.0,
        "attack/global/best/auc": 0.5,
        "privacy/epsilon_server": 9.7,
    }
    others = {
        "eval/fd_cnn/major_floor": 0.2,
        "eval/ddim/fd_cnn/all": 1.0,
        "eval/kd_cnn/all_spread": 0.1,
        "attack/global/pia/auc": 0.5,
        "attack/global/best/auc_low": 0.4,
        "eval/class/3/fd_cnn": 1.0,
        "eval/recall/minor": 0.3,
    }
    finish(sweep.trial(experiment), final={**telling, **others})
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert set(run.data.metrics) == {f"final/{name}" for name in telling}
    (file,) = sweep.artifacts.rglob("final.json")
    assert {k: float(v) for k, v in json.loads(file.read_text())["data"]} == {
        f"final/{k}": v for k, v in {**telling, **others}.items()
    }
    assert {"path": "final.json", "type": "table"} in json.loads(run.data.tags["mlflow.loggedArtifacts"])


def test_the_first_look_at_a_store_shows_what_it_is(sweep: Sweep, experiment: Experiment) -> None:
    """Runs have their data; the sweep's own one has a text too."""
    finish(sweep.trial(experiment))
    finish(sweep.trial(replace(experiment, seed=1)))
    follower = sweep.follow()
    assert follower.end("FINISHED", note="9 of 9 trials finished" + "." * 9000) is None
    (parent,), runs = sweep.runs("sweep"), sweep.runs("trial")
    assert parent.data.tags["mlflow.note.content"].startswith("9 of 9 trials finished...")
    for run in (parent, *runs):
        (data,) = run.inputs.dataset_inputs
        assert (data.dataset.name, data.dataset.digest) == (experiment.data.name, "0123456789abcdef")


def test_means_over_seeds_are_runs_of_their_own_and_give_way_to_the_next_ones(sweep: Sweep) -> None:
    measure = "final/eval/fd_cnn/minor"
    row = {
        "epsilon": "9.71",
        measure: 2.0,
        "final/eval/accuracy": 0.5,
        f"{measure}/low": math.nan,
        f"{measure}_real": 1.0,
    }
    assert sweep.follow().end("FINISHED", means={"PFDM": row, "FedAvg": row}) is None
    follower = sweep.follow()
    assert follower.end("FINISHED", means={"PFDM": {**row, measure: 3.0}}) is None
    (parent,), (mean,) = sweep.runs("sweep"), sweep.runs("mean")
    assert (mean.info.run_name, mean.info.status) == ("PFDM", "FINISHED")
    assert mean.data.tags["mlflow.parentRunId"] == parent.info.run_id and mean.data.params == {"epsilon": "9.71"}
    assert list(mean.data.metrics.items()) == [(measure, 3.0), ("final/eval/accuracy", 0.5)]
    assert sweep.follow().parent == parent.info.run_id  # They are taken for none of the sweep's others.


def test_the_next_follower_adds_what_is_missing(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment)
    log = Jsonl(folder / "metrics.jsonl")
    log.log(0, {"server/loss": 4.0})
    log.log(1, {"server/loss": 3.0})
    sweep.follow()
    before = [run.info.run_id for kind in ("sweep", "trial") for run in sweep.runs(kind)]
    log.log(2, {"server/loss": 2.0})
    second = sweep.trial(replace(experiment, seed=1))
    Jsonl(second / "metrics.jsonl").log(0, {"server/loss": 9.0})
    finish(folder, final={"eval/fd_cnn/all": 2.5})
    sweep.follow()
    runs = {run.data.tags["raydiff.trial"]: run for run in sweep.runs("trial")}
    assert set(before) < {run.info.run_id for run in (*sweep.runs("sweep"), *runs.values())}
    assert len(sweep.runs("sweep")) == 1 and len(runs) == 2
    first = runs[experiment.digest]
    assert sweep.history(first, "server/loss") == [(0, 4.0), (1, 3.0), (2, 2.0)]
    assert (first.info.status, runs[second.name].info.status) == ("FINISHED", "RUNNING")


def test_within_a_long_round_the_loss_is_a_chart(sweep: Sweep, experiment: Experiment) -> None:
    """By twentieths of what the slowest process has done, the mean over those that tell theirs."""
    folder = sweep.trial(experiment)
    Jsonl(folder / "metrics.jsonl").log(0, {"train/loss": 1.0})
    (folder / heartbeat.FOLDER).mkdir()
    given: dict[str, Any] = {"round": 1, "turn": 0, "turns": 1, "steps": 100, "began": 0.0, "at": 1.0}

    def tell(*said: tuple[int, float | None]) -> None:
        for number, (step, loss) in enumerate(said):
            beat = Heartbeat(who=f"client {number}", step=step, loss=loss, **given)
            (folder / heartbeat.FOLDER / f"{number}.json").write_text(json.dumps(asdict(beat)))
        sweep.follow()

    tell((32, 0.5), (60, 0.3), (10, None))
    tell((34, 0.1), (60, 0.1))  # Within the same twentieth.
    tell((36, 0.2), (60, 0.2))
    (run,) = sweep.runs("trial")
    assert sweep.history(run, "training/loss") == [(130, 0.4), (130, 0.1), (135, 0.2)]


def test_there_are_no_runs_before_the_sweep_begins(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = sweep.follower()
    order: list[str] = []
    wait, find_runs = follower._begun.wait, follower._find_runs

    def spied(name: str, function: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            function()

        return call

    monkeypatch.setattr(follower._begun, "wait", spied("wait", wait))
    monkeypatch.setattr(follower, "_find_runs", spied("runs", find_runs))
    follower.start()
    follower.wait_ready()
    follower.begin()
    follower.close()
    assert order == ["wait", "runs"] and len(sweep.runs("sweep")) == 1


def test_a_name_given_again_is_another_sweep(sweep: Sweep, experiment: Experiment) -> None:
    sweep.trial(experiment)
    sweep.follow()
    (sweep.folder / "sweep.json").write_text(json.dumps({"id": "another id"}))
    sweep.follow()
    parents, trials = sweep.runs("sweep"), sweep.runs("trial")
    assert {p.info.run_id for p in parents} == {t.data.tags["mlflow.parentRunId"] for t in trials} and len(parents) == 2


def test_a_resumed_trial_runs_again_and_a_finished_one_rests(sweep: Sweep, experiment: Experiment) -> None:
    folder, other = sweep.trial(experiment), sweep.trial(replace(experiment, seed=1))
    for each, outcome in ((folder, "killed"), (other, "finished")):
        Jsonl(each / "metrics.jsonl").log(0, {"server/loss": 1.0})
        finish(each, outcome, final={"loss": 1.0}, reason="why")
    sweep.follow()
    ended = {run.data.tags["raydiff.trial"]: run.info.end_time for run in sweep.runs("trial")}
    Jsonl(folder / "metrics.jsonl").log(1, {"server/loss": 0.5})
    finish(folder, final={"loss": 0.5})
    sweep.follow()
    runs = {run.data.tags["raydiff.trial"]: run for run in sweep.runs("trial")}
    again = runs[folder.name]
    assert again.info.status == "FINISHED" and again.data.tags["raydiff.outcome"] == "finished"
    assert again.data.tags["raydiff.reason"] == ""
    assert sweep.history(again, "server/loss") == [(0, 1.0), (1, 0.5)]
    assert runs[other.name].info.end_time == ended[other.name]
    assert sweep.history(runs[other.name], "final/loss") == [(1, 1.0)]


@pytest.mark.parametrize("outcome", ["failed", "killed"])
def test_a_trial_that_fails_again_is_not_left_running(sweep: Sweep, experiment: Experiment, outcome: str) -> None:
    """Whether the follower sees it run or not, and however often it is tried."""
    folder = sweep.trial(experiment)
    Jsonl(folder / "metrics.jsonl").log(0, {"server/loss": 1.0})

    def now() -> tuple[str, str]:
        (run,) = sweep.runs("trial")
        return run.info.status, run.data.tags["raydiff.reason"]

    finish(folder, outcome, reason="once")
    sweep.follow()
    assert now() == (outcome.upper(), "once")
    follower = sweep.follower()
    follower._open()
    follower._find_runs()
    for reason in ("twice", "three times"):
        (folder / "outcome.json").unlink()
        follower._update()
        assert now()[0] == "RUNNING"
        finish(folder, outcome, reason=reason)
        follower._update()
        assert now() == (outcome.upper(), reason)
    finish(folder, outcome, reason="unseen")
    sweep.follow()
    assert now() == (outcome.upper(), "unseen")


def test_closing_waits_as_long_as_trials_are_told_of(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that takes a second for a trial has fallen behind by as many as ran faster."""
    left, ended = ["a", "b", "c"], list[str]()
    follower = sweep.follower()
    monkeypatch.setattr(follower, "is_alive", lambda: bool(left))
    monkeypatch.setattr(follower, "join", lambda _: ended.append(left.pop()))
    monkeypatch.setattr(follower, "_ended", lambda: len(ended))
    follower.close()
    assert not left and follower.error is None
    said = [f"MLflow has {n} finished trials, the others follow" for n in (1, 2)]
    assert capsys.readouterr().out.splitlines() == said
    left.append("d")
    monkeypatch.setattr(follower, "join", lambda _: None)
    follower.close(7.0)
    assert str(follower.error) == "still writing after 7 s"


def test_a_follower_that_dies_at_any_call_leaves_the_rest_to_the_next(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    class Killed(BaseException):
        """Nothing catches it, as nothing catches SIGKILL."""

    called = ("create_run", "log_batch", "log_inputs", "log_dict", "set_tag", "update_run", "set_terminated")
    calls_left: list[int] = []

    def mortal(name: str) -> Callable[..., Any]:
        call = getattr(MlflowClient, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            if calls_left:
                if calls_left[0] == 0:
                    raise Killed
                calls_left[0] -= 1
            return call(*args, **options)

        return wrapped

    for name in called:
        monkeypatch.setattr(MlflowClient, name, mortal(name))
    sweep.follow()  # The parent's run.
    deaths, died = 0, True
    while died:
        folder = sweep.trial(replace(experiment, seed=deaths))
        Jsonl(folder / "metrics.jsonl").log(0, {"server/loss": 1.0})
        finish(folder, final={"loss": 2.0})
        follower = sweep.follower()
        follower._open()
        follower._find_runs()
        calls_left[:] = [deaths]
        try:
            follower._update_trial(folder)
            died = False
        except Killed:
            deaths += 1
        calls_left.clear()
    sweep.follow()
    runs = sweep.runs("trial")
    assert len(runs) == deaths + 1 > 12
    for run in runs:
        assert (run.info.status, run.data.tags["raydiff.outcome"]) == ("FINISHED", "finished")
        assert run.data.metrics.keys() >= {"server/loss", "final/loss"} and len(run.inputs.dataset_inputs) == 1
        assert run.data.params["seed"] and "final.json" in run.data.tags["mlflow.loggedArtifacts"]


def test_another_sweep_may_make_the_experiment_at_the_same_moment(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    create = MlflowClient.create_experiment

    def too_late(client: Any, name: str, **options: Any) -> str:
        create(client, name, **options)
        return str(create(client, name, **options))  # raises: there is one by now

    monkeypatch.setattr(MlflowClient, "create_experiment", too_late)
    folder = sweep.trial(experiment)
    Jsonl(folder / "metrics.jsonl").log(0, {"server/loss": 1.0})
    finish(folder)
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.info.status == "FINISHED"


def test_nothing_is_sent_twice(sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    log_batch = MlflowClient.log_batch
    sent: list[int] = []

    def spy(*args: Any, **options: Any) -> None:
        sent.extend(m.step for m in options.get("metrics", ()) if m.key == "round")
        log_batch(*args, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", spy)
    log = Jsonl(sweep.trial(experiment) / "metrics.jsonl")
    for step in range(3):
        log.log(step, {"server/loss": 1.0})
        sweep.follow()  # looks at least twice
    assert sent == [0, 1, 2]


def test_an_outage_loses_nothing(sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    folder, log_batch = sweep.trial(experiment), MlflowClient.log_batch
    outages: list[int] = []
    back = threading.Event()
    log = Jsonl(folder / "metrics.jsonl")
    log.log(0, {"server/loss": 4.0})
    follower = sweep.follower()
    follower.start()
    follower.wait_ready()
    follower.begin()

    def flaky(*args: Any, **options: Any) -> None:
        if len(outages) < 2:
            outages.append(1)
            raise ConnectionError("no server")
        log_batch(*args, **options)
        back.set()

    monkeypatch.setattr(MlflowClient, "log_batch", flaky)
    log.log(1, {"server/loss": 3.0})
    finish(folder)
    assert back.wait(30)
    follower.close()
    (run,) = sweep.runs("trial")
    assert follower.error is None
    assert sweep.history(run, "server/loss") == [(0, 4.0), (1, 3.0)] and run.info.status == "FINISHED"


def test_a_store_that_cannot_be_written_is_said_at_once(sweep: Sweep) -> None:
    sweep.uri = "http://127.0.0.1:9"  # the discard port: nobody listens
    follower = sweep.follower()
    follower.start()
    with pytest.raises(
        ValueError, match=r"^the MLflow store http://127\.0\.0\.1:9 cannot be written: no server answers there; [^\n]+$"
    ):
        follower.wait_ready()
    follower.close()
    reason = follower.end("FINISHED")
    assert reason is not None and reason.startswith("MLflow is behind the files (")


def test_on_a_disk_that_cannot_be_written_no_run_is_left_running(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Artifacts lie on it, and MLflow's store elsewhere. The next follower says what is true."""

    def attach(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    finish(sweep.trial(experiment))
    with monkeypatch.context() as patch:
        patch.setattr(trial_run, "attach_artifacts", attach)
        reason = sweep.follow(OSError).end("FINISHED")
    assert reason is not None and reason.startswith("MLflow is behind the files (OSError)")
    assert [sweep.runs(kind)[0].info.status for kind in ("sweep", "trial")] == ["KILLED", "KILLED"]
    assert sweep.follow().end("FINISHED") is None
    assert [sweep.runs(kind)[0].info.status for kind in ("sweep", "trial")] == ["FINISHED", "FINISHED"]


def test_the_parent_run_ends_with_the_sweep(sweep: Sweep, tmp_path: Path) -> None:
    follower = sweep.follow()
    (tmp_path / "summary.csv").write_text("a,b")
    assert follower.end("KILLED", (tmp_path / "summary.csv",)) is None
    (parent,) = sweep.runs("sweep")
    assert parent.info.status == "KILLED" and parent.data.tags["raydiff.preset"] == "p"
    assert [p.name for p in sweep.artifacts.rglob("*.csv")] == ["summary.csv"]


def test_flat_names_are_those_of_the_config(experiment: Experiment) -> None:
    printed = overrides.flat(experiment)
    flat = files.flatten(overrides.to_dict(experiment))
    kinds = {
        "method.model",
        "method.local",
        "method.server",
        "method.sampling",
        "method.client_sampling",
        "data",
        "evaluation",
        "runtime",
    }
    assert set(flat) == set(printed) | kinds
    assert all(
        flat[k] == (list(v) if isinstance(v, tuple) else v) for k, v in printed.items() if k != "runtime.noise_secret"
    )


# --- what may be printed, and stores that were moved or are new ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@db:5432/runs", "postgresql://me:***@db:5432/runs"),
        ("API request to https://me:p%40ss@host/api failed", "API request to https://me:***@host/api failed"),
        ("sqlite:////home/me/raydiff/mlflow.db", "sqlite:////home/me/raydiff/mlflow.db"),
        ("http://127.0.0.1:5000 (user@host)", "http://127.0.0.1:5000 (user@host)"),
    ],
)
def test_a_password_is_not_printed(text: str, shown: str) -> None:
    assert mlflow_store.redacted(text) == shown


def test_a_store_that_cannot_be_opened_is_named_without_its_password(sweep: Sweep, monkeypatch: Any) -> None:
    def refuse(uri: str) -> Any:
        raise OSError(f"no connection to {uri}")

    monkeypatch.setattr(writer, "connect", refuse)
    follower = Mlflow("postgresql://me:hunter2@db/x", experiment="e", sweep=sweep.folder, tags={}, artifacts=None)
    follower.start()
    with pytest.raises(ValueError, match=r"me:[*]{3}@db") as e:
        follower.wait_ready()
    assert "hunter2" not in str(e.value)
    follower.close()


def test_artifacts_follow_a_storage_that_was_moved(migrated: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    shutil.copy(migrated, before / "mlflow.db")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    about: dict[str, Any] = {"experiment": "e", "name": "n", "tags": {}}

    def log(storage: Path) -> str:
        artifacts = f"file://{storage}/{mlflow_store.ARTIFACTS}"
        return mlflow_store.log_folder(f"sqlite:///{storage}/mlflow.db", folder, artifacts=artifacts, **about)

    first = log(before)
    before.rename(after)
    second = log(after)
    assert not before.exists()
    client = mlflow_store.connect(f"sqlite:///{after}/mlflow.db")
    for run in (first, second):
        assert client.get_run(run).info.artifact_uri.startswith(f"file://{after}/")
        assert [f.path for f in client.list_artifacts(run, "files")] == ["files/a.txt"]


def test_a_new_store_is_made_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the client's constructor makes the tables, the lock is held: another process would wait."""
    import mlflow

    path = tmp_path / "new" / "mlflow.db"
    refused = []

    def make(tracking_uri: str) -> str:
        with path.with_name("mlflow.db.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refused.append(True)
        return tracking_uri

    monkeypatch.setattr(mlflow, "MlflowClient", make)
    mlflow_store.connect(f"sqlite:///{path}")
    assert refused
    with path.with_name("mlflow.db.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is given back
