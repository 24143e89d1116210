"""Rows of a table: how they are judged, and trials that train on them from start to end."""

import itertools
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
from torch.nn import functional as F

from raydiff.data.datasets import Data, load_dataset
from raydiff.data.modality import TableRows
from raydiff.data.partition import ByClass, Iid
from raydiff.evaluation.attacks import anonymeter, closest, domias
from raydiff.evaluation.attacks.anonymeter import Risk
from raydiff.evaluation.attacks.membership import AttackResult, attack_membership as judge, wilson
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.evaluation.quality import downstream, table_fidelity as tables
from raydiff.evaluation.quality.downstream import NETWORKS, readings, train
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
from raydiff.results.generation import GenerationRequest, write_samples
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
    dataset = load_dataset(replace(experiment.data, bins=5))
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
        load_dataset(replace(experiment.data, **fields))


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
        trial.resolve_on_data(overrides.override(experiment, values))


def test_records_are_left_out_by_the_bound_of_a_discrete_diffusion_alone(experiment: Experiment) -> None:
    """Else `audit.remove` would be a setting that nothing reads."""
    counted = replace(experiment, method=Marginals(epsilon=None), audit=RowAudit())
    trial.resolve_on_data(counted)
    with pytest.raises(ValueError, match=r"audit\.remove must be 0 .*, got 0\.1"):
        trial.resolve_on_data(replace(counted, audit=RowAudit(remove=0.1)))


def test_rows_of_one_label_cannot_be_attacked(experiment: Experiment) -> None:
    apart = replace(experiment, partition=ByClass())
    trial.resolve_on_data(apart)
    with pytest.raises(ValueError, match="client 0 has rows of one label only: evaluation"):
        trial.resolve_on_data(replace(apart, evaluation=Evaluation()))


# --- trials ---


def finished(experiment: Experiment, folder: Path) -> tuple[trial.Trial, dict[str, Any]]:
    opened = open_trial(experiment, folder)
    return opened, list(trial.run_trial(opened, trial.local_executor(opened)))[-1]


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
        privacy = write_samples(done, client, out, GenerationRequest(num=6, per_class=True), code={})
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


# --- Train on synthetic, test on real; and the real ones choose nothing


GROUPS = {"all": (0, 1, 2), "major": (0, 1), "minor": (2,), "nobody": (7,)}


def stripes(n: int, *path: str, classes: int = 3, noise: float = 0.3, turn: int = 0) -> tuple[Tensor, Tensor]:
    """Class c is bright in row c (+ turn) of eight."""
    rng = generator(0, *path)
    of = torch.arange(n) % classes
    images = noise * torch.randn(n, 1, 8, 8, generator=rng) - 0.5
    images[torch.arange(n), 0, (of + turn) % classes] += 1
    return images, of


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the work, at ten times the rate."""
    monkeypatch.setattr(downstream, "EPOCHS", 5)
    monkeypatch.setattr(downstream, "LEAST_STEPS", 8)
    monkeypatch.setattr(downstream, "RATE", 3e-3)


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_what_is_learned_from_synthetic_records_is_measured_on_real_ones(name: str) -> None:
    test = stripes(60, "test")
    result = columns(readings([name], stripes(90, "a"), stripes(90, "b"), test, groups=GROUPS, classes=4))
    assert set(result) == {f"downstream/{name}/{end}" for end in ("all", "major", "minor", "real")}
    assert min(result.values()) > 0.9


def test_a_classifier_is_as_wrong_as_what_it_learned_from() -> None:
    made, own, test = stripes(90, "a", turn=1), stripes(90, "b"), stripes(60, "test")
    result = columns(readings(["linear"], made, own, test, groups=GROUPS, classes=4))
    assert result["downstream/linear/all"] < 0.1 < 0.9 < result["downstream/linear/real"]


def test_the_epoch_is_the_one_that_held_out_synthetic_records_like_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed from the parameters after every epoch."""
    seen: list[Any] = []
    original = downstream.fit

    def recorded(*args: Any, **more: Any) -> Any:
        out = original(*args, **more)
        seen.append(out[0])
        return out

    monkeypatch.setattr(downstream, "fit", recorded)
    monkeypatch.setattr(downstream, "RATE", 0.05)  # so fast that it gets worse
    images, of = stripes(40, "a", noise=1.5)
    result = train("mlp", images, of, classes=3, rng=generator(3))
    rng = generator(3)
    _, held = downstream._hold_out(of, rng)
    losses = [float(F.cross_entropy(result.model.classify(p)(images[held]), of[held])) for p in seen]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert result.epoch == best + 1 < len(seen) == downstream.EPOCHS
    assert all(torch.equal(result.params[k], v) for k, v in seen[best].items())
    assert not torch.equal(result.params["head.weight"], seen[-1]["head.weight"])


