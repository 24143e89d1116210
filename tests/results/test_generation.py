"""Samples as a data set: what is in the files, that they are read back, and that a killed run continues."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from commands import changes
from storages import Storage
from torch import Tensor
from trial_folders import written

from raydiff.data.datasets import Data, load_dataset
from raydiff.data.partition import Iid
from raydiff.data.picture_files import write_parquet
from raydiff.data.records import Records, codes_of
from raydiff.data.tables import rows_file
from raydiff.data.tables.read import RawTable, read_table
from raydiff.evaluation.attacks import lira
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.presets import PRESETS
from raydiff.formats.json_files import read_json
from raydiff.formats.metric_records import columns, read_metrics
from raydiff.methods._averaging import Averaging, ClientPrivacy
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training
from raydiff.privacy.filters import compose
from raydiff.results import generation as generate, shadows
from raydiff.results.chance import noise
from raydiff.results.finished import Finished, SampleSource, open_finished
from raydiff.results.generation import GenerationRequest, plan, write_samples
from raydiff.results.sampler import Sampler
from raydiff.results.shadows import ROLES, Attacked, ShadowRequest, open_attacked
from raydiff.seeding import generator

CODE = {"raydiff": "0.1.0", "git": "0123"}


@pytest.fixture
def finished(storage) -> Finished:
    return open_finished(storage.folder("pfdm"))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "PART", 7)


def source_of(labels: list[list[int]]) -> SampleSource:
    return SampleSource(
        0, lambda labels, rng: torch.zeros(len(labels), 1, 2, 2), torch.tensor(labels), "none", "nothing"
    )


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def read_samples(folder: Path) -> tuple[Tensor, Tensor]:
    """(images (N, C, H, W) on [-1, 1], labels (N, 1)) in the order of the files."""
    rows = load_dataset(Data(name=str(folder), test=0, validation=0, public=0, calibration=0)).splits["train"]
    order = rows.numbers.argsort()
    return rows.images[order], rows.labels[order]


# --- labels ---


def test_so_many_of_each_class() -> None:
    own = [[0, 1]] * 5 + [[2, 0], [2, 3]]
    labels = plan(source_of(own), GenerationRequest(num=4, per_class=True))
    assert labels.rows == 8 and labels.per_class(3) == [4, 0, 4]
    rows = labels.of(0, 8).tolist()
    assert sorted(rows) == [[0, 1]] * 4 + [[2, 0]] * 2 + [[2, 3]] * 2


@pytest.mark.parametrize(
    ("request_", "counts"),
    [
        (GenerationRequest(num=14), [4, 6, 0, 4]),
        (GenerationRequest(num=23), None),
        (GenerationRequest(num=5, per_class=True), [5, 5, 0, 5]),
    ],
)
def test_labels_come_in_the_proportions_of_the_records(request_: GenerationRequest, counts: list[int] | None) -> None:
    labels = plan(source_of([[0], [0], [3], [1], [1], [1], [3]]), request_)
    whole = labels.of(0, labels.rows)
    assert whole.flatten().bincount(minlength=4).tolist() == labels.per_class(4) and len(whole) == labels.rows
    assert counts is None or labels.per_class(4) == counts
    assert torch.equal(torch.cat([labels.of(0, 1), labels.of(1, labels.rows)]) if labels.rows > 1 else whole, whole)


@pytest.mark.parametrize(("field", "value"), [("num", 0), ("num", 10**15), ("labels", "private")])
def test_requests_that_cannot_be(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        GenerationRequest(**{field: value})


def test_labels_of_the_servers_samples_are_nobodys(finished: Finished) -> None:
    """Unless that is asked for: then there is no guarantee."""
    public = finished.dataset.splits["public"].labels
    assert plan(finished.source(None), GenerationRequest(num=20)).per_class(10) == [2] * 10
    of_public, as_data = finished.source(None, "public"), finished.source(None, "as-data")
    assert torch.equal(of_public.labels, public) and of_public.privacy == str(finished.published)
    assert torch.equal(as_data.labels, torch.cat([finished.source(i).labels for i in (0, 1)]))
    assert as_data.privacy.startswith("epsilon inf (no guarantee: labels drawn") and finished.published.epsilon < 6
    assert torch.equal(finished.source(1, "public").labels, public) and finished.source(1, "public").privacy == "none"


def test_of_several_label_columns_those_combinations_are_drawn_that_public_records_have(finished: Finished) -> None:
    public = replace(finished.dataset.splits["public"], labels=torch.tensor([[0, 1], [1, 0], [0, 1]]))
    names = (("disc", "ring"), ("red", "blue", "green"))
    none, train = public.select(torch.arange(0)), replace(public, labels=torch.tensor([[1, 2], [0, 1], [1, 2]]))
    for records, declared, pool in (
        (public, ("labels",), [[0, 1], [1, 0]]),
        (none, ("labels",), [[0, 1], [1, 2]]),  # those that were trained on
        (none, (), [[a, b] for a in range(2) for b in range(3)]),
    ):
        splits = {**finished.dataset.splits, "public": records, "train": train}
        published = replace(finished.published, declared=declared)
        dataset = replace(finished.dataset, splits=splits, label_names=names)
        other = replace(finished, dataset=dataset, published=published)
        assert other.source(None).labels.tolist() == pool
    with pytest.raises(ValueError, match=r"^labels must be uniform or as-data without public records"):
        other.source(None, "public")


# --- files ---


@pytest.mark.usefixtures("small_parts")
def test_the_files_hold_the_samples(finished: Finished, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    request = GenerationRequest(num=17, seed=3)
    assert (
        write_samples(finished, 1, tmp_path / "out", request, code=CODE, on_progress=lambda *x: progress.append(x))
        == "none"
    )
    assert progress == [(0, 17), (7, 17), (14, 17), (17, 17)]
    names = [f"train-0000{i}-of-00003.parquet" for i in range(3)]
    assert sorted(files(tmp_path / "out")) == ["card.json", *names]
    source = finished.source(1)
    images, labels = read_samples(tmp_path / "out")
    assert torch.equal(labels, plan(source, request).of(0, 17))
    for part, (start, stop) in enumerate([(0, 7), (7, 14), (14, 17)]):
        samples = source.sample(labels[start:stop], generator(3, "generate", 1, part))
        assert (images[start:stop] - samples.clamp(-1, 1)).abs().max() <= 0.5 / 127.5 + 1e-6  # rounded to 8 bits
        assert samples.std() > 0.1


def test_a_part_says_what_it_is(finished: Finished, tmp_path: Path) -> None:
    write_samples(finished, None, tmp_path / "out", GenerationRequest(num=3), code=CODE)
    schema = pq.read_schema(tmp_path / "out" / "train-00000-of-00001.parquet")
    assert [str(f.type) for f in schema] == ["struct<bytes: binary, path: string>", "int64"]
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"]["names"] == [str(c) for c in range(10)]
    assert json.loads(schema.metadata[b"raydiff"])["privacy"].startswith("epsilon 5.97")


def test_several_label_columns_go_in_and_come_out(tiny: Experiment, copied, tmp_path: Path) -> None:
    """The class becomes `label`, the other column keeps its name; combinations come in their proportions."""
    rows = torch.tensor([[0, 1], [1, 0], [1, 2]]).repeat(100, 1)
    pixels = torch.randint(256, (300, 8, 8, 1), generator=generator(0), dtype=torch.uint8)
    (tmp_path / "in").mkdir()
    names = {"shape": ("disc", "ring"), "hue": ("red", "blue", "green")}
    write_parquet(tmp_path / "in" / "train.parquet", pixels, rows, names=names, about={})
    data = Data(name=str(tmp_path / "in"), labels=("shape", "hue"), public=20, validation=0, calibration=0, test=0)
    finished = open_finished(copied.finish("several", replace(tiny, data=data, partition=Iid(), evaluation=None)))
    write_samples(finished, 0, tmp_path / "out", GenerationRequest(num=30, per_class=True), code=CODE)
    again = load_dataset(replace(data, name=str(tmp_path / "out"), labels=("label", "hue")))
    assert again.label_names == tuple(names.values()) and again.label_columns == ("label", "hue")
    labels = torch.cat([again.splits[s].labels for s in ("train", "public")])
    combinations, counts = labels.unique(dim=0, return_counts=True)
    assert combinations.tolist() == [[0, 1], [1, 0], [1, 2]] and counts[0] == 30 == counts[1:].sum()
    finished.save_sampler(tmp_path / "sampler")
    assert Sampler(tmp_path / "sampler").predict(pd.DataFrame({"label": [1], "hue": [2]})).shape == (1, 8, 8, 1)


def test_what_was_made_can_be_trained_on(finished: Finished, tiny: Experiment, copied) -> None:
    """As `--data.name DIR` does."""
    out = copied.root / "out"
    write_samples(finished, 0, out, GenerationRequest(num=40, per_class=True), code=CODE)
    data = Data(name=str(out), train=100, public=80, validation=60, calibration=20, test=100)
    again = open_finished(copied.finish("again", replace(tiny, data=data, evaluation=None)))
    assert again.source(0).sample(torch.tensor([[1]]), generator(0)).isfinite().all()


def test_the_card_of_a_clients_samples(finished: Finished, tmp_path: Path) -> None:
    write_samples(finished, 1, tmp_path, GenerationRequest(num=5), code=CODE)
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["privacy"], card["guarantee"], card["about"]) == ("none", None, "samples of client 1")
    assert card["covers"].startswith("other clients' records, as the uploads are: epsilon 5.97")
    assert (card["rows"], sum(card["classes"].values()), card["parts"]) == (5, 5, 1)
    assert card["request"] == {"num": 5, "per_class": False, "seed": 0, "labels": "as-data", "client": 1}
    assert (card["trial"], card["sweep"]) == (finished.trial.experiment.digest, "pfdm")
    assert card["data"] == {"name": "digits", "digest": finished.trial.experiment.data_digest}
    assert card["method"]["client_sampling"] == {"kind": "Sampling", "sampler": "ancestral", "steps": None}
    assert CODE.items() <= card["made_by"].items() and card["pixels"].startswith("8-bit PNG")


def test_the_card_of_the_servers_samples(finished: Finished, tmp_path: Path) -> None:
    privacy = write_samples(finished, None, tmp_path, GenerationRequest(num=5), code=CODE)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["privacy"] == card["guarantee"]["says"] == privacy
    assert card["guarantee"]["delta"] == 1e-5 and card["guarantee"]["relation"] == "replace_one"
    assert {"unit", "trust", "accountant"} <= card["guarantee"].keys()
    assert "still noised" in card["about"] and card["request"]["client"] is None


def test_the_card_says_from_how_many_trials_and_what_all_of_them_have_spent(finished: Finished, tmp_path: Path) -> None:
    """Which one is published was chosen with all of them at hand: their composition is what it may have cost."""
    storage, base = Storage(tmp_path / "storage"), replace(finished.trial.experiment, evaluation=None)
    for seed in (0, 1, 2):
        folder = storage.finish("three", replace(base, seed=seed))
    write_samples(open_finished(folder), None, tmp_path / "out", GenerationRequest(num=5), code=CODE)
    chosen = json.loads((tmp_path / "out" / "card.json").read_text())["chosen"]
    ledgers = [ledger_of(path).server for path in folder.parent.iterdir()]
    assert chosen["from_trials"] == len(ledgers) == 3 and "no epsilon covers which" in chosen["says"]
    assert chosen["spent_together"][0] == f"all 3 trials composed: {compose(ledgers).guarantee(1e-5, 'exact')}"
    bare = FedAvg(model=base.method.model, local=base.method.local, rounds=1)
    storage.finish("three", replace(base, method=bare))
    write_samples(
        open_finished(folder), None, tmp_path / "out", GenerationRequest(num=5), code=CODE
    )  # goes on, and says so
    chosen = json.loads((tmp_path / "out" / "card.json").read_text())["chosen"]
    assert chosen["from_trials"] == 4 and "epsilon inf (no guarantee" in chosen["spent_together"][0]
    other = next(path for path in folder.parent.iterdir() if path != folder)
    next(other.glob("commit-*.json")).write_text("{")
    write_samples(open_finished(folder), None, tmp_path / "more", GenerationRequest(num=5), code=CODE)
    chosen = json.loads((tmp_path / "more" / "card.json").read_text())["chosen"]
    assert chosen["from_trials"] == 4 and "composed epsilon of all trials is unknown" in chosen["spent_together"][0]


# --- resuming ---


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("client", [0, None])
def test_what_is_missing_is_made_again_and_nothing_else(finished: Finished, tmp_path: Path, client: int | None) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write_samples(finished, client, whole, GenerationRequest(num=30), code=CODE)
    shutil.copytree(whole, cut)
    lost = [cut / f"train-0000{i}-of-00005.parquet" for i in (1, 4)]
    for path in lost:
        path.unlink()
    (cut / f".{lost[0].name}.0a1b2c3d").write_bytes(b"half a pa")  # what a kill leaves
    (cut / ".card.json.0a1b2c3d").write_text("{")
    kept = {p: p.stat().st_mtime_ns for p in cut.glob("train-*")}
    seen: list[tuple[int, int]] = []
    write_samples(finished, client, cut, GenerationRequest(num=30), code=CODE, on_progress=lambda *x: seen.append(x))
    assert files(cut) == files(whole)
    assert seen == [(21, 30), (28, 30), (30, 30)]
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


def refusal(*arguments: Any, **more: Any) -> str:
    with pytest.raises(ValueError) as e:
        write_samples(*arguments, **{"code": CODE, **more})
    assert "\n" not in str(e.value)
    return str(e.value)


def test_another_request_into_the_same_folder(finished: Finished, tmp_path: Path) -> None:
    write_samples(finished, 0, tmp_path, GenerationRequest(num=5), code=CODE)
    (tmp_path / ".train-00001-of-00002.parquet.0a1b2c3d").write_bytes(b"somebody is writing this")
    before = files(tmp_path)
    assert "(classes, request, rows differ in its card.json)" in refusal(
        finished, 0, tmp_path, GenerationRequest(num=6)
    )
    assert "request" in refusal(finished, 0, tmp_path, GenerationRequest(num=5, seed=1))
    assert "request" in refusal(finished, 1, tmp_path, GenerationRequest(num=5))
    assert "made_by" in refusal(finished, 0, tmp_path, GenerationRequest(num=5), code={"raydiff": "0.2"})
    assert files(tmp_path) == before
    (tmp_path / "card.json").write_text("{")
    assert refusal(finished, 0, tmp_path, GenerationRequest(num=5)).startswith(
        f"{tmp_path}/card.json is not valid JSON"
    )


def test_a_folder_that_is_somebody_elses(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "is not empty and holds no card.json" in refusal(finished, 0, tmp_path, GenerationRequest(num=5))
    assert refusal(finished, 0, tmp_path / "thesis.tex", GenerationRequest(num=5)).endswith(
        "thesis.tex is not a folder"
    )


# --- Rows of a table as a data set: what is in rows.csv, that it is read again, and that a killed run continues


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
def finished_table(tables: Storage) -> Finished:
    return open_finished(tables.folder("fedavg"))


def rows_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "rows.csv", dtype=str, keep_default_na=False, na_values=[""])


# --- files ---


def test_the_file_holds_the_samples_by_the_trials_own_mapping(
    finished_table: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "PART", 7)
    progress: list[tuple[int, int]] = []
    write_samples(
        finished_table,
        None,
        tmp_path,
        GenerationRequest(num=17, seed=3, numbers="bins"),
        code=CODE,
        on_progress=lambda *x: progress.append(x),
    )
    assert progress == [(0, 17), (7, 17), (14, 17), (17, 17)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["card.json", "rows.csv"]
    source, mapping = finished_table.source(None), finished_table.dataset.modality.mapping
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


def test_the_card_says_what_a_value_is_and_whose_bins_these_are(finished_table: Finished, tmp_path: Path) -> None:
    write_samples(finished_table, None, tmp_path, GenerationRequest(num=3), code=CODE)
    card = json.loads((tmp_path / "card.json").read_text())
    assert list(card["columns"]) == COLUMNS and card["columns"]["paid"] == ["no", "yes", "(other)"]
    assert card["about"] == "rows of the shared model" and card["privacy"].startswith("epsilon inf")
    assert card["categories"].startswith("of town, age, paid, buys: edges of bins and names of groups come from public")
    assert card["label"] == "what a row was made for" and "empty: missing" in card["values"]
    assert not {"pixels", "parts"} & set(card) and "pdp" not in json.dumps(card).lower()
    declared = replace(finished_table, dataset=replace(finished_table.dataset, fitted_columns=()))
    assert declared.categories == "edges of bins and names of groups are given, taken from no record"


def test_a_model_without_labels_says_so(tables: Storage, tmp_path: Path) -> None:
    base = open_finished(tables.folder("localonly")).trial.experiment
    method = LocalOnly(model=replace(MODEL, conditional=False), local=SHORT)
    made = open_finished(Storage(tmp_path / "storage").finish("blind", replace(base, method=method)))
    write_samples(made, 0, tmp_path / "out", GenerationRequest(num=3), code=CODE)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["label"] == "apart from the row: the model knows of no label"


def test_what_was_made_is_a_table_again(finished_table: Finished, tmp_path: Path) -> None:
    """As the audit reads it, and as `--data.name DIR/rows.csv` does."""
    write_samples(finished_table, 0, tmp_path, GenerationRequest(num=80, numbers="bins"), code=CODE)
    table = read_table(RawTable(source=str(tmp_path / "rows.csv"), label="buys", bins=4))
    assert len(table.codes) == 80
    rows = rows_of(tmp_path)
    decoded = table.mapping.decode(table.codes.numpy(), table.labels.numpy())  # type: ignore[union-attr]
    assert decoded.astype(rows.dtypes).equals(rows)
    cut = {"test": 9, "public": 9, "validation": 9, "calibration": 9}
    again = load_dataset(Data(name=str(tmp_path / "rows.csv"), labels=("buys",), bins=4, **cut))
    assert again.shape == (1, 1, 3) and again.label_names == (("no", "yes", "(other)"),)


@pytest.mark.parametrize("numbers", get_args(rows_file.Numbers))
def test_the_printed_options_read_the_samples_again(finished_table: Finished, tmp_path: Path, numbers: Any) -> None:
    """With the columns, their kinds and cells, whatever a reader would take for missing or for a number."""
    write_samples(finished_table, 0, tmp_path / "a b", GenerationRequest(num=80, numbers=numbers), code=CODE)
    options = shlex.split(finished_table.dataset.modality.read_options(tmp_path / "a b", "buys", numbers))
    start = Experiment(data=Data(train=40, public=20, validation=5, calibration=5, test=10), partition=Iid())
    data = overrides.override(start, changes(start, options)).data
    again, mapping = load_dataset(data).modality.mapping, finished_table.dataset.modality.mapping
    assert data.csv.missing == ("",)
    kinds = [column.kind if numbers == "drawn" else "text" for column in mapping.columns]
    assert [(c.name, c.kind) for c in again.columns] == [*zip(COLUMNS[:3], kinds, strict=True)]
    assert kinds == (["text", "number", "text"] if numbers == "drawn" else ["text"] * 3)


def test_numbers_come_out_as_numbers_of_the_generations_seed(
    finished_table: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the bins of the same rows with names, whatever the parts: no other column differs."""
    monkeypatch.setattr(generate, "PART", 20)
    tables = {}
    for name, fields in (("drawn", {}), ("again", {}), ("bins", {"numbers": "bins"})):
        write_samples(finished_table, 0, tmp_path / name, GenerationRequest(num=50, **fields), code=CODE)  # type: ignore[arg-type]
        tables[name] = rows_of(tmp_path / name)
    drawn, bins = tables["drawn"], tables["bins"]
    assert (tmp_path / "drawn" / "rows.csv").read_bytes() == (tmp_path / "again" / "rows.csv").read_bytes()
    assert drawn.drop(columns="age").equals(bins.drop(columns="age"))
    ages, age = drawn["age"].dropna(), finished_table.dataset.modality.mapping.columns[1]  # type: ignore[union-attr]
    assert 0 < len(ages) < 50 and ages.str.isdecimal().all()
    assert [age.categories[code] for code in age.codes(ages)] == bins["age"].dropna().tolist()
    card = json.loads((tmp_path / "drawn" / "card.json").read_text())
    low, high = map(int, card["ranges"]["age"])
    assert card["numbers"] == "drawn" and ages.astype(int).between(low, high).all()
    with pytest.raises(ValueError, match="numbers, ranges, values differ"):
        write_samples(finished_table, 0, tmp_path / "drawn", GenerationRequest(num=50, numbers="bins"), code=CODE)


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
    canary = int(load_dataset(experiment_on(plain, METHODS["fedavg"]).data).splits["train"].numbers[3])
    made: dict[str, list[Any]] = {}
    for table, row in (("plain", None), ("canary", canary)):
        path = table_of(tmp_path / f"{table}.csv", row)
        finished_table = open_finished(Storage(tmp_path / table).finish(name, experiment_on(path, PRIVATE[name])))
        assert finished_table.published.epsilon <= 1
        for labels in ("default", "public", "per class"):
            out = tmp_path / f"made-{table}" / labels
            how: dict[str, Any] = {"public": {"labels": "public"}, "per class": {"per_class": True}}.get(labels, {})
            assert write_samples(finished_table, None, out, GenerationRequest(num=20, **how), code=CODE).startswith(
                "epsilon 1.00"
            )
            card = json.loads((out / "card.json").read_text())
            made.setdefault(labels, []).append((card["classes"], card["columns"], list(rows_of(out)["status"])))
        finished_table.save_sampler(tmp_path / f"made-{table}" / "sampler", shared=True)
    written = [path for path in (tmp_path / "made-canary").rglob("*") if path.is_file()]
    assert len(written) == 10
    assert not [path for path in written if b"hiv" in path.read_bytes() or b"987654" in path.read_bytes()]
    for one, other in made.values():
        assert one == other
    assert made["default"][0][0] == {"ill": 10, "well": 10, "(other)": 0} != made["public"][0][0]


