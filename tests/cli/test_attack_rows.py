"""`raydiff attack` on trials on a table: which rows are attacked and beside which, what is printed and kept."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from storages import Storage

from raydiff.cli import attack
from raydiff.data.datasets import Data
from raydiff.data.partition import Iid
from raydiff.data.records import Records
from raydiff.evaluation.attacks import anonymeter, closest, domias
from raydiff.evaluation.attacks.membership import ROLES, attack_membership as judge
from raydiff.experiment.config import Experiment, Runtime
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.marginals import Marginals
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training
from raydiff.results import attacked_rows, generation as generate
from raydiff.results.attacked_rows import open_rows
from raydiff.results.finished import open_finished
from raydiff.seeding import generator

MODEL = DiscreteDiffusion(hidden=16, layers=2, steps=3)
SHORT = Training(steps=10, batch=16)
COLUMNS = ["town", "pet", "age", "buys"]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Sweeps of one trial each on 320 rows of two texts, a number and a label."""
    storage, rng = Storage(tmp_path_factory.mktemp("tables")), generator(0)
    town, pet, label = (torch.randint(k, (320,), generator=rng).tolist() for k in (4, 3, 2))
    frame = {"town": [f"town {c}" for c in town], "pet": [f"pet {c}" for c in pet], "age": range(0, 960, 3)}
    path = storage.root / "people.csv"
    pd.DataFrame({**frame, "buys": [("no", "yes")[i] for i in label]}).to_csv(path, index=False)
    split = Data(train=60, public=40, validation=0, calibration=20, test=200)
    base = Experiment(
        method=LocalOnly(model=MODEL, local=SHORT),
        data=replace(split, name=str(path), labels=("buys",), bins=4),
        clients=2,
        partition=Iid(),
        evaluation=None,
        runtime=Runtime(pool="local"),
    )
    storage.finish("own", base)
    storage.finish("shared", replace(base, method=FedAvg(model=MODEL, local=SHORT, rounds=1)))
    storage.finish("counted", replace(base, method=Marginals(epsilon=5.0)))
    storage.finish("blind", replace(base, method=LocalOnly(model=replace(MODEL, conditional=False), local=SHORT)))
    storage.finish("few", replace(base, data=replace(base.data, calibration=2, test=1)))
    return storage


def call(trials: Storage, out: Path, command: str) -> list[str]:
    return [*command.split(), "--storage", str(trials.root), "--out", str(out)]


