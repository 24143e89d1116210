"""A new client's records: rows that no client trained on, or another data set's; and what they are judged by."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sets import pictures, png, write

from raydiff.data.datasets import Data, Dataset, load_dataset
from raydiff.data.unseen_client import Choice, UnseenClient, choose_client

CAPPED: dict[str, Any] = {"train": 60, "public": 80, "validation": 60, "calibration": 20, "test": 100}
UNUSED = 1797 - 320
"""Rows of digits that `CAPPED` leaves."""
SMALL: dict[str, Any] = {"public": 6, "validation": 9, "calibration": 3, "test": 12}
NAMES = ["ant", "bee", "cat"]


def joins(of: Data, usual: int = 30, **choice: Any) -> UnseenClient:
    return choose_client(Choice(**choice), of, load_dataset(of), usual=usual)


def refusal(of: Data, **choice: Any) -> str:
    with pytest.raises(ValueError) as e:
        joins(of, **choice)
    assert "\n" not in str(e.value)
    return str(e.value)


def numbers(dataset: Dataset, *splits: str) -> set[int]:
    return {n for split in splits for n in dataset.splits[split].numbers.tolist()}


def animals(path: Path, *, first: int = 0, names: list[str] = NAMES, shape: Any = (4, 4), n: int = 45) -> str:
    """A folder of n pictures, each class in turn."""
    labels = [i % len(names) for i in range(n)]
    write(path / "x.parquet", [png(p) for p in pictures(n, first=first, shape=shape)], labels, names=names)
    return str(path)


def test_rows_that_no_split_took_come_first_then_the_validation_split() -> None:
    data = Data(**CAPPED)
    dataset = load_dataset(data)
    own = joins(data, records=UNUSED + 60).records.numbers.tolist()
    assert len(set(own)) == UNUSED + 60
    assert not set(own[:UNUSED]) & numbers(dataset, *dataset.splits)
    assert set(own[UNUSED:]) == numbers(dataset, "validation")
    says = refusal(data, records=UNUSED + 61)
    assert says == (
        f"there are {UNUSED + 60} records of its classes that no client trained on in digits "
        f"(rows of no split, then the validation split), and a new client needs {UNUSED + 61}"
    )


def test_its_classes_in_equal_parts_and_the_test_records_of_the_same() -> None:
    data = Data(**CAPPED)
    result, test = joins(data, classes=("2", "7"), records=40), load_dataset(data).splits["test"]
    counts = result.records.labels[:, 0].bincount(minlength=10)
    assert set(counts.nonzero()[:, 0].tolist()) == {2, 7} and abs(int(counts[2]) - 20) <= 1
    wanted = [n for n, c in zip(test.numbers.tolist(), test.labels[:, 0].tolist(), strict=True) if c in (2, 7)]
    assert result.held_out.numbers.tolist() == wanted


def test_how_many_and_which() -> None:
    data = Data(**CAPPED)
    assert len(joins(data, usual=30).records) == 30
    first, again, other = (joins(data, records=25, seed=s).records.numbers.tolist() for s in (0, 0, 1))
    assert first == again and len(first) == 25 and set(first) != set(other)


@pytest.mark.parametrize("given", ["dog", "3", "-1"])
def test_classes_that_the_run_has_not(tmp_path: Path, given: str) -> None:
    data = Data(name=animals(tmp_path / "own"), **SMALL)
    assert refusal(data, classes=(given,)) == f"the run's data have no class {given!r}; they have ant, bee, cat"


def test_its_own_name_spelled_otherwise_is_the_run_s_own_data(tmp_path: Path) -> None:
    data = Data(name=animals(tmp_path / "own"), **SMALL)
    named = joins(data, data=f"{tmp_path}/own/../own/")
    assert torch.equal(named.records.numbers, joins(data).records.numbers)


def test_no_test_records_of_a_class(tmp_path: Path) -> None:
    data = Data(name=animals(tmp_path / "own"), **(SMALL | {"test": 3}))
    says = refusal(data)
    assert says.startswith("class 'bee' has 0 held-out records, and 2 are needed: 1 parquet file in ")
    held_out = int((load_dataset(Data(name=data.name, **SMALL)).splits["test"].labels == 0).sum())
    few = refusal(Data(name=data.name, **SMALL), classes=("ant",))
    assert 2 <= held_out < 6 and few.startswith(f"there are {held_out} held-out")


def test_of_another_set_half_is_held_out(tmp_path: Path) -> None:
    """Labelled as the run labels them, by name."""
    data = Data(name=animals(tmp_path / "own"), **(SMALL | {"test": 15}))
    other = animals(tmp_path / "other", first=60, names=["cat", "ant"], n=24)
    result = joins(data, data=other)
    assert len(result.records) == len(result.held_out) == 12
    assert set((result.records.numbers - 45).tolist()) | set((result.held_out.numbers - 45).tolist()) == set(range(24))
    source = torch.from_numpy(pictures(24, first=60)).float().unsqueeze(1) / 127.5 - 1
    for records in (result.records, result.held_out):
        rows = records.numbers - 45
        torch.testing.assert_close(records.images, source[rows], rtol=0, atol=1e-6)
        assert records.labels[:, 0].tolist() == [{0: 2, 1: 0}[row % 2] for row in rows.tolist()]
    assert "held out: half of them" in result.says
    assert len(joins(data, data=other, records=5).records) == 5
    assert refusal(data, data=other, records=13) == (
        f"there are 12 records of its classes beside those held out (half of them) in 1 parquet file in {other}, "
        "and a new client needs 13"
    )


def test_other_labels_are_refused_unless_left_out(tmp_path: Path) -> None:
    data = Data(name=animals(tmp_path / "own"), **SMALL)
    other = animals(tmp_path / "other", first=60, names=["ant", "dog"], n=40)
    assert refusal(data, data=other) == (
        f"1 parquet file in {other} has the label 'dog', which 1 parquet file in {data.name} has not: "
        "a new client's records need the same names"
    )
    assert joins(data, data=other, classes=("ant",)).records.labels.unique().tolist() == [0]
    assert refusal(data, data=other, classes=("cat",)) == f"there are no records of cat in 1 parquet file in {other}"
