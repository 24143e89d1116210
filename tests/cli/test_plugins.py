"""What is in no table is imported, `module:name`: the package that docs/extending.md shows, and what is refused."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from raydiff import lookup, process
from raydiff.evaluation import sample_metrics as metrics
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment import overrides, trial
from raydiff.formats.metric_records import columns, read_metrics, select_shown
from raydiff.methods import check_names
from raydiff.methods.fedavg import FedAvg
from raydiff.report.frontier import text
from raydiff.report.sweep_view import open_sweep
from raydiff.runtime import one_process

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"```python\n# (\S+)\n(.*?)```", re.DOTALL)
MODULES = dict(BLOCK.findall(PAGE))
WRONG = """
from dataclasses import dataclass
from raydiff.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Pfdm(FedAvg): pass

@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg): pass

@dataclass
class Thawed: rounds: int = 1

@dataclass(frozen=True)
class Bare: rounds: int = 1

@dataclass(frozen=True)
class Needy: rounds: int

def source(folder, labels): return "no source"

def nameless(drawn): return {}

def recall(drawn): return {}
recall.lower_is_better = True

def unbounded(drawn): return 1.0
unbounded.lower_is_better = True
unbounded.bounds = 1.0

def best(z, x0, *, abar, timesteps, noise): return []
"""
ODD = """
import asyncio, os
from dataclasses import dataclass
from raydiff.data.source import Source
from raydiff.methods.fedavg import FedAvg

class Picky(Exception):
    def __init__(self, a, b): super().__init__(a + b)

class Mute(Exception):
    def __str__(self): raise self

ERRORS = {
    "exit 0": SystemExit(0), "interrupt": KeyboardInterrupt(), "base": BaseException("odd"), "stop": StopIteration(),
    "cancel": asyncio.CancelledError(), "picky": Picky("a", "b"), "mute": Mute(), "huge": ValueError("x" * 30_000_000),
    "lines": ValueError("one\\n\\n two"), "unprintable": ValueError("\\udcff \\x1b[31m \\x00"),
}
NOW = {}

FAULTS = [("", ""), ("local_update", "exit 0"), ("local_update", "interrupt"), ("aggregate", "exit 0")]
FAULTS += [("local_update", "die")]

def act(where, fault=0):
    at, how = FAULTS[fault]
    how = how if at == where else NOW.get(where)
    if how == "die": os._exit(0)
    if how: raise ERRORS[how]

@dataclass(frozen=True, kw_only=True)
class Odd(FedAvg):
    fault: int = 0

    def local_update(self, *a): act("local_update", self.fault); return super().local_update(*a)
    def aggregate(self, *a): act("aggregate", self.fault); return super().aggregate(*a)
    def init_server(self, *a): act("init_server"); return super().init_server(*a)
    def mean_spec(self, *a): act("mean_spec"); return super().mean_spec(*a)
    def personalize(self, *a): act("personalize"); return super().personalize(*a)

def measure(drawn): act("measure"); return NOW.get("numbers", {})
measure.lower_is_better = True
"""
NAMED = """
def percent_real(drawn): return 40.0
percent_real.lower_is_better = False

def my_low(drawn): return {"real": 1.0, "x_floor": 2.0}
my_low.lower_is_better = True
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's package, and one with mistakes, where Python finds them."""
    for name, code in {**MODULES, "wrong.py": WRONG, "odd.py": ODD, "named.py": NAMED}.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    yield tmp_path / "lib"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mylab", "wrong", "odd", "named")]:
        del sys.modules[name]


def command_of_page() -> list[str]:
    """The page's command, without its program's name."""
    (line,) = re.findall(r"^    raydiff (sweep digits .*(?:\n {8}.*)*)", PAGE, re.MULTILINE)
    return line.replace("\\\n", " ").split()


