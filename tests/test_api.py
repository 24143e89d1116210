"""`import raydiff as rd`: what one does from Python."""

import itertools
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raydiff as rd
from raydiff.__main__ import COMMANDS, leave
from raydiff.cli import sweep as cli_sweep
from raydiff.report import after_sweep
from raydiff.runtime import launch, sweep_folder
from raydiff.runtime.finish import Ended

Command = Callable[..., tuple[int, str, str]]


def local(experiment: rd.Experiment, storage: Path) -> rd.Experiment:
    runtime = replace(experiment.runtime, pool="local", storage=str(storage))
    return replace(experiment, runtime=runtime, evaluation=None)


@pytest.fixture(scope="module")
def run(tiny: rd.Experiment, tmp_path_factory: pytest.TempPathFactory) -> rd.Run:
    return rd.run(local(tiny, tmp_path_factory.mktemp("api")), name="one", track=False)


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, raydiff; print(sorted({'torch', 'numpy', 'ray', 'mlflow', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TRAINED = """
import pickle, sys
from pathlib import Path
import raydiff.runtime.actors
print(sorted({"scipy", "pandas", "ray.tune", "mlflow"} & set(sys.modules)))
from raydiff.experiment import trial
for number, experiment in enumerate(pickle.loads(Path(sys.argv[1]).read_bytes())):
    this = trial.open_trial(experiment, Path(sys.argv[2]) / str(number))
    list(trial.run_trial(this, trial.local_executor(this)))
    print(sorted({"torch._dynamo", "torchvision", "sklearn.datasets", "pandas", "matplotlib"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_workers_import_only_what_their_work_needs(tiny: rd.Experiment, tmp_path: Path) -> None:
    """Imports take seconds of each process that hosts clients: at its start, after training, and after measuring."""
    (tmp_path / "experiments").write_bytes(pickle.dumps([replace(tiny, evaluation=None), tiny]))
    command = [sys.executable, "-c", TRAINED, str(tmp_path / "experiments"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]", "['matplotlib']"]


def test_every_public_name_is_documented() -> None:
    assert len(rd.__all__) > 40 and all(getattr(rd, name).__doc__ for name in rd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rd.nonsense  # noqa: B018


def test_a_run_has_its_guarantee_its_numbers_and_its_samples(run: rd.Run) -> None:
    assert run.guarantee.epsilon == run.metrics["epsilon"] == pytest.approx(run.all_metrics["privacy/epsilon_server"])
    assert list(run.metrics) == ["epsilon", "bytes_sent", "seconds", "auc_ceiling"]  # Nothing was evaluated.
    assert re.search(r"^epsilon +[\d.]+\nbytes_sent +\d+", repr(run.metrics)) and "<table" in run.metrics._repr_html_()
    with pytest.raises(TypeError):
        run.metrics["epsilon"] = 0.0
    assert "per example, replace-one, local trust" in str(run.guarantee)
    epsilon = run.ledger["epsilon_exact"].max()
    assert len(run.ledger) == 2 and epsilon == pytest.approx(run.guarantee.epsilon)
    assert list(run.rounds["step"]) == list(range(run.experiment.method.rounds))
    personal, shared = run.sample([3, 8, 3], client=1), run.sample(["3", "8", "3"])
    assert personal.shape == shared.shape == (3, 1, 8, 8) and personal.dtype == np.float32
    assert not np.array_equal(personal, shared)
    np.testing.assert_array_equal(personal, run.sample(np.array([[3], [8], [3]]), client=1))
    assert not np.array_equal(personal, run.sample([3, 8, 3], client=1, seed=1))


@pytest.mark.parametrize(
    ("labels", "client", "message"),
    [([10], 0, "0..9"), (["ten"], 0, "no class 'ten'"), ([[1, 2]], 0, "labels must be"), ([3], 7, "no client 7")],
)
def test_what_cannot_be_sampled_is_said(run: rd.Run, labels: list, client: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run.sample(labels, client=client)


def test_a_run_is_opened_by_its_names(run: rd.Run) -> None:
    storage = run.folder.parents[3]
    for name in (run.folder, run.folder.name, f"one/{run.folder.name}"):
        assert rd.open(name, storage=storage) == run
    assert rd.open("one", storage=storage) == run  # as in every command: a sweep of one trial is that trial
    with pytest.raises(ValueError, match="no run or sweep two"):
        rd.open("two", storage=storage)


def test_a_run_of_this_name_is_resumed_only_where_asked(run: rd.Run, tiny: Any) -> None:
    with pytest.raises(ValueError, match=r"^one exists already: resume it, or choose another name$"):
        rd.run(local(tiny, run.folder.parents[3]), name="one", track=False)
    assert sweep_folder.resume_command(run.folder.parents[1]) == 'rd.run(..., name="one", resume=True)'


def test_a_notebook_shows_guarantee_and_numbers_of_a_run(run: rd.Run) -> None:
    page = run._repr_html_()
    assert str(run.guarantee) in page and "bytes_sent" in page and "<img" not in page


def test_samplers_are_saved(run: rd.Run, tmp_path: Path) -> None:
    for client, name in ((1, "own"), (None, "shared")):
        assert (run.save(tmp_path / name, client=client) / "sampler.json").exists()


def test_a_run_that_fails_says_why(tiny: rd.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("this trial is poisoned")

    monkeypatch.setattr(rd.PFDM, "local_update", fails)
    with pytest.raises(ValueError, match=r"it was failed \(this trial is poisoned\)"):
        rd.run(local(tiny, tmp_path), track=False)


def test_an_interrupted_call_ends_its_caller_where_the_signal_is_ignored_too(
    tiny: rd.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rd.PFDM, "local_update", interrupted)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    try:
        with pytest.raises(KeyboardInterrupt):
            rd.run(local(tiny, tmp_path), track=False)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_that_cannot_begin_says_why(tiny: rd.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trial has no folder: Ray has started none of its processes, say."""
    monkeypatch.setattr(launch, "start", lambda plan, **_: Ended(plan.folder, 0, "its processes were lost"))
    with pytest.raises(ValueError, match=r"^one did not begin: its processes were lost$"):
        rd.run(local(tiny, tmp_path), name="one", track=False)


def test_a_sweep_without_ray(tiny: rd.Experiment, tmp_path: Path) -> None:
    """An arm takes the model and the training of the base; an integer is the number that the command line reads."""
    arms = [rd.LocalOnly(), rd.Arm(method=rd.FedAvg(rounds=2), changes={"seed": 1})]
    sweep = rd.sweep(local(tiny, tmp_path), grid={"method.epsilon": [10, None]}, beside=arms, track=False, name="s")
    methods = [run.experiment.method for run in sweep.trials]
    assert sorted(type(m).__name__ for m in methods) == ["FedAvg", "LocalOnly", "PFDM", "PFDM"]
    assert {m.model.network for m in methods} == {tiny.method.model.network}
    assert {m.local for m in methods} == {tiny.method.local}
    assert {m.epsilon for m in methods if isinstance(m, rd.PFDM)} == {10.0, None}
    assert set(sweep.frontier(all=True)["method"]) == {"FedAvg", "LocalOnly", "PFDM"} and len(sweep.runs) == 4
    table = sweep.frontier()
    assert [*table] == ["setting", "target epsilon", "epsilon", "AUC global"]  # Nothing was evaluated.
    assert set(table["setting"]) == {"FedAvg", "LocalOnly", "PFDM"}
    assert set(table["target epsilon"].dropna()) == {10.0, "none"} and "LocalOnly" in sweep._repr_html_()
    with pytest.raises(ValueError, match="a measure of quality"):
        sweep.best()
    assert (sweep.folder / "report" / "report.html").read_text().startswith("<!")


def test_a_sweep_without_ray_stops_at_a_failure_and_runs_it_again(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(migrated, tmp_path / "mlflow.db")

    def fails(*_: object) -> None:
        raise RuntimeError("poisoned")

    words = "digits --runtime.pool local --protocol-only --no-baselines --grid seed=0,1 --name s --data.train 60"
    arguments = f"{words} --method.local.steps 2 --method.server.steps 2 --runtime.storage {tmp_path}".split()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(after_sweep, "FULL", after_sweep.SUMMARY)
    with monkeypatch.context() as patch:
        patch.setattr(rd.PFDM, "local_update", fails)
        assert cli_sweep.main([*arguments, "--on-error", "stop"]) == 1
    assert [r["outcome"] for r in rd.Sweep(tmp_path / "sweeps" / "s").runs.to_dict("records")] == ["failed"]
    assert cli_sweep.main([*arguments, "--resume"]) == 0
    assert [r["outcome"] for r in rd.Sweep(tmp_path / "sweeps" / "s").runs.to_dict("records")] == ["finished"] * 2


def test_a_search_without_ray_goes_on_when_resumed_and_keeps_its_searcher(
    tiny: rd.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(after_sweep, "FULL", after_sweep.SUMMARY)
    base = replace(local(tiny, tmp_path), evaluation=replace(tiny.evaluation, attacks=None, clients=1))

    def sweep(samples: int, search: object = ("optuna", {"n_startup_trials": 1})) -> int:
        space = {"method.clip": ("uniform", (3.0, 8.0))}
        more: Any = {"search": search, "sample": space, "samples": samples}
        return len(rd.sweep(base, track=False, name="s", resume=samples > 1, **more).runs)

    assert (sweep(1), sweep(2)) == (1, 2)
    assert "its best by validation/fd_cnn/all: " in capsys.readouterr().out
    with pytest.raises(ValueError, match="s has another search, and a sweep keeps how its trials are chosen"):
        sweep(3, "optuna")


def test_schedulers_and_time_budgets_without_ray_are_refused(tiny: rd.Experiment, tmp_path: Path) -> None:
    base = replace(local(tiny, tmp_path), evaluation=tiny.evaluation)
    for more in ({"scheduler": "asha"}, {"budget_s": 5.0}):
        with pytest.raises(ValueError, match="a scheduler and a time budget need Ray Tune"):
            rd.sweep(base, track=False, name="s", **more)  # type: ignore[arg-type]
    assert not (tmp_path / "sweeps" / "s" / "sweep.json").exists()


# --- the command ---


def test_alone_it_lists_its_commands(command: Command) -> None:
    code, out, _ = command()
    assert code == 0 and all(f"  {name} " in out for group in COMMANDS.values() for name in group)


def test_an_unknown_command_is_one_sentence(command: Command) -> None:
    code, out, err = command("sweeep")
    assert (code, out) == (2, "") and "did you mean sweep?" in err and err.count("\n") == 1


@pytest.mark.slow
def test_help_ends_quietly_without_a_reader_and_needs_neither_tables_nor_ray() -> None:
    """As in `raydiff sweep --help | head -1`: of a command that runs trials lost output is no error."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-X", "importtime", "-m", "raydiff", "sweep", "--help"]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and all(line.startswith("import time:") for line in lines)
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "torch" in imported and not {"pandas", "pyarrow", "matplotlib", "ray", "mlflow"} & imported


def test_another_broken_pipe_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def lost(arguments: object) -> int:
        raise BrokenPipeError("a worker's pipe is broken")

    with pytest.raises(SystemExit) as end:
        leave(lost, [])
    assert end.value.code == 2 and capsys.readouterr().err == "error: a worker's pipe is broken\n"


def test_help_shows_what_each_field_means(command: Command) -> None:
    code, out, _ = command("sweep", "digits", "--help-all")
    assert code == 0 and out.index("--method.epsilon 10") < out.index("--method.delta 1e-05")
    assert "--method.clip 6.8    above 0\n      C: L2 norm to which each flattened image is clipped." in out
    assert "--method.accountant exact    one of exact, " in out
    code, short, _ = command("sweep", "digits", "--help")
    assert code == 0 and len(short.splitlines()) < 100 and "--clients 2    at least 1" in short
    pairs = itertools.pairwise(out.splitlines())
    assert [a for a, below in pairs if a.startswith("  --method.") and not below.startswith("      ")] == []


def test_a_folder_named_raydiff_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """At home, with the sweeps in ~/raydiff: workers search the directory in which a command was started first."""
    (tmp_path / "raydiff").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "import raydiff; print(raydiff.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{rd.__version__}\n", done.stderr
