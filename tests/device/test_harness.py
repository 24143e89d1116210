"""The runner of the checks and figures (`docs/data/gpu/check.py`), on the CPU: limits, lines, cuts."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from child_process import ROOT


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "docs" / "data" / "gpu" / "check.py")
    assert spec is not None and spec.loader is not None
    result = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = result
    spec.loader.exec_module(result)
    return result


CHECK = module()
FIGURE = "print('figure ' + json.dumps({'what': 'speed', 's_per_step': 0.5}), flush=True)"
CHILD = "subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
HANG = f"import json, subprocess, sys; {FIGURE}; {CHILD}"
METHODS_WITHOUT = re.compile(r"(feddistr|sketch|dpmerf|evolution|marginals)-compile")


def job(name: str, code: str, limit_s: float = 60.0) -> Any:
    return CHECK.Job(name, (sys.executable, "-c", code), limit_s)


@pytest.fixture
def results(tmp_path: Path) -> Any:
    return CHECK.Results(tmp_path)


def lines(results: Any) -> list[dict[str, object]]:
    return CHECK.read(results.lines)


def test_a_failing_job_does_not_stop_the_next_and_says_why(results: Any) -> None:
    jobs = [job("bad", "raise ValueError('no luck')"), job("good", f"import json; {FIGURE}")]
    CHECK.run_all(jobs, results, time.monotonic() + 60)
    bad, speed, good = lines(results)
    assert not bad["ok"] and bad["error"] == "exit code 1: ValueError: no luck"
    assert speed["what"] == "speed" and speed["s_per_step"] == 0.5 and speed["ok"]
    assert good["what"] == "good" and good["ok"] and good["error"] == ""
    assert all(set(line) >= {"card", "driver", "torch", "what", "ok", "error"} for line in lines(results))


@pytest.mark.slow
def test_a_job_at_its_limit_ends_with_its_children_and_keeps_its_figures(results: Any) -> None:
    CHECK.run(job("hangs", HANG, 2.0), results, time.monotonic() + 60)
    speed, hung = lines(results)
    assert speed["s_per_step"] == 0.5
    assert not hung["ok"] and hung["error"] == "ended at its limit of 2 s"


@pytest.mark.slow
def test_every_check_belongs_to_one_job() -> None:
    """`-k` of the jobs leaves no test of tests/device out but those of methods that compile nothing."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/device", "-q", "--collect-only"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    names = [line for line in out.splitlines() if "::" in line]

    def runs(one: Any, name: str) -> bool:
        if "pytest" not in one.command or not name.startswith(one.command[5]):
            return False
        words = re.sub(r"\w+", lambda m: m[0] if m[0] in ("and", "or", "not") else str(m[0] in name), one.command[-1])
        return bool(eval(words))

    jobs = (*CHECK.TOGETHER, *CHECK.ALONE)
    counts = {name: sum(runs(one, name) for one in jobs) for name in names}
    assert max(counts.values()) == 1
    assert all(METHODS_WITHOUT.search(name) for name, count in counts.items() if not count)


@pytest.mark.slow
def test_without_a_gpu_each_check_is_skipped_by_name() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/device/test_on_gpu_process.py", "-q"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAYDIFF_GPU")}
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    named = [line for line in out.stdout.splitlines() if line.startswith("test_on_gpu_process.py::")]
    assert out.returncode == 0 and len(named) >= 8 and all(line.endswith("no GPU") for line in named)
