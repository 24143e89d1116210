"""The thread that follows a sweep's files into a real MLflow store."""

import contextlib
import errno
import json
import math
import shutil
import sqlite3
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import slow_but
from mlflow.entities import LoggedModelOutput
from PIL import Image
from trial_folders import written

from raydiff.data.picture_files import sample_grid
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.formats import json_files
from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import Metric
from raydiff.seeding import generator
from raydiff.storage.json_lines import JsonLines
from raydiff.storage.local import LocalFolder
from raydiff.tracking import mlflow_writer, shared_view
from raydiff.tracking.mlflow_writer import Mlflow, SweepSummary


def metrics_log(folder: Path) -> JsonLines:
    return JsonLines(LocalFolder(folder), "metrics.jsonl")


class Sweep:
    """A sweep's folder, and its runs in an MLflow store of its own."""

    def __init__(self, root: Path, migrated: Path) -> None:
        shutil.copy(migrated, root / "mlflow.db")
        self.uri, self.folder = f"sqlite:///{root / 'mlflow.db'}", root / "sweeps" / "mine"
        self.artifacts, self.swept = root / "artifacts", {"PFDM": ["method.epsilon", "seed"]}
        self.folder.mkdir(parents=True)
        (self.folder / "sweep.json").write_text(json.dumps({"id": "an id of its own"}))

    def follower(self) -> Mlflow:
        about: dict[str, Any] = {"tags": {"raydiff.preset": "p"}, "artifacts": str(self.artifacts), "swept": self.swept}
        return Mlflow(self.uri, experiment="digits", sweep=self.folder, **about)

    def follow(self, error: type = types.NoneType) -> Mlflow:
        """One follower from its start to its end, at which it may have this error."""
        follower = self.follower()
        follower.start()
        follower.wait_ready()
        follower.begin()
        follower.close()
        assert not follower.is_alive() and isinstance(follower.error, error)
        return follower

    def trial(self, experiment: Experiment, *losses: float) -> Path:
        """A trial with a round for each loss."""
        folder = self.folder / "trials" / experiment.digest
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))
        for step, loss in enumerate(losses):
            metrics_log(folder).log(step, {"metrics": written({"server/loss": loss})})
        return folder

    def runs(self, kind: str) -> list[Any]:
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("digits")
        assert experiment is not None
        return list(client.search_runs([experiment.experiment_id], f"tags.`raydiff.kind` = '{kind}'"))

    def ids(self) -> set[str]:
        return {run.info.run_id for kind in ("sweep", "trial") for run in self.runs(kind)}

    def history(self, run: Any, metric: str) -> list[tuple[int, float]]:
        from mlflow import MlflowClient

        return [(m.step, m.value) for m in MlflowClient(self.uri).get_metric_history(run.info.run_id, metric)]


