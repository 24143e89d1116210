"""What a coordinator tells Prometheus, what a scrape of its node then gives, and the dashboard that draws it."""

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
from raydiff.runtime import device_faults as lost
from raydiff.runtime import gauges, tuner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[float, dict[str, str]]]]:
    """All that each gauge was set to."""
    values: dict[str, list[tuple[float, dict[str, str]]]] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.keys = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tuple(tags) == self.keys
            values.setdefault(self.name, []).append((value, tags))

    monkeypatch.setattr(gauges, "Gauge", Gauge)
    return values


def test_each_round_of_a_trial_is_told_and_nothing_else(tmp_path: Path, tiny: Experiment, told: dict[str, Any]) -> None:
    this = trial.open_trial(tiny, tmp_path / "mine")
    ended = list(trial.run(this, trial.local_executor(this)))
    lost.tell(this.folder, "worker 1: gone")
    step = tuner.Federation.__new__(tuner.Federation)
    step._trial, step._metric, step._measured, step._round = this, "m", {}, -1
    step._gauges, step._results = gauges.Gauges(), iter(ended)
    for _ in ended:
        step.step()
    assert set(told) == set(gauges.TOLD) and {len(values) for values in told.values()} == {
        this.experiment.method.rounds
    }
    tags = {"sweep": "mine", "trial": this.experiment.digest, "method": "PFDM"}
    last = {name: values[-1] for name, values in told.items()}
    assert last == {
        "raydiff_rounds": (this.experiment.method.rounds, tags),
        "raydiff_epsilon": (ended[-1]["privacy/epsilon_server"], tags),
        "raydiff_unprotected": (0.0, tags),
        "raydiff_bytes_sent": (ended[-1]["comm/bytes_up"], tags),
        "raydiff_rejected": (0.0, tags),
        "raydiff_processes_lost": (1.0, tags),
    }


def test_who_was_rejected_is_counted(tmp_path: Path, tiny: Experiment, told: dict[str, Any]) -> None:
    this = trial.open_trial(tiny, tmp_path)
    numbers = {"privacy/epsilon_server": math.inf, "comm/bytes_up": 8.0, "clients/rejected": 2.0}
    gauges.Gauges().tell(this, {"round": 4, "finished": False, **numbers})
    gauges.Gauges().tell(this, {"finished": True, "failed": "it"})
    assert {name: values[0][0] for name, values in told.items()} == {
        "raydiff_rounds": 5.0,
        "raydiff_unprotected": 1.0,
        "raydiff_bytes_sent": 8.0,
        "raydiff_rejected": 2.0,
        "raydiff_processes_lost": 0.0,
    }


@pytest.mark.ray
def test_a_scrape_of_the_node_gives_what_a_coordinator_tells(tiny: Experiment, workers: list[Any]) -> None:
    """Of a trial without a guarantee and of one that has one: an infinite value would cost both all of theirs."""
    import ray

    @ray.remote(num_cpus=0)
    class Coordinator:
        def tell(self, sweep: str, epsilon: float) -> None:
            self._gauges = gauges.Gauges()
            numbers = {"privacy/epsilon_server": epsilon, "comm/bytes_up": 8.0}
            self._gauges.tell(trial.Trial(tiny, Path(sweep)), {"round": 4, "finished": False, **numbers})

    coordinators = [Coordinator.remote(), Coordinator.remote()]
    ray.get([c.tell.remote(*told) for c, told in zip(coordinators, (("kept", 9.5), ("open", math.inf)), strict=True)])
    (node,) = ray.nodes()
    found, deadline = dict[str, set[str]](), time.monotonic() + 120  # Ray collects every ten seconds.
    while {len(names) for names in found.values()} != {6, 5} and time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if line.startswith("ray_raydiff_")]
        found = {s: {line.partition("{")[0] for line in lines if f'sweep="{s}"' in line} for s in ("kept", "open")}
        time.sleep(0.2)
    for coordinator in coordinators:
        ray.kill(coordinator)
    assert found["kept"] == {f"ray_{name}" for name in gauges.TOLD}
    assert found["open"] == found["kept"] - {"ray_raydiff_epsilon"}
    (epsilon,) = (line for line in lines if line.startswith("ray_raydiff_epsilon{"))
    assert 'sweep="kept"' in epsilon and 'method="PFDM"' in epsilon and epsilon.endswith(" 9.5")


def test_the_dashboard_draws_all_of_them_and_no_others() -> None:
    panels = json.loads((ROOT / "cluster" / "grafana.json").read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel["targets"]]
    assert sorted(re.findall(r"ray_(\w+)\{", " ".join(drawn))) == sorted(gauges.TOLD)
    assert all(set(re.findall(r"by \(([^)]*)\)", e)[0].split(", ")) <= set(gauges.TAGS) for e in drawn)
