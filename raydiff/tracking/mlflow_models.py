"""The MLflow runs of finished trials: find them again, and log a trial's sampler as a model."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from raydiff.data.modality import load_modality
from raydiff.formats import json_files
from raydiff.results.finished import Finished
from raydiff.results.personalization import Joining, Row
from raydiff.tracking import mlflow_store

MODEL_PARAMS = ("method", "method.epsilon", "clients", "seed", "data.name")  # shown in MLflow's list of models
ROW_KEYS = ("learning_rate", "epoch", "steps", "client")  # columns of an unseen client's table that are no readings


def find_trial(uri: str, run: str, sweeps: Path) -> str:
    """Name of an MLflow run's trial, SWEEP/DIGEST; of a sweep's own run SWEEP.

    Raises ValueError without such a run, and where the sweep of that name is another one by now.
    """
    from mlflow.exceptions import MlflowException

    client = open_client(uri)
    store = mlflow_store.redact_passwords(uri)
    try:
        tags = client.get_run(run).data.tags
    except MlflowException as e:
        raise ValueError(f"the run {run} cannot be read from {store}: {mlflow_store.explain_error(e)}") from None
    if "raydiff.sweep" not in tags:
        raise ValueError(f"the run {run} in {store} is not one of raydiff's")
    sweep = tags["raydiff.sweep"]
    names = [tags[k] for k in ("raydiff.sweep", "raydiff.trial") if k in tags]
    if any(Path(name).name != name or name == ".." for name in names):
        raise ValueError(f"the run {run} in {store} names no sweep and trial: {'/'.join(names)!r}")
    path = sweeps / sweep / "sweep.json"
    if not path.exists():
        raise ValueError(f"the sweep {sweep} of the run {run} is not in {sweeps}: give its --storage")
    if json_files.read_json(path, needs="id")["id"] != tags["raydiff.id"]:
        raise ValueError(f"the sweep {sweep} in {sweeps} is another one than that of the run {run}")
    return "/".join(names)


def find_run(uri: str, folder: Path) -> str:
    """The MLflow run of a trial's folder. Raises ValueError if there is none."""
    identity = json_files.read_json(folder.parents[1] / "sweep.json", needs="id")["id"]
    client = open_client(uri)
    query = f"tags.`raydiff.id` = '{identity}' and tags.`raydiff.trial` = '{folder.name}'"
    experiments = [e.experiment_id for e in client.search_experiments()]
    for run in client.search_runs(experiments, query, max_results=1):
        return str(run.info.run_id)
    raise ValueError(f"no run in {mlflow_store.redact_passwords(uri)} is that of {folder}")


def open_client(uri: str) -> Any:
    """`mlflow_store.connect`. Raises ValueError for a SQLite store that does not exist, which MLflow would create."""
    if (path := mlflow_store.sqlite_file(uri)) and not path.exists():
        raise ValueError(f"there is no MLflow store {path}")
    return mlflow_store.connect(uri)


def log_sampler(client: Any, run: str, finished: Finished, number: int | None = None, *, shared: bool = False) -> str:
    """Log a sampler as a pyfunc model and an output of the run, and return its name below runs:/RUN/.

    It is that of one client, of all (None) or of the server's model, in place of an earlier one. Raises ValueError as
    `Finished.save_sampler`.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    name = "sampler-global" if shared else "sampler"
    with tempfile.TemporaryDirectory() as folder:
        sampler = Path(folder) / "sampler"
        path = Path(folder) / "model"
        finished.save_sampler(sampler, number, shared=shared)
        card = json.loads((sampler / "sampler.json").read_text())
        its = client.get_run(run)
        experiment = its.info.experiment_id
        params = {k: v for k, v in its.data.params.items() if k in MODEL_PARAMS}
        for earlier in client.search_logged_models([experiment], f"name = '{name}' and source_run_id = '{run}'"):
            client.delete_logged_model(earlier.model_id)
        tags = {"raydiff.privacy": card["privacy"], "raydiff.trial": card["trial"]}
        logged = client.create_logged_model(experiment, name=name, source_run_id=run, tags=tags, params=params)
        _save_model(path, sampler, card, Model(run_id=run, model_id=logged.model_id))
        client.log_model_artifacts(logged.model_id, str(path))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run, [LoggedModelOutput(logged.model_id, 0)])
    client.set_tag(run, f"raydiff.privacy.{name}", card["privacy"])
    return name


def _save_model(path: Path, sampler: Path, card: Mapping[str, Any], model: Any) -> None:
    """The model's files: those of the sampler, the code that loads them, a signature and an example."""
    import numpy as np
    import pandas as pd
    from mlflow import pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    channels, height, width = card["shape"]
    columns = load_modality(sampler).columns
    whose = [ColSpec("long", "client", required=False)] if card["clients"] else []
    inputs = Schema([*(ColSpec("long", column) for column in card["labels"]), *whose])
    outputs: list[ColSpec | TensorSpec] = [TensorSpec(np.dtype("uint8"), (-1, height, width, channels))]
    if columns:
        outputs = [ColSpec(kind, name, required=False) for name, kind in columns.items()]
    seed = ParamSchema([ParamSpec("seed", "long", None)])
    example = pd.DataFrame({column: [0, len(names) - 1] for column, names in card["labels"].items()})
    pyfunc.save_model(
        str(path),
        loader_module="raydiff.results.sampler",
        data_path=str(sampler),
        code_paths=[str(Path(__file__).parents[1])],
        mlflow_model=model,
        signature=ModelSignature(inputs, Schema(outputs), seed),
        input_example=(example, {"seed": 0}),
        pip_requirements=[f"{name}=={metadata.version(name)}" for name in ("mlflow", *card["requires"])],
        metadata={k: card[k] for k in ("privacy", "about", "trial", "clients")},
    )


def log_unseen_client(
    uri: str, parent: str, joining: Joining, rows: Sequence[Row], files: Sequence[Path], *, key: str, name: str
) -> str:
    """Log an unseen client as a finished run below the run `parent`; return its id.

    It takes the place of an earlier one of this `key`.
    """
    client = open_client(uri)
    experiment = client.get_run(parent).info.experiment_id
    mlflow_store.delete_runs(client, experiment, {"raydiff.unseen": key, "mlflow.parentRunId": parent})
    # Without raydiff.id and raydiff.trial, by which the trial's own run is found.
    tags = {"mlflow.parentRunId": parent, "raydiff.kind": "unseen", "raydiff.unseen": key}
    tags |= {"raydiff.privacy": "none", "raydiff.folder": str(files[0].parent)}
    run = str(client.create_run(experiment, run_name=name[:200], tags=tags).info.run_id)
    touched, whole = joining.touched()
    params = {
        "data": joining.client.says,
        "classes": " ".join(joining.classes),
        "records": len(joining.client.records),
        "held_out": len(joining.client.held_out),
        "seed": joining.seed,
        "batch": joining.training(1.0, 1).batch,
        "parameters": touched,
        "parameters_share": touched / whole,
    }
    mlflow_store.log_params(client, run, params)
    for row in rows:
        rate = f"lr_{row['learning_rate']:g}"
        epoch = int(row["epoch"])
        readings = ((f"{name}/{rate}", epoch, value) for name, value in row.items() if name not in ROW_KEYS)
        mlflow_store.log_values(client, run, readings)
    client.set_terminated(run, "FINISHED")
    for path in files:
        client.log_artifact(run, str(path))
    return run
