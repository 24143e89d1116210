"""Rows of a table as a data set: what is in rows.csv, that it is read again, and that a killed run continues."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from commands import changes
from storages import Storage

from raydiff.data.datasets import Data, load
from raydiff.data.partition import Iid
from raydiff.data.records import codes_of
from raydiff.data.tables import rows_file
from raydiff.data.tables.read import RawTable, read
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.formats.json_files import read_json
from raydiff.formats.metric_records import columns, read_metrics
from raydiff.methods._averaging import Averaging, ClientPrivacy
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training
from raydiff.results import generation as generate
from raydiff.results.finished import Finished, open_finished
from raydiff.results.generation import GenerationRequest, plan, write
from raydiff.results.sampler import Sampler
from raydiff.seeding import generator

CODE = {"raydiff": "0.1.0", "git": "0123"}
MODEL = DiscreteDiffusion(hidden=16, layers=2, steps=3)
SHORT = Training(steps=4, batch=8)
METHODS = {"localonly": LocalOnly(model=MODEL, local=SHORT), "fedavg": FedAvg(model=MODEL, rounds=1, local=SHORT)}
CLIENT_LEVEL = ClientPrivacy(epsilon=1.0)
PRIVATE = {
    "dpsgd": DPSGD(model=MODEL, rounds=1, local=SHORT, epsilon=1.0),
    "dp-fedavg": FedAvg(model=MODEL, rounds=1, local=SHORT, averaging=Averaging(privacy=CLIENT_LEVEL)),
}
"""Methods whose server's model has an epsilon."""
COLUMNS = ["town", "age", "paid", "buys"]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows: towns with a comma, ages that are cut, a column with missing values, and a label."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Ulm, old", 'the "new"', "Köln"], 120),
            "age": rng.integers(20, 70, 120),
            "paid": rng.choice(["yes", "no", ""], 120),
            "buys": rng.choice(["no", "yes", "yes"], 120),
        }
    )
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def tables(people: Path, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The sweeps localonly and fedavg. Shared: not to be written to."""
    made = Storage(tmp_path_factory.mktemp("storage"))
    data = Data(name=str(people), labels=("buys",), bins=4, public=10, validation=0, calibration=0, test=10)
    for name, method in METHODS.items():
        experiment = Experiment(
            method=method, data=data, clients=2, partition=Iid(), evaluation=None, runtime=Runtime(pool="local")
        )
        made.finish(name, experiment)
    return made


@pytest.fixture
def finished(tables: Storage) -> Finished:
    return open_finished(tables.folder("fedavg"))


def rows_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "rows.csv", dtype=str, keep_default_na=False, na_values=[""])


# --- files ---


def test_the_file_holds_the_samples_by_the_trials_own_mapping(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "PART", 7)
    progress: list[tuple[int, int]] = []
    write(
        finished,
        None,
        tmp_path,
        GenerationRequest(num=17, seed=3, numbers="bins"),
        code=CODE,
        on_progress=lambda *x: progress.append(x),
    )
    assert progress == [(0, 17), (7, 17), (14, 17), (17, 17)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["card.json", "rows.csv"]
    source, mapping = finished.source(None), finished.dataset.modality.mapping
    labels = plan(source, GenerationRequest(num=17, seed=3)).of(0, 17)
    parts = [
        source.sample(labels[start:stop], generator(3, "generate", "global", part))
        for part, (start, stop) in enumerate([(0, 7), (7, 14), (14, 17)])
    ]
    expected = mapping.decode(codes_of(torch.cat(parts)).numpy(), labels[:, 0].numpy())
    rows = rows_of(tmp_path)
    assert rows.columns.tolist() == COLUMNS and rows.equals(expected.astype(rows.dtypes))
    assert set(rows["age"].dropna()) <= set(mapping.columns[1].categories)
    assert rows["age"].dropna().str.contains("<|>=|to").all()
    assert 0 < rows["paid"].isna().sum() < 17 and rows["town"].nunique() > 1
    assert (tmp_path / "rows.csv").read_bytes().count(b"\n") == 18  # the header once


def test_the_card_says_what_a_value_is_and_whose_bins_these_are(finished: Finished, tmp_path: Path) -> None:
    write(finished, None, tmp_path, GenerationRequest(num=3), code=CODE)
    card = json.loads((tmp_path / "card.json").read_text())
    assert list(card["columns"]) == COLUMNS and card["columns"]["paid"] == ["no", "yes", "(other)"]
    assert card["about"] == "rows of the shared model" and card["privacy"].startswith("epsilon inf")
    assert card["categories"].startswith("of town, age, paid, buys: edges of bins and names of groups come from public")
    assert card["label"] == "what a row was made for" and "empty: missing" in card["values"]
    assert not {"pixels", "parts"} & set(card) and "pdp" not in json.dumps(card).lower()
    declared = replace(finished, dataset=replace(finished.dataset, fitted_columns=()))
    assert declared.categories == "edges of bins and names of groups are given, taken from no record"


def test_a_model_without_labels_says_so(tables: Storage, tmp_path: Path) -> None:
    base = open_finished(tables.folder("localonly")).trial.experiment
    method = LocalOnly(model=replace(MODEL, conditional=False), local=SHORT)
    made = open_finished(Storage(tmp_path / "storage").finish("blind", replace(base, method=method)))
    write(made, 0, tmp_path / "out", GenerationRequest(num=3), code=CODE)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["label"] == "apart from the row: the model knows of no label"


def test_what_was_made_is_a_table_again(finished: Finished, tmp_path: Path) -> None:
    """As the audit reads it, and as `--data.name DIR/rows.csv` does."""
    write(finished, 0, tmp_path, GenerationRequest(num=80, numbers="bins"), code=CODE)
    table = read(RawTable(source=str(tmp_path / "rows.csv"), label="buys", bins=4))
    assert len(table.codes) == 80
    rows = rows_of(tmp_path)
    decoded = table.mapping.decode(table.codes.numpy(), table.labels.numpy())  # type: ignore[union-attr]
    assert decoded.astype(rows.dtypes).equals(rows)
    cut = {"test": 9, "public": 9, "validation": 9, "calibration": 9}
    again = load(Data(name=str(tmp_path / "rows.csv"), labels=("buys",), bins=4, **cut))
    assert again.shape == (1, 1, 3) and again.label_names == (("no", "yes", "(other)"),)


@pytest.mark.parametrize("numbers", get_args(rows_file.Numbers))
def test_the_printed_options_read_the_samples_again(finished: Finished, tmp_path: Path, numbers: Any) -> None:
    """With the columns, their kinds and cells, whatever a reader would take for missing or for a number."""
    write(finished, 0, tmp_path / "a b", GenerationRequest(num=80, numbers=numbers), code=CODE)
    options = shlex.split(finished.dataset.modality.read_options(tmp_path / "a b", "buys", numbers))
    start = Experiment(data=Data(train=40, public=20, validation=5, calibration=5, test=10), partition=Iid())
    data = overrides.override(start, changes(start, options)).data
    again, mapping = load(data).modality.mapping, finished.dataset.modality.mapping
    assert data.csv.missing == ("",)
    kinds = [column.kind if numbers == "drawn" else "text" for column in mapping.columns]
    assert [(c.name, c.kind) for c in again.columns] == [*zip(COLUMNS[:3], kinds, strict=True)]
    assert kinds == (["text", "number", "text"] if numbers == "drawn" else ["text"] * 3)


def test_numbers_come_out_as_numbers_of_the_generations_seed(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the bins of the same rows with names, whatever the parts: no other column differs."""
    monkeypatch.setattr(generate, "PART", 20)
    tables = {}
    for name, fields in (("drawn", {}), ("again", {}), ("bins", {"numbers": "bins"})):
        write(finished, 0, tmp_path / name, GenerationRequest(num=50, **fields), code=CODE)  # type: ignore[arg-type]
        tables[name] = rows_of(tmp_path / name)
    drawn, bins = tables["drawn"], tables["bins"]
    assert (tmp_path / "drawn" / "rows.csv").read_bytes() == (tmp_path / "again" / "rows.csv").read_bytes()
    assert drawn.drop(columns="age").equals(bins.drop(columns="age"))
    ages, age = drawn["age"].dropna(), finished.dataset.modality.mapping.columns[1]  # type: ignore[union-attr]
    assert 0 < len(ages) < 50 and ages.str.isdecimal().all()
    assert [age.categories[code] for code in age.codes(ages)] == bins["age"].dropna().tolist()
    card = json.loads((tmp_path / "drawn" / "card.json").read_text())
    low, high = map(int, card["ranges"]["age"])
    assert card["numbers"] == "drawn" and ages.astype(int).between(low, high).all()
    with pytest.raises(ValueError, match="numbers, ranges, values differ"):
        write(finished, 0, tmp_path / "drawn", GenerationRequest(num=50, numbers="bins"), code=CODE)


# --- what no guarantee covers ---


def table_of(path: Path, canary: int | None) -> Path:
    """100 rows; the one of this number has a label and an income that no other has."""
    ages, incomes = [20 + i % 41 for i in range(100)], [1000 + 37 * (i % 53) for i in range(100)]
    frame = pd.DataFrame({"age": ages, "income": incomes, "status": ["well", "ill", "well"] * 33 + ["ill"]})
    frame["income"] = frame["income"].astype(float)
    if canary is not None:
        frame.loc[canary, ["income", "status"]] = [987654.25, "hiv"]
    frame.to_csv(path, index=False)
    return path


def experiment_on(path: Path, method: Any, **data: Any) -> Experiment:
    own = {"labels": ("status",), "bins": 4, "public": 30, "validation": 0, "calibration": 0, "test": 10, **data}
    return Experiment(
        method=method,
        data=Data(name=str(path), **own),
        clients=2,
        partition=Iid(),
        evaluation=None,
        runtime=Runtime(pool="local", noise_secret="ab" * 16),
    )


@pytest.mark.parametrize("name", PRIVATE)
def test_a_record_of_its_own_kind_is_nowhere_under_an_epsilon(tmp_path: Path, name: str) -> None:
    """Neither its label nor its income, in a table with it and one without: the same columns, classes and labels."""
    plain = table_of(tmp_path / "plain.csv", None)
    canary = int(load(experiment_on(plain, METHODS["fedavg"]).data).splits["train"].numbers[3])
    made: dict[str, list[Any]] = {}
    for table, row in (("plain", None), ("canary", canary)):
        path = table_of(tmp_path / f"{table}.csv", row)
        finished = open_finished(Storage(tmp_path / table).finish(name, experiment_on(path, PRIVATE[name])))
        assert finished.published.epsilon <= 1
        for labels in ("default", "public", "per class"):
            out = tmp_path / f"made-{table}" / labels
            how: dict[str, Any] = {"public": {"labels": "public"}, "per class": {"per_class": True}}.get(labels, {})
            assert write(finished, None, out, GenerationRequest(num=20, **how), code=CODE).startswith("epsilon 1.00")
            card = json.loads((out / "card.json").read_text())
            made.setdefault(labels, []).append((card["classes"], card["columns"], list(rows_of(out)["status"])))
        finished.save_sampler(tmp_path / f"made-{table}" / "sampler", shared=True)
    written = [path for path in (tmp_path / "made-canary").rglob("*") if path.is_file()]
    assert len(written) == 10
    assert not [path for path in written if b"hiv" in path.read_bytes() or b"987654" in path.read_bytes()]
    for one, other in made.values():
        assert one == other
    assert made["default"][0][0] == {"ill": 10, "well": 10, "(other)": 0} != made["public"][0][0]


@pytest.mark.parametrize("name", PRIVATE)
def test_labels_as_the_private_records_have_them_have_no_guarantee(tmp_path: Path, name: str) -> None:
    path = table_of(tmp_path / "t.csv", None)
    finished = open_finished(Storage(tmp_path / "storage").finish(name, experiment_on(path, PRIVATE[name])))
    privacy = write(finished, None, tmp_path / "out", GenerationRequest(num=60, labels="as-data"), code=CODE)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert privacy == card["privacy"] == card["guarantee"]["says"] and card["guarantee"]["epsilon"] == "inf"
    assert card["guarantee"]["unprotected"] == ["labels drawn as the private records have them"]
    held = finished.dataset.splits["train"].labels[:, 0].bincount()
    assert len(finished.dataset.splits["train"]) == 60 and list(card["classes"].values())[:2] == held.tolist()


def finite(folder: Path) -> dict[str, bool]:
    outcome = json.loads((folder / "outcome.json").read_text())
    return {view: float(outcome[view]["epsilon"]) < float("inf") for view in ("server", "outsiders")}


@pytest.mark.parametrize("name", PRIVATE)
def test_fitted_on_all_records_there_is_no_guarantee_anywhere(tmp_path: Path, name: str) -> None:
    path = table_of(tmp_path / "t.csv", 50)
    experiment = experiment_on(path, PRIVATE[name], fitted_on="all", public=0)
    folder = Storage(tmp_path / "storage").finish(name, experiment)
    outcome = json.loads((folder / "outcome.json").read_text())
    assert finite(folder) == {"server": False, "outsiders": False}
    final = columns(read_metrics(outcome["final"]))
    assert final["privacy/epsilon_outsiders"] == final["privacy/epsilon_server"] == float("inf")
    header, rows = read_json(folder / "artifacts" / "ledger.json").values()
    mine = [dict(zip(header, row, strict=True)) for row in rows if row[0] in ("0", "1")]
    assert all("names of categories and classes, taken from all records" in row["events"] for row in mine)
    assert [row["epsilon_rdp"] for row in mine] == ["inf", "inf"]
    finished = open_finished(folder)
    assert write(finished, None, tmp_path / "out", GenerationRequest(num=2), code=CODE).startswith(
        "epsilon inf (no guarantee: t"
    )
    assert finished.categories is not None and "no guarantee covers them" in finished.categories
    assert ledger_of(folder) == finished.trial.store.ledger()
    assert sum(e.round == -1 for e in ledger_of(folder).entries) == 2


def test_a_trial_cut_short_in_its_first_round_has_spent_what_was_learned(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.csv", None)
    opened = trial.open_trial(experiment_on(path, PRIVATE["dpsgd"], fitted_on="all"), tmp_path / "sweep")
    trial.cut_short(opened.folder, "killed")
    assert finite(opened.folder) == {"server": False, "outsiders": False}


# --- the sampler ---


def test_a_saved_sampler_makes_rows(finished: Finished, tmp_path: Path) -> None:
    finished.save_sampler(tmp_path / "all")
    loaded = Sampler(tmp_path / "all")
    assert "diffusers" not in loaded.card.requires and "come from public records alone" in loaded.card.about
    asked = pd.DataFrame({"label": [0, 1, 1, 1], "client": [1, 0, 1, 1]})
    rows = loaded.predict(asked, {"seed": 4})
    assert isinstance(rows, pd.DataFrame) and rows.columns.tolist() == COLUMNS
    assert rows["buys"].tolist() == ["no", "yes", "yes", "yes"]
    own = finished.source(1).sample(torch.tensor([[0], [1], [1]]), generator(4, "predict", 1))
    mapping = finished.dataset.modality.mapping
    expected = mapping.decode(codes_of(own).numpy(), np.array([0, 1, 1]))
    same, age = rows.iloc[[0, 2, 3]].reset_index(drop=True), mapping.columns[1]
    assert same.drop(columns="age").equals(expected.drop(columns="age"))
    codes = age.codes(same["age"].astype(object).map(str, na_action="ignore"))
    assert age.names(codes).tolist() == expected["age"].astype(object).where(expected["age"].notna(), None).tolist()
    assert loaded.predict(asked, {"seed": 4}).equals(rows)  # type: ignore[union-attr]
    assert loaded.predict(asked.iloc[:0]).shape == (0, 4)
    finished.save_sampler(tmp_path / "shared", shared=True)
    shared = Sampler(tmp_path / "shared")
    assert shared.card.privacy == str(finished.published) and len(shared.predict(asked)) == 4
