"""Bad input: one clear sentence, a non-zero exit, nothing half-written."""

import contextlib
import dataclasses
import errno
import os
import re
import shutil
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

import raydiff as rd
from raydiff.__main__ import leave
from raydiff.cli import arguments, run, sweep
from raydiff.cli.options import parse_options
from raydiff.experiment import overrides as settings, presets as names, trial
from raydiff.formats.json_files import read_json
from raydiff.formats.metric_records import Metric
from raydiff.report.after_sweep import FULL
from raydiff.runtime import launch, one_process, sweep_folder
from raydiff.runtime.plan import Planned
from raydiff.storage.atomic_files import write_text
from raydiff.storage.checkpoint import Checkpoint
from raydiff.storage.lease import hold_lease

SECRET = b"the noise secret"

REFUSED_BY_RUN = {
    "--epsilon 0": "epsilon must be .*, got 0",
    "--epsilon 0.0001": "epsilon 0.0001 .*the smallest reachable .* is 0.2",
    "--method.clip -1": "clip must be above 0, got -1",
    "--method.t0 101": r"t0 must be in 1\.\.100 .*, got 101",
    "digit": "unknown preset 'digit'.*did you mean digits",
    "--data.name digitz": "digitz.*did you mean '?digits",
    "--clients 2000 --partition iid": "client .*no record",
    "--model unet --method.model.network.widths 8 16 32 64 128": "divisible by 16, got 8x8",
    "--data.calibration 0": "split calibration",
    "--evaluation.dim 40": "evaluation.dim must be at most n/5",
    "--runtime.noise-secret abab": "must not be where others can read it: set RAYDIFF_NOISE_SECRET",
    "--resume": "give its --name",
    "--method feddistr": r"model\.path names no latent diffusion model.*raydiff pretrain makes one",
    "--data.superclasses pears": "one of parity, pairs, .*, got 'pears'",
    "--partition entangled --clients 3": "an Entangled partition .* needs 2, 5, 10 clients, got 3",
    "digits oops": "unexpected argument 'oops'",
}
REFUSED_BY_SWEEP = {
    "--metric eval/fd_cnn/al": "unknown metric 'eval/fd_cnn/al'; did you mean eval/fd_cnn/all",
    "--grid method.epsilon": "an axis looks like",
    "--grid clients=2,x": "--clients must be an integer, got 'x'",
    "--search random --sample method.clip=normal:1,2": "a sampled field looks like",
    "--search random --sample method.clip=uniform:5,2": "the range of method.clip must be two numbers that go upwards",
    "--search random --sample method.local.weight_decay=loguniform:0,2": "loguniform from a positive number",
    "--search random --sample clients=uniform:2,5": "clients takes no values of uniform",
    "--search random --sample method.epsilon=uniform:none,5": "the range of method.epsilon must be two numbers",
    "--time-budget -5": "--time-budget must be above 0, got -5",
    "--max-concurrent 0": "--max-concurrent must be at least 1, got 0",
    "--scheduler asha --protocol-only": "needs an evaluation",
    "--scheduler asha --metric eval/fd_cnn/minor": "needs a metric of rounds over all classes",
    "--name it's": "name must be at most 200 letters",
    "--search optuna": "the search optuna needs a sample",
    "--search.factor 2": "the search grid takes no keywords, got factor",
    "--search random --search.factor 2 --sample clients=choice:2,4": "the search random refuses its arguments",
    "--scheduler.worst 2": "--scheduler.worst needs a --scheduler",
    "--extend --name x": "--extend is for a sweep that exists",
}
Command = Callable[..., tuple[int, str, str]]
SEARCH = {"search": ["grid", {}], "scheduler": None, "space": {}, "base": None, "suggested": 0}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [("run", *case) for case in REFUSED_BY_RUN.items()] + [("sweep", *case) for case in REFUSED_BY_SWEEP.items()],
)
def test_refused_in_one_sentence(name: str, arguments: str, message: str, command: Command, tmp_path: Path) -> None:
    code, out, err = command(name, *arguments.split(), "--runtime.storage", tmp_path / "s")
    assert (code, out, err.count("\n")) == (2, "", 1) and re.search(f"^error: .*{message}", err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["storage folder", "MLflow store"])
def test_what_cannot_be_written_is_named(what, tmp_path, monkeypatch, command):
    (tmp_path / "file").write_text("")
    storage = tmp_path / "file" / "s" if what == "storage folder" else tmp_path / "s"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/file/mlflow.db")
    code, _, err = command("run", "--runtime.pool", "local", "--runtime.storage", storage)
    assert (code, err.count("\n")) == (2, 1) and re.match(rf"error: the {what} \S+ cannot be written", err)
    assert not list((tmp_path / "s").glob("sweeps/*"))


