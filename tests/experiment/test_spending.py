"""A budget that trials on the same records share: what is charged, what is refused, how damage is found."""

import json
import math
import multiprocessing
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from raydiff.cli import budget as budget_command
from raydiff.data import datasets
from raydiff.data.partition import ByClass, Iid
from raydiff.experiment import spending, trial
from raydiff.experiment.client_records import privacy_units
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of, plan_ledger
from raydiff.experiment.trial import Trial, open_trial
from raydiff.federated.client import Failed
from raydiff.formats.metric_records import Metric
from raydiff.methods._averaging import Averaging
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy import accountants, filters as privacy
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.filters import Budget, compose
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing
from raydiff.results.spent import composed_guarantee
from raydiff.runtime import launch
from raydiff.runtime.plan import Planned
from raydiff.storage.append_log import BudgetLog
from raydiff.storage.atomic_files import LeaseLost, write_text

BUDGET = Budget(epsilon=7)


@pytest.fixture(scope="module")
def protocol(tiny: Experiment) -> Experiment:
    """A trial without instruments that spends epsilon 3.3 of 7: twice is 5.0, thrice 6.3."""
    return replace(tiny, evaluation=None, method=replace(tiny.method, epsilon=4.0))


def budgeted(experiment: Experiment, budget: Budget | None = BUDGET, **more: Any) -> Experiment:
    return replace(experiment, runtime=replace(experiment.runtime, budget=budget), **more)


def opened(experiment: Experiment, storage: Path, name: str) -> Trial:
    return open_trial(experiment, storage / "sweeps" / name)


def execute(this: Trial) -> list[dict[str, Any]]:
    return list(trial.run_trial(this, trial.local_executor(this)))


def charges(this: Trial) -> list[dict[str, Any]]:
    """The records of its book but the first."""
    return spending.verified(this.store.guard.book)[1:]  # type: ignore[union-attr]


# --- what is charged ---


def test_trials_of_several_sweeps_share_what_there_is(protocol: Experiment, tmp_path: Path) -> None:
    """Also those that say nothing of a budget; what does not fit is refused by name before anything is trained."""
    done = [opened(budgeted(protocol), tmp_path, "first")]
    done += [opened(replace(protocol, seed=seed), tmp_path, f"sweep-{seed}") for seed in (1, 2)]
    for this in done:
        execute(this)
    assert [r["trial"] for r in charges(done[0])] == [f"{t.sweep.name}/{t.folder.name}" for t in done]
    together = BUDGET.spent(privacy.events_from_json(r["events"]) for r in charges(done[0])).epsilon
    assert together == compose([ledger_of(t.folder).server for t in done]).epsilon(1e-5, "exact") < 7
    late = opened(replace(protocol, seed=3), tmp_path, "late")
    message = rf"PFDM trial late/{late.folder.name} would overspend .* epsilon 7 .*: epsilon 6\.\d+ is spent, and with"
    with pytest.raises(ValueError, match=message):
        execute(late)
    assert not list(late.folder.glob("commit-*")) and not list(late.folder.glob("releases/*"))
    assert len(charges(late)) == 3
    method = LocalOnly(model=protocol.method.model, local=protocol.method.local)
    silent = opened(replace(protocol, method=method), tmp_path, "x")
    execute(silent)  # It sends nothing, and costs nothing.
    assert charges(silent)[-1]["events"] == []


def test_a_budget_changes_no_digest_and_no_number(protocol: Experiment, tmp_path: Path) -> None:
    with_one = budgeted(protocol)
    assert with_one.digest == protocol.digest
    secret = "00112233445566778899aabbccddeeff"
    bits = []
    for name, experiment in (("a", protocol), ("b", with_one)):
        configured = replace(experiment, runtime=replace(experiment.runtime, noise_secret=secret))
        this = opened(configured, tmp_path / name, name)
        execute(this)
        bits.append(this.store.load_server(this.experiment.method.rounds - 1))
    assert all(torch.equal(bits[0][k], bits[1][k]) for k in bits[0])


