"""MLflow servers for tests."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from conftest import wait_until


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def mlflow_server(database: str, folder: Path, *, port: int) -> Iterator[str]:
    """Yield the URI of an MLflow server over this database."""
    uri = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts")]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # needs further processes
    with (folder / "mlflow.log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)

    def up() -> bool:
        assert server.poll() is None, (folder / "mlflow.log").read_text()
        try:
            return urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    try:
        wait_until(up, "the MLflow server", 600)
        yield uri
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
