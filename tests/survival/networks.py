"""A cluster whose two nodes are in networks of their own, both on this machine, with a router between them that can
drop everything. It takes root, and `ip`. The disk is one: whoever is cut off still sees the storage."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from conftest import wait_until

HEAD, FAR = "10.251.1.1", "10.251.2.1"
MISSED = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 2}


def possible() -> bool:
    """Whether this process may make networks."""
    name = f"raydiff-{os.getpid()}"
    try:
        _sh("ip", "netns", "add", name)
        _sh("ip", "netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class Parted:
    """A head without CPUs and a node `here`, a node `there`, with two CPUs and a GPU each."""

    def __init__(self) -> None:
        self.address = f"{HEAD}:6379"
        self.here, self.there, self._router = (f"raydiff-{os.getpid()}-{of}" for of in ("here", "there", "router"))
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        with ExitStack() as stack:
            self._log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ray.log"
            for name in (self.here, self._router, self.there):
                _sh("ip", "netns", "add", name)
                stack.callback(_sh, "ip", "netns", "del", name)
                stack.callback(self._end, name)
                _sh("ip", "-n", name, "link", "set", "lo", "up")
            for name, address in ((self.here, HEAD), (self.there, FAR)):
                port, router = f"to-{address[7]}", f"{address}54"
                _sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", port, "netns", self._router)
                for side, device, at in ((name, "eth0", address), (self._router, port, router)):
                    _sh("ip", "-n", side, "addr", "add", f"{at}/24", "dev", device)
                    _sh("ip", "-n", side, "link", "set", device, "up")
                _sh("ip", "-n", name, "route", "add", "default", "via", router)
            self.join()
            self._start(self.here, HEAD, "--head", "--port=6379", "--include-dashboard=false", cpus=0)
            self.stop = stack.pop_all().close

    def near(self) -> None:
        """Start the node on the head's side."""
        self._nodes[self.here] = self._start(self.here, HEAD, cpus=2)

    def far(self) -> None:
        """Start the node on the other side."""
        self._nodes[self.there] = self._start(self.there, FAR, cpus=2)

    def complete(self) -> None:
        """What is missing is there again, and nothing between."""
        self.join()
        if self.here not in self._nodes or self._nodes[self.here].poll() is not None:
            self.near()
        self._end(self.there)  # It may count as dead, and not know it yet.
        self.far()

    def cut(self) -> None:
        """From now on every packet between the two is lost, without a word."""
        self._forward(False)

    def join(self) -> None:
        """Packets pass again."""
        self._forward(True)

    def by(self) -> list[str]:
        """What starts a command on the head's side."""
        return ["ip", "netns", "exec", self.here]

    def processes(self, title: str) -> list[tuple[int, str]]:
        """(process, its side) of all that Ray calls so."""
        processes = []
        for side in (self.here, self.there):
            for pid in _processes(side):
                with suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").startswith(title):
                        processes.append((pid, side))
        return processes

    def _forward(self, passes: bool) -> None:
        does = f"echo {int(passes)} > /proc/sys/net/ipv4/ip_forward"
        _sh("ip", "netns", "exec", self._router, "sh", "-c", does)

    def _start(self, side: str, at: str, *more: str, cpus: int) -> subprocess.Popen[bytes]:
        """Start a node and wait until it runs."""
        command = ["ip", "netns", "exec", side, str(Path(sys.executable).with_name("ray")), "start", "--block", *more]
        command += [f"--node-ip-address={at}", f"--num-cpus={cpus}", f"--num-gpus={min(cpus, 1)}"]
        command += ["--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"]
        command += ["--dashboard-agent-listen-port=0"]
        command += [f"--system-config={json.dumps(MISSED)}"] if "--head" in more else [f"--address={self.address}"]
        with self._log.open("w") as log:
            node = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: node.poll() is not None or "Ray runtime started" in self._log.read_text(), "a node")
        assert node.poll() is None, self._log.read_text()
        return node

    def _end(self, side: str) -> None:
        """Kill all that is on a side."""
        while pids := _processes(side):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def enter(side: str) -> None:
    """This process goes to that network."""
    with Path("/run/netns", side).open() as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {side}")


def _processes(side: str) -> list[int]:
    return [int(pid) for pid in _sh("ip", "netns", "pids", side).split()]


def _sh(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