def test_what_is_run_again_is_charged_once(protocol: Experiment, tmp_path: Path) -> None:
    this = opened(budgeted(protocol), tmp_path, "a")
    results = trial.run_trial(this, trial.local_executor(this))
    next(results)  # Round 0, with the only upload, counts.
    assert len(charges(this)) == 1
    results.close()  # type: ignore[attr-defined]
    again = Trial(this.experiment, this.sweep)
    execute(again)
    assert len(charges(this)) == 1 and again.outcome()["outcome"] == "finished"  # type: ignore[index]
    shutil.rmtree(this.folder)  # A trial that is begun anew draws other noise, and costs anew.
    execute(opened(budgeted(protocol), tmp_path, "a"))
    assert len(charges(this)) == 2


def _methods(protocol: Experiment) -> Iterator[Experiment]:
    model, local = protocol.method.model, protocol.method.local
    yield protocol
    dpsgd = DPSGD(model=model, local=replace(local, steps=3), rounds=3, epsilon=4.0)
    yield replace(protocol, method=dpsgd, clients=3, partition=Iid(), participants=2)
    private = Averaging(privacy=ClientPrivacy(epsilon=4.0))
    fedavg = FedAvg(model=model, local=replace(local, steps=2), rounds=4, averaging=private)
    yield replace(protocol, method=fedavg, clients=4, partition=Iid(), participants=1)


@pytest.mark.parametrize("which", range(3))
def test_the_plan_is_what_the_ledger_says_in_the_end(protocol: Experiment, tmp_path: Path, which: int) -> None:
    """Client by client, for who is drawn is known beforehand."""
    this = opened(list(_methods(protocol))[which], tmp_path, "a")
    execute(this)
    sent = [(e.round, e.client, e.event) for e in ledger_of(this.folder).entries if e.event != Nothing()]
    assert sent == [(e.round, e.client, e.event) for e in plan_ledger(this.experiment).entries if e.event != Nothing()]
    assert sent


def test_what_was_sent_before_there_was_a_budget_counts(protocol: Experiment, tmp_path: Path) -> None:
    before, begun = opened(protocol, tmp_path, "before"), opened(replace(protocol, seed=1), tmp_path, "begun")
    execute(before)
    going = trial.run_trial(begun, trial.local_executor(begun))
    next(going)
    first = opened(budgeted(protocol, seed=2), tmp_path, "first")
    execute(first)
    results = {r["trial"].partition("/")[0]: r["whole"] for r in charges(first)}
    assert results == {"before": False, "begun": False, "first": True}
    assert 6 < BUDGET.spent(privacy.events_from_json(r["events"]) for r in charges(first)).epsilon < 7
    with pytest.raises(LeaseLost, match=r"begun/\w+ is not charged to .*, which was begun meanwhile"):
        list(going)
    execute(Trial(begun.experiment, begun.sweep))  # Begun again it is charged for all its rounds, in place of the one.
    assert [r["whole"] for r in charges(first) if r["trial"].startswith("begun")] == [False, True]
    assert (
        6 < BUDGET.spent({r["key"]: privacy.events_from_json(r["events"]) for r in charges(first)}.values()).epsilon < 7
    )


def test_a_budget_is_not_begun_that_is_spent_already(protocol: Experiment, tmp_path: Path) -> None:
    execute(opened(replace(protocol, method=replace(protocol.method, epsilon=None)), tmp_path, "bare"))
    this = opened(budgeted(protocol), tmp_path, "a")
    sent = r"cannot cover bare/\w+, run before there was one \(it sends images sent as they are without protection\)"
    with pytest.raises(ValueError, match=sent + ".* give another runtime.storage, or raydiff rm these sweeps"):
        execute(this)
    assert not (tmp_path / "budgets").exists()


# --- whose budget it is ---

CUTS = [{"split_seed": 1}, {"public": 251}]


@pytest.mark.parametrize("cut", CUTS)
def test_all_trials_have_the_same_public_records(protocol: Experiment, tmp_path: Path, cut: dict[str, Any]) -> None:
    """What is public in one trial is published there, whatever another pays for it."""
    this = opened(budgeted(protocol), tmp_path, "a")
    execute(this)
    other = replace(protocol, data=replace(protocol.data, **cut), partition=Iid())
    apart = ", ".join(rf"data.{name} is {value}, and was \w+" for name, value in cut.items())
    with pytest.raises(ValueError, match=rf"PFDM trial b/\w+ has other public records than a/\w+, .*: {apart}; set"):
        execute(opened(other, tmp_path, "b"))
    assert len(charges(this)) == 1


