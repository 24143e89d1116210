"""How the trials of a study are called."""

from dataclasses import replace

from raydiff.experiment.overrides import override
from raydiff.experiment.presets import PRESETS
from raydiff.experiment.study import varying
from raydiff.lookup import distinguishing_fields
from raydiff.methods.localonly import LocalOnly

BASE = PRESETS["digits"]().experiment


def test_fields_that_follow_from_others_tell_nothing() -> None:
    settings = [{"a": 1, "b": "x", "c": 1}, {"a": 2, "b": "y", "c": 1}, {"a": 2, "b": "y", "c": 2}, {"a": 2, "b": "y"}]
    assert distinguishing_fields(settings, ["a", "b", "c"]) == ["a", "c"]
    assert distinguishing_fields(settings, ["c", "b", "a"]) == ["c", "b"]
    assert distinguishing_fields(settings[:1], ["a", "b", "c"]) == []


def test_a_trial_is_called_by_what_tells_it_from_others_of_its_method() -> None:
    alone = override(replace(BASE, method=LocalOnly()), {"seed": 1, "method.local.steps": 7})
    trials = [BASE, override(BASE, {"method.epsilon": 50.0}), alone, override(alone, {"seed": 2})]
    name = varying(trials)
    assert [name(e) for e in trials] == [
        "PFDM epsilon=10",
        "PFDM epsilon=50",
        "LocalOnly seed=1",
        "LocalOnly seed=2",
    ]


def test_what_will_be_drawn_is_named_though_all_have_one_value_yet() -> None:
    assert varying([BASE], ["method.clip"])(BASE) == f"PFDM clip={BASE.method.clip:g}"
