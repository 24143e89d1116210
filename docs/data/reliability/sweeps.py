"""The sweep of a try: its command in a process of its own, random moments of it, and what it has come to."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import wait_until
from networks import Parted, enter
from nodes import ROUNDS, Federated, Nodes, check_unharmed, faulty

from raydiff.experiment import config, trial
from raydiff.experiment.ledgers import ledger_of
from raydiff.privacy.ledger import PrivacyOdometer
from raydiff.report import load

HANG_S = 120.0  # a command that commits nothing for so long, and has not ended, hangs
CUT_S = 300.0  # The same where a network is cut: Ray's head may wait two minutes for a node that it does not reach.
COMMITS = 2 * ROUNDS  # the moment of a fault is drawn as so many of them, and a part of a round
_SHARED = "digits --name=survivor --clients=4 --min-clients=4 --protocol-only --no-baselines --max-concurrent=1"
_SHARED += " --method.model.network.width=128 --grid seed=0,1"
KINDS = {
    # Noised uploads in every round, which are stored before they are sent, and a private middle of each client.
    "noised": f"{_SHARED} --method=sharedrep --method.rounds={ROUNDS} --method.local.steps=64"
    " --method.averaging.privacy=clientprivacy",
    # Records noised once, client models that are cached, and a budget that both trials are charged to.
    "budget": f"{_SHARED} --method=pfdm --method.server-rounds={ROUNDS - 1} --method.local.steps=40"
    " --method.server.steps=64 --budget=1000",
}
Cluster = Nodes | Parted | None
HERE = ("--runtime.pool=local",)
CLUSTER = ("--runtime.workers=2", "--runtime.client-timeout-s=15")


def _command(arguments: Sequence[str], env: dict[str, str], log: Path, fault: Any, network: str) -> None:
    """`raydiff sweep` in this fresh process, with its clients faulty where one asks for it."""
    os.setsid()
    if network:
        enter(network)
    os.environ.update(env)
    opened = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    sys.argv = ["jobs/sweep.py", *arguments]
    if fault is not None:
        import faults

        from raydiff.runtime import tuner

        name, *of = fault
        tuner.Coordinator = faulty(tuner, getattr(faults, name)(*of))
    from raydiff.__main__ import main

    main(["sweep", *arguments])


class Tried(Federated):
    """A sweep of two trials in its own storage folder."""

    def __init__(self, storage: Path, kind: str) -> None:
        storage.mkdir(parents=True)
        super().__init__(storage)
        self.kind = kind
        self.place(storage)

    def place(self, storage: Path) -> None:
        """It is there now."""
        self.storage, self.folder = storage, storage / "sweeps" / "survivor"
        self.arguments = [*KINDS[self.kind].split(), "--runtime.storage", str(storage)]
        self.mlflow = f"sqlite:///{storage}/mlflow.db"

    def state(self) -> dict[str, tuple]:
        """The same, and the private states."""
        found = {}
        for digest, state in super().state().items():
            files = sorted((self.folder / "trials" / digest / "clients").glob("*"))  # The last of each client is last.
            found[digest] = (*state, {path.name[:5]: (path.name, path.read_bytes()) for path in files})
        return found

    def progress(self) -> tuple[int, int]:
        """(committed rounds, outcomes): one of them may be damaged."""
        commits, outcomes = (list(self.folder.glob(f"trials/*/{name}.json")) for name in ("commit-*", "outcome"))
        return len(commits), len(outcomes)

    def table(self) -> str:
        """The report's table of runs, but for seconds and for where it ran."""
        runs = load.runs(self.folder)
        apart = [c for c in runs if "time/" in c or c.startswith("runtime.")]
        return str(runs.drop(columns=apart).sort_values("seed").to_dict("records"))

    def round_s(self) -> float:
        """Between two commits, in the middle."""
        at = sorted(path.stat().st_mtime for path in self.folder.glob("trials/*/commit-*.json"))
        return statistics.median(b - a for a, b in itertools.pairwise(at))

    def epsilons(self) -> dict[str, float]:
        """What each trial says, or its files say, that it has spent; inf where they cannot."""
        found = {}
        for folder in (self.folder / "trials").glob("*"):
            try:
                outcome = trial.read_outcome(folder)
                if outcome is None:
                    experiment = config.read_config(folder / "config.json")
                    found[folder.name] = trial.state_guarantees(PrivacyOdometer(ledger_of(folder)), experiment)[
                        0
                    ].epsilon
                else:
                    found[folder.name] = float(outcome["server"]["epsilon"])
            except (ValueError, FileNotFoundError):
                found[folder.name] = math.inf
        return found