@pytest.fixture
def statuses(tmp_path, migrated, monkeypatch):
    """Gives the status of each run in a fresh MLflow store."""
    shutil.copy(migrated, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    client = MlflowClient(uri)

    def of_runs():
        runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        return sorted(run.info.status for run in runs)

    return of_runs


def test_storage_that_is_full_in_the_middle_of_a_run(tmp_path, tiny, statuses, monkeypatch):
    """It is said, and no run is left running in an MLflow store that is elsewhere."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")

    monkeypatch.setattr(Checkpoint, "save_server", full)
    monkeypatch.setattr(trial, "end_unfinished", full)
    with pytest.raises(ValueError, match=r"^the storage folder \S+/s cannot be written: No space left on device$"):
        rd.run(settings.override(tiny, {"evaluation": None, "runtime.storage": str(tmp_path)}), name="s")
    assert statuses() == ["KILLED"] * 2


def test_an_interrupt_while_the_report_is_made_is_said_and_leaves_no_run_running(tmp_path, tiny, statuses, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    base = trial.resolve_on_data(
        settings.override(tiny, {"evaluation": None, "runtime.storage": str(tmp_path)}), b"0" * 32
    )
    plan = Planned(
        preset="x",
        folder=tmp_path / "sweeps" / "s",
        base=base,
        trials=(base,),
        secret=b"0" * 32,
        metric=Metric(name=""),
    )
    ended = launch.start(plan, report=dataclasses.replace(FULL, write=interrupt))
    assert ended.code == 130
    assert f"interrupted while reporting; to make the report: raydiff report {plan.folder}\n" in capsys.readouterr().out
    assert statuses() == ["FINISHED", "KILLED"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"^\S+/mine\.json is not valid JSON"),
        ("{}", r"^\S+/mine\.json has no field 'method'"),
        (
            '{"kind": "Experiment", "method": {"kind": "PFMD"}}',
            r"^\S+/mine\.json: method: must be one of pfdm, .*, got 'PFMD'",
        ),
        (None, r"^there is no file \S+/mine\.json$"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        run.main(["--config", str(path)])


@pytest.mark.parametrize(("job", "more"), [(run, ["--resume"]), (sweep, []), (sweep, ["--resume"])])
def test_a_sweep_that_another_driver_runs_is_refused_and_left_as_it_is(tmp_path, job, more):
    with hold_lease(tmp_path / "sweeps" / "mine"):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match=rf"^mine is being run by process {os.getpid()} on [^\n]*$"):
            job.main(["digits", "--name", "mine", "--runtime.storage", str(tmp_path), *more])
        assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def test_keyword_arguments_are_json_or_text():
    fields = [("search.n", ["5"]), ("seed", ["1"]), ("search.name", ["tpe"]), ("scheduler.hard_stop", ["true"])]
    found, rest = arguments.keywords(fields, "search")
    assert found == {"n": 5, "name": "tpe"} and rest == [("seed", ["1"]), ("scheduler.hard_stop", ["true"])]
    assert arguments.keywords(rest, "scheduler") == ({"hard_stop": True}, [("seed", ["1"])])


def test_a_name_is_used_once_unless_resumed_with_the_same_space(tmp_path):
    at = tmp_path / "sweeps" / "mine"
    same = {
        "trials": [trial.resolve_on_data(names.PRESETS["digits"]().experiment)],
        "search": SEARCH,
        "secret": SECRET,
        "data": "digits",
    }
    first = sweep_folder.describe_sweep(at, **same, resume=False)
    assert not at.exists()
    sweep_folder.write_sweep(at, first, SECRET)
    with pytest.raises(ValueError, match="exists already: resume it"):
        sweep_folder.describe_sweep(at, **same, resume=False)
    assert sweep_folder.describe_sweep(at, **same, resume=True) == first
    for other in ({"search": ["random", {}]}, {"scheduler": ["asha", {}]}):
        with pytest.raises(ValueError, match=f"mine has another {next(iter(other))}, and a sweep keeps how"):
            sweep_folder.describe_sweep(at, **{**same, "search": SEARCH | other}, resume=True)
    with pytest.raises(ValueError, match="another space: 0 trials are new and 1 are gone"):
        sweep_folder.describe_sweep(at, **{**same, "trials": []}, resume=True)

    grown = {
        **same,
        "trials": [*same["trials"], trial.resolve_on_data(settings.override(same["trials"][0], {"seed": 7}))],
    }
    with pytest.raises(ValueError, match=r"1 trials are new and 0 are gone .*: --extend adds trials"):
        sweep_folder.describe_sweep(at, **grown, resume=True)
    extended = sweep_folder.describe_sweep(at, **grown, resume=True, extend=True)
    assert extended["id"] == first["id"] and set(first["trials"]) < set(extended["trials"])
    sweep_folder.write_sweep(at, extended, SECRET)
    assert sweep_folder.describe_sweep(at, **grown, resume=True) == extended
    with pytest.raises(ValueError, match=r"0 trials are new and 1 are gone .*: --extend adds trials and takes none"):
        sweep_folder.describe_sweep(at, **same, resume=True, extend=True)


def test_other_code_is_refused_by_file_name(tmp_path, monkeypatch):
    at = tmp_path / "sweeps" / "mine"
    same = {"trials": [], "search": SEARCH, "secret": SECRET, "data": "digits"}
    sweep_folder.write_sweep(at, sweep_folder.describe_sweep(at, **same, resume=False), SECRET)
    monkeypatch.setattr(sweep_folder, "_code", lambda: {"tree.py": "other"})
    with pytest.raises(ValueError, match=r"started under other code; changed since: .*tree\.py"):
        sweep_folder.describe_sweep(at, **same, resume=True)


def test_resuming_runs_again_what_did_not_end_by_itself(tmp_path):
    at = tmp_path / "sweeps" / "mine"
    for name, outcome in (("a", "finished"), ("b", "failed"), ("c", "killed")):
        trial.end(at / "trials" / name, outcome)
    trial.end(at / "trials" / "d", "stopped", reason="time budget")
    trial.end(at / "trials" / "e", "stopped", reason="scheduler")
    about = sweep_folder.describe_sweep(at, trials=[], search=SEARCH, secret=SECRET, data="digits", resume=False)
    sweep_folder.write_sweep(at, about, SECRET)

    def outcomes_left():
        return {p.parent.name: read_json(p)["outcome"] for p in at.glob("trials/*/outcome.json")}

    assert outcomes_left() == {"a": "finished", "e": "stopped"}
    trial.end(at / "trials" / "b", "failed")
    this = read_json(at / "sweep.json")
    trial.end(at / "trials" / "c", "killed")
    sweep_folder.write_sweep(at, this, SECRET)
    assert outcomes_left() == {"a": "finished", "e": "stopped"}


def test_a_sweep_that_is_to_be_extended_must_exist(tmp_path):
    with pytest.raises(ValueError, match="there is no sweep nope "):
        sweep.main(["digits", "--name", "nope", "--resume", "--extend", "--runtime.storage", str(tmp_path)])
    assert not (tmp_path / "sweeps" / "nope").exists()


@pytest.mark.parametrize(
    ("storage", "more", "message"),
    [
        ("hdfs://lab/x", "", r"storage must be a folder, .* or a bucket: .*got 'hdfs://lab/x'"),
        ("s3://key:word@lab/x", "", r"storage must be .* no password"),
        ("s3://lab/x", "--budget 10", "budget needs storage in a folder that all nodes share, got 's3://lab/x'"),
        ("s3://lab/x", "--numerics.server-workers 2", "server_workers needs storage in a folder"),
        ("s3://lab/x", "--runtime.client-timeout-s 10", "client_timeout_s must be at least 20 where storage"),
    ],
)
def test_storage_that_is_neither_a_folder_nor_a_bucket_that_will_do(storage, more, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        run.main(["--runtime.storage", storage, *more.split()])
    assert not list(tmp_path.iterdir())


def test_a_jobs_error_shows_no_password(capsys):
    def main(argv):
        raise ValueError("the MLflow store postgresql://me:hunter2@db:5432/runs cannot be written")

    with pytest.raises(SystemExit):
        leave(main, [])
    assert capsys.readouterr().err == "error: the MLflow store postgresql://me:***@db:5432/runs cannot be written\n"


@pytest.mark.parametrize("shell", [0o022, 0o000])
def test_what_a_command_writes_is_its_users_alone(shell, tmp_path):
    def main(argv):
        write_text(tmp_path / "deep" / "state", "private")

    before = os.umask(shell)
    try:
        with contextlib.suppress(SystemExit):
            leave(main, [])
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "deep", tmp_path / "deep" / "state")] == [0o700, 0o600]


def test_the_sweeps_of_a_storage_that_is_open_to_others_are_closed(tmp_path):
    (tmp_path / "sweeps").mkdir(mode=0o755)
    experiment = settings.override(names.PRESETS["digits"]().experiment, {"runtime.storage": str(tmp_path)})
    sweep_folder.create_folder(experiment, "mine")
    assert stat.S_IMODE((tmp_path / "sweeps").stat().st_mode) == 0o700


def test_a_secret_of_the_environment_reaches_the_experiment(monkeypatch):
    monkeypatch.setenv("RAYDIFF_NOISE_SECRET", "ab" * 16)
    planned = sweep.plan_request(
        "digits",
        names.PRESETS["digits"](),
        parse_options(sweep.SweepOptions, ["--grid", "seed=0"], None),
        [],
    )
    assert {e.runtime.noise_secret for e in (planned.base, *planned.trials)} == {"ab" * 16}


def test_runs_stand_under_their_data_set_or_what_was_asked_for_and_stay_there(tmp_path):
    def describe(name: str, asked: str | None = None) -> dict:
        return sweep_folder.describe_sweep(
            tmp_path, trials=[], search=SEARCH, secret=SECRET, data=name, experiment=asked, resume=True
        )

    def of(name: str, asked: str | None = None) -> str:
        return describe(name, asked)["experiment"]

    names = [of("mnist"), of("/there/credit.csv"), of("owner/pets"), of("mine:Source")]
    assert names == ["raydiff-mnist", "raydiff-credit", "raydiff-pets", "raydiff-mine-Source"]
    assert of("mnist", "trial runs") == "trial runs"
    sweep_folder.write_sweep(tmp_path, describe("mnist", "trial runs"), SECRET)
    assert of("mnist") == of("mnist", "trial runs") == "trial runs"
    with pytest.raises(ValueError, match="logs to MLflow's experiment trial runs, not other: leave the experiment out"):
        of("mnist", "other")


def test_what_mlflow_lacks_is_the_exit_code_and_the_last_line_whose_command_adds_it(
    tmp_path, migrated, monkeypatch, command
):
    """Here the files, whose place is no folder until it is mended."""
    shutil.copy(migrated, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    client = MlflowClient(uri)
    experiment = client.create_experiment("theirs", artifact_location=f"{tmp_path}/theirs/files")
    (tmp_path / "theirs").write_text("no folder")
    small = "--method fedavg --method.rounds 1 --method.local.steps 1 --data.train 60 --data.public 80 --partition iid"
    where = f"--experiment theirs --runtime.storage {tmp_path}/s"
    arguments = f"run digits --protocol-only --runtime.pool local {small} {where}".split()
    monkeypatch.setattr(sys, "argv", ["raydiff", *arguments])
    code, out, err = command(*arguments)
    assert err == ""
    *_, last = out.splitlines()
    lacking, _, again = last.partition("add the rest by: raydiff ")
    assert code == 1 and lacking.startswith("MLflow is incomplete: 1 of 2 runs lack parts (artifacts belong in ")
    assert {run.info.status for run in client.search_runs([experiment])} == {"FINISHED"}
    (tmp_path / "theirs").unlink()
    code, out, err = command(*again.split())
    assert (code, err) == (0, "") and "incomplete" not in out
    assert list(tmp_path.glob("theirs/files/*/artifacts/ledger.json"))


def test_a_command_without_a_home_or_in_a_removed_folder_is_refused_in_one_sentence(tmp_path, monkeypatch, command):
    """A user id without an entry, as OpenShift gives it; the folder of a job that was cleaned up."""

    def nobody(_):
        raise KeyError("uid not found")

    with monkeypatch.context() as patch:
        patch.delenv("HOME")
        patch.setattr("pwd.getpwuid", nobody)
        code, output, errors = command("ls")
    assert (code, output, errors.count("\n")) == (2, "", 1) and "set HOME to a folder" in errors
    (folder := tmp_path / "removed").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    code, output, errors = command("ls", "--storage", tmp_path)
    assert (code, output, errors.count("\n")) == (2, "", 1) and "work in a folder that exists" in errors


@pytest.mark.usefixtures("default_signals")
def test_from_python_messages_say_how_to_go_on_in_python(tmp_path, tiny, monkeypatch, capsys, migrated):
    """Not with the words of another program, such as a notebook's kernel."""
    monkeypatch.setattr(sys, "argv", argv := ["ipykernel_launcher.py", "-f", "kernel.json", "--my-own-option"])
    shutil.copy(migrated, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(one_process, "_run_trial", lambda this, *_: trial.begin(this) or signal.raise_signal(2))
    base = settings.override(tiny, {"evaluation": None, "runtime.storage": str(tmp_path)})
    with pytest.raises(KeyboardInterrupt):
        rd.sweep(base, name="s")
    assert 'interrupted; continue with: rd.sweep(..., name="s", resume=True)\n' in capsys.readouterr().out
    with pytest.raises(ValueError, match="exists already: resume it, or choose another name"):
        rd.sweep(base, name="s")
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        texts = [value for (value,) in store.execute("select value from tags")]
    assert 'To continue: `rd.sweep(..., name="s", resume=True)`' in "".join(texts)
    texts.append((tmp_path / "sweeps" / "s" / "sweep.json").read_text())
    assert not any(word in text for text in texts for word in (*argv, "raydiff -"))
