"""The Ray that a sweep starts for itself, and other users of its machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.survival

INSIDE = """
import os, subprocess, sys
from raydiff import process
process.begin()
import ray
from raydiff.runtime.cluster import cluster
with cluster():
    session = ray._private.worker._global_node.get_session_dir_path()
    print(session)
    stranger = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)\\n"
    stranger += "print(ray.get(ray.remote(lambda: 6 * 7).remote()))"
    asked = [sys.executable, "-c", stranger, ray.get_runtime_context().gcs_address]
    for mode in ("disabled", "token"):
        env = {**os.environ, "RAY_AUTH_MODE": mode}
        if mode == "disabled":
            env |= {"HOME": os.environ["HOME"] + "/nobody", "RAY_NUM_REDIS_GET_RETRIES": "2"}
        print(mode, subprocess.run(asked, env=env, capture_output=True, text=True).stdout.strip())
"""


def test_a_local_ray_lets_nobody_in_without_its_token(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", INSIDE], env={**env, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    session, stranger, owner = done.stdout.splitlines()
    assert (stranger.strip(), owner) == ("disabled", "token 42")
    token, folder = tmp_path / ".ray" / "auth_token", Path(session).parents[1]
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == os.getuid()