class Try:
    """One try of a fault: the sweep, the draws, what its commands said."""

    def __init__(self, storage: Path, kind: str, seed: int, expected: Any, nodes: Cluster) -> None:
        self.sweep, self.rng = Tried(storage, kind), random.Random(seed)
        self.expected, self._nodes = expected, nodes
        self.hang_s = CUT_S if isinstance(nodes, Parted) else HANG_S
        self.env: dict[str, str] = {} if nodes is None else {"RAY_ADDRESS": nodes.address}
        self.where = HERE if nodes is None else CLUSTER
        self.said: list[tuple[int, str]] = []
        self.committed: int | None = None
        self.refusal = self.failed = ""
        self.checked = False
        self._running: list[Any] = []

    @property
    def nodes(self) -> Nodes:
        """The cluster it runs on."""
        assert isinstance(self._nodes, Nodes)
        return self._nodes

    @property
    def parted(self) -> Parted:
        """The same, where its nodes are in two networks."""
        assert isinstance(self._nodes, Parted)
        return self._nodes

    def start(self, *more: str, fault: Any = None) -> Any:
        """Start the command."""
        log = self.sweep.storage.parent / f"{len(self._running)}.log"
        log.touch()
        arguments = [*self.sweep.arguments, *self.where, *more]
        network = self._nodes.here if isinstance(self._nodes, Parted) else ""
        driver = multiprocessing.get_context("forkserver").Process(
            target=_command, args=(arguments, self.env, log, fault, network)
        )
        driver.start()
        driver.log = log
        self._running.append(driver)
        return driver

    def moment(self, driver: Any) -> None:
        """Wait for a random one."""
        commits, more = self.rng.randrange(COMMITS - 1), self.rng.uniform(0, self.expected[2])
        begun = self.sweep.folder / "sweep.json"

        def come() -> bool:
            return not driver.is_alive() or (begun.exists() and self.sweep.progress()[0] >= commits)

        wait_until(come, f"commit {commits}", self.hang_s, progress=self.sweep.progress, every=0.005)
        time.sleep(more)
        self.committed = self.sweep.progress()[0]

    def end(self, driver: Any) -> tuple[int, str]:
        """(exit code, output) of the command, once it has ended. Raises AssertionError where it hangs or broke."""
        wait_until(lambda: not driver.is_alive(), "the command to end", self.hang_s, progress=self.sweep.progress)
        driver.join()
        code, output = driver.exitcode, driver.log.read_text()
        self.said.append((code, output))
        assert "Traceback" not in output, f"a traceback: {output.rstrip().splitlines()[-1]}"
        return code, output

    def killed(self, number: int = signal.SIGKILL, *, having: str = "") -> list[Path]:
        """Begin, and end it by a signal at a random moment; gives the files that it is to have left. Where it has none
        yet it is given the time."""
        driver = self.start()
        self.moment(driver)
        found: list[Path] = []
        while having:
            with contextlib.suppress(ProcessLookupError):
                os.kill(driver.pid, signal.SIGSTOP)
            found = [path for path in sorted(self.sweep.storage.glob(having)) if self._is_needed(path)]
            if found or not driver.is_alive():
                break
            os.kill(driver.pid, signal.SIGCONT)
            time.sleep(0.01)
        self.committed = self.sweep.progress()[0]
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver.pid, number)
        code, _ = self.end(driver)
        assert code in (0, -number, 130), f"exit code {code} after signal {number}"
        return found

    def _is_needed(self, path: Path) -> bool:
        """Whether the resumed sweep reads it: those of finished trials are for people."""
        at = next((folder for folder in path.parents if folder.parent.name == "trials"), None)
        return at is None or path.name == "outcome.json" or not (at / "outcome.json").exists()

    def resume(self, *more: str) -> tuple[int, str]:
        """The same command with --resume, until it has ended."""
        return self.end(self.start("--resume", *more))

    def whole(self) -> str:
        """What is not as in the undisturbed sweep; "" where all is."""
        try:
            state, table = self.sweep.state(), self.sweep.table()
        except (ValueError, OSError, TypeError) as e:
            return f"no state: {e}"
        if state != self.expected[0]:
            parts = ("outcome", "guarantee", "rounds", "server", "ledger", "numbers", "private states")
            apart = {
                d: [p for p, a, b in zip(parts, state[d], e, strict=True) if a != b] if d in state else "missing"
                for d, e in self.expected[0].items()
            }
            return f"not the undisturbed state: {apart}"
        if table != self.expected[1]:
            return "another table"
        try:
            check_unharmed(self.sweep, state)
        except AssertionError:
            return f"MLflow has {self.sweep.runs()}"
        return ""

    def check(self) -> None:
        """Raises AssertionError where it is not as the undisturbed sweep."""
        wrong = self.whole()
        assert not wrong, wrong
        self.checked = True

    def close(self) -> None:
        """Nothing is left running."""
        for driver in self._running:
            if driver.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.join()
