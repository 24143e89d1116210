"""A budget's book, while power is lost at every write, link, rename and sync, and while others write."""

import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crashes import Machine, PowerLost

from raydiff.experiment import spending
from raydiff.experiment.config import Experiment
from raydiff.privacy import filters as privacy
from raydiff.privacy.filters import Budget
from raydiff.privacy.ledger import Entry, Ledger
from raydiff.privacy.release import Gaussian
from raydiff.storage.atomic_files import write_text

UPLOAD = Gaussian(4.0, "example", "replace_one", "local")  # mu 1/4: one is epsilon 0.95, two 1.4, three 1.7
BUDGET = Budget(epsilon=1.5)


class World:
    """Trials in a storage folder that only charge and send: an upload each in two rounds, of half of one."""

    def __init__(self, storage: Path, experiment: Experiment, patch: pytest.MonkeyPatch) -> None:
        self.storage = storage
        self.experiment = replace(experiment, runtime=replace(experiment.runtime, budget=BUDGET))
        self.sent: Counter[str] = Counter()
        self.refused: set[str] = set()
        each = replace(UPLOAD, std_over_sensitivity=UPLOAD.std_over_sensitivity * 2**0.5)
        whole = Ledger((Entry(0, 0, each, 1), Entry(1, 0, each, 1)))
        patch.setattr(spending, "plan_ledger", lambda _: whole)

        def left(folder: Path) -> Ledger:
            return Ledger(tuple(e for e in whole.entries if (folder / f"release-{e.round}").exists()))

        patch.setattr(spending, "ledger_of", left)

    def folder(self, name: str) -> Path:
        return self.storage / "sweeps" / name / "trials" / "x"

    def run(self, name: str) -> None:
        """As `trial.run_trial` and `Client.run`: charge, write ahead, send; a round that was done is sent again."""
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes(json.dumps({"data": {"name": "digits"}}).encode())
        try:
            spending.charge(self.experiment, folder)
        except ValueError as e:
            assert "would overspend" in str(e)
            self.refused.add(name)
            return
        guard = spending.BudgetGuard(None, folder, spending.budget_log_of(folder, self.experiment.data))
        for number in range(2):
            guard()
            with suppress(FileExistsError):  # It was stored: that one counts.
                write_text(folder / f"release-{number}", "noised", durable=True, if_absent=True)
            guard()
            self.sent[name] += 1

    def check(self) -> list[dict[str, Any]]:
        """What must hold at every moment."""
        book = spending.budget_log_of(self.folder("a"), self.experiment.data)
        records = spending.verified(book)
        charged = [r["trial"] for r in records[1:]]
        assert len(set(charged)) == len(charged), "charged twice"
        assert {f"{name}/x" for name in self.sent} <= set(charged), "sent and not charged"
        assert BUDGET.spent([privacy.events_from_json(r["events"]) for r in records[1:]]).epsilon <= BUDGET.epsilon
        return records


def crash_everywhere(experiment: Experiment, tmp_path: Path, patch: pytest.MonkeyPatch, schedules: range) -> int:
    """Every schedule once for each call at which the power may go; how often it went."""
    lost = 0
    for schedule in schedules:
        order = random.Random(schedule).choices("abc", k=4)
        for at in range(1, 1000):
            world = World(tmp_path / f"{schedule}-{at}", experiment, patch)
            waiting, rng = list(order), random.Random(at)
            try:
                with pytest.MonkeyPatch.context() as inner:
                    machine = Machine(inner, rng, at)
                    while waiting:
                        world.run(waiting[0])
                        waiting.pop(0)
            except PowerLost:
                lost += 1
            world.check()
            for name in waiting:  # The same commands once more, on what is left.
                world.run(name)
                world.check()
            assert len(world.check()) == 1 + min(2, len(set(order)))
            if machine.calls < at:  # Else the call at which the power was to go failed by itself.
                break
    return lost


def test_a_crash_anywhere_leaves_no_release_without_its_record(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crash_everywhere(tiny, tmp_path, monkeypatch, range(1)) > 50


@pytest.mark.slow
def test_a_thousand_crashes_leave_no_release_without_its_record(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crash_everywhere(tiny, tmp_path, monkeypatch, range(1, 20)) > 1000


@pytest.mark.parametrize("others", ["b", *(pytest.param(more, marks=pytest.mark.slow) for more in ("bc", "ab"))])
def test_another_process_that_comes_by_at_any_moment_is_charged_too(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """Of three trials two can be charged; b, or b and c, run as a whole at some call within a."""
    for at in range(1, 1000):
        world = World(tmp_path / str(at), tiny, monkeypatch)
        visits: list[str] = []

        def visit(world: World = world, visits: list[str] = visits) -> None:
            for name in others:
                visits.append(name)
                world.run(name)
                world.check()

        with pytest.MonkeyPatch.context() as inner:
            Machine(inner, random.Random(at), at, visit)
            world.run("a")
        assert len(world.check()) == 1 + min(2, len({"a", *visits}))
        assert len(world.refused) == max(0, len({"a", *visits}) - 2)
        if not visits:
            break
