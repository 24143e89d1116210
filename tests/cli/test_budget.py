"""`raydiff budget`: who spent what, what is left, and damage."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import changes

from raydiff.cli import budget
from raydiff.data.source_registry import identity
from raydiff.experiment import overrides, spending
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import open_trial
from raydiff.formats import rounding as bounds
from raydiff.methods.dpsgd import DPSGD
from raydiff.privacy import filters as privacy
from raydiff.privacy.accountants import mu_for
from raydiff.privacy.filters import Budget
from raydiff.privacy.release import Gaussian


@pytest.fixture
def storage(tiny: Experiment, tmp_path: Path) -> Path:
    """Two trials of epsilon 3.33, charged to a budget of 7."""
    base = replace(tiny, evaluation=None, method=replace(tiny.method, epsilon=4.0))
    base = replace(base, runtime=replace(base.runtime, budget=Budget(epsilon=7)))
    for seed in (0, 1):
        this = open_trial(replace(base, seed=seed), tmp_path / "sweeps" / f"s{seed}")
        spending.charge(this.experiment, this.folder)
    return tmp_path


def test_it_lists_who_spent_what_and_what_is_left(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for named in ([], ["digits"], ["frontier"]):  # all, a data set, a preset of it
        assert budget.main([*named, "--storage", str(storage)]) == 0
        head, *trials, last = capsys.readouterr().out.splitlines()
        assert head == "digits: epsilon 7 (per example, replace-one, local trust, delta 1e-05)"
        assert [line.split()[2].partition("/")[0] for line in trials] == ["s0", "s1"]
        assert trials[0].endswith("epsilon 3.33, together epsilon 3.33")
        assert trials[1].endswith("epsilon 3.33, together epsilon 4.96")
        assert last.startswith("spent: epsilon 4.96 of 7, by 2 trials; left: one more trial at epsilon ")
        left = float(last.partition("at epsilon ")[2].partition(",")[0])
        assert left == pytest.approx(4.25, abs=0.5)


def test_what_is_left_can_be_spent_and_no_more(tiny: Experiment, storage: Path) -> None:
    book = spending.budget_log_of(storage / "sweeps" / "x" / "trials" / "y", tiny.data)
    left = float(budget.budget_lines(book)[-1].partition("at epsilon ")[2].partition(",")[0])
    records = spending.verified(book)[1:]
    charges = [privacy.events_from_json(r["events"]) for r in records]

    def with_one_more(epsilon: float) -> float:
        event = Gaussian(1 / mu_for(epsilon, 1e-5), "example", "replace_one", "local")
        return Budget(epsilon=7).spent([*charges, [event]]).epsilon

    assert with_one_more(left - 0.01) <= 7 < with_one_more(left + 0.01)


def test_sampled_noise_has_no_number_that_is_left(
    tiny: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = DPSGD(model=tiny.method.model, local=tiny.method.local, rounds=1, noise_multiplier=2.0)
    limit = Budget(epsilon=7, relation="zero_out")
    base = replace(tiny, evaluation=None, method=method, runtime=replace(tiny.runtime, budget=limit))
    this = open_trial(base, tmp_path / "sweeps" / "s")
    spending.charge(this.experiment, this.folder)
    budget.main(["digits", "--storage", str(tmp_path)])
    *_, trial, last = capsys.readouterr().out.splitlines()
    order = limit.order(privacy.events_from_json(spending.verified(this.store.guard.book)[1]["events"]))  # type: ignore[union-attr]
    assert last.endswith(f"; what is left depends on the noise that would come next (Renyi order {order:g})")
    assert trial.partition("together ")[2] in last  # One trial alone: by the tightest accountant.
    again = open_trial(replace(base, seed=1), tmp_path / "sweeps" / "t")
    spending.charge(again.experiment, again.folder)
    budget.main(["digits", "--storage", str(tmp_path)])
    *_, last = capsys.readouterr().out.splitlines()
    events = [privacy.events_from_json(r["events"]) for r in spending.verified(again.store.guard.book)[1:]]  # type: ignore[union-attr]
    by_the_filter = limit.epsilon_of(sum(privacy.cost(e, order) for e in events), order)
    assert last.startswith(f"spent: epsilon {bounds.up(by_the_filter)} of 7, by 2 trials")


@pytest.mark.parametrize("damage", ["flipped", "cut", "lost"])
def test_damage_is_named_in_one_sentence(storage: Path, command: Any, damage: str) -> None:
    (last,) = storage.glob("budgets/*/00003.json")
    whole = last.read_bytes()
    last.unlink()
    if damage != "lost":
        last.write_bytes(whole[:-9] if damage == "cut" else whole.replace(b"s1/", b"s2/"))
    else:  # of the last record its trial's note knows
        (note,) = storage.glob("sweeps/s1/trials/*/budget.json")
        assert '"record": 3' in note.read_text()
    code, _, err = command("budget", "digits", "--storage", storage)
    assert (code, err.count("\n")) == (2, 1)
    assert ("has lost record 3, by which s1/" if damage == "lost" else "00003.json is damaged") in err


def test_budget_is_short_for_its_epsilon(tiny: Experiment) -> None:
    for words in (["--budget", "10"], ["--budget=10"]):
        fields = changes(tiny, [*words, "--runtime.budget.unit", "client"])
        assert overrides.override(tiny, fields).runtime.budget == Budget(epsilon=10, unit="client")


def test_a_name_and_the_folder_that_it_means_are_apart_and_colours_are_not() -> None:
    assert identity("colour-mnist") == identity("mnist") == "mnist"
    assert identity("here/pictures") == str(Path("here/pictures").resolve())
