"""A sweep through Tune on the shared Ray: failed trials are named, the others finish, and none is run twice."""

import contextlib
import dataclasses
import errno
import math
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planned import planned_as, seeded
from trial_folders import written as written_metrics

from raydiff import process
from raydiff.experiment import trial
from raydiff.experiment.config import Runtime
from raydiff.experiment.overrides import override
from raydiff.models.training import Training
from raydiff.runtime import cluster, coordinator, device_faults, launch, tuner
from raydiff.runtime.finish import Ended, Finisher
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.place import Slot
from raydiff.runtime.plan import serialize_experiment
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.lease import Lease


def outcomes(plan) -> list[dict]:
    return [trial.Trial(e, plan.folder).outcome() for e in plan.trials]


@pytest.mark.ray
def test_a_failing_trial_is_named_and_the_others_finish(tmp_path, tiny, workers, monkeypatch):
    """In a warm slot a trial has the bits that it has alone, and what has an outcome is not run again."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest keeps its own handlers
    base = dataclasses.replace(tiny, evaluation=None, runtime=Runtime(workers=1))
    base = override(base, {"method.server_rounds": 1})
    wild = Training(steps=8, batch=8, learning_rate=1e30)
    for name in ("s", "alone"):
        trial.keep_secret(tmp_path / name, b"the noise secret")
    trials = [trial.resolve_on_data(e, b"the noise secret") for e in (override(base, {"method.server": wild}), base)]
    plan = planned_as(tmp_path / "s", trials)
    progress, shape = SweepProgress(plan), tuner.choose_slot(plan, [{"CPU": 2.0}])
    assert tuner.run_on_tune(plan, shape, progress).interrupted == 0
    failed, finished = outcomes(plan)
    assert (failed["outcome"], finished["outcome"]) == ("failed", "finished")
    assert "the server, in round 1: the loss became" in failed["reason"]
    assert (progress.done, progress.failed) == (1, 1)

    alone = trial.open_trial(trials[1], tmp_path / "alone")
    list(trial.run_trial(alone, trial.local_executor(alone)))
    warm = trial.Trial(trials[1], plan.folder)
    assert all(torch.equal(v, warm.store.load_server(1)[k]) for k, v in alone.store.load_server(1).items())

    written = {f: f.stat().st_mtime_ns for f in plan.folder.glob("trials/*/outcome.json")}
    assert tuner.run_on_tune(plan, shape, SweepProgress(plan)).interrupted == 0
    assert len(written) == 2 and written == {f: f.stat().st_mtime_ns for f in written}


def test_a_fit_that_ended_early_is_followed_by_another_one_with_the_rest(tmp_path, tiny, monkeypatch, capsys):
    """On as many workers as still fit, and with interrupted trials first."""
    base = dataclasses.replace(tiny, clients=3, runtime=Runtime(workers=3))
    trial.keep_secret(tmp_path / "sweeps" / "s", b"the noise secret")
    trials = [trial.resolve_on_data(override(base, {"seed": n}), b"the noise secret") for n in range(3)]
    plan, fits = planned_as(tmp_path / "sweeps" / "s", trials), []

    def fit(plan, shape, progress, tuned, trials):
        pending = [experiment.seed for experiment in trials]
        fits.append((shape.workers, pending))
        this = trial.Trial(plan.trials[pending[0]], plan.folder)
        trial.begin(this)
        trial.end(this.folder, "finished", final=written_metrics({"time/seconds": 1.0}))
        trial.begin(trial.Trial(plan.trials[2], plan.folder))

    monkeypatch.setattr(tuner, "_fit", fit)
    monkeypatch.setattr(tuner.cluster, "list_nodes", lambda without: {"n": {"CPU": 2.0}})
    monkeypatch.setattr(tuner.process, "stop_signals", contextlib.nullcontext)
    assert tuner.run_on_tune(plan, tuner.slot_for(plan, [{"CPU": 9.0}]), SweepProgress(plan)).interrupted == 0
    assert fits == [(3, [0, 1, 2]), (2, [2, 1]), (2, [1])]
    assert capsys.readouterr().out == "nodes were lost: going on with 2 worker(s) per trial\n"
    assert [outcome["outcome"] for outcome in outcomes(plan)] == ["finished"] * 3


def federation(folder: Path, experiment, owner: Lease | None = None) -> tuner.Coordinator:
    """A coordinator outside Ray, about to run this trial."""
    coordinator = object.__new__(tuner.Coordinator)
    coordinator._slot = Slot(workers=1, threads=1, gpu_per_worker=0.0, gpu_server=0.0)
    coordinator.reset_config({"experiment": serialize_experiment(experiment), "sweep": folder, "owner": owner})
    return coordinator


def test_a_driver_that_lost_the_sweep_to_another_writes_no_outcome(tmp_path, tiny):
    """Nor does a coordinator that is left over from it."""
    opened = trial.open_trial(tiny, tmp_path, Lease(tmp_path, 1))
    (tmp_path / "owners").mkdir()
    (tmp_path / "owners" / "00002.json").write_text("{}")
    plan = planned_as(tmp_path, [opened.experiment], owner=opened.owner)
    with pytest.raises(LeaseLost):
        tuner._end_open_trials(plan, SweepProgress(plan))
    with pytest.raises(LeaseLost):
        federation(tmp_path, opened.experiment, owner=opened.owner).step()
    with pytest.raises(LeaseLost):
        list(trial.run_trial(opened, trial.local_executor(opened)))
    assert opened.outcome() is None and not list(opened.folder.glob("commit-*"))


def test_a_trial_that_cannot_begin_fails_with_its_reason(tmp_path, tiny, monkeypatch):
    """The disk became read-only between two trials: nothing of the second is in the folder."""

    def begin(_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(coordinator.trials, "begin", begin)
    reason = federation(tmp_path, tiny).step()["failed"]
    assert reason == f"the storage folder {tmp_path} cannot be written: Read-only file system"
    assert (Ended(tmp_path, failed="why").code, Ended(tmp_path).code) == (1, 0)


def test_where_no_node_can_hold_a_trial_any_more_the_command_fails(tmp_path, monkeypatch, capsys):
    """Also before the first trial began, when the folder says nothing. Signals are the caller's again afterwards."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def fit(plan, shape, progress, tuned, trials):
        assert signal.getsignal(signal.SIGTERM) not in handlers

    def full(*_):
        raise tuner.NoCapacity("a trial needs 1 GPU")

    monkeypatch.setattr(tuner, "_fit", fit)
    monkeypatch.setattr(tuner, "choose_slot", lambda plan, nodes: tuner.slot_for(plan, nodes))
    monkeypatch.setattr(tuner, "_refit", full)
    monkeypatch.setattr(cluster, "join_cluster", lambda: contextlib.nullcontext([{"CPU": 2.0}]))
    monkeypatch.setattr(cluster, "watch_head", contextlib.nullcontext)
    with launch._prepare(planned_as(tmp_path / "sweeps" / "s", [seeded(0)]), print) as run:
        ended = run()
    assert "no trial can go on: a trial needs 1 GPU" in capsys.readouterr().out
    assert ended.code == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_where_ray_kills_a_process_that_starts_for_lack_of_memory_the_sweep_ends_with_outcomes(
    tmp_path, tiny, monkeypatch, capsys
):
    """Tune raises it out of `fit`; any other error of Tune's goes on."""
    this = trial.open_trial(tiny, tmp_path / "s")
    plan = planned_as(tmp_path / "s", [this.experiment])

    def fit(*_):
        raise RuntimeError("Caught unexpected exception: 4 worker(s) were killed")

    monkeypatch.setattr(tuner, "_fit", fit)
    monkeypatch.setattr(tuner.cluster, "explain_memory_kill", lambda: "")
    with pytest.raises(RuntimeError):
        tuner.run_on_tune(plan, tuner.slot_for(plan, [{"CPU": 2.0}]), SweepProgress(plan))
    monkeypatch.setattr(tuner.cluster, "explain_memory_kill", lambda: "the node runs low on memory")
    tuner.run_on_tune(plan, tuner.slot_for(plan, [{"CPU": 2.0}]), progress := SweepProgress(plan))
    assert this.outcome()["reason"] == "its processes were lost: the node runs low on memory" and progress.no_capacity
    assert "no trial can go on: the node runs low on memory\n" in capsys.readouterr().out


