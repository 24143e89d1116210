"""A sweep through Tune on the shared Ray: what fails is named and the rest goes on; what is done is not done again."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from raydiff import trial
from raydiff.config import Runtime, override
from raydiff.diffusion.local import Training


@pytest.fixture
def progress():
    from raydiff.runtime.progress import Progress

    return Progress(total=3, metric="eval/fd_cnn/all", name=lambda config: config["name"], stop_on_error=False)


def fake_trial(number: int, **last) -> SimpleNamespace:
    return SimpleNamespace(trial_id=str(number), config={"name": f"trial {number}"}, last_result=last)


def test_progress_tells_finished_from_failed_from_stopped(progress, capsys):
    for number in range(3):
        progress.on_trial_start(0, [], fake_trial(number))
    end = {"round": 5, "finished": True, "done": True, "time/seconds": 2.0, "eval/fd_cnn/all": 1.5, "digest": "a"}
    progress.on_trial_result(0, [], fake_trial(0), end)
    progress.on_trial_complete(0, [], fake_trial(0, **end))
    failed = {"finished": True, "done": True, "failed": "client 0, in round 1: boom", "digest": "b"}
    progress.on_trial_result(0, [], fake_trial(1), failed)
    progress.on_trial_complete(0, [], fake_trial(1, **failed))
    early = {"round": 2, "finished": False, "done": True, "digest": "c"}  # Tune says done when a scheduler stops it
    progress.on_trial_result(0, [], fake_trial(2), early)
    progress.on_trial_complete(0, [], fake_trial(2, **early))
    assert (progress.done, progress.failed, progress.stopped, progress.running) == (2, 1, {"c"}, {})
    assert progress.best == (1.5, "trial 0")
    out = capsys.readouterr().out
    assert "FAILED, client 0, in round 1: boom" in out and "trial 2: stopped after round 3" in out


def test_an_interrupt_ends_the_sweep_and_counts_nothing_as_stopped(progress):
    import signal

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        progress.on_trial_start(0, [], fake_trial(0))
        progress.interrupt()
        assert progress.stopper.stop_all() and signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        progress.on_trial_complete(0, [], fake_trial(0, digest="a"))
        assert progress.interrupted and not progress.stopped
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch):
    from raydiff.runtime import sweep

    def init(**_):
        raise Exception("The current node timed out during startup.\nThis could happen because of much.")

    monkeypatch.setattr(sweep.ray, "init", init)
    says = r"^Ray did not start: The current node timed out during startup\. This could happen because of much\.$"
    with pytest.raises(ValueError, match=says), sweep.cluster():
        pass


@pytest.mark.ray
def test_a_failing_trial_is_named_and_the_others_finish(tmp_path, tiny, workers, monkeypatch):
    from raydiff.runtime import sweep
    from raydiff.runtime.progress import Progress

    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest keeps its own handlers
    base = dataclasses.replace(tiny, runtime=Runtime(workers=1))
    wild = Training(steps=8, batch=8, learning_rate=1e30)
    experiments = [
        trial.resolve(e) for e in (base, override(base, {"method.server": wild}), override(base, {"seed": 1}))
    ]
    progress = Progress(total=3, metric="eval/fd_cnn/all", name=lambda c: "trial", stop_on_error=False)
    plan = sweep.Plan(folder=tmp_path / "s", trials=experiments, base=experiments[0], concurrent=1)
    shape = sweep.check(plan, [{"CPU": 2.0}])
    assert sweep.run(plan, shape, progress) is False
    outcomes = [trial.Trial(e, plan.folder).outcome() for e in experiments]
    assert [o["outcome"] for o in outcomes] == ["finished", "failed", "finished"]
    assert "the server, in round 1: the loss became" in outcomes[1]["reason"]
    assert (progress.done, progress.failed) == (2, 1)

    # the second finished trial ran in the warm slot of the first two: the same numbers as alone, in this process
    alone = trial.open_trial(experiments[2], tmp_path / "alone")
    (tmp_path / "alone" / "secret").write_bytes((plan.folder / "secret").read_bytes())
    final = list(trial.run(alone, trial.local_pool(alone)))[-1]
    same = {k: v for k, v in outcomes[2]["final"].items() if not k.startswith("time/")}
    assert same == {k: final[k] for k in same}

    times = {f: f.stat().st_mtime_ns for f in plan.folder.glob("trials/*/outcome.json")}
    again = Progress(total=3, metric="eval/fd_cnn/all", name=lambda c: "trial", stop_on_error=False)
    assert sweep.run(plan, shape, again) is False
    assert times == {f: f.stat().st_mtime_ns for f in plan.folder.glob("trials/*/outcome.json")}
