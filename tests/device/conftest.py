"""Checks that need a GPU: `python -m pytest -m gpu tests/device`, or all with figures by `docs/data/gpu/check.py`.

Without a GPU each is skipped and named in a table. RAYDIFF_GPU_REHEARSAL=1 runs what the CPU can run, to test the
checks themselves; their numbers then mean nothing.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "methods"))  # The contract's experiments: `test_contract`.

REHEARSAL = bool(os.environ.get("RAYDIFF_GPU_REHEARSAL"))
HERE = Path(__file__).resolve().parent


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and HERE in item.path.parents and not (torch.cuda.is_available() or REHEARSAL):
        pytest.skip("no GPU")


@pytest.fixture
def card() -> int:
    """Bytes of the GPU, for a check that a rehearsal cannot run."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return int(torch.cuda.get_device_properties(0).total_memory)


@pytest.fixture(scope="session")
def figure() -> Any:
    """Print a measured number, as `check.py` reads it."""

    def told(what: str, **numbers: object) -> None:
        print(f"\nfigure {json.dumps({'what': what, **numbers})}", flush=True)

    return told


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Under `check.py` (RAYDIFF_GPU_LINES) tell of each test at once: a run that is cut keeps what it had."""
    if "RAYDIFF_GPU_LINES" in os.environ and (report.when == "call" or not report.passed):
        lines = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "").splitlines()
        error = next((line for line in lines if line.startswith("E  ")), lines[-1] if lines else "")
        what = report.nodeid.rpartition("/")[2]
        told = {"what": what, "seconds": round(report.duration, 2), "ok": report.outcome, "error": error[:500]}
        print(f"\nfigure {json.dumps({**told, 'ok': None if report.skipped else report.passed})}", flush=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if Path(r.nodeid).parent.name == HERE.name]
    if skipped:
        terminalreporter.section("device checks that were skipped")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"{report.nodeid.rpartition('/')[2]:<90}{str(reason).removeprefix('Skipped: ')}")