@pytest.mark.slow
def test_the_command_of_the_page_runs_as_printed_and_shows_its_metric(package: Path, tmp_path: Path) -> None:
    """As a reader's: in a home without a sweep, with the package on PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{package}", "HOME": str(tmp_path)}
    env.pop("MLFLOW_TRACKING_URI", None)
    arguments = [sys.executable, "-m", "raydiff", *command_of_page()]
    done = subprocess.run(arguments, env=env, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:]
    (sweep,) = (tmp_path / "raydiff" / "sweeps").glob("digits-*")
    rows = open_sweep(sweep).frontier
    assert set(rows["method"]) == {"mylab.ditto:Ditto"} and rows["vendi"].between(1, 100).all()
    assert sorted(open_sweep(sweep).runs["method.pull"].astype(float)) == [2.5, 10.0]  # as the page's searcher proposes
    assert "vendi" in done.stdout.decode() and "vendi" in (sweep / "report" / "report.html").read_text()
    client = MlflowClient(f"sqlite:///{tmp_path}/raydiff/mlflow.db")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert sum(any("vendi" in name for name in run.data.metrics) for run in runs) == 2
    attacked = [json.loads(path.read_text())["final"] for path in sweep.glob("trials/*/outcome.json")]
    assert all(any("jump" in str(metric) for metric in final) for final in attacked) and len(attacked) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--method os:path", "os:path is no method"),
        ("--method wrong:Thawed", "wrong:Thawed is no method: it must be a frozen dataclass"),
        ("--method wrong:Bare", "wrong:Bare is no method: it has no .*aggregate"),
        ("--method wrong:Needy", "wrong:Needy is no method: its field rounds"),
        ("--method wrong:Pfdm", "wrong:Pfdm has the name of a method"),
        ("--method gone.away:Ditto", "gone.away:Ditto cannot be imported: ModuleNotFoundError"),
        ("--method mylab.ditto:Dito", "mylab.ditto has no Dito; did you mean Ditto"),
        ("--data.name wrong:source", "wrong:source must return a raydiff.data.source.Source, got str"),
        ("--evaluation.metrics wrong:nameless", "nameless must .* lower_is_better"),
        ("--evaluation.metrics wrong:recall", "metric recall"),
        ("--evaluation.metrics wrong:unbounded", "metric unbounded must have bounds"),
        ("--evaluation.metrics mylab.measures:vendi mylab.measures:vendi", "metrics .* called vendi like another"),
        ("--evaluation.attacks wrong:best", "attacks .* best"),
        ("--evaluation.attacks os:system", "os:system is no attack: it must be a function of"),
        ("--grid method=mylab.ditto:Ditto,wrong:Ditto", "mylab.ditto:Ditto and wrong:Ditto are methods of one name"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    package: Path, tmp_path: Path, command: Any, arguments: str, message: str
) -> None:
    code, _, err = command("sweep", "digits", *arguments.split(), "--dry-run", "--runtime.storage", tmp_path / "s")
    assert (code, err.count("\n")) == (2, 1) and re.match(f"error: .*{message}", err)
    assert not (tmp_path / "s").exists()


def test_metrics_whose_names_look_like_roles_are_shown_as_they_are(package: Path, tmp_path: Path, tiny: Any) -> None:
    """In MLflow, the frontier and its text; no file has a number that other JSON parsers refuse."""
    names = ("all", "named:percent_real", "named:my_low")
    evaluation = replace(tiny.evaluation, attacks=None, metrics=names, clients=1, samplers=False)
    opened = trial.open_trial(replace(tiny, evaluation=evaluation), tmp_path / "s")
    list(trial.run_trial(opened, trial.local_executor(opened)))
    expected = {"percent_real": 40.0, "my_low/real": 1.0, "my_low/x_floor": 2.0}
    outcome = opened.outcome()
    assert outcome is not None
    assert expected.items() <= select_shown(read_metrics(outcome["final"])).items()
    view = open_sweep(tmp_path / "s")
    table = view.frontier
    assert {name: table[name][0] for name in expected} == expected
    assert all(name in text.text(view) for name in expected)
    for path in (*opened.folder.glob("**/*.json"), *opened.folder.glob("*.jsonl")):
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(line, parse_constant=lambda word: pytest.fail(f"a file has {word}"))


def odd_trials(tmp_path: Path, tiny: Any, now: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The outcomes of two trials in this process, of which the first has an odd plug-in."""
    odd, outcomes = lookup.imported("odd:NOW"), []
    method = lookup.imported("odd:Odd")(local=replace(tiny.method.local, steps=1), model=tiny.method.model, rounds=1)
    evaluation = replace(tiny.evaluation, attacks=None, metrics=("odd:measure",), clients=1)
    for seed in (0, 1):
        odd.clear()
        odd |= {} if seed else now
        opened = trial.open_trial(replace(tiny, method=method, seed=seed, evaluation=evaluation), tmp_path)
        one_process._run_trial(opened, lambda this: (trial.local_executor(this), None))
        outcomes.append(opened.outcome())
    return tuple(outcomes)


