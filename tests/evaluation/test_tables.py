"""Rows of a table: how they are judged, and trials that train on them from start to end."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cases import slow_but
from torch import Tensor

from raydiff.data.datasets import Data, load
from raydiff.data.modality import TableRows
from raydiff.data.partition import ByClass, Iid
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.evaluation.quality import table_fidelity as tables
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.trial import open_trial
from raydiff.formats.metric_records import columns
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.marginals import Marginals
from raydiff.methods.scaffold import Scaffold
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.ddpm import DDPM
from raydiff.models.training import Training
from raydiff.results.finished import open_finished
from raydiff.results.generation import GenerationRequest, write
from raydiff.seeding import generator

MODEL = DiscreteDiffusion(hidden=32, layers=3, steps=5)
SHORT = Training(steps=20, batch=32)


def rows(count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Codes (count, 3) and labels: the first column tells the label, the second goes with the first."""
    rng = generator(seed)
    labels = torch.randint(2, (count,), generator=rng)
    first = labels + 2 * torch.randint(2, (count,), generator=rng)
    return torch.stack([first, first // 2, torch.randint(3, (count,), generator=rng)], dim=1), labels


# --- the measures ---


def test_total_variation_of_columns_and_pairs_is_that_of_counts() -> None:
    one = torch.tensor([[0, 0], [0, 0], [1, 1], [1, 1]])
    other = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    columns, pairs = tables.total_variation(one, other)
    assert columns.tolist() == [0, 0]  # the same margins
    assert pairs.tolist() == [0.5]
    columns, pairs = tables.total_variation(one, torch.full((7, 2), 4))
    assert columns.tolist() == [1, 1]
    assert pairs.tolist() == [1]
    columns, _ = tables.total_variation(one, torch.tensor([[0, 1], [0, 2], [0, 2], [1, 0]]))
    assert columns.tolist() == [0.25, 0.5]


def test_a_classifier_learns_from_rows_what_they_say_of_labels() -> None:
    codes, labels = rows(400)
    real, real_labels = rows(300, seed=1)
    assert tables.downstream_accuracy(codes, labels, real, real_labels) == 1
    shuffled = labels[torch.randperm(400, generator=generator(2))]
    assert tables.downstream_accuracy(codes, shuffled, real, real_labels) < 0.7
    assert tables.downstream_accuracy(codes, 0 * labels, real, real_labels) == float((real_labels == 0).double().mean())


def test_good_rows_are_at_the_floor_and_bad_ones_above_it() -> None:
    local, real, (codes, labels) = rows(600), rows(300, seed=2), rows(600, seed=1)
    good = columns(tables.quality((codes, labels), local, real, classes=2))
    assert good["tv_pairs"] < good["tv_pairs_floor"] + 0.03 < 0.13
    assert good["accuracy"] == good["accuracy/real"] == 1
    assert good["utility_loss"] == 0
    assert 0.4 < good["accuracy/majority"] < 0.6
    other = torch.randint(4, codes.shape, generator=generator(3))
    bad = columns(tables.quality((other, labels), local, real, classes=2))
    assert bad["tv_columns"] > good["tv_columns"] + 0.1
    assert bad["tv_pairs"] > good["tv_pairs"] + 0.2
    assert bad["accuracy"] < 0.8


# --- the data ---


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 rows of a number, two texts and a label."""
    codes, labels = rows(700)
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    towns = [f"town {c}" for c in codes[:, 0].tolist()]
    frame = {"town": towns, "rich": codes[:, 1] == 1, "age": codes[:, 2] * 20 + torch.arange(700) % 20}
    pd.DataFrame({**frame, "buys": [("no", "yes")[i] for i in labels.tolist()]}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def experiment(people: Path) -> Experiment:
    return Experiment(
        method=LocalOnly(model=MODEL, local=SHORT),
        data=Data(name=str(people), labels=("buys",), bins=4, public=50, validation=50, calibration=0, test=200),
        clients=2,
        partition=Iid(),
        evaluation=Evaluation(attacks=None),
        runtime=Runtime(pool="local"),
    )


def test_a_table_is_loaded_as_records_of_codes(experiment: Experiment) -> None:
    dataset = load(replace(experiment.data, bins=5))
    assert dataset.shape == (1, 1, 3)
    assert dataset.cardinalities == (3,)  # one of them for labels that no public row has
    assert dataset.label_names == (("no", "yes", "(other)"),)
    assert isinstance(dataset.modality, TableRows)
    mapping = dataset.modality.mapping
    assert [len(c.categories) for c in mapping.columns] == [5, 3, 5]
    train = dataset.splits["train"]
    assert len(train) == 400
    codes = train.images.flatten(1)
    assert torch.equal(codes, codes.round())
    assert (codes.min(), codes.max()) == (0, 3)
    towns = mapping.decode(codes.long().numpy(), train.labels[:, 0].numpy())
    answer = pd.read_csv(experiment.data.name).iloc[train.numbers.tolist()]
    assert towns["town"].tolist() == answer["town"].tolist()
    assert towns["buys"].tolist() == answer["buys"].tolist()
    assert "bins and categories were taken from 50 public rows" in dataset.notes


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"labels": ()}, "people.csv needs a label: give data.labels one of town, rich, age, buys"),
        ({"labels": ("buys", "town")}, "a table has one label column"),
        ({"size": 8}, "a table has no pictures: data.size must be none"),
        ({"colour": "rgb"}, "a table has no pictures: data.size must be none and data.colour stored"),
        ({"superclasses": "parity"}, "is a table: data.superclasses must be none"),
        ({"name": "digits", "labels": ()}, "data set 'digits' is no table: data.bins is for tables only"),
        ({"name": "people.csv"}, "there is no file"),
    ],
)
def test_what_is_for_pictures_is_refused_of_tables(experiment: Experiment, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        load(replace(experiment.data, **fields))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"method.model": DDPM()}, "the data are a table: method.model must be discretediffusion"),
        ({"data": Data()}, "the data are pictures: method.model must be a model of pictures"),
        (
            {"evaluation.metrics": ("frechet",)},
            "must be of rows .* got frechet$",
        ),
        (
            {"data": Data(), "method.model": DDPM(), "evaluation.metrics": ("table",)},
            "of pictures .* got table$",
        ),
        ({"evaluation.downstream": ("mlp",)}, "^evaluation.downstream must be empty where rows"),
    ],
)
def test_models_and_instruments_go_with_the_data(experiment: Experiment, values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        trial.resolve(overrides.override(experiment, values))


def test_records_are_left_out_by_the_bound_of_a_discrete_diffusion_alone(experiment: Experiment) -> None:
    """Else `audit.remove` would be a setting that nothing reads."""
    counted = replace(experiment, method=Marginals(epsilon=None), audit=RowAudit())
    trial.resolve(counted)
    with pytest.raises(ValueError, match=r"audit\.remove must be 0 .*, got 0\.1"):
        trial.resolve(replace(counted, audit=RowAudit(remove=0.1)))


def test_rows_of_one_label_cannot_be_attacked(experiment: Experiment) -> None:
    apart = replace(experiment, partition=ByClass())
    trial.resolve(apart)
    with pytest.raises(ValueError, match="client 0 has rows of one label only: evaluation"):
        trial.resolve(replace(apart, evaluation=Evaluation()))


# --- trials ---


def finished(experiment: Experiment, folder: Path) -> tuple[trial.Trial, dict[str, Any]]:
    opened = open_trial(experiment, folder)
    return opened, list(trial.run(opened, trial.local_executor(opened)))[-1]


AVERAGED: dict[str, Any] = {"model": MODEL, "rounds": 2, "local": SHORT}
METHODS = {
    "localonly": LocalOnly(model=MODEL, local=SHORT),
    "fedavg": FedAvg(**AVERAGED),
    "scaffold": Scaffold(**{**AVERAGED, "local": replace(SHORT, optimizer="sgd", learning_rate=0.1)}),
    "dpsgd": DPSGD(**{**AVERAGED, "local": Training(steps=4, batch=20)}, epsilon=5.0),
}


@pytest.mark.parametrize("name", slow_but(["localonly", "dpsgd"], METHODS))
def test_methods_train_on_a_table_from_start_to_end(name: str, experiment: Experiment, tmp_path: Path) -> None:
    opened, final = finished(replace(experiment, method=METHODS[name]), tmp_path)
    assert opened.experiment.method.model.counts == (4, 3, 4)
    assert opened.experiment.method.model.labels == (3,)
    assert all(0 <= final[f"eval/{k}"] <= 1 for k in ("tv_columns", "tv_pairs", "accuracy", "accuracy/real"))
    assert final["eval/accuracy/real"] == 1
    assert not any("fd_" in k or "attack" in k or "blackbox" in k for k in final)
    epsilon = {"localonly": 0.0, "dpsgd": 5.0}.get(name, math.inf)
    assert final["privacy/epsilon_server"] == pytest.approx(epsilon, rel=0.01)
    assert not (opened.folder / "artifacts" / "samples.png").exists()
    done = open_finished(opened.folder)
    for client in (1,) if name == "localonly" else (1, None):
        out = tmp_path / str(client)
        privacy = write(done, client, out, GenerationRequest(num=6, per_class=True), code={})
        assert privacy == ("none" if client is not None else str(done.published))
        assert json.loads((out / "card.json").read_text())["privacy"] == privacy
        made = pd.read_csv(out / "rows.csv")
        assert made.columns.tolist() == ["town", "rich", "age", "buys"]
        assert made["buys"].value_counts().to_dict() == {"no": 6, "yes": 6}


def test_trained_longer_the_rows_come_close(experiment: Experiment, tmp_path: Path) -> None:
    method = LocalOnly(model=replace(MODEL, hidden=64), local=Training(steps=200, batch=64, learning_rate=1e-2))
    _, final = finished(replace(experiment, method=method, clients=1), tmp_path)
    assert final["eval/tv_pairs"] < final["eval/tv_pairs_floor"] + 0.1
    assert final["eval/accuracy"] > 0.9


def test_the_attack_on_rows_says_what_guessing_achieves(experiment: Experiment, tmp_path: Path) -> None:
    _, final = finished(replace(experiment, evaluation=Evaluation()), tmp_path)
    assert final["eval/blackbox/n_members"] == 200
    assert 170 < final["eval/blackbox/n_nonmembers"] <= 200  # as many of the 200 as have the members' mix of labels
    guessed = 200 / (200 + final["eval/blackbox/n_nonmembers"])
    assert final["eval/blackbox/random"] == pytest.approx(guessed, abs=0.01)
    ends = final["eval/blackbox/accuracy_low"], final["eval/blackbox/accuracy_high"]
    assert ends[0] < final["eval/blackbox/accuracy"] < ends[1]
    assert ends[0] < 0.5 < ends[1]  # of a model that has hardly learned anything
