"""Whatever may wait longer than ten seconds says for what: every call that waits, and what bounds or names it."""

from __future__ import annotations

import ast
import copy
import threading
from pathlib import Path

import pytest

from raydiff import process
from raydiff.process import saying, waiting

RAYDIFF = Path(process.__file__).parent
CALLS = {
    *("wait", "sleep", "wait_ready", "map_unordered", "flock", "result", "urlopen"),
    *("hold_lease", "storage_is_shared", "get_sweep"),
    *("ray.get", "ray.init", "ray.shutdown", "thread.join", "beat.join", "self.join", "tune.Tuner(...).fit"),
}
"""Functions that wait, by their names."""
LINES = "the driver prints where each running trial is, every EVERY_S"
NAMED = "within `waiting` or `saying`"
ITSELF = "it says so itself: with `waiting`, or which driver gives no heartbeat, and for how long it waits"
WAITS = {
    "process.py: say over.wait": "the words themselves",
    "process.py: saying thread.join": "one line of words",
    "runtime/cluster.py: cluster ray.init": NAMED,
    "runtime/cluster.py: _start_local ray.init": "`cluster` says so",
    "runtime/cluster.py: cluster ray.shutdown": NAMED,
    "runtime/cluster.py: watch over.wait": "a thread of its own",
    "runtime/cluster.py: storage_is_shared ray.get": NAMED,
    "runtime/concurrency.py: _sees_storage cluster.storage_is_shared": ITSELF,
    "runtime/tuner.py: check storage_is_shared": ITSELF,
    "runtime/tasks.py: _done storage_is_shared": ITSELF,
    "runtime/data_parallel.py: places storage_is_shared": ITSELF,
    "runtime/tasks.py: _done pool.map_unordered": NAMED,
    "runtime/launch.py: _take hold_lease": NAMED,
    "runtime/launch.py: _take artifact_sync.get_sweep": NAMED,
    "runtime/launch.py: __call__ self.mlflow.wait_ready": NAMED,
    "runtime/tuner.py: _close artifact_sync.get_sweep": "after an interrupt, which is said; outages: object_store",
    "runtime/tuner.py: _fit tune.Tuner(...).fit": "`ConcurrencyController` prints what trials wait for",
    "runtime/actors.py: first ray.wait": LINES,
    "runtime/actors.py: __init__ ray.get": LINES,
    "runtime/actors.py: _messages ray.get": LINES,
    "runtime/actors.py: _revive ray.get": LINES,
    "runtime/actors.py: _revive time.sleep": LINES,
    "runtime/device_faults.py: check_gpu time.sleep": LINES,
    "runtime/data_parallel.py: __call__ thread.submit(...).result": "`one_process` prints where its trial is",
    "runtime/data_parallel.py: _process ray.get": "in Ray Train, as the line before",
    "models/lockstep.py: run_in_lockstep lane.result.result": "it has ended",
    "storage/checkpoint.py: flush self._writes.pop(...).result": LINES,
    "storage/lease.py: hold_lease beat.join": "5 s",
    "storage/lease.py: _outlive time.sleep": ITSELF,
    "storage/lease.py: _beat over.wait": "a thread of its own",
    "cli/rm.py: main hold_lease": ITSELF,
    "storage/artifact_sync.py: fetch get_sweep": "the command line's `_fetched` says so",
    "tracking/writer.py: close self.join": "`Finisher.report` says so",
    "tracking/writer.py: run self._begun.wait": "a thread of its own",
    "tracking/writer.py: run self._closing.wait": "a thread of its own",
    "tracking/writer.py: wait_ready self._ready.wait": "`launch` says so",
    "cli/logs.py: lines time.sleep": "raydiff logs --follow waits for rounds by its name",
    "tracking/mlflow_store.py: connect fcntl.flock": "in MLflow's thread, for which `wait_ready` waits",
}
"""file: function call -> why nobody waits without a word."""


def waits() -> dict[str, bool]:
    """file: function call -> whether each such call is within `waiting` or `saying`."""
    calls: dict[str, bool] = {}

    def visit(node: ast.AST, where: str, *, named: bool) -> None:
        if isinstance(node, ast.FunctionDef):
            where = f"{where.partition(':')[0]}: {node.name}"
        if isinstance(node, ast.Call) and (name := waiting_call(node.func)):
            calls[f"{where} {name}"] = named and calls.get(f"{where} {name}", True)
        text = " ".join(map(ast.unparse, node.items)) if isinstance(node, ast.With) else ""
        speaks = "waiting(" in text or "saying(" in text
        for child in ast.iter_child_nodes(node):
            visit(child, where, named=named or speaks)

    for path in sorted(RAYDIFF.rglob("*.py")):
        visit(ast.parse(path.read_text()), f"{path.relative_to(RAYDIFF)}:", named=False)
    return calls


def waiting_call(called: ast.expr) -> str:
    """The name of a function that waits, without arguments on the way; "" for any other."""
    last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if last not in {call.rpartition(".")[2] for call in CALLS}:
        return ""
    name = ast.unparse(ast.fix_missing_locations(_Bare().visit(copy.deepcopy(called))))
    return name if {name, name.rpartition(".")[2]} & CALLS else ""


class _Bare(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(self.visit(node.func), [ast.Constant(...)], [])


def test_every_wait_has_a_word_or_a_bound() -> None:
    calls = waits()
    assert calls.keys() == WAITS.keys()
    assert [call for call, why in WAITS.items() if why == NAMED and not calls[call]] == []


def test_words_come_while_it_waits_and_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, enough = list[str](), threading.Event()

    def say(text: str, flush: bool) -> None:
        lines.append(text)
        if len(lines) == 2:
            enough.set()

    monkeypatch.setattr(process, "print", say, raising=False)
    monkeypatch.setattr(process, "WAIT_S", 0.0)
    with pytest.raises(KeyError), waiting("node 10.0.0.7"):
        assert enough.wait(60)
        raise KeyError
    count = len(lines)
    assert lines[0] == "  waiting for node 10.0.0.7 (0 s)"
    with saying(lambda: "never", 1e6):
        pass
    assert len(lines) == count
