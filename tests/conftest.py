"""How all tests run; what they share is in shared_fixtures.py."""

import os

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # before anything imports ray
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15: a busy machine would not let them run at all
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # images set it: each run would rewrite all asserts anew, 8 s a process
if "RAYDIFF_DATA" in os.environ:  # tests change the working directory
    os.environ["RAYDIFF_DATA"] = os.path.abspath(os.environ["RAYDIFF_DATA"])

import gc
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Timings are benchmarks, not tests. Each run tries other examples: 25 find what they find within a few runs.
hypothesis.settings.register_profile("raydiff", deadline=None, max_examples=25)
hypothesis.settings.load_profile("raydiff")

RAY = Path(__file__).parent / "runtime"
SHARING = {
    **dict.fromkeys(("test_bucket_kills", "test_driver", "test_submit"), "driver"),
    **dict.fromkeys(("test_elastic", "test_faults", "test_processes_die"), "nodes"),
}
"""Files outside `runtime` that share a process, since they share an undisturbed sweep or a cluster."""
LONG = ("test_hangs",)  # files that take longer than all but these groups
MINUTES = (
    "test_bench",
    "test_attack",
    "test_contract",
    "test_docs",
    "test_init",
    "test_main_job",
    "test_mlflow_writer",
)
"""Files that come next, since they take long in the default or the slow suite."""


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures where tests run: the process that only starts pytest-xdist's workers imports no torch."""
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the million objects of the imported libraries, and most of its rounds."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups come first, see `pytest_xdist_make_scheduler`: of the survival suite, then that on Ray."""
    items.sort(
        key=lambda i: (
            i.path.stem not in SHARING,
            i.path.stem not in LONG,
            i.path.parent != RAY,
            i.path.stem not in MINUTES,
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file share a process, and so do all in `runtime`, with its Ray.

    Not `--dist loadgroup`: pytest 9.2 ignores the names that xdist 3.8 gives its groups.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.partition("::")[0])
            return "ray" if path.parent.name == RAY.name else SHARING.get(path.stem, str(path))

    return ByFile(config, log)
