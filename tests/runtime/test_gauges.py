"""What coordinators and drivers export to Prometheus, what a scrape of a node returns, and who reads it."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.runtime import gauges

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
OF_RAY = {"node_gram_used"}
"""Ray's own gauges in the dashboard."""


@pytest.mark.slow
@pytest.mark.ray
def test_a_scrape_of_the_node_has_the_gauges_of_every_trial(tiny: Experiment, workers: list[Any]) -> None:
    """An infinite epsilon would hide all gauges of its process."""
    import ray

    @ray.remote(num_cpus=0)
    class Coordinator:
        def tell(self, sweep: str, epsilon: float) -> None:
            numbers = {"privacy/epsilon_server": epsilon, "comm/bytes_up": 8.0, "clients/rejected": 2.0}
            this = trial.Trial(tiny, Path(sweep))
            gauges.export_trial(this, {"round": 4, "finished": False, **numbers})
            gauges.export_trial(this, {"round": 5, "finished": True, **numbers})
            gauges.export_sweep(sweep, {"waiting": 3})

    epsilons = {"kept": 9.5, "open": math.inf}
    actors = [Coordinator.remote() for _ in epsilons]
    ray.get([actor.tell.remote(*args) for actor, args in zip(actors, epsilons.items(), strict=True)])
    (node,) = ray.nodes()
    values, deadline = dict[str, dict[str, float]](), time.monotonic() + 120  # Ray collects now and then.
    while [len(v) for v in values.values()] != [7, 6] and time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics") as page:
            lines = re.findall(r"^ray_raydiff_(\w+)\{(.*)\} (\S+)$", page.read().decode(), flags=re.M)
        values = {s: {name: float(v) for name, tags, v in lines if f'sweep="{s}"' in tags} for s in epsilons}
        time.sleep(0.2)
    for actor in actors:
        ray.kill(actor)
    both = {"rounds": 5.0, "bytes_sent": 8.0, "rejected": 2.0, "processes_lost": 0.0, "trials": 3.0}
    assert values == {"kept": {**both, "unprotected": 0.0, "epsilon": 9.5}, "open": {**both, "unprotected": 1.0}}
    assert {f"raydiff_{name}" for name in values["kept"]} == gauges.GAUGES.keys()


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
