"""A sweep whose storage is a bucket on a real S3 server: its processes die, then its driver; another machine, which has
the credentials and the secret alone, goes on, and ends with the bits of an undisturbed sweep in a folder."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TRIALS, Command, Sweep, check_whole
from nodes import COORDINATOR, WORKER, Nodes
from s3_server import CREDENTIALS, Proxy, request, s3_server

from raydiff.storage import staging

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
        self.machine("one")

    def machine(self, name: str) -> None:
        """What is started from now on runs on this machine."""
        self.patch.setenv(staging.PLACE, str(self.here / name))
        self.folder = staging.storage_root(self.proxy.uri) / "sweeps" / "survivor"

    def objects(self, pattern: str) -> list[str]:
        """The names in the bucket that match."""
        matching, start = list[str](), ""
        while True:
            listed = request(self.server, "GET", f"/lab?list-type=2&start-after={start}").decode()
            names = re.findall("<Key>([^<]*)", listed)
            matching += names
            if "<IsTruncated>true" not in listed:
                return [name for name in matching if re.search(pattern, name)]
            start = names[-1]

    def progress(self) -> tuple[int, int]:
        return len(self.objects(r"/commit-\d+\.json$")), len(self.objects(r"/outcome\.json$"))


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster of nodes that share no folder; each has the credentials."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    cluster = Nodes(places=tmp_path)
    yield cluster
    cluster.stop()


def test_a_sweep_in_a_bucket_outlives_its_processes_and_its_machines(tmp_path, undisturbed, server, monkeypatch, apart):
    """A worker, a coordinator and a node; then the driver is interrupted, goes on on another machine, is killed, and
    goes on on a third."""
    sweep = InBucket(tmp_path, server, monkeypatch)
    with Command(sweep, "--runtime.workers=2", address=apart.address) as running:
        running.until(lambda: sweep.progress()[0] >= 1, "a commit")
        apart.one(WORKER)
        running.until(lambda: sweep.progress()[0] >= 3, "more commits")
        apart.one(COORDINATOR)
        commits, _ = sweep.progress()
        running.until(lambda: sweep.progress()[0] > commits, "another commit")
        _, raylet = apart.only(COORDINATOR)
        apart.kill(raylet)
        running.until(lambda: sweep.progress()[1] >= 1, "an outcome")
        assert "its processes were lost; it goes on after round" in running.output()
        running.process.send_signal(signal.SIGINT)
        running.end(130)
    apart.stop()
    finished = sweep.progress()[1]
    sweep.machine("two")
    with Command(sweep, "--resume") as running:
        running.until(lambda: len(sweep.table()) > finished, "another outcome")
        running.kill()
    assert "finished" in {outcome for outcome, _, _ in sweep.table().values()} and len(sweep.table()) < TRIALS
    sweep.machine("three")
    with Command(sweep, "--resume") as running:
        running.end()
    check_whole(sweep, undisturbed)
    assert len(sweep.objects(r"report/report\.html$")) == 1 and not sweep.objects("secret")