EVERYWHERE = {
    "local_update": "client 0, in round 0: odd.Odd.local_update",
    "aggregate": "the server, in round 0: odd.Odd.aggregate",
    "init_server": "the server, before round 0: odd.Odd.init_server",
    "mean_spec": "the server, in round 0: odd.Odd.mean_spec",
    "personalize": "client 0, in round 0: odd.Odd.personalize",
    "measure": "client 0, in round 0: odd.measure",
}
ERRORS = {
    "exit 0": "SystemExit: 0",
    "interrupt": "KeyboardInterrupt",
    "base": "BaseException: odd",
    "stop": "StopIteration",
    "cancel": "asyncio.exceptions.CancelledError",
    "picky": "odd.Picky: ab",
    "mute": "odd.Mute: <exception str() failed>",
    "huge": f"ValueError: {'x' * (lookup.LONGEST - 12)}",
    "lines": "ValueError: one two",
    "unprintable": "ValueError: [31m",
}


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *(("local_update", how) for how in ERRORS),
        *((where, "exit 0") for where in EVERYWHERE if where != "local_update"),
    ],
)
def test_whatever_outside_code_raises_its_trial_fails_by_its_name_and_the_next_one_runs(
    package: Path, tmp_path: Path, tiny: Any, interruptible: None, where: str, how: str
) -> None:
    failed, other = odd_trials(tmp_path, tiny, {where: how})
    assert failed["outcome"] == "failed" and other["outcome"] == "finished"
    assert failed["reason"] == f"{EVERYWHERE[where]} raised {ERRORS[how]}"


@pytest.mark.ray
@pytest.mark.slow
def test_on_ray_too_each_trial_fails_by_its_name(package: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{package}"}
    says = {
        1: "client 0, in round 0: odd.Odd.local_update raised SystemExit: 0",
        2: "client 0, in round 0: odd.Odd.local_update raised KeyboardInterrupt",
        3: "the server, in round 0: odd.Odd.aggregate raised SystemExit: 0",
        4: "worker 0 died 4 times before client 0 had its result; .* at client 0, in Odd",
    }
    arguments = ["sweep", "digits", "--method", "odd:Odd", "--name", "odd", "--runtime.storage", str(tmp_path)]
    arguments += ["--method.local.steps", "1", "--protocol-only", "--no-baselines"]
    arguments += ["--grid", f"method.fault={','.join(map(str, says))}"]
    done = subprocess.run([sys.executable, "-m", "raydiff", *arguments], env=env, cwd=tmp_path, capture_output=True)
    assert done.returncode == 1, done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:]
    reasons = {}
    for folder in (tmp_path / "sweeps" / "odd" / "trials").iterdir():
        fault = json.loads((folder / "config.json").read_text())["method"]["fault"]
        reasons[fault] = json.loads((folder / "outcome.json").read_text())["reason"]
    assert reasons.keys() == says.keys()
    assert [fault for fault, reason in reasons.items() if not re.match(says[fault], reason)] == [], reasons


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is handled as in a command: pytest's own handler does not tell it from a plug-in's KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, process.interrupt)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handled", [True, False])
def test_an_interrupt_in_outside_code_remains_one(package: Path, tmp_path: Path, tiny: Any, handled: bool) -> None:
    before = signal.signal(signal.SIGINT, process.interrupt if handled else signal.default_int_handler)
    lookup.imported("odd:ERRORS")["base"] = KeyboardInterrupt(*[signal.SIGINT] * handled)
    try:
        with pytest.raises(KeyboardInterrupt):
            odd_trials(tmp_path, tiny, {"local_update": "base"})
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_metric_that_is_no_finite_number_fails_its_trial(package: Path, tmp_path: Path, tiny: Any) -> None:
    failed, other = odd_trials(tmp_path, tiny, {"numbers": {"x": math.nan}})
    assert (failed["outcome"], other["outcome"]) == ("failed", "finished")
    assert (
        failed["reason"]
        == "the metric measure must return a finite number, or several by name, or {}: measure/x is nan"
    )