@given(st.integers(0, 2), st.sampled_from([250, 249]), st.sampled_from([400, 399]), st.sampled_from([200, 199]))
def test_units_are_told_apart_by_their_rows_and_by_nothing_else(
    tiny: Experiment, seed: int, public: int, test: int, validation: int
) -> None:
    cut = replace(tiny.data, split_seed=seed, public=public, test=test, validation=validation)
    other = replace(tiny, data=cut, seed=9, clients=tiny.clients)
    rows = [set(datasets.load_dataset(e.data).splits["public"].numbers.tolist()) for e in (tiny, other)]
    digests = [privacy_units(e, "example", b"key")["digest"] for e in (tiny, other)]
    assert (digests[0] == digests[1]) == (rows[0] == rows[1])
    assert privacy_units(tiny, "example", b"other")["digest"] != digests[0]  # Nothing can be tried without the key.


def test_records_under_a_budget_are_no_public_ones_elsewhere(
    protocol: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after it was begun nor before."""
    elsewhere = replace(protocol, data=replace(protocol.data, public_from="digits", name="other"))
    monkeypatch.setattr(spending, "plan_ledger", lambda _: Ledger())
    folder = tmp_path / "sweeps" / "s" / "trials" / "x"
    spending.charge(elsewhere, folder)  # No budget is known yet.
    write_text(folder / "config.json", json.dumps({"data": {"name": "other", "public_from": "digits"}}))
    first = opened(budgeted(protocol), tmp_path, "a")
    with pytest.raises(ValueError, match=r"cannot cover s/x, .*records of this data set \(as data.public_from\)"):
        spending.charge(first.experiment, first.folder)
    shutil.rmtree(folder)
    spending.charge(first.experiment, first.folder)
    with pytest.raises(ValueError, match=r"PFDM trial s/x cannot .*: data\.public_from is digits, whose records"):
        spending.charge(elsewhere, folder)


def per_client(protocol: Experiment, **more: Any) -> Experiment:
    private = Averaging(weights="uniform", privacy=ClientPrivacy(epsilon=1.0))
    method = FedAvg(model=protocol.method.model, local=protocol.method.local, rounds=1, averaging=private)
    return budgeted(protocol, Budget(epsilon=9, unit="client"), method=method, clients=3, partition=Iid(), **more)


@pytest.mark.parametrize(
    ("more", "change"),
    [
        ({"seed": 1}, "seed is 1, and was 0"),
        ({"partition": ByClass()}, "partition is ByClass, and was Iid"),
        ({"data": {"split_seed": 1}}, "data.split_seed is 1, and was 0"),
    ],
)
def test_a_client_is_the_same_records_in_all_trials(
    protocol: Experiment, tmp_path: Path, more: dict[str, Any], change: str
) -> None:
    base = per_client(protocol)
    execute(opened(base, tmp_path, "a"))
    execute(opened(replace(base, method=replace(base.method, rounds=2)), tmp_path, "b"))
    if "data" in more:
        more = {"data": replace(base.data, **more["data"])}
    with pytest.raises(ValueError, match=f"has other clients or public records than a/.*{change}"):
        execute(opened(replace(base, **more), tmp_path, "c"))


# --- what is refused ---


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"epsilon": None}, "FedAvg trial a/.* cannot be charged to the budget .*: it sends weights .* without"),
        ({"epsilon": 4.0}, "its guarantee is per client, replace-one, local trust, which does not compose with"),
        ({"epsilon": 4.0, "trust": "central"}, "it sends clipped updates, .* without protection"),
    ],
)
def test_other_kinds_are_refused(protocol: Experiment, tmp_path: Path, method: dict[str, Any], message: str) -> None:
    private = None if method["epsilon"] is None else ClientPrivacy(**method)
    averaging = Averaging(weights="uniform", privacy=private)
    averaged = FedAvg(model=protocol.method.model, local=protocol.method.local, averaging=averaging)
    this = opened(budgeted(protocol, method=averaged), tmp_path, "a")
    with pytest.raises(ValueError, match=message):
        execute(this)
    assert not (tmp_path / "budgets").exists() and not list(this.folder.glob("commit-*"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("delta", 1.0),
        ("unit", "person"),
        ("relation", "swap"),
        ("trust", "central"),
    ],
)
def test_bad_budgets_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be .*, got '?{value}"):
        Budget(**{field: value})


def test_a_client_sends_no_more_than_was_charged(
    protocol: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PFDM.upload_event

    def less(self: PFDM, records: int, number: int) -> Event:
        event = honest(self, records, number)
        twice = 2 * event.std_over_sensitivity if isinstance(event, Gaussian) else 0.0
        return replace(event, std_over_sensitivity=twice) if twice else event

    monkeypatch.setattr(PFDM, "upload_event", less)
    this = opened(budgeted(protocol), tmp_path, "a")
    with pytest.raises(Failed, match="client 0, in round 0: its upload reveals more than was charged to the budget"):
        execute(this)
    assert not list(this.folder.glob("releases/*")) and not list(this.folder.glob("commit-*"))


ONE = Gaussian(2.0, "example", "zero_out", "local", 0.1, 5)


LESS = replace(ONE, std_over_sensitivity=2.1, sampling_rate=0.05, steps=4)
MORE = [{"std_over_sensitivity": 1.9}, {"sampling_rate": 0.2}, {"steps": 6}, {"relation": "replace_one"}]


def test_what_is_covered_reveals_no_more() -> None:
    covered: list[Event] = [ONE, LESS, Nothing()]
    uncovered: list[Event] = [NonPrivate("weights"), *(replace(ONE, **changes) for changes in MORE)]
    assert [privacy.covers(ONE, sent) for sent in (*covered, *uncovered)] == [True] * 3 + [False] * 5
    assert all(privacy.covers(NonPrivate("all"), sent) for sent in (*covered, *uncovered))
    assert accountants.rdp([LESS], 1e-5) <= accountants.rdp([ONE], 1e-5)


def planned_sweep(experiment: Experiment, storage: Path) -> Planned:
    """A sweep of four seeds."""
    base, secret = replace(experiment, runtime=replace(experiment.runtime, storage=str(storage))), b"0" * 32
    trials = tuple(trial.resolve_on_data(replace(base, seed=seed), secret) for seed in range(4))
    folder = storage / "sweeps" / "s"
    return Planned(preset="x", folder=folder, base=trials[0], trials=trials, secret=secret, metric=Metric(name=""))


def test_a_sweep_that_would_overspend_is_refused_whole(protocol: Experiment, tmp_path: Path) -> None:
    plan = planned_sweep(budgeted(protocol), tmp_path)
    refused = rf"PFDM trial s/{plan.trials[3].digest} would overspend .*: epsilon 6\.\d+ is spent"
    with pytest.raises(ValueError, match=refused):
        launch.start(plan, track=False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_sweep_that_goes_on_is_refused_trial_by_trial(protocol: Experiment, tmp_path: Path) -> None:
    """Begun without a budget, which another sweep begins before it ends."""
    plan = planned_sweep(protocol, tmp_path)
    launch.start(replace(plan, trials=plan.trials[:1]), track=False)
    execute(opened(budgeted(protocol, seed=9), tmp_path, "other"))
    launch.start(plan, track=False, resume=True, extend=True)
    outcomes = [Trial(experiment, plan.folder).outcome() or {} for experiment in plan.trials]
    assert [outcome["outcome"] for outcome in outcomes] == ["finished", "finished", "failed", "failed"]
    assert "would overspend the budget" in outcomes[2]["reason"] and outcomes[2]["reason"].startswith("PFDM trial s/")
    assert composed_guarantee(plan.folder).startswith(
        "no composed epsilon: trials were added when others had been seen"
    )


# --- damage ---


@pytest.fixture(scope="module")
def charged_once(protocol: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    storage = tmp_path_factory.mktemp("charged")
    for this in (opened(budgeted(protocol), storage, "a"), opened(budgeted(protocol, seed=1), storage, "b")):
        execute(this)
    return this


@pytest.fixture
def charged(charged_once: Trial, tmp_path: Path) -> Trial:
    """Two trials in a budget, of which this is the second."""
    shutil.copytree(charged_once.sweep.parents[1], tmp_path, dirs_exist_ok=True)
    return Trial(charged_once.experiment, tmp_path / "sweeps" / "b")


def test_every_flipped_bit_and_every_cut_is_found(charged: Trial, protocol: Experiment, tmp_path: Path) -> None:
    book, rng = charged.store.guard.book, random.Random(0)  # type: ignore[union-attr]
    for path in sorted(book.folder.glob("*.json")):
        whole = path.read_bytes()
        places = range(0, len(whole), 5)
        flips = (whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :] for at in places)
        for damaged in (*flips, *(whole[:length] for length in range(0, len(whole), 20))):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"{book.folder}/0000\d\.json is damaged"):
                book.records()
        path.write_bytes(whole)
    assert len(book.records()) == 3


def test_a_missing_record_is_found_and_nothing_is_spent(charged: Trial, protocol: Experiment, tmp_path: Path) -> None:
    book = charged.store.guard.book  # type: ignore[union-attr]
    for lost in (1, 2, 3):
        path = book.folder / f"{lost:05d}.json"
        whole = path.read_bytes()
        path.unlink()
        refused(protocol, tmp_path, f"{book.folder} has lost record {lost}", f"lost-{lost}")
        path.write_bytes(whole)


def refused(protocol: Experiment, storage: Path, why: str, name: str = "c") -> None:
    """Every trial, with --budget or without, is refused; `raydiff budget` names the reason."""
    for end, budget in (("", None), ("-more", Budget(epsilon=100))):
        this = opened(budgeted(protocol, budget, seed=2), storage, name + end)
        with pytest.raises(ValueError, match=why):
            execute(this)
        assert not list(this.folder.glob("releases/*")) and not list(this.folder.glob("commit-*"))
        with pytest.raises(ValueError, match=why):
            spending.check_spending([this.experiment], this.sweep)
    with pytest.raises(ValueError, match=why):
        budget_command.main(["--storage", str(storage)])


@pytest.mark.parametrize("how", ["folder", "emptied", "marker", "without the sweeps"])
def test_that_there_was_a_budget_is_known_from_another_place(
    charged: Trial, protocol: Experiment, tmp_path: Path, how: str
) -> None:
    book, why = charged.store.guard.book, "budgets/digits-.* is gone"  # type: ignore[union-attr]
    if how == "marker":
        book.marker.unlink()
        why = f"{book.marker} is gone"
    elif how == "emptied":
        for path in book.folder.iterdir():
            path.unlink()
        why = "has lost record 1"
    else:
        shutil.rmtree(book.folder if how == "folder" else book.folder.parent)
    for name in "ab" if how == "without the sweeps" else "":  # as raydiff rm leaves it
        shutil.rmtree(tmp_path / "sweeps" / name)
    refused(protocol, tmp_path, why)


@pytest.mark.parametrize("place", ["other", "../../elsewhere/budgets/{}"])
def test_a_record_put_back_from_elsewhere_is_found(charged: Trial, place: str) -> None:
    """Of another log, or of the log of this name in another storage."""
    book = charged.store.guard.book  # type: ignore[union-attr]
    other = BudgetLog(book.folder.parent / place.format(book.folder.name))
    for number, record in enumerate(book.records(), 1):
        other.add({**record, "events": []} if number > 1 else record, number)
    shutil.copy(other.folder / "00002.json", book.folder / "00002.json")
    says = "2.json is damaged: it is a copy of other/" if place == "other" else "3.json is damaged: it does not follow"
    with pytest.raises(ValueError, match=re.escape(says)):
        book.records()


# --- two at once ---


def _sweep(storage: str, name: str, experiment: Experiment, barrier: Any, results: Any) -> None:
    """Run three trials, one after the other."""
    torch.set_num_threads(1)
    finished = 0
    barrier.wait()
    for seed in range(3):
        this = opened(replace(experiment, seed=seed), Path(storage), name)
        try:
            execute(this)
            finished += 1
        except ValueError as e:
            assert "would overspend" in str(e)
    results.put(finished)


@pytest.mark.slow
def test_two_sweeps_at_once_share_a_budget(protocol: Experiment, tmp_path: Path) -> None:
    """Two processes; of their six trials three fit."""
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(2), spawn.Queue()
    configured = [(str(tmp_path), name, budgeted(protocol), barrier, results) for name in ("one", "other")]
    processes = [spawn.Process(target=_sweep, args=arguments) for arguments in configured]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert results.get(timeout=10) + results.get(timeout=10) == 3
    (book,) = (BudgetLog(path) for path in (tmp_path / "budgets").iterdir())
    records = spending.verified(book)[1:]
    assert len({r["key"] for r in records}) == len(records) == 3
    sent = [ledger_of(f) for f in tmp_path.glob("sweeps/*/trials/*") if ledger_of(f).entries]
    assert len(sent) == 3 and compose(sent).epsilon(1e-5, "exact") <= 7
