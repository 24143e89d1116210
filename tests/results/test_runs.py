"""MLflow runs of finished trials: found again, and their samplers loaded where nothing of this repository is."""

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
from storages import Storage

from raydiff import tree
from raydiff.cli import frontier
from raydiff.data.datasets import Dataset
from raydiff.experiment import config
from raydiff.experiment.client_records import client_shares
from raydiff.experiment.config import Experiment
from raydiff.results import sampler
from raydiff.results.finished import Finished, open_finished
from raydiff.results.generation import GenerationRequest, write_samples
from raydiff.results.sampler import Sampler
from raydiff.tracking import mlflow_models, mlflow_writer
from raydiff.tracking.mlflow_writer import Mlflow

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
result = {"raydiff": raydiff.__file__, "new": new[0] != new[1], "path": sys.path, "metadata": loaded.metadata.metadata}
print(json.dumps(result))
"""


class Runs:
    """The runs of a storage folder's sweeps in an MLflow store of their own."""

    def __init__(self, storage: Storage, migrated: Path) -> None:
        shutil.copy(migrated, storage.root / "mlflow.db")
        self.storage, self.uri = storage, f"sqlite:///{storage.root}/mlflow.db"
        self.client = mlflow_models.open_client(self.uri)

    def follow(self, name: str) -> str:
        """One follower that logs the sampler, from its start to its end; the trial's run."""
        follower = Mlflow(
            self.uri,
            experiment="digits",
            sweep=self.storage.sweeps / name,
            tags={},
            artifacts=str(self.storage.root / "artifacts"),
            swept={},
            log_sampler=lambda client, run, at: mlflow_models.log_sampler(client, run, open_finished(at)),
        )
        follower.start()
        follower.wait_ready()
        follower.begin()
        follower.close()
        assert follower.end("FINISHED") is None
        return mlflow_models.find_run(self.uri, self.storage.folder(name))

    def finished(self, name: str) -> Finished:
        return open_finished(self.storage.folder(name))

    def tags(self, run: str) -> dict[str, str]:
        return dict(self.client.get_run(run).data.tags)

    def models(self) -> dict[str, Any]:
        models = self.client.search_logged_models([e.experiment_id for e in self.client.search_experiments()])
        assert len({m.name for m in models}) == len(models)
        return {m.name: m for m in models}


@pytest.fixture(scope="module")
def logged(storage: Storage, migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, str]:
    """(a store with the sweep pfdm and its sampler, its run). Shared: a test may log its samplers again."""
    root = tmp_path_factory.mktemp("logged") / "storage"
    shutil.copytree(storage.root, root)
    runs = Runs(Storage(root), migrated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_writer, "PERIOD_S", 0.01)
        return runs, runs.follow("pfdm")


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as e:
        call(*arguments)
    assert "\n" not in str(e.value)
    return str(e.value)


# --- finding them ---


def test_a_run_leads_to_its_trial_and_back(logged: tuple[Runs, str]) -> None:
    runs, run = logged
    sweeps = runs.storage.sweeps
    assert mlflow_models.find_trial(runs.uri, run, sweeps) == f"pfdm/{runs.storage.folder('pfdm').name}"
    assert mlflow_models.find_trial(runs.uri, runs.tags(run)["mlflow.parentRunId"], sweeps) == "pfdm"


def test_runs_that_lead_nowhere(logged: tuple[Runs, str], tmp_path: Path) -> None:
    runs, run = logged
    uri, sweeps = runs.uri, runs.storage.sweeps
    assert refusal(mlflow_models.find_trial, uri, "0" * 32, sweeps).startswith(f"the run {'0' * 32} cannot be read")
    foreign = runs.client.create_run("0").info.run_id
    assert refusal(mlflow_models.find_trial, uri, foreign, sweeps).endswith("is not one of raydiff's")
    assert f"of the run {run} is not in {tmp_path}" in refusal(mlflow_models.find_trial, uri, run, tmp_path)
    (tmp_path / "pfdm").mkdir()
    (tmp_path / "pfdm" / "sweep.json").write_text(json.dumps({"id": "another"}))  # a later sweep of that name
    assert "is another one than that of the run" in refusal(mlflow_models.find_trial, uri, run, tmp_path)
    folder = runs.storage.folder("fedavg")
    assert refusal(mlflow_models.find_run, uri, folder) == f"no run in {uri} is that of {folder}"


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    assert "there is no MLflow store" in refusal(mlflow_models.open_client, f"sqlite:///{tmp_path}/mlflow.db")
    assert not list(tmp_path.iterdir())


# --- what can be found by trying ---


def candidates(dataset: Dataset, experiment: Experiment) -> set[str]:
    """What somebody who guesses these records can compute of them, without any secret."""
    private = {name: records for name, records in dataset.splits.items() if name != "public"}
    parts = [private["train"].select(part) for part in client_shares(experiment, dataset)]
    digests = {dataset.digest, replace(experiment, data_digest=dataset.digest).digest}
    for records in (*private.values(), *parts):
        leaves = {"images": records.images, "labels": records.labels}
        digests |= {tree.digest(records.leaves), tree.digest(leaves), *tree.digests(records.images)}
    return digests


def published(runs: Runs, name: str, out: Path) -> bytes:
    """All that leaves the storage folder: what MLflow has of the sweep, its report, and samples by the trial's name."""
    finished = runs.finished(name)
    for client in (0, None):
        write_samples(
            finished,
            client,
            out / f"samples-{finished.trial.experiment.digest}-{client}",
            GenerationRequest(num=3),
            code={},
        )
    frontier.main([str(runs.storage.sweeps / name), "--out", str(out / "report")])
    texts = []
    for run in runs.client.search_runs([e.experiment_id for e in runs.client.search_experiments()]):
        texts += [run.info.run_name, str(run.data.tags), str(run.data.params)]
    files = [p for at in (out, runs.storage.root / "artifacts") for p in at.rglob("*") if p.is_file()]
    return "\n".join([*texts, *map(str, files)]).encode() + b"".join(p.read_bytes() for p in files)


