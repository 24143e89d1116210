"""What coordinators and drivers export to Prometheus, and who reads it."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.runtime import gauges

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
OF_RAY = {"node_gram_used"}
"""Ray's own gauges in the dashboard."""


@pytest.mark.parametrize("epsilon", [9.5, math.inf])
def test_each_round_sets_every_gauge_but_an_infinite_epsilon(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """Ray 2.60 exports no gauge of a process while one is infinite."""
    values: dict[str, float] = {}
    monkeypatch.setattr(
        gauges, "_gauge", lambda name: SimpleNamespace(set=lambda value, tags: values.update({name: value}))
    )
    result = {"privacy/epsilon_server": epsilon, "comm/bytes_up": 8.0, "clients/rejected": 2.0}
    gauges.export_trial(trial.Trial(tiny, tmp_path), {"round": 4, "finished": False, **result})
    gauges.export_trial(trial.Trial(tiny, tmp_path), {"round": 5, "finished": True, **result})
    gauges.export_sweep("s", {"waiting": 3})
    of_trial = {"rounds": 5.0, "bytes_sent": 8.0, "rejected": 2.0, "processes_lost": 0.0, "trials": 3.0}
    of_trial |= {"unprotected": 1.0} if epsilon == math.inf else {"unprotected": 0.0, "epsilon": 9.5}
    assert values == {f"raydiff_{name}": value for name, value in of_trial.items()}


def check(expressions: list[str]) -> set[str]:
    """The gauges in expressions of PromQL, whose tags are those of the gauges."""
    for expression in expressions:
        of_tags = {tag for name in re.findall(r"ray_(raydiff_\w+)", expression) for tag in gauges.GAUGES[name][1]}
        read = {tag for tags in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for tag in tags.split(", ")}
        assert read <= of_tags or not of_tags, expression
    return set(re.findall(r"ray_(\w+)", " ".join(expressions)))


def test_the_dashboard_draws_each_gauge() -> None:
    panels = json.loads((CLUSTER / "grafana.json").read_text())["panels"]
    drawn = check([target["expr"] for panel in panels for target in panel["targets"]])
    assert drawn == gauges.GAUGES.keys() | OF_RAY
    places = [tuple(panel["gridPos"][k] for k in "xy") for panel in panels]
    assert len(set(places)) == len({panel["id"] for panel in panels}) == len(panels)


def test_alerts_read_gauges_that_there_are() -> None:
    (group,) = yaml.safe_load((CLUSTER / "alerts.yaml").read_text())["groups"]
    assert check([rule["expr"] for rule in group["rules"]]) <= gauges.GAUGES.keys()
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == 4