def test_the_real_test_records_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels and other images in the test set: the same parameters."""
    kept: list[downstream.TrainedClassifier] = []
    original = downstream.train

    def recorded(*args: Any, **more: Any) -> downstream.TrainedClassifier:
        kept.append(original(*args, **more))
        return kept[-1]

    monkeypatch.setattr(downstream, "train", recorded)
    made, own, (images, of) = stripes(40, "a", noise=1.0), stripes(40, "b"), stripes(30, "t")
    honest = columns(readings(["mlp"], made, own, (images, of), groups=GROUPS, classes=3))
    poisoned = columns(readings(["mlp"], made, own, (-images, (of + 1) % 3), groups=GROUPS, classes=3))
    for first, second in zip(kept[:2], kept[2:], strict=True):
        assert first.epoch == second.epoch
        assert all(torch.equal(v, second.params[k]) for k, v in first.params.items())
    assert honest != poisoned


@pytest.mark.parametrize(("n", "classes"), [(200, 10), (2, 2), (3, 2), (4, 2), (5, 2)])
def test_a_fifth_of_each_class_or_one_record_is_held_out(n: int, classes: int) -> None:
    labels = torch.arange(n) % classes
    trained, held = downstream._hold_out(labels, generator(0))
    if n == 200:
        assert labels[trained].bincount().tolist() == [16] * 10 and labels[held].bincount().tolist() == [4] * 10
    else:
        assert (len(trained), len(held)) == (n - 1, 1)


def test_dropout_is_in_training_alone() -> None:
    rng = generator(0)
    model = downstream.Classifier(network=NETWORKS["cnn"], labels=(3,))
    params, (images, of) = model.init(rng), stripes(8, "a")
    width = params["head.weight"].shape[1]
    student = downstream._Dropping(model, 0.5, width)
    keep = student.draws(400, rng)["keep"]
    assert keep.shape == (400, width) and set(keep.unique().tolist()) == {0.0, 2.0}
    assert abs(float(keep.mean()) - 1) < 0.02
    batch = (images, of[:, None])
    whole = student.loss(params, batch, {"keep": torch.ones(8, width)}, {})
    assert torch.allclose(whole, model.loss(params, batch, {}, {}))
    assert not torch.allclose(student.loss(params, batch, student.draws(8, rng), {}), whole)


def test_refusals() -> None:
    for names in (["mlp", "x"], ["mlp", "mlp"]):
        with pytest.raises(ValueError, match="downstream must name"):
            downstream.check_classifier_names(names)
    with pytest.raises(ValueError, match="at least 2 records"):
        train("linear", *stripes(1, "a"), classes=3, rng=generator(0))
    assert len(train("linear", *stripes(2, "a"), classes=3, rng=generator(0)).right(*stripes(6, "t"))) == 6


# --- Attacks on the rows of a table: copies are found, independent rows are not, and small cases are those of brute


SPANS = (5,) * 6 + (0,) * 6


def table(count: int, seed: int) -> Tensor:
    """Rows of twelve columns that all go with a hidden one of three, so that rows are alike without being copies."""
    rng = generator(seed)
    kind = torch.randint(3, (count, 1), generator=rng)
    other = torch.randint(6, (count, 12), generator=rng)
    return torch.where(torch.rand(count, 12, generator=rng) < 0.4, kind, other)


MEMBERS, NONMEMBERS, REFERENCE, STRANGERS = (table(120, seed) for seed in (5, 6, 2, 3))
KNOWN = {"members": MEMBERS, "nonmembers": NONMEMBERS}


def apart(one: Tensor, other: Tensor, spans: tuple[int, ...] = SPANS) -> float:
    """Gower's distance of two rows, column by column."""
    each = zip(one.tolist(), other.tolist(), spans, strict=True)
    return sum(abs(a - b) / span if span and max(a, b) <= span else float(a != b) for a, b, span in each)


# --- the distance ---


def test_distances_are_those_of_each_column_by_itself() -> None:
    rows, records = torch.randint(6, (7, 5), generator=generator(0)), torch.randint(6, (9, 5), generator=generator(1))
    spans = (4, 0, 3, 0, 4)  # codes beyond a span are missing values
    result = closest.row_distances(rows, records, spans=spans)
    assert result.tolist() == [[pytest.approx(apart(a, b, spans)) for b in records] for a in rows]
    counted = torch.rand(7, 5, generator=generator(2)) < 0.5
    part = closest.row_distances(rows, records, spans=spans, columns=counted)
    for i, j in itertools.product(range(7), range(9)):
        c = counted[i]
        chosen = tuple(s for s, keep in zip(spans, c.tolist(), strict=True) if keep)
        assert float(part[i, j]) == pytest.approx(apart(rows[i, c], records[j, c], chosen))


