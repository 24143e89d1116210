"""Suggestions of a sweep: one trial per experiment, results from the trials' files, and nothing else to keep."""

import dataclasses
import json

import pytest
from trial_folders import written

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.experiment.searchers import Search
from raydiff.experiment.study import Study
from raydiff.runtime import launch
from raydiff.runtime.plan import Planned, SweepRequest, plan_sweep
from raydiff.runtime.search import BARREN, Suggestions

RATE = "method.local.learning_rate"
RATES = {RATE: ("loguniform", (1e-4, 1e-2))}


@pytest.fixture
def plan_of(tmp_path, tiny):
    """(space, number of samples, searcher) -> a plan that is saved, without baselines."""
    base = override(tiny, {"runtime.storage": str(tmp_path)})

    def plan_of(space: dict, samples: int, searcher: object = "optuna") -> Planned:
        search = Search(searcher=searcher, space=space, samples=samples)
        planned = plan_sweep("p", Study(experiment=base, search=search), SweepRequest(), name="s")
        planned.folder.mkdir(parents=True, exist_ok=True)
        trial.keep_secret(planned.folder, planned.secret)
        return planned

    return plan_of


def finish(planned: Planned, experiment: Experiment, value: float) -> None:
    """Leave the files of a finished trial."""
    this = trial.Trial(experiment, planned.folder)
    trial.begin(this)
    line = {"step": 0, "metrics": written({planned.objective: value})}
    (this.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    trial.end(this.folder, "finished", final=written({"time/seconds": 1.0}))


def run(planned: Planned, suggestions: Suggestions | None = None) -> list[Experiment]:
    """All suggestions, each finished at once with its number as value."""
    ran: list[Experiment] = []
    for experiment in (suggestions or planned.suggestions()).more():
        if experiment is None:
            break
        finish(planned, experiment, float(len(ran)))
        ran.append(experiment)
    return ran


@pytest.mark.parametrize("search", ["random", "optuna"])
@pytest.mark.parametrize(
    ("space", "distinct"),
    [
        ({RATE: ("choice", (0.1, 0.10000000000000001))}, 1),
        ({"seed": ("choice", (0, 0, 1))}, 2),
        ({RATE: ("uniform", (0.001, 0.1)), "method.local.steps": ("choice", (2, -1))}, 4),
    ],
)
def test_an_experiment_runs_once_and_a_finished_search_has_nothing_left(plan_of, space, distinct, search):
    planned = plan_of(space, 4, search)
    suggestions = dataclasses.replace(planned, trials=()).suggestions(4)
    ran = run(planned, suggestions)
    assert len({e.digest for e in ran}) == len(ran) == len(suggestions.distinct) == distinct
    assert all("steps=-1: refused, " in line for line in suggestions.refused)
    if search == "random":  # All its trials are planned.
        assert {e.digest for e in planned.trials} == {e.digest for e in ran} and planned.total == distinct
        assert [*planned.refused] == suggestions.refused
    else:
        assert launch._finished(plan_of(space, 4)) and launch._finished(plan_of(space, 5)) == (distinct < 4)


def test_a_resumed_search_asks_what_it_would_have_asked(plan_of):
    planned = plan_of(RATES, 6)
    whole = [e.digest for e in run(planned)]
    again = dataclasses.replace(planned, folder=planned.folder.with_name("again"))
    again.folder.mkdir()
    trial.keep_secret(again.folder, again.secret)
    first = run(again, again.suggestions(4))
    assert [e.digest for e in first] == whole[:4] and not launch._finished(again)
    for experiment in first:  # Optuna reads the values of an earlier process too, in whatever order.
        finish(again, experiment, 1.0)
    assert len(run(again)) == 2 and launch._finished(again)


def test_what_an_earlier_process_left_open_is_no_new_suggestion(plan_of):
    planned = plan_of(RATES, 3)
    more = planned.suggestions().more()
    for experiment in (next(more), next(more)):
        trial.begin(trial.Trial(experiment, planned.folder))
    again = planned.suggestions()
    assert len(again.distinct) == 2 and again.left == 1 and not launch._finished(planned)


class Waits:
    """A searcher from outside: half of the range, then, once that has ended, half of the best."""

    adaptive = True

    def __init__(self, space, *, seed, lower_is_better, factor=0.5):
        (self.path,) = space
        self.factor = factor

    def ask(self, done):
        if done and done[-1].state == "running":
            return None
        return {self.path: self.factor * (done[-1].settings[self.path] if done else 1.0)}


def test_a_searcher_from_outside_takes_keywords_and_may_wait(plan_of):
    planned = plan_of({RATE: ("uniform", (0.0, 1.0))}, 3, ("test_search:Waits", {"factor": 0.25}))
    suggestions = planned.suggestions()
    more = suggestions.more()
    first = next(more)
    trial.begin(trial.Trial(first, planned.folder))
    assert [next(more), next(more)] == [None, None] and suggestions.left == 0
    finish(planned, first, 2.0)
    assert next(more).method.local.learning_rate == 0.25**2 and suggestions.left == 1
    assert suggestions.summary(lower_is_better=True).endswith(": 2: learning_rate=0.25")


@pytest.mark.parametrize(
    "search",
    [
        "optuna.samplers:RandomSampler",
        ("optuna.samplers:QMCSampler", {"scramble": True}),
        ("optuna.samplers:TPESampler", {"n_startup_trials": 2, "multivariate": True}),
        "ray.tune.search.optuna:OptunaSearch",
    ],
)
@pytest.mark.filterwarnings("ignore::Warning")
def test_samplers_of_optuna_and_searchers_of_tune_search_too(plan_of, search):
    planned = plan_of({RATE: ("loguniform", (1e-4, 1e-2)), "method.local.steps": ("choice", (2, 3))}, 4, search)
    ran = run(planned)
    assert len(ran) == 4 and all(1e-4 <= e.method.local.learning_rate <= 1e-2 for e in ran)
    assert launch._finished(planned)


@pytest.mark.parametrize(
    ("search", "space", "message"),
    [
        ("tpe", RATES, "search must be one of grid, random, optuna, or module:name"),
        ("os:path", RATES, "is no searcher: it must be a class"),
        ("test_search:Gone", RATES, "cannot be imported"),
        (("optuna", {"startup": 1}), RATES, "startup"),
        (("test_search:Waits", {"factor": "x"}), RATES, "the searcher failed: TypeError"),
        ("optuna", {"method.local.steps": ("choice", (-1,))}, "steps=-1: refused, "),
        ("random", {"method.local.steps": ("choice", (-1,))}, "steps=-1: refused, "),
        ("random", {RATE: ("normal", (0, 1))}, "must be one of uniform, loguniform, randint, choice"),
        ("random", {"method.local.step": ("choice", (1,))}, "did you mean"),
        ("random", {"clients": ("uniform", (2.0, 5.0))}, "clients takes no values of uniform"),
        ("optuna", {}, "needs a sample"),
        ("grid", RATES, "takes no sample"),
    ],
)
def test_what_cannot_search_is_refused_before_anything_runs(plan_of, search, space, message):
    with pytest.raises(ValueError, match=message):
        plan_of(space, 4, search)


def test_a_search_without_new_settings_ends(plan_of):
    suggestions = plan_of({RATE: ("choice", (0.001,))}, 4).suggestions()
    assert len([*suggestions.more()]) == 1 and suggestions.left == 0
    assert suggestions.summary(lower_is_better=True) == f"the search proposed {1 + BARREN} settings for 1 experiments"
