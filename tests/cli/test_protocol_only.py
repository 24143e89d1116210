"""`--protocol-only`: all that a tracking server receives, and all that the trial's own record holds."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import slow_but

from raydiff.cli import run
from raydiff.experiment import config, trial
from raydiff.formats.json_files import KEYED, flatten_tree, read_json, read_lines
from raydiff.formats.metric_records import columns, read_metrics
from raydiff.tracking import mlflow_store, mlflow_writer

RATES = {"privacy/tpr_ceiling_at_1pct_fpr", "privacy/tpr_ceiling_at_0.1pct_fpr"}
LEDGER = {"privacy/epsilon_server", "privacy/epsilon_outsiders", "privacy/mu", "privacy/auc_ceiling"}
COSTS = {"comm/bytes_up", "time/seconds"}
AT_THE_END = LEDGER | RATES | COSTS
SHOWN = ("epsilon", "auc_ceiling", "bytes_sent", "seconds")
METRICS = {"round", *SHOWN, *(f"round/{name}" for name in SHOWN)}
TAGS = {
    *(f"raydiff.{n}" for n in ("sweep", "id", "trial", "kind", "data", "preset", "accountant", "replayable", "git")),
    *(f"raydiff.{n}" for n in ("outcome", "privacy", "released", "reason", "remark", "epsilon", "sampler")),
    *(f"mlflow.{n}" for n in ("parentRunId", "runName", "loggedArtifacts", "note.content")),
    *(f"mlflow.source.{n}" for n in ("name", "type", "git.commit")),
}
SHORT = "digits --protocol-only --runtime.pool local --data.train 60 --data.public 20 --data.validation 0 --name it"
SHORT += " --data.calibration 0 --data.test 20 --method.local.steps 4 --method.local.batch 8"
METHODS = {
    "pfdm": "--method.server.steps 4 --method.server-rounds 1",
    "fedavg": "--method fedavg --method.rounds 2 --method.averaging.privacy clientprivacy",
    "dpsgd": "--method dpsgd --method.rounds 1",
    "spire": "--method spire --method.rounds 1",
}


def artifacts(client: Any, run: Any, below: str | None = None) -> Iterator[str]:
    for item in client.list_artifacts(run.info.run_id, below):
        yield from artifacts(client, run, item.path) if item.is_dir else [item.path]


@pytest.mark.parametrize("method", slow_but(["pfdm", "fedavg"], METHODS))
def test_all_that_leaves(method: str, tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_writer, "PERIOD_S", 0.01)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path}/mlflow.db")
    shutil.copy(migrated, tmp_path / "mlflow.db")
    assert run.main([*SHORT.split(), *METHODS[method].split(), "--runtime.storage", str(tmp_path / "s")]) == 0
    (folder,) = (tmp_path / "s" / "sweeps" / "it" / "trials").iterdir()

    client = mlflow_store.connect(uri)
    experiments = [e.experiment_id for e in client.search_experiments()]
    received = {r.data.tags["raydiff.kind"]: r for r in client.search_runs(experiments)}
    assert set(received) == {"sweep", "trial"} and client.search_logged_models(experiments) == []
    parent, child = received["sweep"], received["trial"]
    assert METRICS >= set(child.data.metrics) >= {"bytes_sent", "seconds"} and not parent.data.metrics
    assert set(parent.data.tags) | set(child.data.tags) <= TAGS
    assert child.data.tags["raydiff.sampler"].startswith("not logged: ")
    assert set(child.data.params) == set(flatten_tree(read_json(folder / "config.json")))
    assert not parent.data.params and list(artifacts(client, parent)) == []
    assert list(artifacts(client, child)) == ["final.json", "ledger.json"]
    table = json.loads(Path(client.download_artifacts(child.info.run_id, "final.json", str(tmp_path))).read_text())
    assert {name for name, _ in table["data"]} <= AT_THE_END
    note = parent.data.tags["mlflow.note.content"]
    assert (
        note.startswith("1 of 1 trials finished; one seed: differences may be chance. None has a measure")
        and note.count("\n\n") == 1
    )
    tree = config.read_config(folder / "config.json")
    for received_data in (i.dataset for r in (parent, child) for i in r.inputs.dataset_inputs):
        assert (received_data.name, received_data.digest) == ("digits", tree.data_digest.removeprefix(KEYED)[:16])

    lines, commits = read_lines(folder / "metrics.jsonl"), sorted(folder.glob("commit-*.json"))
    assert lines and {key for line in lines for key in line} <= {"step", "time", "server", "outsiders", "metrics"}
    assert {name for line in lines for name in columns(read_metrics(line["metrics"]))} <= LEDGER | COSTS
    assert {key for path in commits for key in json.loads(path.read_text())["metrics"]} == set()
    outcome = read_json(folder / "outcome.json")
    assert (
        set(outcome) == {"outcome", "final", "server", "outsiders", "text", "released"}
        and set(columns(read_metrics(outcome["final"]))) <= AT_THE_END
    )
    assert {p.name for p in (folder / "artifacts").iterdir()} == {"ledger.json"}


def test_a_client_keeps_its_metrics_itself(copied: Any) -> None:
    """Where they are made, not where they would be written."""
    folder = copied.folder("fedavg")
    opened = trial.Trial(config.read_config(folder / "config.json"), copied.sweeps / "fedavg")
    assert opened.experiment.evaluation is None
    (client,) = trial.make_clients(opened, [0])
    client.store = None
    assert client.run(opened.store.load_server(1), 1)[1] == {}
    client.instruments = True
    assert "train/loss" in client.run(opened.store.load_server(1), 1)[1]