def test_equal_distances_are_equal_to_the_bit() -> None:
    one, other = torch.tensor([[0, 0]]), torch.tensor([[1, 2], [3, 0], [2, 1]])
    assert 0.1 + 0.2 != 0.3
    assert closest.row_distances(one, other, spans=(10, 10)).unique().tolist() == [0.3]


def test_the_nearest_is_one_of_equals_by_lot() -> None:
    drawn = closest.nearest_records(torch.tensor([[2.0, 1.0, 1.0, 3.0]]).repeat(600, 1), generator(0))
    assert drawn.unique().tolist() == [1, 2] and 240 < int((drawn == 1).sum()) < 360


# --- copies are found, strangers are not ---


def of_domias(made: Tensor) -> AttackResult:
    inside, outside = (
        domias.domias_scores(records, made=made, reference=REFERENCE, spans=SPANS) for records in (MEMBERS, NONMEMBERS)
    )
    return judge(
        calibration_members=inside[:60],
        calibration_nonmembers=outside[:60],
        members=inside[60:],
        nonmembers=outside[60:],
    )


def risks(made: Tensor) -> dict[str, Risk]:
    alone = anonymeter.singling_out(made, **KNOWN, rng=generator(7))
    assert alone is not None
    linked = anonymeter.linkability(made, **KNOWN, spans=SPANS, rng=generator(8))
    of_text = anonymeter.inference(made, 7, **KNOWN, spans=SPANS, rng=generator(9))
    of_number = anonymeter.inference(made, 0, **KNOWN, spans=SPANS, rng=generator(9))
    return {"singling out": alone, "linkability": linked, "inference": of_text, "of a number": of_number}


def test_rows_copied_from_members_are_found() -> None:
    near = closest.measure_closeness(MEMBERS, **KNOWN, spans=SPANS, rng=generator(5))
    assert near.dcr > 0.95 and near.dcr_interval[0] > 0.85
    assert near.nndr > 0.95 and near.nndr_interval[0] > 0.8
    for name, result in risks(MEMBERS).items():
        assert result.risk > 0.8 and result.risk_interval[0] > 0.7, (name, result)
        assert result.members > 0.8 > result.guesses + 0.3, name
    membership = of_domias(MEMBERS)
    assert membership.auc > 0.98 and membership.auc_interval[0] > 0.93


def test_rows_that_are_independent_of_members_are_not() -> None:
    near = closest.measure_closeness(STRANGERS, **KNOWN, spans=SPANS, rng=generator(5))
    for low, high in (near.dcr_interval, near.nndr_interval):
        assert low < 0.5 < high and 0.05 < high - low < 0.4
    for name, result in risks(STRANGERS).items():
        low, high = result.risk_interval
        assert low < 0 < high and high - low < 0.5, (name, result)
    low, high = of_domias(STRANGERS).auc_interval
    assert low < 0.5 < high and high - low < 0.25


def test_what_rows_say_of_everybody_is_no_risk() -> None:
    """One column is a copy of the other in all rows: strangers tell it of members and of others alike."""
    made, inside, outside = (torch.stack([rows[:, 6]] * 2, dim=1) for rows in (STRANGERS, MEMBERS, NONMEMBERS))
    result = anonymeter.inference(made, 1, members=inside, nonmembers=outside, spans=(0, 0), rng=generator(0))
    assert result.members == result.nonmembers == 1 > result.guesses + 0.4
    assert result.risk == 0 and result.risk_interval[0] < 0 < result.risk_interval[1]


# --- brute force ---