@pytest.fixture
def sweep(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(mlflow_writer, "PERIOD_S", 0.01)
    return Sweep(tmp_path, migrated)


@pytest.fixture
def experiment(tiny: Experiment) -> Experiment:
    return replace(tiny, data_digest="hmac:" + "0123456789abcdef" * 4)


def finish(folder: Path, outcome: str = "finished", **more: Any) -> None:
    end: dict[str, Any] = {"text": "epsilon inf", "server": {"epsilon": math.inf}}
    (folder / "outcome.json").write_text(dumps({"outcome": outcome, **end, **more}))


def test_no_two_trials_of_a_sweep_share_a_name(sweep: Sweep, experiment: Experiment) -> None:
    """Also where they differ in what was not swept when the sweep began."""
    sweep.swept = {"PFDM": ["seed"]}
    for trial in (experiment, replace(experiment, seed=1), replace(experiment, clients=3)):
        sweep.trial(trial)
    sweep.follow()
    names = {run.data.params["clients"] + run.data.params["seed"]: run.info.run_name for run in sweep.runs("trial")}
    shared = {names["20"], names["30"]}
    assert names["21"] == "PFDM seed=1" and "PFDM seed=0" in shared and len(shared) == 2
    sweep.swept = {"PFDM": ["clients", "seed"]}
    sweep.follow()
    assert {r.info.run_name for r in sweep.runs("trial")} == {f"PFDM clients={n[0]} seed={n[1]}" for n in names}


def test_a_trial_becomes_a_nested_run(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment)
    line = {"privacy/epsilon_server": 9.7, "privacy/epsilon_outsiders": math.inf, "nan": math.nan}
    of_client = Metric(name="train/loss", part=("client", 0), value=1.0).to_json()
    for step in range(2):
        metrics = written({**line, "server/loss": 1 / (step + 1), "validation/fd_cnn/all": 3.0})
        metrics_log(folder).log(step, {"metrics": [*metrics, of_client]})
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.info.run_name == "PFDM epsilon=10 seed=0" and math.isnan(run.data.metrics["distance_all"])
    finish(folder, text="epsilon 9.51", server={"epsilon": 9.5117}, final=written({"eval/fd_cnn/all": 2.5}))
    sweep.follow()
    (parent,), (run,) = sweep.runs("sweep"), sweep.runs("trial")
    assert (parent.info.run_name, run.info.run_name) == ("mine", "PFDM epsilon=10 seed=0")
    expected = {
        "mlflow.parentRunId": parent.info.run_id,
        "raydiff.sweep": "mine",
        "raydiff.trial": experiment.digest,
        "raydiff.outcome": "finished",
        "raydiff.privacy": "epsilon 9.51",
        "raydiff.epsilon": "9.52",
        "raydiff.preset": "p",
        "raydiff.data": "0123456789abcdef",
        "mlflow.note.content": "epsilon 9.51",
    }
    assert expected.items() <= run.data.tags.items()
    losses = sweep.history(run, "round/server_loss")
    assert losses == [(0, 1.0), (1, 0.5)] and sweep.history(run, "round") == [(0, 0), (1, 1)]
    assert sweep.history(run, "distance_all")[1:] == [(0, 2.5)]
    # The page for comparing runs opens on the first one.
    names = ["distance_all", "round/epsilon", "round/server_loss", "round/distance_all", "round"]
    assert list(run.data.metrics) == names
    assert {"method": "PFDM", "method.epsilon": "10.0", "clients": "2"}.items() <= run.data.params.items()
    assert set(run.data.params) == set(json_files.flatten_tree(overrides.to_dict(experiment)))


def test_a_run_has_the_status_of_its_trial(sweep: Sweep, experiment: Experiment) -> None:
    statuses = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "killed": "KILLED", "": "RUNNING"}
    for seed, outcome in enumerate(statuses):
        folder = sweep.trial(replace(experiment, seed=seed), 1.0)
        if outcome:
            finish(folder, outcome, reason="because")
    sweep.follow()
    for run in sweep.runs("trial"):
        outcome = run.data.tags.get("raydiff.outcome", "")
        tags = [run.data.tags.get(f"raydiff.{name}") for name in ("reason", "privacy")]
        assert tags == (["because", "epsilon inf"] if outcome else [None, None])
        assert run.info.status == statuses.pop(outcome)
    assert not statuses


def test_artifacts_carry_their_privacy_and_the_final_numbers(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment)
    pictures = torch.rand(4, 1, 8, 8, generator=generator(0))
    sample_grid([pictures], folder / "artifacts" / "samples.png", privacy="none")
    (folder / "artifacts" / "ledger.json").write_text(json.dumps({"columns": ["client"], "data": [["0"]]}))
    final = {"eval/fd_cnn/minor": 1.0, "eval/fd_cnn/major": 2.0, "attack/global/best/auc_low": 0.4}
    finish(folder, final=written(final))
    sweep.follow()
    (run,) = sweep.runs("trial")
    assert run.data.tags["raydiff.privacy.samples"] == "none"
    assert set(run.data.metrics) == {"distance_all", "distance_minority"}
    names = [p.name for p in sweep.artifacts.rglob("*") if p.is_file()]
    assert "ledger.json" in names and any(name.startswith("samples") for name in names)
    (file,) = sweep.artifacts.rglob("final.json")
    assert {k: float(v) for k, v in json.loads(file.read_text())["data"]} == final
    assert {"path": "final.json", "type": "table"} in json.loads(run.data.tags["mlflow.loggedArtifacts"])