@pytest.mark.parametrize("name", PRIVATE)
def test_labels_as_the_private_records_have_them_have_no_guarantee(tmp_path: Path, name: str) -> None:
    path = table_of(tmp_path / "t.csv", None)
    finished_table = open_finished(Storage(tmp_path / "storage").finish(name, experiment_on(path, PRIVATE[name])))
    privacy = write_samples(
        finished_table, None, tmp_path / "out", GenerationRequest(num=60, labels="as-data"), code=CODE
    )
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert privacy == card["privacy"] == card["guarantee"]["says"] and card["guarantee"]["epsilon"] == "inf"
    assert card["guarantee"]["unprotected"] == ["labels drawn as the private records have them"]
    held = finished_table.dataset.splits["train"].labels[:, 0].bincount()
    assert len(finished_table.dataset.splits["train"]) == 60 and list(card["classes"].values())[:2] == held.tolist()


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
    finished_table = open_finished(folder)
    assert write_samples(finished_table, None, tmp_path / "out", GenerationRequest(num=2), code=CODE).startswith(
        "epsilon inf (no guarantee: t"
    )
    assert finished_table.categories is not None and "no guarantee covers them" in finished_table.categories
    assert ledger_of(folder) == finished_table.trial.store.ledger()
    assert sum(e.round == -1 for e in ledger_of(folder).entries) == 2


