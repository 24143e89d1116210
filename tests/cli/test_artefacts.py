"""Every artefact that a finished run, a generate and a report leave, under a record that nobody else is like: nothing
that carries an epsilon tells of it."""

import contextlib
import io
import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cases import slow_but

from raydiff import tree
from raydiff.cli import generate, report, run
from raydiff.data import datasets
from raydiff.experiment import config
from raydiff.formats.json_files import read_json
from raydiff.tracking import mlflow_store, mlflow_writer

CANARY = {"income": "987654.25", "job": "lighthouse keeper", "diagnosis": "hiv"}
VALUES = re.compile(r"987654|lighthouse|\bhiv\b")
SPLITS = "--data.train 120 --data.public 60 --data.validation 0 --data.calibration 0 --data.test 10 --clients 2"
TRAINING = "--partition iid --method.local.steps 2 --method.local.batch 8 --method.model.steps 4"
METHODS = {
    "dpsgd": "--method dpsgd --method.epsilon 1 --method.rounds 1",
    "dp-fedavg": "--method fedavg --method.rounds 1 --method.averaging.privacy clientprivacy",
}


def table(path: Path) -> None:
    """190 rows and, in the place of one that is not public, the canary."""
    draw = random.Random(0)
    columns = {
        "income": [f"{draw.randint(20, 90)}000" for _ in range(190)],
        "job": [draw.choice(["teacher", "nurse"]) for _ in range(190)],
        "diagnosis": [draw.choice(["flu", "cold"]) for _ in range(190)],
    }
    frame = pd.DataFrame(columns, dtype=str)
    frame.to_csv(path, index=False)
    public = set(datasets.load_dataset(data_of(path)).splits["public"].numbers.tolist())
    frame.loc[next(i for i in range(190) if i not in public)] = CANARY
    frame.to_csv(path, index=False)
    datasets._load.cache_clear()


def data_of(path: Path) -> datasets.Data:
    few = {"train": 120, "public": 60, "validation": 0, "calibration": 0, "test": 10}
    return datasets.Data(name=str(path), labels=("diagnosis",), **few)


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """(path, all that it says): its own name too, databases and parquet as text."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        yield name, name
        if path.suffix == ".db":
            with sqlite3.connect(path) as db:
                yield name, "\n".join(db.iterdump())
        elif path.suffix == ".parquet":
            yield name, pd.read_parquet(path).to_csv()
        else:
            yield name, path.read_bytes().decode("latin-1")


@pytest.fixture(scope="module", params=slow_but(["dp-fedavg"], METHODS))
def published(request: Any, tmp_path_factory: Any, migrated: Path) -> Iterator[tuple[list[tuple[str, str]], Path]]:
    """([(where, text)] of all that leaves the storage folder, the trial's folder)."""
    at = tmp_path_factory.mktemp(request.param)
    (at / "out").mkdir()
    shutil.copy(migrated, at / "out" / "mlflow.db")
    table(at / "people.csv")
    data = f"--data.name {at}/people.csv --data.labels diagnosis {SPLITS} --runtime.storage {at}/s"
    model = "--method.model discretediffusion --protocol-only --runtime.pool local --name it"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as stdout:
        patch.setattr(mlflow_writer, "PERIOD_S", 0.01)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{at}/out/mlflow.db")
        patch.chdir(at)
        assert run.main(f"digits {METHODS[request.param]} {model} {data} {TRAINING}".split()) == 0
        (folder,) = (at / "s" / "sweeps" / "it" / "trials").iterdir()
        samples = f"--num 400 --source global --storage {at}/s --out {at}/out/samples"
        assert generate.main([folder.name, *samples.split()]) == 0
        report.main([str(folder.parents[1]), "--out", str(at / "out" / "report")])
    if (artifacts := at / "s" / mlflow_store.ARTIFACTS).exists():
        shutil.copytree(artifacts, at / "out" / "artifacts")
    yield [("the log", stdout.getvalue().replace(str(at), "")), *texts(at / "out")], folder


def test_the_canary_is_among_the_private_records(published: Any) -> None:
    """Else what follows would show nothing."""
    _, folder = published
    text = (folder.parents[4] / "people.csv").read_text()
    assert len(VALUES.findall(text)) == 3
    assert read_json(folder / "outcome.json")["server"]["epsilon"] < 1e6


def test_no_artefact_tells_of_the_canary(published: Any) -> None:
    """Neither its values nor its label."""
    artefacts, _ = published
    assert len(artefacts) > 10
    assert [(where, VALUES.findall(text)) for where, text in artefacts if VALUES.search(text)] == []


def test_no_artefact_has_a_digest_that_records_are_found_by(published: Any) -> None:
    """Nothing in them is what somebody can compute who guesses the records."""
    artefacts, folder = published
    experiment = config.read_config(folder / "config.json")
    dataset = datasets.load_dataset(experiment.data)
    guesses = {dataset.digest}
    for records in dataset.splits.values():
        guesses |= {tree.digest(records.leaves), *(tree.digest({"x": row}) for row in records.images)}
    held = [(where, guess) for where, text in artefacts for guess in guesses if guess[:12] in text]
    assert held == []
