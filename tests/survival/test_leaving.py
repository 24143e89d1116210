"""A process that leaves Ray lives on, whatever its other threads do meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.survival
LEAVING = """
import gc
import ray
from ray._private.worker import global_worker
from raydiff.runtime.cluster import cluster

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

with cluster():
    cycle = [ray.put(1)]
    cycle.append(cycle)
    gc.collect()  # it is old now: nothing but a full collection finds it once it is garbage
    del cycle
    global_worker.core_worker = Late(global_worker.core_worker)
print("lives on:", gc.isenabled(), flush=True)
"""


def test_references_in_garbage_do_not_end_a_process_that_leaves_ray():
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    env.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], cwd=ROOT, env=env, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "automatic collection: False\nlives on: True" in done.stdout
