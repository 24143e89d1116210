"""Superclasses: the tables, what becomes of labels, rows and splits, and who sees the hidden class."""

from pathlib import Path
from typing import Any

import torch
from sets import message, pictures, png, write
from sklearn.datasets import load_digits

from raydiff.data.datasets import SPLITS, Data, load_dataset
from raydiff.data.superclasses import TABLES
from raydiff.data.unseen_client import Choice, choose_client

TARGET = torch.from_numpy(load_digits().target)
REST: dict[str, Any] = {"public": 6, "validation": 6, "calibration": 3, "test": 9}


def test_cifar100_10x2_is_the_first_two_of_the_first_ten() -> None:
    table = TABLES["cifar100-10x2"]
    assert len(table) == 10 and {len(of) for of in table.values()} == {2}
    assert table["aquatic_mammals"] == ("beaver", "dolphin")
    assert table["large_man-made_outdoor_things"] == ("bridge", "castle")
    assert "large_natural_outdoor_scenes" not in table


def test_digits_in_pairs_keep_their_rows_and_pixels() -> None:
    plain, data = load_dataset(Data()), load_dataset(Data(superclasses="pairs"))
    assert data.label_names == (("0/1", "2/3", "4/5", "6/7", "8/9"),)
    assert (data.base_names, plain.base_names) == (tuple("0123456789"),) * 2
    assert data.label_columns == ("superclass",) and data.notes == plain.notes
    for split in SPLITS:
        ours, theirs = data.splits[split], plain.splits[split]
        assert torch.equal(ours.numbers, theirs.numbers) and torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels[:, 0], TARGET[ours.numbers] // 2)
        assert theirs.base is None and torch.equal(theirs.bases, theirs.labels[:, 0])
        if split != "public":
            assert torch.equal(ours.bases, TARGET[ours.numbers])


def test_rows_of_other_classes_are_left_out(tmp_path: Path) -> None:
    """Twelve classes, of which the table has ten; an own test file."""
    names, labels = [*"0123456789", "x", "y"], [11, *range(10), 10] * 6
    encoded, source = [png(p) for p in pictures(72)], torch.from_numpy(pictures(72)).float().unsqueeze(1) / 127.5 - 1
    write(tmp_path / "set" / "train-0.parquet", encoded[:48], labels[:48], names=names)
    write(tmp_path / "set" / "test-0.parquet", encoded[48:], labels[48:], names=names)
    data = load_dataset(Data(name=str(tmp_path / "set"), superclasses="pairs", **REST))
    assert data.notes == ("12 of 72 rows left out: their class is in no superclass of pairs",)
    kept = torch.tensor([row for row, label in enumerate(labels) if label < 10])
    fine = torch.tensor(labels)[kept]
    for split, records in data.splits.items():
        torch.testing.assert_close(records.images, source[kept[records.numbers]], rtol=0, atol=1e-6)
        assert torch.equal(records.labels[:, 0], fine[records.numbers] // 2)
        assert all((row >= 48) == (split == "test") for row in kept[records.numbers].tolist())
    assert len(data.splits["train"]) == 40 - 6 - 6 - 3


def test_public_and_a_new_clients_records_do_not_have_it() -> None:
    config = Data(superclasses="pairs", train=100)
    data = load_dataset(config)
    assert data.splits["public"].base is None
    result = choose_client(Choice(classes=("2/3",)), config, data, usual=20)
    assert result.records.base is None and result.held_out.base is None
    assert result.records.labels.unique().tolist() == [1] and len(result.records) == 20


def test_a_table_that_does_not_fit_the_data_is_one_sentence() -> None:
    says = message(Data(superclasses="cifar100"))
    assert says == ("data.superclasses=cifar100 needs the class 'beaver', which scikit-learn's digits has not")
