"""A sweep whose storage is a bucket on a real S3 server: its processes die, then its driver; another machine, which has
the credentials and the secret alone, goes on, and ends with the bits of an undisturbed sweep in a folder."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TRIALS, Sweep, check_whole, wait_until
from nodes import COORDINATOR, WORKER, _title
from object_store import CREDENTIALS, Proxy, request, s3_server
from test_driver import kill_group, processes_of, resume

from raydiff.experiment import away

pytestmark = pytest.mark.survival


@pytest.fixture
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


class InBucket(Sweep):
    """The sweep, with its storage behind a proxy that refuses or forgets one request in twenty."""

    def __init__(self, here: Path, server: int, patch: pytest.MonkeyPatch) -> None:
        super().__init__(here)
        self.server, self.proxy, self.patch, self.here = server, Proxy(server), patch, here
        self.proxy.fault = lambda method, path, count: {5: "refused", 15: "lost"}.get(count % 40, "")
        self.arguments = [*self.arguments[:-1], self.proxy.uri]
        patch.setenv("MLFLOW_TRACKING_URI", self.mlflow)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        self.machine("one")

    def machine(self, name: str) -> None:
        """What is started from now on runs on this machine."""
        self.patch.setenv(away.PLACE, str(self.here / name))
        self.folder = away.root(self.proxy.uri) / "sweeps" / "survivor"

    def objects(self, pattern: str) -> list[str]:
        """The names in the bucket that match."""
        found, start = list[str](), ""
        while True:
            listed = request(self.server, "GET", f"/lab?list-type=2&start-after={start}").decode()
            names = re.findall("<Key>([^<]*)", listed)
            found += names
            if "<IsTruncated>true" not in listed:
                return [name for name in found if re.search(pattern, name)]
            start = names[-1]

    def progress(self) -> tuple[int, int]:
        return len(self.objects(r"/commit-\d+$")), len(self.objects(r"/outcome\.json$"))

    def kill(self, session: int, title: str) -> None:
        """One of its processes that Ray calls so, waited for."""
        found: list[int] = []

        def there() -> bool:
            for pid in processes_of(session):
                try:
                    if _title(Path(f"/proc/{pid}")).startswith(title):
                        found.append(pid)
                except (FileNotFoundError, ProcessLookupError):
                    continue
            return bool(found)

        wait_until(there, f"a {title}")
        os.kill(found[0], signal.SIGKILL)


def test_a_sweep_in_a_bucket_outlives_its_processes_and_its_machine(tmp_path, undisturbed, server, monkeypatch):
    sweep = InBucket(tmp_path, server, monkeypatch)
    process = sweep.start()
    wait_until(lambda: sweep.progress()[0] >= 1, "a commit", progress=sweep.progress)
    sweep.kill(process.pid, WORKER)
    wait_until(lambda: sweep.progress()[0] >= 3, "more commits", progress=sweep.progress)
    sweep.kill(process.pid, COORDINATOR)
    wait_until(lambda: sweep.progress()[1] >= 1, "an outcome", progress=sweep.progress)
    kill_group(process)
    assert 1 <= sweep.progress()[1] < TRIALS
    sweep.machine("two")
    output = resume(sweep)
    assert "Traceback" not in output
    check_whole(sweep, undisturbed)
    assert len(sweep.objects(r"report/report\.html$")) == 1 and not sweep.objects("secret")
