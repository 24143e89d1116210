"""Who drives a sweep in a bucket, and what it says when the bucket does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from buckets import SECRET

import raydiff as rd
from raydiff.experiment.config import Experiment
from raydiff.federated import heartbeat
from raydiff.models.ddpm import with_progress
from raydiff.storage import lease as owner
from raydiff.storage import staging as away
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.bucket import Bucket, Unreachable
from raydiff.storage.lease import Lease, held
from raydiff.storage.remote import shared


@pytest.fixture
def sweep(machine: Callable[[], str]) -> Callable[[], Path]:
    """Goes to another machine, and gives the folder of a sweep there."""

    def there() -> Path:
        uri = machine()
        away.prepare(uri)
        folder = away.root(uri) / "sweeps" / "lab"
        folder.mkdir(parents=True)
        (folder / "sweep.json").write_text("{}")
        return folder

    return there


def test_a_second_driver_is_refused_from_whatever_machine_until_the_first_has_ended(sweep, monkeypatch) -> None:
    monkeypatch.setattr(owner, "_was_ours", lambda *_: False)  # Both are this process.
    with held(sweep()) as first:
        first()
        with pytest.raises(ValueError, match=r"^lab is being run by process \d+ on \S+ since"), held(sweep()):
            pass
    with held(sweep()) as second:
        assert (first.number, second.number) == (1, 2)
        second()
        with pytest.raises(LeaseLost, match="lab is run by another driver now"):
            Lease(first.sweep, 1)()


def test_a_driver_on_another_machine_that_is_silent_by_the_store_s_clock_is_dead(sweep, monkeypatch) -> None:
    first, waited = sweep(), list[float]()
    elsewhere = {"host": "elsewhere", "boot": "b", "numbering": "n"}
    with monkeypatch.context() as patch:
        patch.setattr(owner, "_machine", lambda: elsewhere)
        with contextlib.suppress(KeyError), held(first):
            raise KeyError
    there, name, now = shared(first), owner._name(1), owner._now
    there.put(name, (there.get(name) or b"").replace(b"true", b"false"))  # it never told its end
    monkeypatch.setattr(owner, "_pause", lambda: waited.append(30.0))
    monkeypatch.setattr(owner, "_now", lambda there: now(there) + sum(waited))
    with held(sweep()) as second:
        assert second.number == 2 and 2 <= len(waited) <= 3


def test_what_leaves_nothing_leaves_no_owner(machine) -> None:
    uri = machine()
    away.prepare(uri)
    with held(away.root(uri) / "sweeps" / "lab"):
        pass
    assert Bucket(uri).get("sweeps/lab/owners/00001.json") is None


def test_a_process_that_works_in_another_folder_is_heard(sweep, monkeypatch) -> None:
    """As the coordinator hears its workers."""
    here = sweep() / "trials" / "d"
    there = sweep() / "trials" / "d"
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "FAR_S", 0.0)
    for folder in (here, there):
        folder.mkdir(parents=True)
    silence = heartbeat.sign(here, heartbeat.process())
    with heartbeat.beating(there, "client 0", 0, began=0.0, loss=False):
        list(with_progress([1]))
        assert heartbeat.sign(here, heartbeat.process()) != silence
    assert heartbeat.sign(here, heartbeat.process()) == silence


def test_a_bucket_that_goes_away_is_said_and_the_same_command_goes_on(
    tiny: Experiment, noised: Experiment, machine, monkeypatch, tmp_path: Path
) -> None:
    uri, rounds = machine(), 0
    runtime = replace(tiny.runtime, storage=uri, noise_secret=SECRET.hex())
    experiment = replace(noised, runtime=runtime)
    alone = rd.run(replace(experiment, runtime=replace(runtime, storage=str(tmp_path / "f"))), name="r", track=False)
    put, first, get = Bucket.put, Bucket.first, Bucket.get

    def gone(call: Callable[..., object]) -> Callable[..., object]:
        def asked(self: Bucket, name: str, *given: object) -> object:
            nonlocal rounds
            rounds += "/commit-" in name and call is first
            if rounds > 1:
                raise Unreachable(f"{self.name}/{name}", "503 Slow Down")
            return call(self, name, *given)

        return asked

    with monkeypatch.context() as patch:
        for name, call in {"put": put, "first": first, "get": get}.items():
            patch.setattr(Bucket, name, gone(call))
        with pytest.raises((ValueError, OSError), match=r"cannot be reached: 503 Slow Down$"):
            rd.run(experiment, name="r", track=False)
    machine()
    other = replace(experiment, runtime=replace(runtime, noise_secret="ff" * 16))
    with pytest.raises(ValueError, match=r"^runtime\.noise_secret is not the one that r was started with$"):
        rd.run(other, name="r", track=False, resume=True)
    unknown = replace(experiment, runtime=replace(runtime, noise_secret=None))
    with pytest.raises(ValueError, match="the noise secret of r is not on this machine, and never in its bucket"):
        rd.run(unknown, name="r", track=False, resume=True)
    again = rd.run(experiment, name="r", track=False, resume=True)
    assert again.metrics.keys() == alone.metrics.keys()
    assert all(again.metrics[k] == v for k, v in alone.metrics.items() if not k.startswith("time/"))