def test_runs_have_their_data_and_the_sweep_a_text_and_files(
    sweep: Sweep, experiment: Experiment, tmp_path: Path
) -> None:
    finish(sweep.trial(experiment))
    finish(sweep.trial(replace(experiment, seed=1)))
    (tmp_path / "summary.csv").write_text("a,b")
    summary = SweepSummary("9 of 9" + "." * 9000)
    assert sweep.follow().end("KILLED", (tmp_path / "summary.csv",), summary) is None
    (parent,), runs = sweep.runs("sweep"), sweep.runs("trial")
    assert parent.data.tags["mlflow.note.content"].startswith("9 of 9...") and parent.info.status == "KILLED"
    assert [p.name for p in sweep.artifacts.rglob("*.csv")] == ["summary.csv"]
    for run in (parent, *runs):
        (data,) = run.inputs.dataset_inputs
        assert (data.dataset.name, data.dataset.digest) == (experiment.data.name, "0123456789abcdef")


def test_means_over_seeds_are_runs_of_their_own_and_give_way_to_the_next_ones(sweep: Sweep) -> None:
    row = {"seeds": "2", "distance_all": 2.0, "accuracy": 0.5, "epsilon": math.inf}
    for means in ({"PFDM": row, "FedAvg": row}, {"PFDM": {**row, "distance_all": 3.0}}):
        assert sweep.follow().end("FINISHED", (), SweepSummary(means=means)) is None
    (parent,), (mean,) = sweep.runs("sweep"), sweep.runs("mean")
    assert (mean.info.run_name, mean.info.status) == ("PFDM", "FINISHED")
    assert mean.data.tags["mlflow.parentRunId"] == parent.info.run_id and mean.data.params == {"seeds": "2"}
    assert list(mean.data.metrics.items()) == [("distance_all", 3.0), ("accuracy", 0.5)]
    assert sweep.follow().parent == parent.info.run_id


def test_the_sweep_shows_its_best_trial_its_frontier_and_a_view(
    sweep: Sweep, experiment: Experiment, tmp_path: Path
) -> None:
    """Of the best trial the sampler is a model; a better one of an extended sweep takes its place."""
    from mlflow import MlflowClient

    client = MlflowClient(sweep.uri)
    first, second = (sweep.trial(replace(experiment, seed=seed), 1.0) for seed in range(2))
    for folder in (first, second):
        finish(folder, final=written({"eval/fd_cnn/all": 1.0}))
    Image.new("RGB", (2000, 500)).save(tmp_path / "frontier.png")

    def log_sampler(client: Any, run: str, folder: Path) -> None:
        model = client.create_logged_model(client.get_run(run).info.experiment_id, name="sampler", source_run_id=run)
        client.log_outputs(run, [LoggedModelOutput(model.model_id, 0)])

    for best in (first, first, second):
        follower = sweep.follow()
        follower.log_sampler = log_sampler
        summary = SweepSummary("20 of 20", "| a |", best=best.name, measure="distance_all (1.000)")
        assert follower.end("FINISHED", (tmp_path / "frontier.png",), summary) is None
        (model,) = client.search_logged_models([follower.experiment_id])
        run = next(run for run in sweep.runs("trial") if run.data.tags["raydiff.trial"] == best.name)
        assert model.source_run_id == run.info.run_id
    (parent,) = sweep.runs("sweep")
    assert parent.data.tags["raydiff.best"] == run.info.run_id
    top, conclusion, picture, table = parent.data.tags["mlflow.note.content"].split("\n\n")
    assert top.startswith("Best trial by distance_all (1.000): [PFDM epsilon=10 seed=1](#/experiments/")
    assert run.info.run_id in top and (conclusion, table) == ("20 of 20", "| a |")
    (small,) = sweep.artifacts.rglob("frontier-small.png")
    assert small.name in picture and parent.info.run_id in picture and Image.open(small).width == 640
    tags = client.get_experiment(follower.experiment_id).tags
    view = json.loads(tags["mlflow.sharedViewState.an id of its own"])
    assert view["selectedColumns"] == ["metrics.`distance_all`", "params.`method.epsilon`", "params.`seed`"]
    assert tags["mlflow.experimentKind"] == "custom_model_development" and parent.info.run_id in view["runsExpanded"]


