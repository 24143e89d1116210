"""Workers, coordinators and nodes die in the middle of a round; the sweep goes on, and ends as if nothing had been."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import wait_until
from nodes import CLIENTS, COORDINATOR, ROUNDS, WORKER, Federated, cluster, nodes, undisturbed_state  # noqa: F401

pytestmark = pytest.mark.survival


def check_unharmed(sweep: Federated, undisturbed_state: dict[str, tuple]) -> None:
    """Every trial has the state, the ledger and the table of the undisturbed sweep, and MLflow each round once."""
    found = sweep.state()
    assert len(found) == 2 and found == {digest: undisturbed_state[digest] for digest in found}
    runs = sweep.runs()
    assert sorted(kind for kind, _, _ in runs) == ["sweep", "trial", "trial"]
    assert {status for _, status, _ in runs} == {"FINISHED"}
    assert [sorted(steps) for kind, _, steps in runs if kind == "trial"] == [list(range(ROUNDS))] * 2


def in_round(sweep: Federated, number: int, *clients: int) -> None:
    """Wait until these clients have stored what they send in this round, which then has no commit yet."""
    wait_until(lambda: sweep.sent(number, *clients), f"round {number}", every=0.002, progress=sweep.progress)


def test_a_worker_is_killed_in_a_round(tmp_path, nodes, undisturbed_state):
    sweep = Federated(tmp_path)
    killed = []

    def kill():
        in_round(sweep, 1, 0)
        killed.append(nodes.one(WORKER))
        assert sweep.progress() == (1, 0)

    assert sweep.run(meanwhile=kill) == 0 and killed
    check_unharmed(sweep, undisturbed_state)


def test_a_worker_is_killed_in_every_round(tmp_path, nodes, undisturbed_state):
    sweep = Federated(tmp_path)

    def kill():
        for number in range(ROUNDS):
            in_round(sweep, number, 0)
            nodes.one(WORKER)
            assert sweep.progress() == (number, 0)

    assert sweep.run(meanwhile=kill) == 0
    check_unharmed(sweep, undisturbed_state)


def test_a_coordinator_is_killed_before_it_commits(tmp_path, nodes, undisturbed_state):
    """What all clients have sent in the round is sent again, not made again."""
    sweep = Federated(tmp_path)

    def kill():
        in_round(sweep, 1, 0)
        (pid, _), = nodes.processes(COORDINATOR)
        os.kill(pid, signal.SIGSTOP)  # so that it cannot commit while the others store
        in_round(sweep, 1, *range(CLIENTS))
        assert sweep.progress() == (1, 0)
        os.kill(pid, signal.SIGKILL)

    assert sweep.run(meanwhile=kill) == 0
    assert sweep.resent() == CLIENTS
    check_unharmed(sweep, undisturbed_state)
