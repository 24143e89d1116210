"""The Ray that a sweep starts for itself: who may use it, and how the driver leaves it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.survival

INSIDE = """
import gc, os, subprocess, sys
from raydiff import process
process.prepare_process()
import ray
from ray._private.worker import global_worker
from raydiff.runtime.cluster import join_cluster

class Late:
    '''Ray's core worker; when it is half gone, garbage is collected, as another thread might at that moment.'''

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        return getattr(self.of, name)

    def shutdown_driver(self):
        self.of.shutdown_driver()
        print("automatic collection:", gc.isenabled(), flush=True)
        gc.collect()

with join_cluster():
    print(ray._private.worker._global_node.get_session_dir_path())
    stranger = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)\\n"
    stranger += "print(ray.get(ray.remote(lambda: 6 * 7).remote()))"
    asked = [sys.executable, "-c", stranger, ray.get_runtime_context().gcs_address]
    for mode in ("disabled", "token"):
        env = {**os.environ, "RAY_AUTH_MODE": mode}
        if mode == "disabled":
            env |= {"HOME": os.environ["HOME"] + "/nobody", "RAY_NUM_REDIS_GET_RETRIES": "2"}
        print(mode, subprocess.run(asked, env=env, capture_output=True, text=True).stdout.strip())
    cycle = [ray.put(1)]
    cycle.append(cycle)
    gc.collect()  # it is old now: nothing but a full collection finds it once it is garbage
    del cycle
    global_worker.core_worker = Late(global_worker.core_worker)
print("lives on:", gc.isenabled(), flush=True)
"""


def test_a_local_ray_lets_nobody_in_without_its_token_and_is_left_with_references_in_garbage(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", INSIDE], env={**env, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # On a busy machine the driver says that it waits for Ray.
    session, stranger, owner, *left = [line for line in done.stdout.splitlines() if "waiting for Ray" not in line]
    assert (stranger.strip(), owner) == ("disabled", "token 42")
    assert left == ["automatic collection: False", "lives on: True"]
    token, folder = tmp_path / ".ray" / "auth_token", Path(session).parents[1]
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == os.getuid()