def test_a_store_that_takes_no_view_costs_nothing(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_view, "build_view", lambda *_: 1 / 0)
    assert sweep.follow().end("FINISHED") is None


def test_the_next_follower_adds_what_is_missing_and_nothing_twice(sweep: Sweep, experiment: Experiment) -> None:
    folder = sweep.trial(experiment, 4.0, 3.0)
    sweep.follow()
    before = sweep.ids()
    metrics_log(folder).log(2, {"metrics": written({"server/loss": 2.0})})
    second = sweep.trial(replace(experiment, seed=1), 9.0)
    finish(folder, final=written({"eval/fd_cnn/all": 2.5}))
    sweep.follow()
    runs = {run.data.tags["raydiff.trial"]: run for run in sweep.runs("trial")}
    assert before < sweep.ids() and len(sweep.runs("sweep")) == 1 and len(runs) == 2
    first = runs[experiment.digest]
    assert sweep.history(first, "round/server_loss") == [(0, 4.0), (1, 3.0), (2, 2.0)]
    assert (first.info.status, runs[second.name].info.status) == ("FINISHED", "RUNNING")


def test_a_name_given_again_is_another_sweep(sweep: Sweep, experiment: Experiment) -> None:
    sweep.trial(experiment)
    sweep.follow()
    (sweep.folder / "sweep.json").write_text(json.dumps({"id": "another id"}))
    sweep.follow()
    parents, trials = sweep.runs("sweep"), sweep.runs("trial")
    assert {p.info.run_id for p in parents} == {t.data.tags["mlflow.parentRunId"] for t in trials} and len(parents) == 2


def test_a_resumed_trial_runs_again_and_a_finished_one_rests(sweep: Sweep, experiment: Experiment) -> None:
    folder, other = sweep.trial(experiment, 1.0), sweep.trial(replace(experiment, seed=1), 1.0)
    for each, outcome in ((folder, "killed"), (other, "finished")):
        finish(each, outcome, final=written({"eval/accuracy": 1.0}), reason="why")
    sweep.follow()
    ended = {run.data.tags["raydiff.trial"]: run.info.end_time for run in sweep.runs("trial")}
    metrics_log(folder).log(1, {"metrics": written({"server/loss": 0.5})})
    finish(folder, final=written({"eval/accuracy": 0.5}))
    sweep.follow()
    runs = {run.data.tags["raydiff.trial"]: run for run in sweep.runs("trial")}
    again = runs[folder.name]
    assert (again.info.status, again.data.tags["raydiff.reason"]) == ("FINISHED", "")
    assert sweep.history(again, "round/server_loss") == [(0, 1.0), (1, 0.5)]
    assert runs[other.name].info.end_time == ended[other.name]
    assert sweep.history(runs[other.name], "accuracy") == [(0, 1.0)]


def test_a_trial_that_fails_again_is_not_left_running(sweep: Sweep, experiment: Experiment) -> None:
    """Whether the follower sees it run or not, and however often it is tried."""
    folder = sweep.trial(experiment, 1.0)

    def now() -> tuple[str, str]:
        (run,) = sweep.runs("trial")
        return run.info.status, run.data.tags["raydiff.reason"]

    finish(folder, "failed", reason="once")
    sweep.follow()
    assert now() == ("FAILED", "once")
    follower = sweep.follower()
    follower._open()
    follower._find_runs()
    for reason in ("twice", "three times"):
        (folder / "outcome.json").unlink()
        follower._update()
        assert now()[0] == "RUNNING"
        finish(folder, "failed", reason=reason)
        follower._update()
        assert now() == ("FAILED", reason)
    finish(folder, "failed", reason="unseen")
    sweep.follow()
    assert now() == ("FAILED", "unseen")