def test_shares_are_those_of_all_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a row is in a table twice, and both distances are 0."""
    monkeypatch.setattr(closest, "BATCH", 4)
    made, inside, outside = table(15, 10), table(6, 11), table(6, 12)
    inside[1], outside[:2] = inside[0], made[0]
    made[1] = inside[0]
    dcr = nndr = 0.0
    for row in made:
        to_members, to_others = (sorted(apart(row, r) for r in records)[:2] for records in (inside, outside))
        one, other = (round(a / b, 6) if b else 1.0 for a, b in (to_members, to_others))
        a, b = round(to_members[0], 9), round(to_others[0], 9)
        dcr += (a < b) + 0.5 * (a == b)
        nndr += (one < other) + 0.5 * (one == other)
    result = closest.measure_closeness(made, members=inside, nonmembers=outside, spans=SPANS, rng=generator(0))
    assert (result.dcr, result.nndr) == (pytest.approx(dcr / 15), pytest.approx(nndr / 15))


def test_the_interval_is_as_wide_as_drawing_members_by_lot_makes_it() -> None:
    """All made rows lie at one record of 2 x 3: who has it decides everything, however many rows there are."""
    records = table(6, 20)
    made = records[:1].repeat(500, 1)
    result = closest.measure_closeness(made, members=records[:3], nonmembers=records[3:], spans=SPANS, rng=generator(0))
    assert result.dcr == 1 and result.dcr_interval == (0.5, 1.0)


@pytest.mark.slow
def test_intervals_of_nothing_hold_one_half() -> None:
    """40 pairs of tables from one population, with five times as many made rows: 95 % of them, at least 34."""
    held = [0, 0]
    for pair in range(40):
        made, inside, outside = (table(n, 100 + 3 * pair + i) for i, n in enumerate((200, 40, 40)))
        result = closest.measure_closeness(made, members=inside, nonmembers=outside, spans=SPANS, rng=generator(pair))
        for i, (low, high) in enumerate((result.dcr_interval, result.nndr_interval)):
            held[i] += low <= 0.5 <= high
    assert min(held) >= 34


def test_a_predicate_singles_out_what_is_alone_in_a_table_of_one_column() -> None:
    """Made rows 0 0 1 2: the values 1 and 2 are alone; among members both, among others neither is (two 1, no 2)."""
    made, inside, outside = (torch.tensor(rows)[:, None] for rows in ([0, 0, 1, 2], [0, 0, 1, 2], [0, 1, 1, 0]))
    result = anonymeter.singling_out(made, members=inside, nonmembers=outside, rng=generator(0))
    assert result is not None
    assert (result.members, result.nonmembers, result.attempts) == (1, 0, 2)
    assert anonymeter.singling_out(made[:2], members=inside, nonmembers=outside, rng=generator(0)) is None


def test_a_link_is_one_row_that_is_nearest_to_both_halves() -> None:
    """Two columns: a half is one of them, and each of a record's values is in one made row, the same or not."""
    made = torch.tensor([[0, 1], [2, 3], [4, 5]])
    linked, split = torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.tensor([[0, 3], [2, 5], [4, 1]])
    result = anonymeter.linkability(made, members=linked, nonmembers=split, spans=(0, 0), rng=generator(0))
    assert (result.members, result.nonmembers, result.attempts) == (1, 0, 3)


def test_a_value_is_inferred_from_the_row_that_is_nearest_in_the_others() -> None:
    made = torch.tensor([[0, 0, 3], [1, 1, 4]])
    right, wrong = torch.tensor([[0, 0, 3], [1, 1, 4], [0, 0, 3]]), torch.tensor([[0, 0, 4], [1, 1, 3], [1, 1, 0]])
    result = anonymeter.inference(made, 2, members=right, nonmembers=wrong, spans=(0, 0, 0), rng=generator(0))
    assert (result.members, result.nonmembers) == (1, 0)


def test_a_risk_is_anonymeters() -> None:
    """Its success_rate and residual_success, written out, of 30 and 10 of 50."""
    hits = torch.arange(50)
    result = anonymeter.risk(hits < 30, hits < 10, hits < 5)
    z2 = 1.959963984540054**2
    (r, e), (c, f) = (
        ((n + z2 / 2) / (50 + z2), math.sqrt(z2) / (50 + z2) * math.sqrt(n * (50 - n) / 50 + z2 / 4)) for n in (30, 10)
    )
    half = math.hypot(e / (1 - c), (r - 1) / (1 - c) ** 2 * f)
    assert result.risk == pytest.approx((r - c) / (1 - c))
    assert result.risk_interval == pytest.approx((result.risk - half, result.risk + half))
    assert result.intervals == {"members": wilson(30, 50), "nonmembers": wilson(10, 50), "guesses": wilson(5, 50)}


def test_the_score_is_the_logarithm_of_two_densities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domias, "BATCH", 3)
    records, made, reference = table(4, 15), table(6, 16), table(5, 17)
    result = domias.domias_scores(records, made=made, reference=reference, spans=SPANS)
    for i, j in itertools.product(range(4), range(len(domias.BANDWIDTHS))):
        of_made, of_reference = (
            sum(math.exp(-apart(records[i], row) / domias.BANDWIDTHS[j]) for row in rows) / len(rows)
            for rows in (made, reference)
        )
        assert float(result[i, j]) == pytest.approx(math.log(of_reference / of_made))
