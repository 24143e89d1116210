"""Doors from an outside package: the one of docs/extending.md on the command line, in TOML and in Python, and folders
that name other people's code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import changes
from ray.tune.schedulers import TrialScheduler

import raydiff as rd
from raydiff.cli import sweep
from raydiff.experiment import overrides, presets, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import Search
from raydiff.formats.json_files import read_json
from raydiff.lookup import PACKAGES, allowed_packages
from raydiff.methods.moon import Moon
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.networks import Network
from raydiff.models.schedules import alphas_bar
from raydiff.results.finished import open_finished
from raydiff.runtime import launch
from raydiff.runtime.plan import Planned
from raydiff.runtime.schedulers import build_scheduler

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
MODULES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
CHOICES = {
    "method": "mylab.ditto:Ditto",
    "method.rounds": "2",
    "method.model.network": "mylab.unet:Plain",
    "method.model.network.width": "4",
    "method.model.schedule": "mylab.parts:Quadratic",
    "method.sampling.sampler": "mylab.parts:blurred",
    "method.sampling.steps": "3",
    "partition": "mylab.parts:Geometric",
    "data.name": "mylab.bars:source",
    "evaluation.features": "mylab.tools:pooled",
    "evaluation.attacks": "mylab.measures:jump",
}
WORDS = [word for path, value in CHOICES.items() for word in (f"--{path}", value)]
QUICK = ["--method.local.steps", "4", "--method.model.timesteps", "20", "--evaluation.clients", "1"]
ON_DISK = {
    "method": "mylab.ditto:Ditto",
    "network": "mylab.unet:Plain",
    "schedule": "mylab.parts:Quadratic",
    "partition": "mylab.parts:Geometric",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's package, where Python finds it."""
    for name, code in MODULES.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    yield tmp_path / "lib"
    PACKAGES.discard("mylab")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mylab", "hostile")]:
        del sys.modules[name]


def kinds(experiment: Experiment) -> dict[str, str]:
    """The written names of what is chosen as a class."""
    flat = overrides.flatten_settings(experiment)
    return {name: flat[path] for name in ON_DISK for path in (name, f"method.model.{name}") if path in flat}


def test_each_example_is_short_and_every_door_has_one() -> None:
    assert all(code.count("\n") <= 30 for code in MODULES.values())
    assert MODULES["mylab/unet.py"].count("\n") <= 25
    doors = ["method", "network", "schedule", "sampler", "partition", "command"]
    doors += ["searcher", "scheduler", "section"]
    for door in (*doors, "data set", "metric", "attack", "feature network"):
        assert f"**{door}**" in PAGE, door