WORDS = [math.nan, math.inf, -math.inf, None, "1.5", b"1", 1j, [1.0], np.ones(1), np.float32("nan"), torch.ones(2), {}]
NUMBERS = [1, True, 0.5, np.float32(0.5), np.int8(3), np.array(0.5), torch.tensor(0.5)]


def test_numbers_of_a_metric_are_finite_and_of_any_type() -> None:
    def vendi(drawn: Any) -> None: ...

    vendi.lower_is_better = False
    vendi.bounds = (0, 3)
    for value in WORDS:
        for numbers in ({"x": value}, value):
            if numbers != {}:
                with pytest.raises(ValueError, match=r"^the metric vendi must return a finite number, or several"):
                    metrics._records("vendi", vendi, numbers)
    with pytest.raises(ValueError, match="the metric vendi must be within 0 and 3: vendi/x is 4"):
        metrics._records("vendi", vendi, {"x": 4})
    records = metrics._records("vendi", vendi, dict(enumerate(NUMBERS)))
    assert columns(records) == {f"vendi/{i}": float(v) for i, v in enumerate(NUMBERS)}
    assert {(m.lower_is_better, m.bounds) for m in records} == {(False, (0.0, 3.0))}


@pytest.mark.parametrize("how", ["exit 0", "base", "picky"])
def test_a_command_whose_outside_code_exits_has_not_done_what_was_asked(package: Path, command: Any, how: str) -> None:
    (package / "odd.py").write_text(f"{ODD}\nraise ERRORS[{how!r}]")
    code, _, err = command("sweep", "digits", "--method", "odd:Odd", "--dry-run")
    assert (code, err) == (2, f"error: odd:Odd cannot be imported: {ERRORS[how]}\n")


def test_a_class_that_no_worker_could_import_has_no_name_on_disk() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Here(FedAvg):
        pass

    with pytest.raises(ValueError, match="Here must be in a module"):
        overrides.to_dict(Here())
    check_names([Here, FedAvg, Here])


def test_which_way_is_up(package: Path) -> None:
    evaluation = Evaluation(metrics=("all", "mylab.measures:vendi"))
    expected = {"vendi": False, "vendi/all": False, "fd_cnn/all": True, "label_accuracy/all": False}
    found = {name: metrics.metric_to_rank_by(f"eval/{name}", evaluation) for name in expected}
    assert {name: metric.lower_is_better for name, metric in found.items()} == expected
    assert {name: str(metric) for name, metric in found.items()} == {name: f"eval/{name}" for name in expected}
    for name in ("vendis", "fd_cnn/al", "coverage"):
        with pytest.raises(ValueError, match="unknown metric"):
            metrics.metric_to_rank_by(f"eval/{name}", evaluation)
