"""What a coordinator exports to Prometheus, what a scrape of its node returns, and the dashboard that draws it."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.runtime import coordinator

DASHBOARD = Path(__file__).resolve().parents[2] / "cluster" / "grafana.json"


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
            coordinator.export(this, {"round": 4, "finished": False, **numbers})
            coordinator.export(this, {"round": 5, "finished": True, **numbers})

    epsilons = {"kept": 9.5, "open": math.inf}
    actors = [Coordinator.remote() for _ in epsilons]
    ray.get([actor.tell.remote(*args) for actor, args in zip(actors, epsilons.items(), strict=True)])
    (node,) = ray.nodes()
    values, deadline = dict[str, dict[str, float]](), time.monotonic() + 120  # Ray collects now and then.
    while [len(v) for v in values.values()] != [6, 5] and time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics") as page:
            lines = re.findall(r"^ray_raydiff_(\w+)\{(.*)\} (\S+)$", page.read().decode(), flags=re.M)
        values = {s: {name: float(v) for name, tags, v in lines if f'sweep="{s}"' in tags} for s in epsilons}
        time.sleep(0.2)
    for actor in actors:
        ray.kill(actor)
    both = {"rounds": 5.0, "bytes_sent": 8.0, "rejected": 2.0, "processes_lost": 0.0}
    assert values == {"kept": {**both, "unprotected": 0.0, "epsilon": 9.5}, "open": {**both, "unprotected": 1.0}}
    assert {f"raydiff_{name}" for name in values["kept"]} == coordinator.GAUGES.keys()


def test_the_dashboard_draws_each_gauge() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel["targets"]]
    assert sorted(re.findall(r"ray_(\w+)\{", " ".join(drawn))) == sorted(coordinator.GAUGES)
    assert all(set(re.findall(r"by \(([^)]*)\)", e)[0].split(", ")) <= set(coordinator.TAGS) for e in drawn)
