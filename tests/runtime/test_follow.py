"""Lines of a sweep's progress, from Tune's events."""

import dataclasses
import os
import signal
from types import SimpleNamespace

import pytest
from planned import planned_as, seeded

from raydiff.runtime import follow as module
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.plan import SweepRequest, serialize_experiment


@pytest.fixture
def progress(tmp_path, monkeypatch):
    monkeypatch.setattr(module.cluster, "explain_memory_kill", lambda: "")
    return SweepProgress(planned_as(tmp_path, [seeded(n) for n in range(9)]))


def tune_trial(number: int, **last) -> SimpleNamespace:
    return SimpleNamespace(
        trial_id=str(number),
        config={"experiment": serialize_experiment(seeded(number))},
        last_result=last,
        status="RUNNING",
        error_file=None,
    )


def report(progress: SweepProgress, number: int, **result) -> None:
    progress.on_trial_result(0, [], tune_trial(number), {"finished": False, "time/seconds": 1.0, **result})


def test_finished_failed_and_stopped_trials_are_counted(progress, capsys):
    report(progress, 0, round=5, finished=True, **{"eval/fd_cnn/all": 1.5})
    report(progress, 1, finished=True, failed="client 0, in round 1: boom")
    report(progress, 2, round=2, done=True)  # Tune sets "done" when a scheduler stops a trial.
    for number in range(3):
        progress.on_trial_complete(0, [], tune_trial(number, round=2))
    assert (progress.done, progress.failed, progress.running) == (2, 1, {})
    progress.on_trial_start(0, [], tune_trial(3))
    assert progress.counts == {"waiting": 5, "running": 1, "done": 2, "failed": 1}
    assert progress.stopped == {seeded(2).digest} and progress.ended == {seeded(n).digest for n in range(3)}
    out = capsys.readouterr().out
    assert (
        "1 s, fd_cnn/all 1.500" in out
        and "FAILED, client 0, in round 1: boom" in out
        and "seed=2: stopped after round 3" in out
    )


def test_an_interrupt_ends_the_sweep_and_a_later_second_one_at_once(progress, monkeypatch):
    calls = []
    monkeypatch.setattr(module.signal, "signal", lambda number, to: calls.append((number, to)))
    monkeypatch.setattr(module.os, "kill", lambda pid, number: calls.append((pid, number)))
    progress.on_trial_start(0, [], tune_trial(0))
    progress.interrupt(signal.SIGTERM)
    progress.on_trial_complete(0, [], tune_trial(0, round=1))
    assert progress.interrupted and progress.ending and not progress.stopped and not calls
    progress.interrupt(signal.SIGINT)
    assert calls == [(signal.SIGINT, signal.SIG_DFL), (os.getpid(), signal.SIGINT)]


def test_a_lost_trial_fails_only_where_no_round_was_committed_since_the_fit_began(progress, capsys):
    def lost(number: int) -> bool:
        progress.on_trial_error(0, [], tune_trial(number))
        return seeded(number).digest in progress.ended

    for round_, fails in ((3, False), (3, True)):  # The second fit reports the committed round again.
        progress.begin_fit([])
        report(progress, 0, round=round_)
        assert lost(0) is fails
    assert lost(1) and progress.failed == 2 and not progress.running
    out = capsys.readouterr().out
    assert "it goes on after round 4" in out and out.count("more often than runtime.failures allows") == 2


def test_a_lack_of_memory_is_the_reason_in_the_lines_and_in_the_trials_file(progress, monkeypatch, capsys):
    """A trial that was killed before it had a folder has no file."""
    monkeypatch.setattr(module.cluster, "explain_memory_kill", lambda: "the node runs low on memory")
    (progress.plan.folder / "trials" / seeded(1).digest).mkdir(parents=True)
    progress.on_trial_recover(0, [], tune_trial(0))
    progress.on_trial_error(0, [], tune_trial(1))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("(the node runs low on memory)" in line for line in lines)
    folder = progress.plan.folder / "trials" / seeded(1).digest
    assert module.device_faults.read_losses(folder) == ["the node runs low on memory"]


def test_what_ray_said_last_is_the_reason_where_the_processes_left_none(progress, tmp_path, capsys):
    (error := tmp_path / "error.txt").write_text("Failure # 1\nThe actor died.\n\tpid: 3\nWorker exit detail: SIGILL\n")
    folder = progress.plan.folder / "trials" / seeded(0).digest
    folder.mkdir(parents=True)
    died = tune_trial(0)
    died.error_file = str(error)
    progress.on_trial_recover(0, [], died)
    assert "lost; it goes on after round 0 (Worker exit detail: SIGILL)" in capsys.readouterr().out
    assert module.device_faults.read_losses(folder) == ["Worker exit detail: SIGILL"]
    progress.on_trial_start(0, [], died)
    module.device_faults.record_loss(folder, "the coordinator: the GPU fell off")
    progress.on_trial_recover(0, [], died)
    assert "fell off" in (out := capsys.readouterr().out) and "SIGILL" not in out


@pytest.mark.parametrize("stop", [False, True])
def test_a_failed_trial_ends_the_sweep_where_asked(tmp_path, stop):
    plan = planned_as(tmp_path, [seeded(0)])
    progress = SweepProgress(dataclasses.replace(plan, asked=SweepRequest(stop_on_error=stop)))
    report(progress, 0, finished=True, failed="boom")
    assert progress.ending is stop
