"""MLflow runs of finished trials: found again, and their samplers loaded where nothing of this repository is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raydiff import tree
from raydiff.data.datasets import Dataset
from raydiff.experiment import config
from raydiff.experiment.client_records import shares
from raydiff.experiment.config import Experiment
from raydiff.report.frontier import command as frontier
from raydiff.results import sampler
from raydiff.results.finished import Finished, open_finished
from raydiff.results.generation import Request, write
from raydiff.results.sampler import Sampler
from raydiff.tracking import mlflow_models, writer
from raydiff.tracking.writer import Mlflow

ROWS = pd.DataFrame({"label": [0, 1, 6], "client": [1, 0, 1]})
LOAD = """
import sys, json, numpy, pandas, mlflow
uri, model, path, out = sys.argv[1:]
mlflow.set_tracking_uri(uri)
loaded = mlflow.pyfunc.load_model(model, dst_path=path)
rows = pandas.DataFrame({"label": [0, 1, 6], "client": [1, 0, 1]})
numpy.save(out, loaded.predict(rows, params={"seed": 4}))
import raydiff
new = [loaded.predict(rows[["label"]]).tobytes() for _ in range(2)]
told = {"raydiff": raydiff.__file__, "new": new[0] != new[1], "path": sys.path, "metadata": loaded.metadata.metadata}
print(json.dumps(told))
"""


class Runs:
    """The runs of a storage folder's sweeps in an MLflow store of their own."""

    def __init__(self, storage: Any, migrated: Path) -> None:
        shutil.copy(migrated, storage.root / "mlflow.db")
        self.storage, self.uri = storage, f"sqlite:///{storage.root}/mlflow.db"

    def follow(self, name: str, *, samplers: bool = False) -> str:
        """One follower from its start to its end; the trial's run."""
        follower = Mlflow(
            self.uri,
            experiment="digits",
            sweep=self.storage.sweeps / name,
            tags={},
            artifacts=str(self.storage.root / "artifacts"),
            log_sampler=(lambda client, run, at: mlflow_models.log_sampler(client, run, open_finished(at)))
            if samplers
            else None,
        )
        follower.start()
        follower.wait_ready()
        follower.begin()
        follower.close()
        assert follower.error is None
        return mlflow_models.find_run(self.uri, self.storage.folder(name))

    def finished(self, name: str) -> Finished:
        return open_finished(self.storage.folder(name))

    def tags(self, run: str) -> dict[str, str]:
        return dict(mlflow_models.open_client(self.uri).get_run(run).data.tags)

    def models(self) -> list[Any]:
        client = mlflow_models.open_client(self.uri)
        return list(client.search_logged_models([e.experiment_id for e in client.search_experiments()]))


