"""Python code in a process of its own: CUDA's state, its errors and its memory limits belong to a process."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start the code with these arguments; its stdin and stdout are pipes, stderr goes to stdout."""
    folders = [str(ROOT), str(ROOT / "docs" / "data" / "gpu"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
    )


def read(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON object that the process prints. Raises AssertionError with its output where it prints none."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        seen.append(line)
    raise AssertionError(f"the process ended with {process.wait()} before it answered:\n{''.join(seen[-20:])}")


def answer(code: str, *arguments: object, timeout: float = 60.0) -> dict[str, Any]:
    """Run the code to its end; gives the JSON object in the last line that holds one."""
    process = start(code, *arguments)
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        raise AssertionError(f"no end after {timeout:g} s:\n{out[-2000:]}") from None
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert lines, f"the process ended with {process.returncode} and no answer:\n{out[-3000:]}"
    result: dict[str, Any] = json.loads(lines[-1])
    return result
