"""`python jobs/bench.py`: the ways do the same work, and every line has its fields. No timing is asserted."""

from __future__ import annotations

import importlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from raydiff.__main__ import main

JOBS = Path(__file__).parents[2] / "jobs"
TWO = {"local_over_floor", "ray_over_two_processes"}
OVERHEAD = {"clients", "steps", "parameters", "rounds", "repetitions", "targets", "met", "agree"} | TWO
SECONDS = {"floor_s", "local_s", "ray_s", "ray_stored_s", "two_processes_s"}
MEMORY = {"driver_mb", "workers_mb"}
FIELDS = {
    "machine": {"cpu", "cores", "memory_gb", "python", "torch", "ray"},
    "start": {"to_end_of_first_round_s"} | MEMORY,
    "overhead": OVERHEAD | SECONDS,
    "switch": {"switch_s", "to_end_of_first_round_s", "steady_round_s"},
    "memory": {"after"} | MEMORY,
}
AUDIT_FIELDS = {
    "machine": FIELDS["machine"],
    "audit": {"table", "rows", "columns", "k", "T", "seconds", "peak_mb", "targets", "met"},
    "reference": {"rows", "table", "seconds", "reference_s", "reference_over_audit", "difference", "agree"},
    "cost": {"columns", "rows", "audited", "seconds"},
}
COHORT_FIELDS = {
    "network", "parameters", "clients", "batch", "alone_cpu_s", "together_cpu_s", "together_over_alone", "target",
    "met", "agree",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return importlib.import_module("raydiff.cli.bench.command")


@pytest.fixture(scope="module")
def overhead(bench: ModuleType) -> ModuleType:
    return importlib.import_module("raydiff.cli.bench.overhead")


@pytest.fixture(scope="module")
def plain(bench: ModuleType) -> ModuleType:
    return importlib.import_module("raydiff.cli.bench.plain")


def test_the_plain_ways_and_the_round_loop_do_the_same_work(
    overhead: ModuleType, plain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "PROCESSES", 1)  # here they are threads, and two would share torch's global generator
    case = overhead.Case(clients=3, steps=2, network=overhead.MLP(width=8, depth=1))
    pairs = [multiprocessing.Pipe() for _ in range(plain.PROCESSES)]
    served = [threading.Thread(target=plain.serve, args=(theirs, i)) for i, (_, theirs) in enumerate(pairs)]
    for thread in served:
        thread.start()
    pipes = [ours for ours, _ in pairs]
    try:
        by_hand = list(plain.floor(case.trial(3, tmp_path / "floor")))
        ours = list(overhead.in_process(case.trial(3, tmp_path / "local")))
        apart = list(plain.two_processes(case.trial(3, tmp_path / "two"), pipes))
    finally:
        for pipe in pipes:
            pipe.send(None)
        for thread in served:
            thread.join()
    assert len(by_hand) == len(ours) == len(apart) == 3
    for floor, local, two in zip(by_hand, ours, apart, strict=True):
        assert overhead.difference(floor, local) < overhead.AGREEMENT
        assert overhead.difference(floor, two) < overhead.AGREEMENT
    assert overhead.difference(by_hand[0], by_hand[2]) > overhead.AGREEMENT  # it trains, and yields no aliases


def test_the_parameter_counts(overhead: ModuleType, plain: ModuleType, tmp_path: Path) -> None:
    """What the cases promise: about 600,000 parameters in the third, about 10 million in the last."""
    sizes = [sum(v.numel() for v in plain.first_weights(case.trial(1, tmp_path)).values()) for case in overhead.CASES]
    assert [(case.clients, case.steps) for case in overhead.CASES] == [(8, 10), (32, 1), (8, 1), (8, 0)]
    assert sizes[2] == pytest.approx(600_000, rel=0.05) and sizes[3] == pytest.approx(1e7, rel=0.05)


def test_a_line_has_its_fields_and_notices_other_work(overhead: ModuleType, plain: ModuleType, tmp_path: Path) -> None:
    (case,) = overhead.QUICK.cases
    honest = {"floor": plain.floor, "local": overhead.in_process, "ray": overhead.in_process}
    ways = honest | {"ray_stored": overhead.in_process, "two_processes": plain.floor}
    line = overhead.compare(case, ways, overhead.QUICK, tmp_path / "same")
    assert set(line) == OVERHEAD | SECONDS
    assert line["agree"] is True and line["rounds"] >= 2
    assert line["local_over_floor"] == line["local_s"] / line["floor_s"]
    assert line["met"] == {name: line[name] <= line["targets"][name] for name in TWO}

    def other(trial: object) -> Iterator[object]:
        return ({k: v + 1e-3 for k, v in weights.items()} for weights in plain.floor(trial))

    assert overhead.compare(case, ways | {"ray": other}, overhead.QUICK, tmp_path / "other")["agree"] is False


def test_the_best_of_the_timed_rounds(overhead: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round is not timed."""
    clock = iter([10.0, 16.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert overhead.per_round(iter([{}, {}, {}, {}])) == 2.0


@pytest.mark.parametrize("arguments", [[], ["throughput"], ["overhead", "--fast"], ["--quick"], ["overhead", "digits"]])
def test_what_to_measure_must_be_said(
    bench: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert "raydiff bench overhead" in err and err.count("\n") == 1


def test_floats_are_short(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.say("x", a=1 / 3, b=[2 / 3], c={"d": 12345.678}, e=123456, f=True)
    assert json.loads(capsys.readouterr().out) == {
        "what": "x", "a": 0.3333, "b": [0.6667], "c": {"d": 12350.0}, "e": 123456, "f": True
    }  # fmt: skip


def test_the_audit_prints_its_lines(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAYDIFF_DATA", raising=False)
    assert bench.main(["audit", "--quick"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["what"] for line in lines] == ["machine", "audit", "reference", "cost", "cost"]
    for line in lines:
        assert set(line) == {"what"} | AUDIT_FIELDS[line["what"]]
    _, whole, reference, *costs = lines
    assert (whole["table"], whole["rows"], whole["columns"], whole["k"], whole["T"]) == ("random", 500, 9, 5, 10)
    assert reference["rows"] == 20 and reference["agree"] is True
    assert [(line["columns"], line["rows"], line["audited"]) for line in costs] == [(5, 1000, 1000), (9, 100, 10)]


def test_the_audit_notices_another_delta(bench: ModuleType) -> None:
    of = bench.audit.difference
    inf = math.inf
    assert of(np.array([inf, 2.0]), np.array([inf, 2.0])) == 0
    assert of(np.array([inf, 2.0]), np.array([inf, 2.0 + 1e-6])) == pytest.approx(5e-7)
    assert of(np.array([inf, 2.0]), np.array([1.0, 2.0])) == of(np.array([1.0]), np.array([inf])) == inf


def test_cohorts_print_their_lines_and_notice_other_work(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["cohort", "--quick"]) == 0
    first, line = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert set(first) == {"what"} | FIELDS["machine"]
    assert set(line) == {"what"} | COHORT_FIELDS
    assert (line["what"], line["network"], line["clients"], line["batch"]) == ("cohort", "MLP", 2, 4)
    assert line["agree"] is True and line["met"] is (line["together_over_alone"] <= line["target"])
    assert line["alone_cpu_s"] > 0 and line["together_cpu_s"] > 0

    cohort = bench.cohort
    honest = cohort.in_step
    off = [(lambda fitted: (fitted[0], fitted[1], 1.01 * fitted[2])), (lambda fitted: fitted)]
    for change, agree in zip(off, (False, True), strict=True):
        monkeypatch.setattr(
            cohort, "in_step", lambda calls, f=change: ((f(fitted), sizes) for fitted, sizes in honest(calls))
        )
        assert next(cohort.lines(cohort.QUICK))[1]["agree"] is agree


def test_options_print_their_lines_and_do_the_same_work(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["options", "--quick"]) == 0
    _, *lines = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert [line["option"] for line in lines] == ["float32", "bfloat16", "channels_last"]
    assert [line["loss_off_by"] < most for line, most in zip(lines, (1e-9, 0.05, 1e-4), strict=True)] == [True] * 3
    assert lines[1]["loss_off_by"] > 1e-6  # it does round
    for line in lines:
        assert line["over_float32"] == pytest.approx(line["step_s"] / lines[0]["step_s"], rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"), [("scale", ["scale"] * 3 + ["idle", "idle", "size", "packed"]), ("sweep", ["sweep"])]
)
def test_scale_and_sweep_print_their_lines(name: str, what: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(JOBS / "bench.py"), name, "--quick"], stdout=subprocess.PIPE, text=True, check=True
    )
    first, *lines = (json.loads(line) for line in done.stdout.splitlines())
    assert set(first) == {"what"} | FIELDS["machine"]
    assert [line["what"] for line in lines] == what
    for line in lines:
        if name == "sweep":
            parts = line["working"] + line["waiting"] + line["outside"]
            assert parts == pytest.approx(line["slots_s"], rel=1e-3)
            assert line["outside_over_slots"] == pytest.approx(line["outside"] / line["slots_s"], rel=1e-3)
        elif line["what"] == "packed":
            assert line["same_bits"] is True and line["clients"] == 20
        else:
            assert line["total_mb"] == pytest.approx(line["driver_mb"] + sum(line["workers_mb"]), rel=1e-3)
            assert line["what"] != "scale" or line["met"]["total_mb"] is True


@pytest.mark.slow
def test_the_whole_job_prints_its_lines_and_leaves_nothing_behind() -> None:
    name, value = "RAYDIFF_TEST_MARK", uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="rb") as folder:  # short: Ray's sockets lie below it
        done = subprocess.run(
            [sys.executable, str(JOBS / "bench.py"), "overhead", "--quick"],
            env={**os.environ, name: value, "TMPDIR": folder, "RAY_ADDRESS": "127.0.0.1:1"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
        assert not list(Path(folder).glob("raydiff-bench-*"))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["what"] for line in lines] == list(FIELDS)
    for line in lines:
        assert set(line) == {"what"} | FIELDS[line["what"]]
    overhead = next(line for line in lines if line["what"] == "overhead")
    assert overhead["agree"] is True and all(math.isfinite(overhead[s]) for s in SECONDS)
    assert all(len(line["workers_mb"]) == 2 for line in lines if "workers_mb" in line)
    assert processes_with(f"{name}={value}") == []


def processes_with(mark: str) -> list[str]:
    """Command lines of the processes that have this in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or is another user's
            continue
    return found