def test_python_toml_and_command_line_choose_alike(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    classes = {"method", "method.model.network", "method.model.schedule", "partition"}
    lines = [f"{path}.kind" if path in classes else path for path in CHOICES]
    values = [f"{line} = {json.dumps(value)}" for line, value in zip(lines, CHOICES.values(), strict=True)]
    file.write_text("\n".join(['preset = "digits"', *values]))
    start = rd.preset("digits").experiment
    from_words = overrides.override(start, changes(start, WORDS))
    from_toml = presets.study(str(file)).experiment
    typed: dict[str, Any] = {**CHOICES, "evaluation.attacks": (CHOICES["evaluation.attacks"],)}
    typed |= {"method.rounds": 2, "method.model.network.width": 4, "method.sampling.steps": 3}
    from_python = overrides.override(start, typed)
    assert from_words.digest == from_toml.digest == from_python.digest
    assert kinds(from_words) == ON_DISK
    assert overrides.from_dict(json.loads(json.dumps(overrides.to_dict(from_words))), Experiment) == from_words


def test_a_trial_through_every_door_is_attacked_opened_sampled_and_reported(
    package: Path, tmp_path: Path, tiny: Experiment, command: Any
) -> None:
    experiment = overrides.override(tiny, changes(tiny, WORDS))
    experiment = overrides.override(experiment, {"method.local.steps": 4, "method.model.timesteps": 20})
    opened = trial.open_trial(experiment, tmp_path / "sweep")
    *_, final = trial.run_trial(opened, trial.local_executor(opened))
    names = {str(name) for name in final}
    assert {"eval/fd_pooled/all", "attack/client/jump/auc"} <= names
    written = read_json(opened.folder / "config.json")
    assert written["method"]["model"]["network"] == {"kind": "mylab.unet:Plain", "width": 4}
    with pytest.raises(ValueError, match=r"mylab\.\S+ is code of the package mylab, .* --trust mylab"):
        rd.open(opened.folder).metrics  # noqa: B018
    run = rd.open(opened.folder, trust=["mylab"])
    assert isinstance(run, rd.Run)
    images = run.sample([0, 3], client=1)
    assert isinstance(images, torch.Tensor) or images.shape == (2, 1, 8, 8)
    code, out, err = command("report", tmp_path / "sweep", "--section", "mylab.sections:mine")
    assert (code, err) == (0, "") and "<h2>mine</h2>" in Path(out.strip()).read_text()
    assert "Ditto</td>" in Path(out.strip()).read_text()
    with allowed_packages(["mylab"]):
        assert len(open_finished(opened.folder).client(0).data) > len(open_finished(opened.folder).client(1).data)


def test_what_a_network_does_not_answer_is_refused_before_round_0(package: Path) -> None:
    from mylab.unet import Plain  # type: ignore[import-not-found]  # the page's package

    model = rd.DDPM(network=Plain())
    with pytest.raises(ValueError, match="MOON compares models by their features, and the network Plain"):
        Moon(model=model)
    with pytest.raises(ValueError, match=r"private must name parameters: the network Plain\(width=8\) has no middle"):
        SharedRep(model=model).init_server(None, torch.Generator())
    with pytest.raises(ValueError, match=r"network does not take pictures of shape \(1, 7, 7\): RuntimeError"):
        model.for_data((1, 7, 7), (10,))


def test_what_has_another_form_is_refused_with_what_it_must_have(package: Path) -> None:
    class Flat(Network):
        def build(self, shape: Any, embed: Any) -> torch.nn.Module:
            return torch.nn.Identity()

    from mylab.parts import Quadratic  # type: ignore[import-not-found]

    with pytest.raises(ValueError, match="network does not take pictures"):
        Flat().check((1, 8, 8))
    with pytest.raises(ValueError, match="schedule must give 10 betas above 0, float64"):
        alphas_bar(Quadratic(last=-1.0), 10)


SEARCH = """
preset = "digits"
[method]
kind = "fedavg"
[search]
samples = 3
metric = "eval/fd_cnn/all"
[search.space]
method.local.learning_rate = "uniform:0.1,0.8"
[search.searcher]
kind = "mylab.search:Halving"
factor = 0.25
[search.scheduler]
kind = "mylab.search:Patient"
worst = 2.0
"""
WORDS_OF_SEARCH = """--method fedavg --sample method.local.learning_rate=uniform:0.1,0.8 --samples 3
--metric eval/fd_cnn/all
--search mylab.search:Halving --search.factor 0.25 --scheduler mylab.search:Patient --scheduler.worst 2"""


def test_python_toml_and_command_line_search_alike(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halving = ("mylab.search:Halving", {"factor": 0.25})
    patient = ("mylab.search:Patient", {"worst": 2.0})
    space = {"method.local.learning_rate": ("uniform", (0.1, 0.8))}
    python = Search(searcher=halving, space=space, samples=3, scheduler=patient, metric="eval/fd_cnn/all")
    file = tmp_path / "mine.toml"
    file.write_text(SEARCH)
    planned = list[Planned]()
    monkeypatch.setattr(launch, "start", lambda plan, **_: planned.append(plan) or 1 / 0)
    storage = ["--storage", str(tmp_path)]
    for words in ([str(file)], ["digits", *WORDS_OF_SEARCH.split()], [str(file), "--scheduler.worst", "3"]):
        with pytest.raises(ZeroDivisionError):
            sweep.main([*words, *storage])
    start = overrides.override(rd.preset("digits").experiment, {"method": "fedavg", "runtime.storage": str(tmp_path)})
    with pytest.raises(ZeroDivisionError):
        given = {"search": halving, "sample": space, "samples": 3, "scheduler": patient, "metric": python.metric}
        rd.sweep(rd.Study(experiment=start), **given)
    assert [plan.search for plan in planned if plan is not planned[2]] == [python] * 3
    assert planned[2].search == replace(python, scheduler=("mylab.search:Patient", {"worst": 3}))
    drawn = [[e.method.local.learning_rate for e in plan.trials[:3]] for plan in planned]  # type: ignore[attr-defined]
    assert drawn == [[0.8, 0.2, 0.05]] * 4


def test_a_scheduler_of_ones_own_stops(package: Path) -> None:
    chosen = ("mylab.search:Patient", {"worst": 2.0})
    scheduler = build_scheduler(chosen, objective="eval/vendi", lower_is_better=True, rounds=9)
    decisions = [scheduler.on_trial_result(Any, Any, {"eval/vendi": value}) for value in (1.0, 3.0)]  # type: ignore[arg-type]
    assert decisions == [TrialScheduler.CONTINUE, TrialScheduler.STOP]


def test_a_command_of_ones_own(package: Path, command: Any) -> None:
    assert command("mylab.tools:hello", "you") == (0, "hello you\n", "")
    code, _, err = command("mylab.tools:pooled")
    assert (code, err) == (2, "error: mylab.tools:pooled is no command: it must be a function of (argv)\n")


HOSTILE = {
    "os:system": "os:system is code of the package os",
    "hostile:Evil": "hostile:Evil is code of the package hostile",
    "raydiff.tree:digest": "raydiff.tree:digest is no method",
    "raydiff.models.ddpm:DDPM": "raydiff.models.ddpm:DDPM is no method",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_folder_of_somebody_else_runs_nothing(
    package: Path, tmp_path: Path, storage: Any, command: Any, kind: str
) -> None:
    """Whatever its config.json names: nothing is imported that the call does not name, and nothing else is called."""
    ran = tmp_path / "ran"
    (package / "hostile.py").write_text(f"open({str(ran)!r}, 'w')\n")
    folder = tmp_path / "sweeps" / "theirs" / "trials" / "0123456789abcdef"
    folder.mkdir(parents=True)
    path = folder / "config.json"
    tree = overrides.to_dict(Experiment())
    tree["method"]["kind"] = kind
    path.write_text(json.dumps(tree))
    with pytest.raises(ValueError, match=re.escape(HOSTILE[kind])):
        rd.open(folder).finished  # type: ignore[union-attr]  # noqa: B018
    for name in ("generate", "personalize", "attack"):
        code, _, err = command(name, folder, "--out", tmp_path / name)
        assert code == 2 and HOSTILE[kind] in err, name
    assert not ran.exists()
    if kind == "hostile:Evil":  # Trusted, it is imported, and still no method.
        with pytest.raises(ValueError, match="hostile has no Evil"):
            rd.open(folder, trust=["hostile"]).finished  # type: ignore[union-attr]  # noqa: B018
        assert ran.exists()


@pytest.mark.slow
def test_a_sweep_is_continued_and_opened_in_fresh_processes(package: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{package}", "HOME": str(tmp_path)}

    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    sweep = ["-m", "raydiff", "sweep", "digits", *WORDS, *QUICK, "--name", "mine", "--grid"]
    sweep += ["--runtime.pool", "local", "--storage", str(tmp_path / "s")]
    at = sweep.index("--grid") + 1
    run(*sweep[:at], "seed=0", *sweep[at:])
    assert "mine" in run(*sweep[:at], "seed=0,1", *sweep[at:], "--resume", "--extend")
    opened = f"rd.open('mine', storage={str(tmp_path / 's')!r}, trust=['mylab']).trials[0]"
    shape = f"import raydiff as rd; print({opened}.sample([0, 1], client=0).shape)"
    assert "(2, 1, 8, 8)" in run("-c", shape)
