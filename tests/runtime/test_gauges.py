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
from raydiff.runtime import coordinator, device_faults

DASHBOARD = Path(__file__).resolve().parents[2] / "cluster" / "grafana.json"


def result(epsilon: float) -> dict[str, Any]:
    """A round's result."""
    numbers = {"privacy/epsilon_server": epsilon, "comm/bytes_up": 8.0, "clients/rejected": 2.0}
    return {"round": 4, "finished": False, **numbers}


@pytest.mark.parametrize("epsilon", [9.5, math.inf])
def test_each_round_is_exported(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    exported: dict[str, Any] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tuple(tags) == coordinator.TAGS
            exported[self.name] = value

    monkeypatch.setattr(coordinator, "Gauge", Gauge)
    this = trial.open_trial(tiny, tmp_path)
    device_faults.record(this.folder, "worker 1: gone")
    coordinator.Gauges().tell(this, {"finished": True, "failed": "why"})
    assert exported == {}
    coordinator.Gauges().tell(this, result(epsilon))
    assert exported == {
        "raydiff_rounds": 5.0,
        "raydiff_unprotected": float(epsilon == math.inf),
        "raydiff_bytes_sent": 8.0,
        "raydiff_rejected": 2.0,
        "raydiff_processes_lost": 1.0,
    } | ({"raydiff_epsilon": epsilon} if epsilon < math.inf else {})


@pytest.mark.ray
def test_a_scrape_of_the_node_has_the_gauges_of_every_trial(tiny: Experiment, workers: list[Any]) -> None:
    """An infinite epsilon would hide all gauges of its process."""
    import ray

    @ray.remote(num_cpus=0)
    class Coordinator:
        def tell(self, sweep: str, numbers: dict[str, Any]) -> None:
            self._gauges = coordinator.Gauges()
            self._gauges.tell(trial.Trial(tiny, Path(sweep)), numbers)

    trials = {"kept": result(9.5), "open": result(math.inf)}
    coordinators = [Coordinator.remote() for _ in trials]
    ray.get([c.tell.remote(*args) for c, args in zip(coordinators, trials.items(), strict=True)])
    (node,) = ray.nodes()
    names, deadline = dict[str, set[str]](), time.monotonic() + 120  # Ray collects every ten seconds.
    while {len(found) for found in names.values()} != {6, 5} and time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if line.startswith("ray_raydiff_")]
        names = {s: {line.partition("{")[0] for line in lines if f'sweep="{s}"' in line} for s in trials}
        time.sleep(0.2)
    for actor in coordinators:
        ray.kill(actor)
    assert names["kept"] == {f"ray_{name}" for name in coordinator.GAUGES}
    assert names["open"] == names["kept"] - {"ray_raydiff_epsilon"}


def test_the_dashboard_draws_each_gauge() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel["targets"]]
    assert sorted(re.findall(r"ray_(\w+)\{", " ".join(drawn))) == sorted(coordinator.GAUGES)
    assert all(set(re.findall(r"by \(([^)]*)\)", e)[0].split(", ")) <= set(coordinator.TAGS) for e in drawn)
