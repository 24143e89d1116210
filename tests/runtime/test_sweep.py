"""A sweep through Tune on the shared Ray: what fails is named and the rest goes on; what is done is not done again."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import signal
from types import SimpleNamespace

import pytest
import torch

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.models.training import Training
from raydiff.runtime import device_faults
from raydiff.runtime.plan import Asked, Planned, written


@pytest.fixture
def progress(tmp_path):
    from raydiff.runtime.progress import Progress

    return Progress(planned_as(tmp_path, [seeded(n) for n in range(3)]))


def seeded(number: int) -> Experiment:
    return dataclasses.replace(Experiment(), seed=number)


def fake_trial(number: int, **last) -> SimpleNamespace:
    lost = SimpleNamespace(num_failures=2)
    return SimpleNamespace(
        trial_id=str(number), config={"experiment": written(seeded(number))}, last_result=last, run_metadata=lost
    )


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
    assert progress.best == (1.5, "FedAvg seed=0")
    out = capsys.readouterr().out
    assert "FAILED, client 0, in round 1: boom" in out and "seed=2: stopped after round 3" in out


def test_the_best_is_the_greatest_of_a_metric_that_is_better_when_higher(tmp_path):
    from raydiff.runtime.progress import Progress

    for lower, best in ((True, 1.5), (False, 2.5)):
        plan = planned_as(tmp_path, [seeded(0), seeded(1)], lower_is_better=lower)
        shown = Progress(dataclasses.replace(plan, metric="m"))
        for number, value in enumerate((1.5, 2.5)):
            shown.on_trial_start(0, [], fake_trial(number))
            shown.on_trial_result(0, [], fake_trial(number), {"finished": True, "time/seconds": 1.0, "m": value})
        assert shown.best == (best, f"FedAvg seed={int(not lower)}")


def test_where_the_slots_time_went(progress, monkeypatch):
    """Two slots: 0 to 10 and 12 to 20 in the first, 0 to 14 in the second."""
    from raydiff.runtime import progress as module

    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    progress.have(2)

    def tell(at: float, number: int, seconds: float, *, finished: bool = True) -> None:
        clock[0] = at
        result = {"round": 0, "finished": finished, "time/seconds": seconds, "digest": "a"}
        progress.on_trial_result(0, [], fake_trial(number), result)

    tell(3.0, 0, 3.0, finished=False)
    tell(10.0, 0, 10.0)
    tell(14.0, 1, 13.0)
    assert progress.split() is None  # one is missing
    tell(20.0, 2, 8.0)
    assert progress.split() == {"slots": 2.0, "slots_s": 40.0, "working": 31.0, "waiting": 6.0, "outside": 3.0}
    clock[0] = 5.0
    progress.have(3)
    clock[0] = 10.0
    progress.have(2)
    assert progress.split() == {"slots": 2.25, "slots_s": 45.0, "working": 31.0, "waiting": 6.0, "outside": 8.0}


def test_the_time_left_follows_the_trials_that_run_now(tmp_path, monkeypatch, capsys):
    """With as many nodes again it halves, and where another job takes some of them it doubles."""
    from raydiff.runtime import progress as module

    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    shown = module.Progress(planned_as(tmp_path, [seeded(n) for n in range(9)]))
    shown.have(1)
    shown.on_trial_start(0, [], fake_trial(0))
    shown.on_trial_result(0, [], fake_trial(0), {"round": 0, "finished": True, "time/seconds": 100.0, "digest": "a"})
    said = []
    for started in (1, 2, 3, 4):
        clock[0] += module.EVERY_S
        shown.on_trial_start(0, [], fake_trial(started))
        for this in shown.running.values():
            this.since = clock[0]
        shown.on_step_end(0, [])
        said.append(capsys.readouterr().out.split("about ")[1].split(" left")[0])
    assert said == ["13:20 min", "6:40 min", "4:26 min", "3:20 min"]


def test_an_interrupt_ends_the_sweep_and_counts_nothing_as_stopped(progress):
    progress.on_trial_start(0, [], fake_trial(0))
    progress.interrupt(signal.SIGINT)
    assert progress.stop_all()
    progress.on_trial_complete(0, [], fake_trial(0, digest="a"))
    assert progress.interrupted and not progress.stopped


def test_a_second_signal_ends_it_at_once_but_not_one_that_is_the_first_again(progress, monkeypatch):
    """`timeout` sends its signal to its command, then to the whole group, the command with it."""
    from raydiff.runtime import progress as module

    clock, done = [0.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.signal, "signal", lambda number, to: done.append((number, to)))
    monkeypatch.setattr(module.os, "kill", lambda pid, number: done.append((pid, number)))
    progress.interrupt(signal.SIGTERM)
    clock[0] = 0.5
    progress.interrupt(signal.SIGTERM)
    assert progress.interrupted and not done
    clock[0] = 5.0
    progress.interrupt(signal.SIGINT)
    assert done == [(signal.SIGINT, signal.SIG_DFL), (os.getpid(), signal.SIGINT)]


def test_losses_count_between_two_rounds_alone(progress):
    this = fake_trial(0)
    progress.on_trial_start(0, [], this)
    progress.on_trial_result(0, [], this, {"round": 3, "finished": False})
    assert this.run_metadata.num_failures == 0
    this.run_metadata.num_failures = 1
    progress.on_trial_recover(0, [], this)
    assert not progress.running
    progress.on_trial_start(0, [], this)
    progress.on_trial_result(0, [], this, {"round": 3, "finished": False})  # the committed round is reported again
    assert this.run_metadata.num_failures == 1
    progress.on_trial_result(0, [], this, {"round": 4, "finished": False})
    assert this.run_metadata.num_failures == 0


@pytest.fixture
def room(tmp_path, monkeypatch):
    """(a room for ten trials of one worker on a cluster in `there`, what is there)."""
    from raydiff.runtime import concurrency as module
    from raydiff.runtime.progress import Progress
    from raydiff.runtime.slots import Slot

    there = SimpleNamespace(nodes={"n1": {"CPU": 2.0}}, groups=[], grows=False, unshared=set(), clock=0.0)
    monkeypatch.setattr(
        module.cluster, "present", lambda without=(): {k: v for k, v in there.nodes.items() if k not in without}
    )
    monkeypatch.setattr(module.cluster, "groups_of_others", lambda: there.groups)
    monkeypatch.setattr(module.cluster, "grows", lambda: there.grows)
    monkeypatch.setattr(module.time, "monotonic", lambda: there.clock)

    def shared(folder, among):
        if among & there.unshared:
            raise ValueError("not shared")

    monkeypatch.setattr(module, "storage_is_shared", shared)

    def make(concurrent=None):
        trials = [dataclasses.replace(seeded(n), runtime=Runtime(revive_s=15)) for n in range(10)]
        plan = planned_as(tmp_path / "sweeps" / "s", trials)
        plan = dataclasses.replace(plan, asked=Asked(concurrent=concurrent))
        one = Slot(workers=1, threads=1, gpu_per_worker=0.0, gpu_server=0.0)
        made = module.ConcurrencyController(plan, one, Progress(plan), SimpleNamespace(max_concurrent=None))
        return made

    return make, there


def after(this, there, seconds: float, status: str) -> int:
    """How many trials there may be once so many seconds have gone by, with a trial in this state."""
    there.clock += seconds
    this.on_step_begin(0, [SimpleNamespace(status=status)])
    return this.limit.max_concurrent


def test_where_no_node_has_room_tune_is_ended(room):
    make, there = room
    this = make()
    there.nodes = {}
    for seconds, status, ended in ((10, "PENDING", False), (10, "RUNNING", False), (10, "PENDING", False)):
        assert after(this, there, seconds, status) == 1 and this.stop_all() == ended
    there.nodes = {"n1": {"CPU": 2.0}}
    assert after(this, there, 10, "PENDING") == 2 and not this.stop_all()
    there.nodes = {}
    there.grows = True
    assert after(this, there, 10, "PENDING") and not this.stop_all()
    there.grows = False
    assert after(this, there, 10, "PENDING") and this.stop_all()


def test_a_node_that_has_lost_a_gpu_ends_tune_and_has_no_room_afterwards(room, capsys):
    from raydiff.runtime.concurrency import GPU_LOST

    make, there = room
    there.nodes = {"n1": {"CPU": 2.0}, "n2": {"CPU": 4.0}}
    this = make()
    assert this.limit.max_concurrent == 6
    this.progress.on_trial_start(0, [], fake_trial(0))
    for _ in range(2):  # The trial says so until it is ended, and so may others on this node.
        assert this("0", {GPU_LOST: ("n2", "a GPU of node 10.0.0.7 is lost (CUDA error: x)")}) is False
        assert this.stop_all()
    said = "  a GPU of node 10.0.0.7 is lost (CUDA error: x): the sweep goes on without this node\n"
    assert capsys.readouterr().out == said
    again = type(this)(this.plan, this.shape, this.progress, this.limit)
    assert again.limit.max_concurrent == 2 and not again.stop_all()
    this.progress.have_ended([])
    assert not this.progress.running


def test_nodes_that_join_are_used_and_a_line_says_so(room, capsys):
    make, there = room
    this, limited = make(), make(concurrent=3)
    assert this.limit.max_concurrent == 2 and capsys.readouterr().out == ""
    there.nodes = {"n1": {"CPU": 2.0}, "n2": {"CPU": 2.0}}
    assert after(this, there, 1, "RUNNING") == 2  # not asked in every turn of Tune's loop
    assert after(this, there, 5, "RUNNING") == 4
    assert "there is room for 4 trial(s) side by side" in capsys.readouterr().out
    assert after(limited, there, 5, "RUNNING") == 3
    there.nodes = {"n2": {"CPU": 2.0}}
    assert after(this, there, 5, "RUNNING") == 2


def test_a_node_that_joins_without_the_storage_ends_tune(room):
    make, there = room
    this = make()
    there.unshared = {"n2"}
    there.nodes = {"n1": {"CPU": 2.0}, "n2": {"CPU": 2.0}}
    after(this, there, 5, "RUNNING")
    assert this.stop_all()


def test_an_autoscaler_is_shown_what_waits_until_another_job_waits_too(room, capsys):
    from raydiff.runtime.cluster import Group

    make, there = room
    there.nodes, there.grows = {"head": {"memory": 1.0}}, True
    this = make()
    assert this.limit.max_concurrent == 5 and this.progress.split() is None
    says = "a trial needs 1 CPU, 1 worker(s), and no node has room for it: waiting for the autoscaler"
    assert capsys.readouterr().out.count(says) == 1
    there.nodes = {"head": {"memory": 1.0}, "n1": {"CPU": 2.0}}
    assert after(this, there, 5, "RUNNING") == 7
    there.groups = [Group("a", True, [{"CPU": 1.0}])]
    assert after(this, there, 5, "RUNNING") == 1
    assert "room for 1 trial(s) side by side, beside 1 other job(s) on the cluster" in capsys.readouterr().out
    there.groups = [Group("a", False, [{"CPU": 1.0}])]
    assert after(this, there, 5, "RUNNING") == 6


def test_who_takes_over_the_processes_of_a_trial_that_has_ended():
    """Not the oldest: its own processes may be starting on a node that has joined."""
    from ray.tune.experiment import Trial

    from raydiff.runtime.schedulers import Asha, InOrder

    old, cut_off, running, new = (Trial("federation", stub=True) for _ in range(4))
    running.set_status("RUNNING")
    for begun in (running, cut_off):
        begun.run_metadata.last_result = {"round": 2}
    for order in (InOrder(), Asha(time_attr="round", metric="m", mode="min")):
        for trials, chosen in (([old, running, new], new), ([old, cut_off, new], cut_off), ([running], None)):
            known = SimpleNamespace(_trials=trials, _stopped_trials=set(), _trials_to_cache=set(), _trial_to_actor={})
            among = SimpleNamespace(get_trials=lambda trials=trials: trials, _tune_controller=known)
            assert order.choose_trial_to_run(among) is chosen


@pytest.mark.parametrize(
    ("statuses", "most", "let_go"),
    [
        (["RUNNING"], 1, True),
        (["RUNNING"], 2, False),  # The next one is about to be added.
        (["RUNNING", "PENDING"], 1, False),
        ([], 1, False),
    ],
)
def test_a_slot_that_no_trial_may_have_is_let_go(statuses, most, let_go):
    """Another job may wait for it; processes are kept for the next trial only where there may be one."""
    from ray.tune.experiment import Trial

    from raydiff.runtime.schedulers import InOrder

    trials, done = [Trial("federation", stub=True) for _ in statuses], []
    for trial_, status in zip(trials, statuses, strict=True):
        trial_.set_status(status)
    known = SimpleNamespace(_trials=trials, _stopped_trials=set(), _trials_to_cache=set(), _trial_to_actor={})
    known._cleanup_cached_actors = lambda force_all: done.append(force_all)
    order = InOrder()
    order.limit = SimpleNamespace(max_concurrent=most)
    order.choose_trial_to_run(SimpleNamespace(get_trials=lambda: trials, _tune_controller=known))
    assert done == [True] * let_go


@pytest.fixture
def planned(tmp_path, tiny, workers, monkeypatch):
    """(experiments -> a sweep of them in `tmp_path`, trainable -> what runs them in place of `Federation`)."""
    from raydiff.runtime import tuner as sweep

    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest keeps its own handlers

    def plan(*experiments):
        trial.keep_secret(tmp_path / "s", b"the noise secret")
        trials = [trial.resolve(e, b"the noise secret") for e in experiments]
        return planned_as(tmp_path / "s", trials)

    def runs_by(trainable):
        of = sweep.tune.with_resources
        monkeypatch.setattr(sweep.tune, "with_resources", lambda _, bundles: of(trainable, bundles))

    return plan, runs_by


def planned_as(folder, trials, **more) -> Planned:
    """A sweep of these, one after the other, in this folder."""
    more = {"base": trials[0] if trials else None} | more
    return Planned(
        preset="p",
        folder=folder,
        trials=tuple(trials),
        secret=b"the noise secret",
        metric="eval/fd_cnn/all",
        asked=Asked(concurrent=1),
        **more,
    )


def shown(plan):
    from raydiff.runtime.progress import Progress

    return Progress(plan)


def outcomes(plan) -> list[dict]:
    return [trial.Trial(e, plan.folder).outcome() for e in plan.trials]


@pytest.mark.ray
def test_a_failing_trial_is_named_and_the_others_finish(tmp_path, tiny, planned):
    """In a warm slot a trial has the bits that it has alone, and what has an outcome is not run again."""
    from raydiff.runtime import tuner as sweep

    base = dataclasses.replace(tiny, evaluation=None, runtime=Runtime(workers=1))
    base = override(base, {"method.server_rounds": 1})
    wild = Training(steps=8, batch=8, learning_rate=1e30)
    plan = planned[0](override(base, {"method.server": wild}), base)
    progress, shape = shown(plan), sweep.check(plan, [{"CPU": 2.0}])
    assert sweep.run(plan, shape, progress) is False
    failed, finished = outcomes(plan)
    assert (failed["outcome"], finished["outcome"]) == ("failed", "finished")
    assert "the server, in round 1: the loss became" in failed["reason"]
    assert (progress.done, progress.failed) == (1, 1)

    trial.keep_secret(tmp_path / "alone", b"the noise secret")
    alone = trial.open_trial(plan.trials[1], tmp_path / "alone")
    final = list(trial.run(alone, trial.local_executor(alone)))[-1]
    same = {k: v for k, v in finished["final"].items() if not k.startswith("time/")}
    assert same == {k: final[k] for k in same}
    warm = trial.Trial(plan.trials[1], plan.folder)
    assert warm.store.last_commit()[0] == alone.store.last_commit()[0] == 1
    assert all(torch.equal(v, warm.store.load_server(1)[k]) for k, v in alone.store.load_server(1).items())

    written = {f: f.stat().st_mtime_ns for f in plan.folder.glob("trials/*/outcome.json")}
    assert sweep.run(plan, shape, shown(plan)) is False
    assert len(written) == 2 and written == {f: f.stat().st_mtime_ns for f in written}


@pytest.mark.ray
def test_a_trial_that_has_ended_leaves_the_drivers_memory_and_had_a_process_that_was_ready(tiny, planned):
    """Ray Tune by itself keeps all of them until the sweep ends, and gives them an environment for which each process
    is started anew."""
    import ray

    from raydiff.runtime import tuner as sweep
    from raydiff.runtime.progress import Progress

    class Short(sweep.tune.Trainable):
        def reset_config(self, new_config):
            return True

        def step(self):
            own = dict(ray.get_runtime_context().runtime_env)
            return {"done": True, "finished": True, "digest": "", "round": 0, "time/seconds": 1.0, "own": own}

        def save_checkpoint(self, checkpoint_dir):
            pass

    known: list[int] = []

    class Counting(Progress):
        def on_trial_complete(self, iteration, trials, trial, **info):
            super().on_trial_complete(iteration, trials, trial, **info)
            assert trial.last_result["own"] == {}
            gc.collect()
            same = [o for o in gc.get_objects() if type(o) is type(trial)]
            known.append(sum(o.trial_id.split("_")[0] == trial.trial_id.split("_")[0] for o in same))

    plan, runs_by = planned
    runs_by(Short)
    plan = plan(*(override(tiny, {"seed": n}) for n in range(8)))
    progress = Counting(plan)
    assert sweep.run(plan, sweep.check(plan, [{"CPU": 2.0}]), progress) is False
    assert progress.done == len(known) == 8
    assert max(known) <= 3, known  # One that has ended, the next one, and the one after it.


def test_who_lost_the_sweep_to_another_driver_says_nothing_of_its_trials(tmp_path, tiny, progress):
    """Neither the driver, nor a coordinator that is left over from it, of whatever it hears in a worker."""
    from raydiff.runtime import tuner as sweep
    from raydiff.storage.atomic_files import LeaseLost
    from raydiff.storage.lease import Lease

    opened = trial.open_trial(tiny, tmp_path, Lease(tmp_path, 1))
    (tmp_path / "owners").mkdir()
    (tmp_path / "owners" / "00002.json").write_text("{}")
    plan = planned_as(tmp_path, [opened.experiment], owner=opened.owner)
    with pytest.raises(LeaseLost):
        sweep._close(plan, progress, out_of_time=False)
    coordinator = object.__new__(sweep.Federation)
    config = {
        "experiment": written(opened.experiment),
        "sweep": str(tmp_path),
        "owner": 1,
        "metric": "m",
        "worst": 1.0,
    }
    coordinator._begin(config)
    with pytest.raises(LeaseLost):
        coordinator.step()
    with pytest.raises(LeaseLost):
        list(trial.run(opened, trial.local_executor(opened)))
    assert opened.outcome() is None and not list(opened.folder.glob("commit-*"))


def test_a_trial_that_cannot_even_begin_fails_with_its_reason_and_so_does_the_command(tmp_path, tiny, monkeypatch):
    """The disk became read-only between two trials: nothing of the second lies in the folder."""
    from raydiff.runtime import tuner as sweep
    from raydiff.runtime.launch import Ended

    def begin(_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(sweep.trials, "begin", begin)
    coordinator = object.__new__(sweep.Federation)
    coordinator._gauges = SimpleNamespace(tell=lambda *_: None)
    fixed = {"sweep": str(tmp_path), "owner": None, "metric": "m", "worst": 1.0}
    coordinator._begin({"experiment": written(tiny), **fixed})
    said = coordinator.step()["failed"]
    assert said == f"the storage folder {tmp_path} cannot be written: Read-only file system"
    assert (Ended(tmp_path, False, failed=True).code, Ended(tmp_path, False).code) == (1, 0)


def test_where_no_node_has_room_any_more_the_command_fails_and_signals_are_the_callers_again(
    tmp_path, monkeypatch, capsys
):
    """Before the first trial has begun, too: nothing of it lies in the folder."""
    from raydiff.runtime import cluster, launch, tuner

    base, handlers = seeded(0), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def lost(plan, shape, progress, **_):
        assert signal.getsignal(signal.SIGTERM) == progress.interrupt
        return True

    def full(*_, **__):
        raise ValueError("a trial needs 1 GPU and no node has room for it")

    monkeypatch.setattr(tuner, "_has_lost_its_room", lost)
    monkeypatch.setattr(tuner, "check", lambda plan, nodes: tuner.slot_of(plan, nodes))
    monkeypatch.setattr(tuner, "fitted", full)
    monkeypatch.setattr(tuner, "nodes", lambda **_: [])
    monkeypatch.setattr(cluster, "cluster", lambda: contextlib.nullcontext([{"CPU": 2.0}]))
    plan = planned_as(tmp_path / "sweeps" / "s", [base], base=base)
    interrupted, failed = launch._on_ray(plan, lambda: None, retry=False, since=None)
    assert "no trial can go on: a trial needs 1 GPU" in capsys.readouterr().out
    assert launch.Ended(plan.folder, interrupted, failed).code == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def losing_the_device(sweep, folder):
    """The trainable, with processes whose CUDA fails once, and then at whatever they do: a worker in the trial of seed
    1, the coordinator in that of seed 2."""
    from raydiff.runtime import actors

    def compute(what: str, fails: bool) -> None:
        import os

        if fails and not (folder / what).exists():
            (folder / what).touch()
            os.environ["CUDA_IS_LOST"] = "1"
        if "CUDA_IS_LOST" in os.environ:
            raise torch.AcceleratorError(f"CUDA error: {what}\nCUDA kernel errors might be reported later")

    class Worker(actors.Worker):
        def host(self, trial, ids, gpu):
            hosted = super().host(trial, ids, gpu)

            def guarded(client, run):
                def computing(server, number):
                    compute("device-side assert triggered", trial.experiment.seed == 1 and client.number == 1)
                    return run(server, number)

                return computing

            for client in self._clients.values():
                client.run = guarded(client, client.run)
            return hosted

    class Trainable(sweep.Federation):
        def setup(self, config):
            from raydiff.experiment import trial
            from raydiff.runtime import actors

            actors.Worker, run = Worker, trial.run

            def computing(this, pool):
                for result in run(this, pool):
                    compute("an illegal memory access was encountered", this.experiment.seed == 2)
                    yield result

            trial.run = computing
            super().setup(config)

    return Trainable


@pytest.mark.survival
@pytest.mark.ray
def test_processes_whose_device_is_lost_end_and_their_trials_and_later_ones_finish(tmp_path, tiny, planned):
    from raydiff.runtime import tuner as sweep

    plan, runs_by = planned
    runs_by(losing_the_device(sweep, tmp_path))
    base = dataclasses.replace(tiny, evaluation=None, runtime=Runtime(workers=1))
    plan = plan(*(override(base, {"seed": s}) for s in (1, 2, 0)))
    assert sweep.run(plan, sweep.check(plan, [{"CPU": 2.0}]), shown(plan)) is False
    assert [outcome["outcome"] for outcome in outcomes(plan)] == ["finished"] * 3
    assert [device_faults.last_reason(trial.Trial(e, plan.folder).folder) for e in plan.trials] == [
        "a worker: CUDA error: device-side assert triggered",
        "the coordinator: CUDA error: an illegal memory access was encountered",
        "",
    ]


def test_a_trial_fails_where_its_driver_hears_of_it(tmp_path, tiny):
    """A coordinator that was cut off and given up fails too, for want of Ray: the trial goes on elsewhere."""
    from raydiff.runtime import failures as failed
    from raydiff.runtime.tuner import Federation

    def cut_off():
        raise OSError("Broken pipe")
        yield

    this = trial.open_trial(dataclasses.replace(tiny, evaluation=None), tmp_path / "sweeps" / "s")
    coordinator = object.__new__(Federation)
    coordinator._trial, coordinator._results, coordinator._round = this, cut_off(), 0
    exported = []
    coordinator._gauges = SimpleNamespace(tell=lambda *result: exported.append(result))
    coordinator._metric = coordinator._measured = "none"
    result = coordinator.step()
    assert [(of, shown["failed"]) for of, shown in exported] == [(this, "Broken pipe")]
    assert result["done"] and result["failed"] == "Broken pipe" and this.outcome() is None
    assert "OSError: Broken pipe" in (this.folder / "error.txt").read_text()
    failed.OutcomeWriter(tmp_path / "sweeps" / "s").on_trial_result(0, [], fake_trial(0), result)
    assert this.outcome()["outcome"] == "failed" and this.outcome()["reason"] == "Broken pipe"


def test_a_trial_whose_processes_are_always_lost_says_why(tmp_path, tiny, progress):
    from raydiff.runtime import tuner as sweep

    this = trial.open_trial(dataclasses.replace(tiny, evaluation=None), tmp_path / "s")
    (this.folder / device_faults.FILE).write_text(
        "a worker: one\nthe coordinator: CUDA error: unspecified launch failure\n"
    )
    plan = planned_as(tmp_path / "s", [], base=this.experiment)
    sweep._close(plan, progress, out_of_time=False)
    assert this.outcome()["outcome"] == "killed"
    assert this.outcome()["reason"].endswith(": the coordinator: CUDA error: unspecified launch failure")