@pytest.fixture
def mine(copied, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(writer, "PERIOD_S", 0.01)
    return Runs(copied, migrated)


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as e:
        call(*arguments)
    assert "\n" not in str(e.value)
    return str(e.value)


# --- finding them ---


@pytest.mark.slow
def test_a_run_leads_to_its_trial_and_back(mine: Runs) -> None:
    run, sweeps = mine.follow("pfdm"), mine.storage.sweeps
    assert mlflow_models.find_trial(mine.uri, run, sweeps) == f"pfdm/{mine.storage.folder('pfdm').name}"
    parent = mine.tags(run)["mlflow.parentRunId"]
    assert mlflow_models.find_trial(mine.uri, parent, sweeps) == "pfdm"


def test_runs_that_lead_nowhere(mine: Runs, tmp_path: Path) -> None:
    run, sweeps = mine.follow("pfdm"), mine.storage.sweeps
    says = refusal(mlflow_models.find_trial, mine.uri, "0" * 32, sweeps)
    assert says.startswith(f"the run {'0' * 32} cannot be read from {mine.uri}: ")
    foreign = mlflow_models.open_client(mine.uri).create_run("0").info.run_id
    assert refusal(mlflow_models.find_trial, mine.uri, foreign, sweeps).endswith("is not one of raydiff's")
    says = refusal(mlflow_models.find_trial, mine.uri, run, tmp_path)
    assert says == f"the sweep pfdm of the run {run} is not in {tmp_path}: give its --storage"
    (sweeps / "pfdm" / "sweep.json").write_text(json.dumps({"id": "another"}))  # the name was given again
    assert refusal(mlflow_models.find_trial, mine.uri, run, sweeps).endswith(
        f"is another one than that of the run {run}"
    )
    folder = mine.storage.folder("fedavg")
    assert refusal(mlflow_models.find_run, mine.uri, folder) == f"no run in {mine.uri} is that of {folder}"


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert (
        refusal(mlflow_models.open_client, f"sqlite:///{tmp_path}/mlflow.db")
        == f"there is no MLflow store {tmp_path}/mlflow.db"
    )
    assert not list(tmp_path.iterdir())


# --- what can be found by trying ---


def candidates(dataset: Dataset, experiment: Experiment) -> set[str]:
    """What somebody who guesses these records can compute of them, without any secret."""
    private = {name: records for name, records in dataset.splits.items() if name != "public"}
    parts = [private["train"].select(part) for part in shares(experiment, dataset)]
    found = {dataset.digest, replace(experiment, data_digest=dataset.digest).digest}
    for records in (*private.values(), *parts):
        leaves = {"images": records.images, "labels": records.labels}
        found |= {tree.digest(records.leaves), tree.digest(leaves), *tree.digests(records.images)}
    return found


def published(mine: Runs, name: str, out: Path) -> bytes:
    """All that leaves the storage folder: what MLflow has of the sweep, its report, and samples by the trial's name."""
    finished, client = mine.finished(name), mlflow_models.open_client(mine.uri)
    for source in (0, None):
        write(finished, source, out / f"samples-{finished.trial.experiment.digest}-{source}", Request(num=3), code={})
    frontier.write(mine.storage.sweeps / name, out / "report")
    said = []
    for run in client.search_runs([e.experiment_id for e in client.search_experiments()]):
        said += [run.info.run_name, str(run.data.tags), str(run.data.params)]
    files = [p for at in (out, mine.storage.root / "artifacts") for p in at.rglob("*") if p.is_file()]
    return "\n".join([*said, *map(str, files)]).encode() + b"".join(p.read_bytes() for p in files)


def test_nothing_published_has_a_digest_that_is_found_by_trying(mine: Runs, tmp_path: Path) -> None:
    """Of the right guess among two that differ in one private record, or of any part of it."""
    mine.follow("pfdm", samplers=True)
    finished, text = mine.finished("pfdm"), published(mine, "pfdm", tmp_path / "out")
    experiment, right = finished.trial.experiment, finished.dataset
    images = right.splits["train"].images.clone()
    images[0, 0, 0, 0] += 0.125
    wrong = replace(right, splits={**right.splits, "train": replace(right.splits["train"], images=images)})
    told = [digest for guess in (right, wrong) for digest in candidates(guess, experiment)]
    assert len(told) > 100 and [digest for digest in told if digest[:8].encode() in text] == []
    assert experiment.data_digest.encode() in text and experiment.digest.encode() in text  # the text is the right one
    assert experiment.data_digest == config.keyed(right, finished.secret) != config.keyed(right, b"another secret")
    assert not [p for p in (mine.storage.sweeps / "pfdm").rglob("*") if any(d[:8] in p.name for d in told)]


# --- samplers ---


@pytest.mark.slow
def test_a_sampler_is_loaded_with_its_own_code(mine: Runs, tmp_path: Path) -> None:
    """In a process that knows neither this checkout nor the run's files."""
    run = mine.follow("pfdm", samplers=True)
    mine.finished("pfdm").save_sampler(tmp_path / "own")
    shutil.rmtree(mine.storage.sweeps)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAYDIFF_DATA")}
    (tmp_path / "elsewhere").mkdir()
    arguments = [mine.uri, f"runs:/{run}/sampler", str(tmp_path / "model"), str(tmp_path / "out.npy")]
    (tmp_path / "model").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *arguments],
        cwd=tmp_path / "elsewhere",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert Path(told["raydiff"]).is_relative_to(tmp_path / "model"), told["path"]
    assert told["new"] and told["metadata"]["privacy"] == "none" and told["metadata"]["clients"] == [0, 1]
    assert np.array_equal(np.load(tmp_path / "out.npy"), Sampler(tmp_path / "own").predict(ROWS, {"seed": 4}))