def test_a_trial_cut_short_in_its_first_round_has_spent_what_was_learned(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.csv", None)
    opened = trial.open_trial(experiment_on(path, PRIVATE["dpsgd"], fitted_on="all"), tmp_path / "sweep")
    trial.end_unfinished(opened.folder, "killed")
    assert finite(opened.folder) == {"server": False, "outsiders": False}


# --- the sampler ---


def test_a_saved_sampler_makes_rows(finished_table: Finished, tmp_path: Path) -> None:
    finished_table.save_sampler(tmp_path / "all")
    loaded = Sampler(tmp_path / "all")
    assert "diffusers" not in loaded.card.requires and "come from public records alone" in loaded.card.about
    asked = pd.DataFrame({"label": [0, 1, 1, 1], "client": [1, 0, 1, 1]})
    rows = loaded.predict(asked, {"seed": 4})
    assert isinstance(rows, pd.DataFrame) and rows.columns.tolist() == COLUMNS
    assert rows["buys"].tolist() == ["no", "yes", "yes", "yes"]
    own = finished_table.source(1).sample(torch.tensor([[0], [1], [1]]), generator(4, "predict", 1))
    mapping = finished_table.dataset.modality.mapping
    expected = mapping.decode(codes_of(own).numpy(), np.array([0, 1, 1]))
    same, age = rows.iloc[[0, 2, 3]].reset_index(drop=True), mapping.columns[1]
    assert same.drop(columns="age").equals(expected.drop(columns="age"))
    codes = age.codes(same["age"].astype(object).map(str, na_action="ignore"))
    assert age.names(codes).tolist() == expected["age"].astype(object).where(expected["age"].notna(), None).tolist()
    assert loaded.predict(asked, {"seed": 4}).equals(rows)  # type: ignore[union-attr]
    assert loaded.predict(asked.iloc[:0]).shape == (0, 4)
    finished_table.save_sampler(tmp_path / "shared", shared=True)
    shared = Sampler(tmp_path / "shared")
    assert shared.card.privacy == str(finished_table.published) and len(shared.predict(asked)) == 4


# --- A trial whose samples are noise says so


def sweep(folder: Path, *accuracies: float | None, method: str = "pfdm") -> Path:
    experiment = PRESETS["digits"]().experiment
    experiment = overrides.override(experiment, {"method": overrides.parse_field(experiment, "method", method)})
    for number, accuracy in enumerate(accuracies):
        at = folder / "trials" / str(number)
        at.mkdir(parents=True)
        (at / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))
        final = {} if accuracy is None else {"eval/label_accuracy/all": accuracy, "eval/label_accuracy/real": 0.96}
        (at / "outcome.json").write_text(json.dumps({"outcome": "finished", "final": written(final)}))
    return folder


