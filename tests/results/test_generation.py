"""Samples as a data set: what is in the files, that they are read back, and that a killed run continues."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from storages import Storage
from torch import Tensor

from raydiff.data.datasets import Data, load
from raydiff.data.partition import Iid
from raydiff.data.picture_files import write_parquet
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of
from raydiff.methods.fedavg import FedAvg
from raydiff.privacy.filters import compose
from raydiff.results import generation as generate
from raydiff.results.finished import Finished, SampleSource, open_finished
from raydiff.results.generation import GenerationRequest, plan, write
from raydiff.results.sampler import Sampler
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


def read(folder: Path) -> tuple[Tensor, Tensor]:
    """(images (N, C, H, W) on [-1, 1], labels (N, 1)) in the order of the files."""
    rows = load(Data(name=str(folder), test=0, validation=0, public=0, calibration=0)).splits["train"]
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
    assert write(finished, 1, tmp_path / "out", request, code=CODE, on_progress=lambda *x: progress.append(x)) == "none"
    assert progress == [(0, 17), (7, 17), (14, 17), (17, 17)]
    names = [f"train-0000{i}-of-00003.parquet" for i in range(3)]
    assert sorted(files(tmp_path / "out")) == ["card.json", *names]
    source = finished.source(1)
    images, labels = read(tmp_path / "out")
    assert torch.equal(labels, plan(source, request).of(0, 17))
    for part, (start, stop) in enumerate([(0, 7), (7, 14), (14, 17)]):
        samples = source.sample(labels[start:stop], generator(3, "generate", 1, part))
        assert (images[start:stop] - samples.clamp(-1, 1)).abs().max() <= 0.5 / 127.5 + 1e-6  # rounded to 8 bits
        assert samples.std() > 0.1


def test_a_part_says_what_it_is(finished: Finished, tmp_path: Path) -> None:
    write(finished, None, tmp_path / "out", GenerationRequest(num=3), code=CODE)
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
    write(finished, 0, tmp_path / "out", GenerationRequest(num=30, per_class=True), code=CODE)
    again = load(replace(data, name=str(tmp_path / "out"), labels=("label", "hue")))
    assert again.label_names == tuple(names.values()) and again.label_columns == ("label", "hue")
    labels = torch.cat([again.splits[s].labels for s in ("train", "public")])
    combinations, counts = labels.unique(dim=0, return_counts=True)
    assert combinations.tolist() == [[0, 1], [1, 0], [1, 2]] and counts[0] == 30 == counts[1:].sum()
    finished.save_sampler(tmp_path / "sampler")
    assert Sampler(tmp_path / "sampler").predict(pd.DataFrame({"label": [1], "hue": [2]})).shape == (1, 8, 8, 1)


def test_what_was_made_can_be_trained_on(finished: Finished, tiny: Experiment, copied) -> None:
    """As `--data.name DIR` does."""
    out = copied.root / "out"
    write(finished, 0, out, GenerationRequest(num=40, per_class=True), code=CODE)
    data = Data(name=str(out), train=100, public=80, validation=60, calibration=20, test=100)
    again = open_finished(copied.finish("again", replace(tiny, data=data, evaluation=None)))
    assert again.source(0).sample(torch.tensor([[1]]), generator(0)).isfinite().all()


def test_the_card_of_a_clients_samples(finished: Finished, tmp_path: Path) -> None:
    write(finished, 1, tmp_path, GenerationRequest(num=5), code=CODE)
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
    privacy = write(finished, None, tmp_path, GenerationRequest(num=5), code=CODE)
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
    write(open_finished(folder), None, tmp_path / "out", GenerationRequest(num=5), code=CODE)
    chosen = json.loads((tmp_path / "out" / "card.json").read_text())["chosen"]
    ledgers = [ledger_of(path).server for path in folder.parent.iterdir()]
    assert chosen["from_trials"] == len(ledgers) == 3 and "no epsilon covers which" in chosen["says"]
    assert chosen["spent_together"][0] == f"all 3 trials composed: {compose(ledgers).guarantee(1e-5, 'exact')}"
    bare = FedAvg(model=base.method.model, local=base.method.local, rounds=1)
    storage.finish("three", replace(base, method=bare))
    write(open_finished(folder), None, tmp_path / "out", GenerationRequest(num=5), code=CODE)  # goes on, and says so
    chosen = json.loads((tmp_path / "out" / "card.json").read_text())["chosen"]
    assert chosen["from_trials"] == 4 and "epsilon inf (no guarantee" in chosen["spent_together"][0]
    other = next(path for path in folder.parent.iterdir() if path != folder)
    next(other.glob("commit-*.json")).write_text("{")
    write(open_finished(folder), None, tmp_path / "more", GenerationRequest(num=5), code=CODE)
    chosen = json.loads((tmp_path / "more" / "card.json").read_text())["chosen"]
    assert chosen["from_trials"] == 4 and "composed epsilon of all trials is unknown" in chosen["spent_together"][0]


# --- resuming ---


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("client", [0, None])
def test_what_is_missing_is_made_again_and_nothing_else(finished: Finished, tmp_path: Path, client: int | None) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write(finished, client, whole, GenerationRequest(num=30), code=CODE)
    shutil.copytree(whole, cut)
    lost = [cut / f"train-0000{i}-of-00005.parquet" for i in (1, 4)]
    for path in lost:
        path.unlink()
    (cut / f".{lost[0].name}.0a1b2c3d").write_bytes(b"half a pa")  # what a kill leaves
    (cut / ".card.json.0a1b2c3d").write_text("{")
    kept = {p: p.stat().st_mtime_ns for p in cut.glob("train-*")}
    seen: list[tuple[int, int]] = []
    write(finished, client, cut, GenerationRequest(num=30), code=CODE, on_progress=lambda *x: seen.append(x))
    assert files(cut) == files(whole)
    assert seen == [(21, 30), (28, 30), (30, 30)]
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


def refusal(*arguments: Any, **more: Any) -> str:
    with pytest.raises(ValueError) as e:
        write(*arguments, **{"code": CODE, **more})
    assert "\n" not in str(e.value)
    return str(e.value)


def test_another_request_into_the_same_folder(finished: Finished, tmp_path: Path) -> None:
    write(finished, 0, tmp_path, GenerationRequest(num=5), code=CODE)
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