def test_the_tables_and_the_files(trials: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert attack.main(call(trials, out, "own --client 1 --num 50 --seed 3")) == 0
    output = capsys.readouterr().out
    assert "client 1's own model on people.csv: 50 rows made, of 4 columns; 30 members, 30 non-members" in output
    rows = open_rows(open_finished(trials.folder("own")), 1, num=50, seed=3)
    kept = json.loads((out / "readings.json").read_text())
    assert kept["privacy"] == "none" and kept["seed"] == 3 and "is a guarantee" in kept["caveat"]
    readings = {(r["attack"], r["reading"]): r for r in kept["readings"]}
    risks = ["singling out", "linkability", *(f"inference of {name}" for name in COLUMNS)]
    assert [name for name, reading in readings if reading == "risk"] == risks
    sides = {"members": rows.members, "nonmembers": rows.nonmembers}
    near = closest.measure_closeness(rows.made, **sides, spans=rows.spans, rng=generator(3, "closest"))
    dcr = readings["DCR", "share nearer to a member"]
    assert (dcr["value"], (dcr["low"], dcr["high"]), dcr["nothing"]) == (near.dcr, near.dcr_interval, 0.5)
    alone = anonymeter.singling_out(rows.made, **sides, rng=generator(3, "anonymeter"))
    assert alone is not None and readings["singling out", "risk"]["value"] == alone.risk
    assert readings["singling out", "guesses"]["value"] == alone.guesses
    scores = [
        domias.domias_scores(records, made=rows.made, reference=rows.reference, spans=rows.spans)
        for records in (rows.members[:15], rows.nonmembers[:15], rows.members[15:], rows.nonmembers[15:])
    ]
    assert readings["DOMIAS", "AUC"]["value"] == judge(**dict(zip(ROLES, scores, strict=True))).auc
    entry = readings["inference of age", "risk"]
    assert f"{entry['value']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]" in output
    assert all(r["low"] <= r["value"] <= r["high"] for r in kept["readings"])
    assert "TPR at 1 % FPR: n too small (30 non-members, 500 needed" in output
    with (out / "readings.csv").open() as f:
        assert [float(row["value"]) for row in csv.DictReader(f)] == [r["value"] for r in kept["readings"]]
    assert "is a guarantee" in output and output.endswith("; privacy: none\n")


@pytest.mark.parametrize(("name", "client"), [("own", 0), ("shared", None), ("counted", None)])
def test_the_rows_are_those_that_generate_writes(
    trials: Storage, tmp_path: Path, name: str, client: int | None
) -> None:
    finished = open_finished(trials.folder(name))
    generate.write_samples(
        finished, client, tmp_path / "made", generate.GenerationRequest(num=37, seed=5, numbers="bins"), code={}
    )
    rows = open_rows(finished, client, num=37, seed=5)
    mapping = finished.dataset.modality.mapping
    assert rows.columns == tuple(COLUMNS)
    assert rows.spans == (0, 0, 2, 0)  # three bins, and one for missing values
    decoded = mapping.decode(rows.made[:, :-1].numpy(), rows.made[:, -1].numpy())
    decoded.to_csv(tmp_path / "told.csv", index=False)
    assert (tmp_path / "told.csv").read_text() == (tmp_path / "made" / "rows.csv").read_text()
    assert len(rows.members) == len(rows.nonmembers) == (30 if client is not None else 60)
    assert len(open_rows(finished, client, num=None, seed=5).made) == len(rows.members)


def records(first: int, labels: list[int]) -> Records:
    n = len(labels)
    return Records(torch.zeros(n, 1, 1, 2), torch.tensor(labels)[:, None], torch.arange(first, first + n))


@pytest.mark.parametrize(("held", "count", "rest"), [(120, 31, 82), (60, 27, 29), (40, 17, 20)])
def test_members_and_others_are_equally_many_of_each_label_and_nobody_is_both(held: int, count: int, rest: int) -> None:
    """Where fewer are held out than are needed, members are left out."""
    trained_on, others = records(0, [0] * 20 + [1] * 11), records(100, [0, 0, 1] * (held // 3))
    members, nonmembers, reference = attacked_rows._choose_roles(trained_on, others, 0)
    numbers = [set(r.numbers.tolist()) for r in (members, nonmembers, reference)]
    assert [len(r) for r in (members, nonmembers, reference)] == list(map(len, numbers)) == [count, count, rest]
    assert torch.equal(members.labels[:, 0].bincount(), nonmembers.labels[:, 0].bincount())
    assert max(numbers[0]) < 100 <= min(numbers[1] | numbers[2]) and not numbers[1] & numbers[2]
    assert members.labels[:, 0].tolist() != sorted(members.labels[:, 0].tolist())  # halves calibrate: both have all


def test_a_model_that_knows_no_label_is_attacked_without_it(trials: Storage) -> None:
    rows = open_rows(open_finished(trials.folder("blind")), 0, num=8, seed=0)
    assert rows.columns == tuple(COLUMNS[:-1]) and rows.made.shape == (8, 3)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("own --shadows 4", "--shadows has no meaning for rows"),
        ("own --workers 2", "--workers has no meaning for rows"),
        ("own --num 0", "num must be at least 1 and at most 1e+09, got 0"),
        ("own --source global", "LocalOnly"),
        ("few", "rows are attacked beside 4 records at least that nobody trained on"),
    ],
)
def test_refused_in_one_sentence(trials: Storage, tmp_path: Path, command: str, message: str) -> None:
    with pytest.raises(ValueError) as e:
        attack.main(call(trials, tmp_path / "out", command))
    assert message in str(e.value) and "\n" not in str(e.value)
    assert not (tmp_path / "out").exists()
