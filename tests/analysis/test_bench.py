"""The benchmarks: the ways do the same work, and leave nothing behind. No timing is asserted."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.bench import plain_fedavg
from analysis.bench.__main__ import main
from analysis.bench.overhead import AGREEMENT, PEER_ROUNDS, SMALL, compare, difference
from analysis.bench.peers import run, work
from analysis.bench.plain_fedavg import Stacked, first_weights, floor, two_processes
from analysis.bench.ways import Way, in_process, lockstep
from raydiff.experiment.trial import Trial
from raydiff.tree import Params

ROOT = Path(__file__).parents[2]


def test_the_ways_do_the_same_work_and_other_work_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_fedavg, "PROCESSES", 1)  # it is a thread here, and two would share torch's generator
    ours, theirs = multiprocessing.Pipe()
    served = threading.Thread(target=plain_fedavg.serve, args=(theirs, 0))
    served.start()
    ways: dict[str, Way] = dict.fromkeys(("local", "ray", "bare_ray"), in_process) | {"floor": floor}
    ways |= {
        "stacked": lambda trial: floor(trial, Stacked),
        "local_lockstep": lambda trial: in_process(lockstep(trial)),
    }
    ways |= {"two_processes": lambda trial: two_processes(trial, [ours])}
    rounds: list[int] = []

    def peer(trial: Trial, _: Path) -> float:
        rounds.append(trial.experiment.method.rounds)
        return 1e-9

    try:
        line = compare(SMALL, ways, tmp_path / "same", {"pfl": peer}, 1, 0.01)
    finally:
        ours.send(None)
        served.join()
    assert line["agree"] is True and min(line["rounds"].values()) >= 2
    assert line["local_over_floor"] == line["local_s"] / line["floor_s"]
    assert line["pfl_s"] == 1e-9 and line["ray_over_peer"] == line["ray_s"] / 1e-9 and 3 <= rounds[0] <= PEER_ROUNDS
    assert line["met"] == {k: line[k] <= most for k, most in line["targets"].items() if k in line}

    def other(trial: Trial) -> Iterator[Params]:
        return ({k: v + 1e-3 for k, v in weights.items()} for weights in floor(trial))

    ways |= {"ray": other, "two_processes": floor}
    assert compare(SMALL, ways, tmp_path / "other", {}, 1, 0.01)["agree"] is False
    first, _, third = floor(SMALL.trial(3, tmp_path))
    assert difference(first, third) > AGREEMENT


def test_a_peer_gets_the_work_and_its_failure_is_told(tmp_path: Path) -> None:
    trial, file = SMALL.trial(3, tmp_path), tmp_path / "work.npz"
    run.write(trial, file)
    given = work.read(str(file))
    assert (given.clients, given.steps, given.rounds) == (4, 1, 3)
    network = work.denoiser(given)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    assert difference(before, first_weights(trial)) == 0
    work.train(network, given, client=2)
    assert 0 < difference(before, network.state_dict()) < 0.1
    with pytest.raises(ValueError):
        run.found(tmp_path)
    python = tmp_path / "pfl" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for script, seconds in (('echo \'{"seconds": 0.5}{"seconds": 0.75}\'', 0.75), ("echo broken >&2; exit 3", None)):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        assert run.found(tmp_path) == {"pfl": python}
        if seconds is not None:
            assert run.seconds("pfl", python, trial, file) == seconds
        else:
            with pytest.raises(OSError, match=r"pfl ended with code 3: broken"):
                run.seconds("pfl", python, trial, file)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["throughput"],
        ["overhead", "--fast"],
        ["--quick"],
        ["overhead", "digits"],
        ["scale", "--plot", "x.png"],
        ["sweep", "--peers", "."],
    ],
)
def test_what_to_measure_must_be_said(arguments: list[str]) -> None:
    with pytest.raises(ValueError):
        main(arguments)


@pytest.mark.slow
def test_more_clients_and_larger_models() -> None:
    lines = measured("scale", dict(os.environ))
    assert [line["what"] for line in lines] == [
        "machine",
        "soak",
        "idle",
        "idle",
        *["scale"] * 3,
        *["size"] * 2,
        *["coordinator"] * 2,
        "packed",
    ]
    assert lines[-1] == {"what": "packed", "clients": 4, "rounds": 2, "same_bits": True}
    assert lines[1]["rounds"] == 20 and math.isfinite(lines[1]["growth_mb"])
    assert all(line["met"]["total_mb"] for line in (lines[4], lines[6]))
    one = 8 / 2**20  # MB of a number in a sum, of which each worker sends one a round
    expected = plain_fedavg.PROCESSES * one * lines[4]["parameters"]
    assert lines[4]["received_mb"] == pytest.approx(expected, rel=1e-3)  # A line has four digits.


@pytest.mark.slow
def test_many_trials_are_all_in_mlflow() -> None:
    _, line = measured("sweep", dict(os.environ))
    assert (line["what"], line["trials"], line["mlflow_runs"]) == ("sweep", 8, 8)
    assert all(math.isfinite(line[name]) for name in ("trial_s", "growth_mb", "slower_s"))


@pytest.mark.slow
def test_the_overhead_is_measured_and_nothing_is_left_behind() -> None:
    mark = f"RAYDIFF_TEST_MARK={uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="rb") as folder:  # the path is short, for Ray's sockets lie below it
        marked = dict([mark.split("=")], TMPDIR=folder, RAY_ADDRESS="127.0.0.1:1")
        lines = measured("overhead", {**os.environ, **marked}, "--plot", f"{folder}/cases.png")
        assert Path(folder, "cases.png").read_bytes().startswith(b"\x89PNG")
        assert not list(Path(folder).glob("raydiff-bench-*"))
    assert [line["what"] for line in lines] == ["machine", "start", "overhead", "switch", "memory"]
    assert lines[2]["agree"] is True and all(math.isfinite(v) for k, v in lines[2].items() if k.endswith("_s"))
    left = subprocess.run(["grep", "-l", mark, *map(str, Path("/proc").glob("[0-9]*/environ"))], capture_output=True)
    assert left.stdout == b""


def measured(what: str, environment: dict[str, str], *more: str) -> list[dict]:
    command = [sys.executable, "-m", "analysis.bench", what, "--quick", *more]
    text = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True
    ).stdout
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