def test_what_is_said_of_a_sampler(mine: Runs) -> None:
    from importlib.metadata import version

    from mlflow.models import Model

    run = mine.follow("pfdm")
    client = mlflow_models.open_client(mine.uri)
    assert mine.models() == []
    client.log_metric(run, "final/eval/fd_cnn/all", 1.5, step=4)  # Its evaluation is left out.
    client.log_metric(run, "final/comm/bytes_up", 7.0, step=4)
    assert mlflow_models.log_sampler(client, run, mine.finished("pfdm")) == "sampler"
    (logged,) = mine.models()
    assert (logged.name, logged.source_run_id, logged.status.value) == ("sampler", run, "READY")
    assert logged.tags["raydiff.privacy"] == mine.tags(run)["raydiff.privacy.sampler"] == "none"
    its = client.get_run(run)
    assert [made.model_id for made in its.outputs.model_outputs] == [logged.model_id]
    assert [(m.key, m.value, m.step) for m in logged.metrics] == [("final/eval/fd_cnn/all", 1.5, 4)]
    assert len(client.get_metric_history(run, "final/eval/fd_cnn/all")) == 1
    assert {m.dataset_digest for m in logged.metrics} == {given.dataset.digest for given in its.inputs.dataset_inputs}
    assert logged.params == {k: its.data.params[k] for k in mlflow_models.MODEL_PARAMS if k in its.data.params}
    folder = Path(logged.artifact_location.removeprefix("file://"))
    model = Model.load(str(folder))
    columns = [(c.name, c.type.name, c.required) for c in model.signature.inputs]
    assert columns == [("label", "long", True), ("client", "long", False)]
    (pixels,) = model.signature.outputs
    assert (str(pixels.type), pixels.shape) == ("uint8", (-1, 8, 8, 1))
    assert [(p.name, p.default) for p in model.signature.params] == [("seed", None)]
    assert model.load_input_example(str(folder)).to_dict("list") == {"label": [0, 9]}
    wanted = ("mlflow", "torch", "numpy", "scipy", "pandas", "safetensors")
    assert (folder / "requirements.txt").read_text().split() == [f"{name}=={version(name)}" for name in wanted]
    assert (folder / "code" / "raydiff" / "results" / "sampler.py").exists()
    assert not [p for p in folder.rglob("*") if p.suffix in (".pkl", ".pyc")]


def test_the_servers_sampler_stands_beside_it_and_carries_the_guarantee(mine: Runs) -> None:
    run, finished, client = (
        mine.follow("pfdm", samplers=True),
        mine.finished("pfdm"),
        mlflow_models.open_client(mine.uri),
    )
    client.log_metric(run, "final/eval/fd_cnn/all", 1.5)  # As what is measured is of the clients' samples.
    assert mlflow_models.log_sampler(client, run, finished, shared=True) == "sampler-global"
    logged = {m.name: m for m in mine.models()}
    assert set(logged) == {"sampler", "sampler-global"}
    assert not logged["sampler-global"].metrics
    says = mine.tags(run)["raydiff.privacy.sampler-global"]
    assert says == str(finished.published) == logged["sampler-global"].tags["raydiff.privacy"]
    folder = Path(logged["sampler-global"].artifact_location.removeprefix("file://"))
    assert not list(folder.rglob("clients")) and list(folder.rglob("server-*.safetensors"))


@pytest.mark.slow
def test_logged_again_it_takes_the_others_place(mine: Runs) -> None:
    run, finished, client = (
        mine.follow("pfdm", samplers=True),
        mine.finished("pfdm"),
        mlflow_models.open_client(mine.uri),
    )
    (first,) = mine.models()
    mlflow_models.log_sampler(client, run, finished, 1)
    (second,) = mine.models()
    assert first.model_id != second.model_id
    folder = Path(second.artifact_location.removeprefix("file://"))
    assert [p.name for p in folder.rglob("clients/*")] == ["00001-00003.safetensors"]


def test_a_trial_without_a_sampler_does_not_stop_the_follower(mine: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "LARGEST", 1)
    run = mine.follow("pfdm", samplers=True)
    assert mine.tags(run)["raydiff.sampler"].startswith("not logged: the models of 2 clients take ")
    assert mine.models() == [] and mlflow_models.open_client(mine.uri).get_run(run).info.status == "FINISHED"