def test_nothing_published_has_a_digest_that_is_found_by_trying(logged: tuple[Runs, str], tmp_path: Path) -> None:
    """Of the right guess among two that differ in one private record, or of any part of it."""
    runs, _ = logged
    finished, text = runs.finished("pfdm"), published(runs, "pfdm", tmp_path / "out")
    experiment, right = finished.trial.experiment, finished.dataset
    images = right.splits["train"].images.clone()
    images[0, 0, 0, 0] += 0.125
    wrong = replace(right, splits={**right.splits, "train": replace(right.splits["train"], images=images)})
    digests = [digest for guess in (right, wrong) for digest in candidates(guess, experiment)]
    assert len(digests) > 100 and [digest for digest in digests if digest[:8].encode() in text] == []
    assert experiment.data_digest.encode() in text and experiment.digest.encode() in text  # the text is the right one
    assert experiment.data_digest == config.keyed(right, finished.secret) != config.keyed(right, b"another secret")
    assert not [p for p in (runs.storage.sweeps / "pfdm").rglob("*") if any(d[:8] in p.name for d in digests)]


# --- samplers ---


@pytest.mark.slow
def test_a_sampler_is_loaded_with_its_own_code(logged: tuple[Runs, str], tmp_path: Path) -> None:
    """In a process that knows neither this checkout nor the run's files."""
    runs, run = logged
    runs.finished("pfdm").save_sampler(tmp_path / "own")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAYDIFF_DATA")}
    for folder in ("elsewhere", "model"):
        (tmp_path / folder).mkdir()
    arguments = [runs.uri, f"runs:/{run}/sampler", str(tmp_path / "model"), str(tmp_path / "out.npy")]
    sweeps = runs.storage.sweeps.rename(runs.storage.root / "hidden")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *arguments],
        cwd=tmp_path / "elsewhere",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    sweeps.rename(runs.storage.sweeps)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert Path(result["raydiff"]).is_relative_to(tmp_path / "model"), result["path"]
    assert result["new"] and result["metadata"]["privacy"] == "none" and result["metadata"]["clients"] == [0, 1]
    assert np.array_equal(np.load(tmp_path / "out.npy"), Sampler(tmp_path / "own").predict(ROWS, {"seed": 4}))


def test_what_is_said_of_a_sampler(logged: tuple[Runs, str]) -> None:
    """Logged again, it takes the first one's place."""
    from importlib.metadata import version

    from mlflow.models import Model

    runs, run = logged
    first = runs.models()["sampler"]
    assert mlflow_models.log_sampler(runs.client, run, runs.finished("pfdm")) == "sampler"
    model = runs.models()["sampler"]
    assert model.model_id != first.model_id and (model.source_run_id, model.status.value) == (run, "READY")
    assert model.tags["raydiff.privacy"] == runs.tags(run)["raydiff.privacy.sampler"] == "none"
    its = runs.client.get_run(run)
    assert model.model_id in [output.model_id for output in its.outputs.model_outputs]
    assert model.params == {k: its.data.params[k] for k in mlflow_models.MODEL_PARAMS if k in its.data.params}
    folder = Path(model.artifact_location.removeprefix("file://"))
    saved = Model.load(str(folder))
    columns = [(c.name, c.type.name, c.required) for c in saved.signature.inputs]
    assert columns == [("label", "long", True), ("client", "long", False)]
    (pixels,) = saved.signature.outputs
    assert (str(pixels.type), pixels.shape) == ("uint8", (-1, 8, 8, 1))
    assert [(p.name, p.default) for p in saved.signature.params] == [("seed", None)]
    assert saved.load_input_example(str(folder)).to_dict("list") == {"label": [0, 9]}
    wanted = ("mlflow", "torch", "numpy", "scipy", "pandas", "safetensors")
    assert (folder / "requirements.txt").read_text().split() == [f"{name}=={version(name)}" for name in wanted]
    assert (folder / "code" / "raydiff" / "results" / "sampler.py").exists()
    assert not [p for p in folder.rglob("*") if p.suffix in (".pkl", ".pyc")]


def test_the_servers_sampler_stands_beside_it_and_carries_the_guarantee(logged: tuple[Runs, str]) -> None:
    runs, run = logged
    finished = runs.finished("pfdm")
    assert mlflow_models.log_sampler(runs.client, run, finished, shared=True) == "sampler-global"
    models = runs.models()
    assert set(models) == {"sampler", "sampler-global"}
    guarantee = runs.tags(run)["raydiff.privacy.sampler-global"]
    assert guarantee == str(finished.published) == models["sampler-global"].tags["raydiff.privacy"]
    folder = Path(models["sampler-global"].artifact_location.removeprefix("file://"))
    assert not list(folder.rglob("clients")) and list(folder.rglob("server-*.safetensors"))


def test_a_trial_without_a_sampler_does_not_stop_the_follower(
    copied: Storage, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_writer, "PERIOD_S", 0.01)
    monkeypatch.setattr(sampler, "LARGEST", 1)
    runs = Runs(copied, migrated)
    run = runs.follow("pfdm")
    assert runs.tags(run)["raydiff.sampler"].startswith("not logged: the models of 2 clients take ")
    assert runs.models() == {} and runs.client.get_run(run).info.status == "FINISHED"
