"""The cost of trials, and durations as text."""

from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.methods.fedavg import FedAvg
from raydiff.runtime.estimate import format_duration, training_cost


def test_cost_is_the_records_of_all_steps_and_epochs(tiny: Experiment) -> None:
    thrice = override(tiny, {"method.local.steps": 24, "method.server.steps": 24})
    assert training_cost(tiny) == 1 + 8 * 8 * (2 + 1) and training_cost(thrice) == 1 + 3 * 8 * 8 * (2 + 1)
    few, many = (override(tiny, {"method": FedAvg, "method.local.epochs": n}) for n in (10, 500))
    assert training_cost(many) - 1 == 50 * (training_cost(few) - 1) > 0
    assert training_cost(override(few, {"clients": 2 * few.clients})) == training_cost(few)


def test_a_duration_has_minutes_or_seconds() -> None:
    assert format_duration(40.9) == "40 s" and format_duration(125) == "2:05 min"