def test_a_signal_that_tune_takes_for_itself_ends_the_sweep_too(tmp_path):
    progress = SweepProgress(planned_as(tmp_path, [seeded(0)]))
    with process.stop_signals(progress.interrupt):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as each `fit` of Tune does
        progress.setup()
        signal.raise_signal(signal.SIGUSR1)
    assert progress.interrupted == signal.SIGUSR1 and progress.ending


def test_a_sweep_whose_ray_has_lost_its_head_ends_with_outcomes(tmp_path, tiny, monkeypatch, capsys):
    this = trial.open_trial(tiny, tmp_path / "s")
    (tmp_path / "s" / "sweep.json").write_text('{"command": ["raydiff", "sweep", "--name", "s"]}')
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="1"):
        Finisher(tmp_path / "s", None, None).lose_head("Ray's head has not answered")
    assert (this.outcome()["outcome"], this.outcome()["reason"]) == ("killed", "Ray's head has not answered")
    assert "raydiff sweep --name s --resume" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "out_of_time", "outcome", "reason"),
    [
        ("interrupted", True, "killed", "interrupted"),
        ("stopped", False, "stopped", "scheduler"),
        ("", True, "stopped", "time budget"),
        ("", False, "killed", "its processes were lost: the coordinator: CUDA error: unspecified launch failure"),
    ],
)
def test_every_trial_that_began_gets_an_outcome(tmp_path, tiny, state, out_of_time, outcome, reason):
    this = trial.open_trial(tiny, tmp_path / "s")
    (this.folder / device_faults.FILE).write_text(
        "a worker: one\nthe coordinator: CUDA error: unspecified launch failure\n"
    )
    plan = planned_as(tmp_path / "s", [this.experiment])
    progress = SweepProgress(plan)
    progress.interrupted = state == "interrupted"
    progress.stopped |= {this.experiment.digest} if state == "stopped" else set()
    progress.deadline = 0.0 if out_of_time else math.inf
    tuner._end_open_trials(plan, progress)
    assert (this.outcome()["outcome"], this.outcome()["reason"]) == (outcome, reason)


def test_a_trial_fails_where_its_driver_hears_of_it(tmp_path, tiny):
    """A coordinator that was cut off fails too, for want of Ray, when the trial goes on elsewhere."""

    def cut_off():
        raise OSError("Broken pipe")
        yield

    this = trial.open_trial(tiny, tmp_path / "sweeps" / "s")
    left = federation(tmp_path / "sweeps" / "s", this.experiment)
    left._trial, left._results = this, cut_off()
    result = left.step()
    assert result["done"] and result["failed"] == "Broken pipe" and this.outcome() is None
    assert "OSError: Broken pipe" in (this.folder / "error.txt").read_text()
    SweepProgress(planned_as(tmp_path / "sweeps" / "s", [this.experiment])).on_trial_result(
        0, [], SimpleNamespace(trial_id="t", config={"experiment": serialize_experiment(this.experiment)}), result
    )
    assert this.outcome()["outcome"] == "failed" and this.outcome()["reason"] == "Broken pipe"