def test_one_trial_at_chance(tmp_path: Path) -> None:
    message = noise(sweep(tmp_path, 0.11))
    assert message.startswith("the samples are hardly better than noise")
    assert "about 96% of real pictures" in message and "about 11% of these (10% by chance)" in message
    assert "--method.local.steps (now 1000) or --method.server.steps (now 1000)" in message


def test_of_several_trials_it_counts_those_and_shows_the_worst(tmp_path: Path) -> None:
    message = noise(sweep(tmp_path, 0.2, 0.6, 0.12, None))
    assert message.startswith("the samples of 2 of 3 trials are") and "about 12% of these" in message


@pytest.mark.parametrize("accuracies", [(), (None,), (0.28, 0.9)])
def test_nothing_is_said_of_samples_that_are_better(tmp_path: Path, accuracies: tuple[float | None, ...]) -> None:
    (tmp_path / "trials").mkdir()
    assert noise(sweep(tmp_path, *accuracies)) == ""


# --- Shadow models of a finished trial: on what they are trained, that it is once, and by the method itself


def attacked(storage: Any, name: str, **more: Any) -> Attacked:
    return open_attacked(ShadowRequest(**{"trial": storage.folder(name), "shadows": 4, "draws": 1, **more}))


def numbers(records: Records) -> set[int]:
    return set(records.numbers.tolist())