def test_closing_waits_as_long_as_trials_end(
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
    assert [line.split()[5] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]
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
        folder = sweep.trial(replace(experiment, seed=deaths), 1.0)
        finish(folder, final=written({"eval/accuracy": 2.0}))
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
        assert run.data.metrics.keys() >= {"round/server_loss", "accuracy"} and len(run.inputs.dataset_inputs) == 1
        assert run.data.params["seed"] and "final.json" in run.data.tags["mlflow.loggedArtifacts"]


@pytest.mark.parametrize("call", ["log_inputs", "log_batch"])
def test_an_error_costs_no_second_run(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The same follower tries again, at the end at the latest, and finds the run that it had created."""
    from mlflow import MlflowClient

    original, outages = getattr(MlflowClient, call), list[int]()

    def flaky(*args: Any, **options: Any) -> None:
        if len(outages) < 2:
            outages.append(1)
            raise ConnectionError("no server")
        original(*args, **options)

    monkeypatch.setattr(MlflowClient, call, flaky)
    finish(sweep.trial(experiment, 4.0, 3.0))
    follower = sweep.follower()
    follower.start()
    follower.wait_ready()
    follower.begin()
    follower.close()
    (run,) = sweep.runs("trial")
    assert follower.error is None and run.info.status == "FINISHED"
    assert sweep.history(run, "round/server_loss") == [(0, 4.0), (1, 3.0)]


def test_another_sweep_may_create_the_experiment_at_the_same_moment(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    create = MlflowClient.create_experiment

    def too_late(client: Any, name: str, **options: Any) -> str:
        create(client, name, **options)
        return str(create(client, name, **options))  # raises: there is one by now

    monkeypatch.setattr(MlflowClient, "create_experiment", too_late)
    finish(sweep.trial(experiment, 1.0))
    sweep.follow()
    assert [run.info.status for run in sweep.runs("trial")] == ["FINISHED"]


REFUSALS: dict[str, tuple[str, Exception]] = {
    "disk": ("log_dict", OSError(errno.EROFS, "Read-only file system")),
    "picture": ("log_image", PermissionError(errno.EACCES, "Permission denied: '/srv/x'")),
    "data": ("log_inputs", ValueError("no such data set")),
    "numbers": ("log_batch", RuntimeError("refused")),
    "sampler": ("log_model_artifacts", RuntimeError("Unable to locate credentials")),
}


@pytest.mark.parametrize("refusal", slow_but(["disk", "numbers"], REFUSALS))
def test_what_is_refused_of_one_trial_costs_nothing_else(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Every run has its final status, the sweep's end names the reason, and the next follower adds what is missing."""
    from mlflow import MlflowClient

    call, error = REFUSALS[refusal]
    folders = [sweep.trial(replace(experiment, seed=seed), 1.0) for seed in range(2)]
    for folder in folders:
        sample_grid([torch.rand(4, 1, 8, 8)], folder / "artifacts" / "samples.png", privacy="none")
        finish(folder, final=written({"eval/accuracy": 2.0}))
    original, victim = getattr(MlflowClient, call), min(folder.name for folder in folders)  # the first that is logged

    def refuse(client: Any, run: str, *args: Any, **options: Any) -> Any:
        if client.get_run(run).data.tags.get("raydiff.trial") == victim and "tags" not in options:
            raise error
        return original(client, run, *args, **options)

    def log_sampler(client: Any, run: str, folder: Path) -> None:
        if refusal == "sampler":
            client.log_model_artifacts(run, str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, refuse)
        follower = sweep.follower()
        follower.log_sampler = log_sampler
        follower.start()
        follower.begin()
        follower.close()
        reason = follower.end("FINISHED", (), SweepSummary(best=victim))
    assert reason is not None and victim in reason and str(error) in reason and str(sweep.artifacts) in reason
    statuses = {run.data.tags["raydiff.trial"]: run.info.status for run in sweep.runs("trial")}
    assert statuses == {folder.name: "FINISHED" for folder in folders}
    whole = {run.data.tags["raydiff.trial"] for run in sweep.runs("trial") if not run.data.tags["raydiff.remark"]}
    assert whole == {folder.name for folder in folders} - {victim}
    assert sweep.follow().end("FINISHED") is None
    for run in (*sweep.runs("trial"), *sweep.runs("sweep")):
        assert run.info.status == "FINISHED" and not run.data.tags.get("raydiff.remark")
        if "raydiff.trial" in run.data.tags:
            assert sweep.history(run, "round/server_loss") == [(0, 1.0)] and sweep.history(run, "accuracy") == [
                (0, 2.0)
            ]


@pytest.mark.parametrize("location", ["/proc/server/x", "s3://lab/mlflow", "mlflow-artifacts:/x"])
def test_without_a_store_of_artifacts_the_runs_have_their_numbers(
    sweep: Sweep, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    sweep.artifacts = location  # type: ignore[assignment]
    finish(sweep.trial(experiment, 1.0), final=written({"eval/accuracy": 2.0}))
    reason = sweep.follow().end("FINISHED")
    assert reason is not None and location in reason
    (trial,), (parent,) = sweep.runs("trial"), sweep.runs("sweep")
    assert (trial.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert trial.data.metrics["accuracy"] == 2.0 and trial.data.tags["raydiff.remark"]


def remove(sweep: Sweep, kind: str) -> None:
    """Delete the sweep's own run, a trial's, that for good, or the experiment, in MLflow's page as it were."""
    from mlflow import MlflowClient

    client = MlflowClient(sweep.uri)
    if kind == "experiment":
        client.delete_experiment(sweep.runs("sweep")[0].info.experiment_id)
        return
    run = sweep.runs("sweep" if kind == "sweep" else "trial")[0].info.run_id
    client.delete_run(run)
    if kind == "for good":
        with contextlib.closing(sqlite3.connect(sweep.uri.removeprefix("sqlite:///"))) as db, db:
            for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
                db.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (run,))


@pytest.mark.parametrize(
    ("kind", "when"),
    slow_but(
        [("for good", "while it runs"), ("experiment", "before it is resumed")],
        [
            *((kind, "while it runs") for kind in ("trial", "for good", "sweep", "experiment")),
            *((kind, "before it is resumed") for kind in ("sweep", "experiment")),
        ],
    ),
)
def test_what_was_deleted_is_logged_again(sweep: Sweep, experiment: Experiment, kind: str, when: str) -> None:
    """But not against the deletion of the whole experiment, which is named."""
    folders = [sweep.trial(replace(experiment, seed=seed), 1.0) for seed in range(2)]
    if when == "while it runs":
        follower = sweep.follower()
        follower._open()
        follower._find_runs()
        follower._update()
        remove(sweep, kind)
    else:
        sweep.follow()
        remove(sweep, kind)
        follower = sweep.follower()
    for folder in folders:
        metrics_log(folder).log(1, {"metrics": written({"server/loss": 0.5})})
        finish(folder, final=written({"eval/accuracy": 0.5}))
    follower.start()
    if kind == "experiment" and when == "before it is resumed":
        with pytest.raises(ValueError, match=r"experiment digits is deleted: name another by --experiment, or restore"):
            follower.wait_ready()
        return
    follower.begin()
    follower.close()
    reason = follower.end("FINISHED")
    if kind == "experiment":
        assert reason is not None and "its experiment was deleted" in reason
        return
    (parent,), runs = sweep.runs("sweep"), sweep.runs("trial")
    assert reason is None and {run.data.tags["raydiff.trial"] for run in runs} == {folder.name for folder in folders}
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in runs)
    assert [run.info.status for run in (parent, *runs)] == ["FINISHED"] * 3
    assert all(sweep.history(run, "round/server_loss") == [(0, 1.0), (1, 0.5)] for run in runs)


def test_a_damaged_trial_leaves_the_others_whole(sweep: Sweep, experiment: Experiment) -> None:
    damaged, *others = [sweep.trial(replace(experiment, seed=seed), 1.0) for seed in range(2)]
    for folder in (damaged, *others):
        finish(folder)
    (damaged / "outcome.json").write_text("{")
    reason = sweep.follow().end("FINISHED")
    assert reason is not None and damaged.name in reason and "outcome.json" in reason
    statuses = {run.data.tags["raydiff.trial"]: run.info.status for run in sweep.runs("trial")}
    assert statuses == {damaged.name: "KILLED", **{folder.name: "FINISHED" for folder in others}}
