"""The number of concurrent trials, on a cluster that changes."""

import dataclasses
from types import SimpleNamespace

import pytest
from planned import planned_as, seeded
from ray.tune.search import Searcher

from raydiff.experiment.config import Runtime
from raydiff.runtime import concurrency as module
from raydiff.runtime.concurrency import ConcurrencyController, LimitedSearcher
from raydiff.runtime.coordinator import GPU_LOST
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.place import Slot
from raydiff.runtime.plan import SweepRequest, serialize_experiment


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The cluster and the clock, to be changed."""
    state = SimpleNamespace(nodes={"n1": {"CPU": 2.0}}, grows=False, unshared=set(), clock=0.0)

    def shared(folder, among):
        if among & state.unshared:
            raise ValueError("not shared")

    def present(without=()):
        return {k: v for k, v in state.nodes.items() if k not in without}

    monkeypatch.setattr(module.cluster, "list_nodes", present)
    monkeypatch.setattr(module.cluster, "is_autoscaled", lambda: state.grows)
    monkeypatch.setattr(module.time, "monotonic", lambda: state.clock)
    monkeypatch.setattr(module.cluster, "check_shared_storage", shared)
    state.exported = []
    monkeypatch.setattr(module.gauges, "export_sweep", lambda sweep, counts: state.exported.append((sweep, counts)))
    return state


@pytest.fixture
def make(state, tmp_path):
    """A controller of ten trials with one worker and one CPU each."""

    def make(concurrent=None):
        trials = [dataclasses.replace(seeded(n), runtime=Runtime(revive_s=15)) for n in range(10)]
        plan = planned_as(tmp_path / "sweeps" / "s", trials, asked=SweepRequest(concurrent=concurrent))
        slot = Slot(workers=1, threads=1, gpu_per_worker=0.0, gpu_server=0.0)
        return ConcurrencyController(plan, slot, SweepProgress(plan))

    return make


def limit_after(controller, state, seconds: float, status: str) -> int:
    """The limit after so many seconds with a trial in this state."""
    state.clock += seconds
    controller.on_step_begin(0, [SimpleNamespace(status=status)])
    return controller.limit


def test_a_sweep_that_waits_for_a_slot_exports_its_trials(make, state):
    """Prometheus sees it wait: Tune has started nothing yet."""
    make()
    assert state.exported == [("s", {"waiting": 10, "running": 0, "done": 0, "failed": 0})]


def test_a_fit_ends_where_no_node_can_hold_a_trial_and_none_is_added(make, state, capsys):
    controller = make()
    state.nodes = {}
    for status in ("PENDING", "RUNNING", "PENDING"):
        limit_after(controller, state, 10, status)
        assert not controller.stop_all()
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  waiting for resources: a trial with 1 worker(s) needs 1 CPU, and no node is large enough"
    ]
    state.grows = True
    limit_after(controller, state, 10, "PENDING")
    assert not controller.stop_all()
    state.grows = False
    limit_after(controller, state, 10, "PENDING")
    assert controller.stop_all()


def test_a_node_that_has_lost_a_gpu_ends_the_fit_and_is_left_out(make, state, capsys):
    state.nodes = {"n1": {"CPU": 2.0}, "n2": {"CPU": 4.0}}
    controller = make()
    assert controller.limit == 6
    trial = SimpleNamespace(trial_id="0", config={"experiment": serialize_experiment(seeded(0))})
    for _ in range(2):  # Other trials on this node may report it too.
        controller.progress.on_trial_result(0, [], trial, {GPU_LOST: ("n2", "a GPU of node 10.0.0.7 is lost")})
        assert controller.stop_all()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["  a GPU of node 10.0.0.7 is lost: the sweep goes on without this node"]
    again = ConcurrencyController(controller.plan, controller.shape, controller.progress)
    assert again.limit == 2 and not again.stop_all()


def test_nodes_that_join_are_used(make, state, capsys):
    controller, limited = make(), make(concurrent=3)
    assert controller.limit == 2 and capsys.readouterr().out == "  running up to 2 trials concurrently\n" * 2
    state.nodes = {"n1": {"CPU": 2.0}, "n2": {"CPU": 2.0}}
    assert limit_after(controller, state, 1, "RUNNING") == 2  # not checked in every turn of Tune's loop
    assert limit_after(controller, state, 5, "RUNNING") == 4
    assert capsys.readouterr().out == "  running up to 4 trials concurrently\n"
    assert limit_after(limited, state, 5, "RUNNING") == 3
    state.unshared, state.nodes = {"n3"}, {"n2": {"CPU": 2.0}, "n3": {"CPU": 2.0}}
    assert not controller.stop_all()
    limit_after(controller, state, 5, "RUNNING")
    assert controller.stop_all()  # n3 does not see the storage


def test_trials_are_queued_for_an_autoscaler(make, state, capsys):
    state.nodes, state.grows = {"head": {"memory": 1.0}}, True
    controller = make()
    assert controller.limit == 5 and "no node is large enough" in capsys.readouterr().out
    state.nodes["n1"] = {"CPU": 2.0}
    assert limit_after(controller, state, 5, "RUNNING") == 7


def test_a_sweep_that_waits_for_resources_says_so_until_a_trial_runs(make, state, capsys):
    """Other jobs may hold the nodes, or the trial's processes are slow to start."""
    controller = make()
    for status in ("PENDING", "PENDING", "RUNNING"):
        assert limit_after(controller, state, 6, status) == 2
    running = "  running up to 2 trials concurrently"
    waiting = "  waiting for resources, which other jobs may hold: a trial with 1 worker(s) needs 1 CPU"
    assert capsys.readouterr().out.splitlines() == [running, waiting, running]


def test_trials_are_suggested_in_order_up_to_the_limit_and_no_more_once_it_falls_below_what_runs():
    controller, trials = (
        SimpleNamespace(limit=2, check_now_and_then=lambda: None, stop_all=lambda: False),
        [seeded(n) for n in range(4)],
    )
    searcher = LimitedSearcher(trials, controller)
    configs = [{"experiment": serialize_experiment(experiment)} for experiment in trials]
    assert [searcher.suggest(id_) for id_ in "abc"] == [*configs[:2], None]
    searcher.on_trial_complete("a")
    assert searcher.suggest("c") == configs[2]
    controller.limit = 1
    assert searcher.suggest("d") == Searcher.FINISHED
    searcher.on_trial_complete("b", error=True)
    searcher.on_trial_complete("c")
    assert [searcher.suggest("d"), searcher.suggest("e")] == [configs[3], None]
    searcher.on_trial_complete("d")
    assert searcher.suggest("e") == Searcher.FINISHED
    controller.stop_all = lambda: True
    assert searcher.suggest("e") == Searcher.FINISHED