def test_the_records_in_question(storage) -> None:
    result = attacked(storage, "localonly", client=1)
    finished = open_finished(storage.folder("localonly"))
    own, splits = finished.client(1).data, finished.dataset.splits
    by_role = {role: result.records.select(result.role == i) for i, role in enumerate(ROLES)}
    assert numbers(by_role["members"]) | numbers(by_role["calibration_members"]) == numbers(own)
    assert abs(len(by_role["members"]) - len(by_role["calibration_members"])) <= 1
    assert numbers(by_role["nonmembers"]) <= numbers(splits["test"]) and len(by_role["nonmembers"]) >= 2
    assert numbers(by_role["calibration_nonmembers"]) <= numbers(splits["calibration"])
    assert len(result.records) == len(numbers(result.records)) <= 2 * len(own)
    assert set(result.records.labels[:, 0].tolist()) == set(own.labels[:, 0].tolist())
    assert result.owner.tolist() == [1] * len(result.records)
    assert result.inside.shape == (4, len(result.records))


def test_a_shadow_is_the_method_itself_on_its_half(copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the target's own functions: a client with these records, on the shadow's random numbers."""
    result = attacked(copied, "localonly")
    method = result.finished.trial.experiment.method
    mine = result.records.select(result.inside[2])
    trained: list[Records] = []

    init = LocalOnly.init_client

    def watched(self: LocalOnly, state: Any, data: Records, *more: Any) -> Any:
        trained.append(data)
        return init(self, state, data, *more)

    monkeypatch.setattr(LocalOnly, "init_client", watched)
    state = result._train(2)
    assert [r.numbers.tolist() for r in trained] == [mine.numbers.tolist()]
    params = {k.removeprefix("state/"): v for k, v in state.items()}
    expected = lira.statistics(
        method.model.denoiser(params),
        result.records,
        alphas_bar=method.model.abar,
        timesteps=result.timesteps,
        draws=1,
        rng=generator(0, "statistics"),
    )
    assert torch.equal(result.losses(2), expected)
    assert not torch.equal(result.losses(2), result.losses(3))


def test_it_is_trained_once(copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, or a second call, finds it; other timesteps need no new training, another seed does."""
    first = attacked(copied, "localonly").losses(0)
    monkeypatch.setattr(Attacked, "_train", lambda *_: pytest.fail("trained again"))
    assert torch.equal(attacked(copied, "localonly").losses(0), first)
    assert torch.equal(attacked(copied, "localonly", shadows=8).losses(0), first)
    other = attacked(copied, "localonly", timesteps=(3, 4)).losses(0)
    assert other.shape == (len(first), 2)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        attacked(copied, "localonly", seed=1).losses(0)


@pytest.mark.parametrize("name", ["fedavg", "pfdm"])
def test_of_the_shared_model_a_shadow_is_the_whole_protocol(copied, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = attacked(copied, name, source="global")
    assert not result.alone and set(result.owner.tolist()) == {0, 1}
    of_client: dict[int, Records] = {}

    def client(number: int, method: Any, data: Records, **more: Any) -> Any:
        of_client[number] = data
        return made(number, method, data, **more)

    made = shadows.Client
    monkeypatch.setattr(shadows, "Client", client)
    losses = result.losses(1)
    inside = result.records.select(result.inside[1])
    assert numbers(of_client[0]) | numbers(of_client[1]) == numbers(inside) and not numbers(of_client[0]) & numbers(
        of_client[1]
    )
    assert losses.shape == (len(result.records), len(result.timesteps)) and losses.isfinite().all()
    members = result.role < 2
    for i in (0, 1):  # a member stays with its client, a non-member goes where its class is
        own = result.finished.client(i).data
        assert numbers(result.records.select(members & (result.owner == i))) == numbers(own)
        dealt = result.records.select(~members & (result.owner == i)).labels[:, 0]
        assert set(dealt.tolist()) <= set(own.labels[:, 0].tolist())


def test_of_a_fine_tuned_client_the_others_keep_their_records(copied, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(tiny.method.local, steps=4)
    method = FedAvg(model=tiny.method.model, local=short, rounds=2, finetune=short)
    copied.finish("tuned", replace(tiny, method=method, evaluation=None))
    result = attacked(copied, "tuned", client=1)
    assert not result.alone
    assert numbers(result._records_in(0, 0)) == numbers(result.finished.client(0).data)
    assert numbers(result._records_in(0, 1)) == numbers(result.records.select(result.inside[0]))
    assert result.losses(0).isfinite().all()


def test_pfdms_client_model_needs_no_protocol(copied) -> None:
    result = attacked(copied, "pfdm")
    assert result.alone and set(result._train(0)) == {f"state/{k}" for k in result.finished.client(0).state(3)}


@pytest.mark.parametrize(
    ("name", "request_", "says"),
    [
        ("fedavg", {}, "no client denoiser .* has global"),
        ("localonly", {"source": "global"}, "no global denoiser .* has client"),
        ("localonly", {"client": 2}, "no client 2"),
        ("localonly", {"shadows": 5}, "^shadows must be .* got 5"),
    ],
)
def test_refused(storage, name: str, request_: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        attacked(storage, name, **request_)


def test_too_few_records_to_calibrate_are_refused(copied, tiny) -> None:
    data = replace(tiny.data, calibration=0)
    method = open_finished(copied.folder("localonly")).trial.experiment.method
    copied.finish("blind", replace(tiny, method=method, data=data, evaluation=None))
    with pytest.raises(ValueError, match="at least 2 records of each role, and there are fewer calibration_nonmembers"):
        attacked(copied, "blind")


def test_a_training_that_fails_is_one_sentence(copied, tiny) -> None:
    result = attacked(copied, "localonly")
    object.__setattr__(result, "inside", torch.zeros_like(result.inside))
    with pytest.raises(ValueError, match=r"^shadow 3 could not be trained: there are no records to train on$"):
        result.losses(3)
