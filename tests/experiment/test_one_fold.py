"""One fold: a trial's metric, its outcome, the frontier's row and the report's say the epsilon of its ledger."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial, open_trial
from raydiff.federated.rounds import Progress
from raydiff.formats.metric_records import columns, read_metrics
from raydiff.privacy.accountants import exact
from raydiff.privacy.ledger import PUBLISHED, Ledger
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing
from raydiff.report import load, page
from raydiff.report.sweep_view import open_sweep

Messages = tuple[dict[int, Event], list[Event]]
"""Of one round: what each client sent, and what the server published."""
VIEWS = ("server", "outsiders")

noise = st.builds(
    Gaussian,
    st.floats(0.3, 20),
    st.sampled_from(["example", "client"]),
    st.sampled_from(["replace_one", "add_remove"]),
    st.just("local"),
    steps=st.integers(1, 5),
    declared=st.sampled_from([(), ("labels",)]),
)
sent = st.dictionaries(st.integers(0, 3), noise | st.just(Nothing()) | st.just(NonPrivate("weights")))
published = st.lists((noise | st.just(NonPrivate("means"))).map(lambda e: replace(e, trust="central")), max_size=2)
setups = st.none() | noise | st.just(NonPrivate("bins"))

LOCAL = Gaussian(1.0, "example", "replace_one", "local")
CENTRAL = Gaussian(1.0, "client", "replace_one", "central")


def grown(setup: Event | None, messages: list[Messages]) -> Iterator[Ledger]:
    """A ledger after each of its rounds, read from its stored form."""
    ledger = Ledger().with_setup(range(4), setup)
    for number, (uploads, events) in enumerate(messages):
        ledger = ledger.with_uploads(number, [(client, event, 10) for client, event in uploads.items()])
        ledger = Ledger.from_json(ledger.with_published(number, events).to_json())
        yield ledger


@pytest.fixture(scope="module")
def resolved(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return open_trial(replace(tiny, evaluation=None), tmp_path_factory.mktemp("ledgers"))


@hypothesis.settings(max_examples=1)
@hypothesis.given(setup=setups, messages=st.lists(st.tuples(sent, published), min_size=1, max_size=3))
@hypothesis.example(setup=None, messages=[({0: LOCAL}, []), ({0: LOCAL}, [])])  # two rounds of one kind
@hypothesis.example(setup=None, messages=[({0: LOCAL, 1: Nothing()}, []), ({1: LOCAL}, [])])  # two clients
@hypothesis.example(setup=None, messages=[({0: LOCAL}, [CENTRAL])])  # each adversary sees another kind
@hypothesis.example(setup=None, messages=[({0: NonPrivate("weights")}, [CENTRAL])])  # outsiders alone have an epsilon
@hypothesis.example(setup=None, messages=[({0: LOCAL}, []), ({0: LOCAL}, [CENTRAL])])  # outsiders: two kinds
@hypothesis.example(setup=None, messages=[({0: LOCAL}, []), ({0: replace(LOCAL, unit="client")}, [])])  # the server too
@hypothesis.example(setup=LOCAL, messages=[({0: LOCAL}, [])])
@hypothesis.example(setup=NonPrivate("bins"), messages=[({0: LOCAL}, [CENTRAL])])
def test_metric_outcome_frontier_and_report_say_one_epsilon(
    resolved: Trial, setup: Event | None, messages: list[Messages]
) -> None:
    for path in ("metrics.jsonl", "outcome.json"):
        (resolved.folder / path).unlink(missing_ok=True)
    ledgers = list(grown(setup, messages))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "run_rounds", lambda *_, **__: (Progress(n, {}, at, {}) for n, at in enumerate(ledgers)))
        running = trial.run_trial(resolved, None)  # type: ignore[arg-type]
        for _ in ledgers:
            next(running)
        unfinished = stated_by_files(resolved, "unfinished")
        *_, last = running
    finished, outcome = stated_by_files(resolved, "finished"), resolved.outcome()
    assert finished == unfinished == pytest.approx(epsilons(ledgers[-1]), rel=1e-9)
    assert outcome is not None
    for name, number in finished.items():
        assert outcome[name]["epsilon"] == number == last[f"privacy/epsilon_{name}"]
        assert columns(read_metrics(outcome["final"]))[f"privacy/epsilon_{name}"] == number


def epsilons(ledger: Ledger) -> dict[str, float]:
    """By a second reading of the entries: that of the only kind that an adversary sees, of the client that fares worst.

    Several kinds do not compose, and what is bare has no protection: then there is none.
    """
    largest = {}
    for view in VIEWS:
        entries = [e for e in getattr(ledger, view).entries if e.event != Nothing()]
        seen = [[e.event for e in entries if e.client in (client, PUBLISHED)] for client in range(4)]
        kinds = {(e.event.unit, e.event.relation, e.event.trust) for e in entries if isinstance(e.event, Gaussian)}
        one = len(kinds) < 2 and not any(isinstance(e.event, NonPrivate) for e in entries)
        largest[view] = max(exact(events, 1e-5) for events in seen) if one else math.inf
    return largest


def stated_by_files(resolved: Trial, outcome: str) -> dict[str, float]:
    """What metrics.jsonl, the table of runs, the frontier and the report agree on, each read from the files."""
    line = json.loads((resolved.folder / "metrics.jsonl").read_text().splitlines()[-1])
    numbers = columns(read_metrics(line["metrics"]))
    metrics = {view: numbers[f"privacy/epsilon_{view}"] for view in VIEWS}
    runs = load.runs(resolved.sweep)
    assert list(runs["outcome"]) == [outcome]
    assert {view: runs[f"{view}/epsilon"][0] for view in VIEWS} == metrics
    table = open_sweep(resolved.sweep).frontier
    assert shown(table.iloc[0], ("epsilon", "epsilon_outsiders")) == stated(metrics)
    trials = page.list_trials(open_sweep(resolved.sweep))
    assert shown(trials.iloc[0], ("epsilon_server", "epsilon_outsiders")) == tuple(metrics.values())
    return metrics


def stated(metrics: dict[str, float]) -> tuple[float, float]:
    """The frontier's epsilon is the server's; where that is infinite, the outsiders'."""
    server, outsiders = metrics.values()
    return min(server, outsiders) if server == math.inf else server, outsiders


def shown(row: Any, columns: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(row[name] for name in columns)
