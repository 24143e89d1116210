"""Tables become category vectors, and back."""

import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from raydiff.data.tables.code_books import CODE_BOOKS, CodeBook
from raydiff.data.tables.encode import MISSING, OTHER, Mapping
from raydiff.data.tables.read import Encoded, RawTable, locate, read_again, read_table

on_disk = pytest.mark.skipif("RAYDIFF_DATA" not in os.environ, reason="RAYDIFF_DATA names no folder of data sets")


def people(**columns: Any) -> pd.DataFrame:
    """12 rows: a number, a text of two values, a label; and these columns."""
    ages = [18, 22, 25, 31, 34, 38, 41, 47, 52, 58, 63, 70]
    own = {"age": ages, "sex": ["f", "m"] * 6, "pays": ["yes", "yes", "no"] * 4}
    return pd.DataFrame({**own, **columns})


def written(path: Path, frame: pd.DataFrame) -> str:
    frame.to_csv(path, index=False)
    return str(path)


@pytest.fixture
def csv(tmp_path: Path) -> str:
    return written(tmp_path / "people.csv", people())


def refusal(**fields: Any) -> str:
    """What is said of this table: one line."""
    with pytest.raises(ValueError) as error:
        read_table(RawTable(**fields))
    assert "\n" not in str(error.value)
    return str(error.value)


def categories(table: Encoded) -> tuple[tuple[str, ...], ...]:
    """For each column the names of its codes."""
    return tuple(column.categories for column in table.mapping.columns)


def test_numbers_are_cut_into_parts_as_equal_as_can_be(csv: str) -> None:
    table = read_table(RawTable(source=csv, label="pays", bins=4))
    assert table.columns == ("age", "sex")
    assert table.codes.dtype == torch.int64
    assert table.codes[:, 0].bincount().tolist() == [3, 3, 3, 3]
    assert categories(table)[0] == ("< 31", "31 to < 41", "41 to < 58", ">= 58")
    assert table.k == 4
    assert table.labels is not None
    assert table.labels.tolist() == [1, 1, 0] * 4
    assert table.rows.tolist() == list(range(12))


def test_given_edges_belong_to_the_bin_above_them(csv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RawTable, "given_edges", {"age": (25.0, 58.0)})
    table = read_table(RawTable(source=csv, label="pays"))
    assert table.codes[:, 0].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]


def test_no_bin_is_empty_whatever_the_ties(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    for case in range(15):
        values = (torch.rand(12, generator=rng) ** 4 * (1 + case % 13)).round().tolist()
        if len(set(values)) < 2:
            continue
        table = read_table(
            RawTable(source=written(tmp_path / "t.csv", people(x=values)), columns=("x",), bins=2 + case % 4)
        )
        assert table.codes[:, 0].bincount(minlength=table.k).min() > 0, values
        assert table.k <= 2 + case % 4


def test_missing_values_are_a_category_within_the_limit(tmp_path: Path) -> None:
    ages = [math.nan, *people()["age"][1:]]
    path = written(tmp_path / "t.csv", people(age=ages, town=["?", *"aaaabbbccde"]))
    table = read_table(RawTable(source=path, columns=("age", "town"), bins=4))
    assert list(map(len, categories(table))) == [4, 4]
    assert [names[-1] for names in categories(table)] == [MISSING, MISSING]
    assert table.codes[0].tolist() == [3, 3]
    assert (table.codes[1:] < 3).all()


def test_rows_with_missing_values_are_dropped_but_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a preset those that lack the label alone."""
    path = written(tmp_path / "t.csv", people(sex=["f", None, *["m"] * 10], pays=[None, "no", *["yes", "no"] * 5]))
    columns = ("age",)
    table = read_table(RawTable(source=path, label="pays", columns=columns))
    assert table.rows.tolist() == list(range(1, 12))  # a row without a label is of no use
    table = read_table(RawTable(source=path, label="pays", columns=("age", "sex")))
    assert table.rows.tolist() == list(range(1, 12))
    path = written(tmp_path / "t.csv", people(sex=["f", None, *["m", "f"] * 5], pays=[None, "no", *["yes", "no"] * 5]))
    how = {"age": (30.0,), "sex": {"f": ("f",), "m": ("m",)}}
    monkeypatch.setitem(
        CODE_BOOKS.entries, "mine", CodeBook(files=(), label="pays", classes=("no", "yes"), bins=3, read=how)
    )
    table = read_table(RawTable(source=path, preset="mine"))
    assert table.rows.tolist() == list(range(2, 12))
    assert table.notes[0] == "rows with a missing value are left out"
    with pytest.raises(ValueError, match="keeps 1 of 12 rows, a table needs two: no row may have a missing value"):
        read_table(RawTable(source=written(tmp_path / "t.csv", people(sex=[None] * 11 + ["f"])), preset="mine"))


def test_parquet_reads_as_csv_does(tmp_path: Path, csv: str) -> None:
    people().to_parquet(tmp_path / "people.parquet")
    twin = read_table(RawTable(source=str(tmp_path / "people.parquet"), label="pays"))
    other = read_table(RawTable(source=csv, label="pays"))
    assert torch.equal(twin.codes, other.codes) and torch.equal(twin.rows, other.rows) and twin.mapping == other.mapping


def crowd(**change: Any) -> pd.DataFrame:
    """60 rows, of which row 7 is a private one, and has these values."""
    own = {"age": [20 + i % 37 for i in range(60)], "sex": ["f", "m", "m"] * 20, "rooms": [1, 2, 3, 1] * 15}
    frame = pd.DataFrame({**own, "pays": ["yes", "no", "no"] * 20}).astype(object)
    for name, value in change.items():
        frame.loc[7, name] = value
    return frame


def test_what_no_public_row_has_goes_to_the_end_bin_or_to_one_category(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", crowd(age=987654.25, sex="x", rooms=None, pays="hiv"))
    table = read_table(RawTable(source=path, label="pays"), public=20)
    age, sex, rooms = categories(table)
    assert table.labels is not None and table.mapping.label is not None
    assert (age[-1], sex, rooms) == (MISSING, ("f", "m", OTHER), ("1", "2", "3", OTHER))
    assert table.mapping.label.categories == ("no", "yes", OTHER)
    assert [names[c] for names, c in zip(categories(table), table.codes[7].tolist(), strict=True)] == [
        age[-2],
        *[OTHER] * 2,
    ]
    assert (int(table.labels[7]), table.fitted_columns) == (2, ("age", "sex", "rooms", "pays"))


def test_public_rows_that_cannot_be(tmp_path: Path) -> None:
    config = RawTable(source=written(tmp_path / "t.csv", crowd()), label="pays")
    for public, says in (
        (0, "set data.public from 1 to 60, to fit them on public rows of t.csv"),
        (61, ", got 61"),
    ):
        with pytest.raises(ValueError, match=says):
            read_table(config, public=public)
    with pytest.raises(ValueError, match=r"data\.bins must be at least 3"):
        read_table(RawTable(source=config.source, label="pays", bins=2), public=20)
    with pytest.raises(ValueError, match="label 'pays' must have 2 to 100 classes, got 1 in its public rows: name all"):
        read_table(config, public=1)


def test_the_mapping_is_saved_and_inverts_the_codes(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", people(town=[None, *"aaaabbbccde"]))
    table = read_table(RawTable(source=path, label="pays", bins=4))
    table.mapping.save(tmp_path / "mapping.json")
    mapping = Mapping.load(tmp_path / "mapping.json")
    assert mapping == table.mapping
    assert table.labels is not None
    rows = mapping.decode(table.codes.numpy(), table.labels.numpy())
    assert rows.columns.tolist() == ["age", "sex", "town", "pays"]
    assert rows["sex"].tolist() == people()["sex"].tolist()
    assert rows["pays"].tolist() == people()["pays"].tolist()
    assert rows["age"][0] == "< 31"
    assert rows["town"].isna().tolist() == [True] + [False] * 11
    texts = Mapping(mapping.columns[1:], mapping.label)  # intervals are not read back
    codes, labels = texts.encode(rows)
    assert codes.tolist() == table.codes[:, 1:].tolist()
    assert labels is not None
    assert labels.tolist() == table.labels.tolist()


def test_another_file_is_read_by_the_same_mapping(tmp_path: Path, csv: str) -> None:
    config = RawTable(source=csv, label="pays", bins=4)
    mapping = read_table(config).mapping
    more = Path(written(tmp_path / "more.csv", people().iloc[6:].assign(age=19)))
    again = read_again(config, more, mapping)
    assert again.codes.tolist() == [[0, 0], [0, 1]] * 3
    strange = Path(written(tmp_path / "strange.csv", people(sex=["x", "m"] * 6)))
    with pytest.raises(ValueError, match="column 'sex' has the value 'x'"):
        read_again(config, strange, mapping)
    strange.write_text('{"columns": [{}], "label": null}')
    with pytest.raises(ValueError, match="holds no mapping of a table"):
        Mapping.load(strange)


@pytest.mark.parametrize(
    ("frame", "fields", "says"),
    [
        (people(sex="f")[["sex", "pays"]], {}, "all columns (sex) have one value only"),
        (people().iloc[:1], {}, "has 1 row, a table needs two"),
        (people().iloc[:0], {}, "has 0 rows, a table needs two"),
        (people(age=[math.inf, *range(11)]), {}, "column 'age' must hold finite numbers, got 'inf'"),
        (people(rooms=[math.inf, 1, 2] * 4), {}, "column 'rooms' must hold finite numbers, got 'inf'"),
        (people(pays="no"), {}, "label 'pays' must have 2 to 100 classes, got 1"),
        (people(), {"label": "pay"}, "has no column 'pay'; did you mean pays"),
        (people(), {"columns": ("agee",)}, "has no column 'agee'; did you mean age"),
        (people(), {"columns": ("agee", "sexx")}, "mean age?; also t.csv has no column 'sexx'; did you mean sex?"),
        (
            people(age=["inf"] * 12, rooms=["inf"] * 12),
            {"types": ("age=number", "rooms=number")},
            "; also column 'rooms'",
        ),
        (people()[["pays"]], {}, "has no column but the label 'pays'"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, frame: pd.DataFrame, fields: dict[str, Any], says: str) -> None:
    assert says in refusal(source=written(tmp_path / "t.csv", frame), **{"label": "pays", **fields})


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "c.parquet").write_bytes(b"no parquet")
    assert "c.parquet cannot be read as a table (ArrowInvalid)" in refusal(source=str(tmp_path / "c.parquet"))


@pytest.mark.parametrize("name", CODE_BOOKS)
def test_presets_give_every_category(name: str) -> None:
    """So that nothing is looked up in rows."""
    preset = CODE_BOOKS[name]
    assert {*preset.cuts, *preset.groups} == {*preset.columns, preset.label} and len(preset.classes) == 2


@on_disk
@pytest.mark.parametrize(
    ("name", "sizes"), [("german", [1000]), pytest.param("adult", [30718, 15315], marks=pytest.mark.slow)]
)
def test_presets_have_the_papers_sizes_and_one_mapping_for_all_files(name: str, sizes: list[int]) -> None:
    config = RawTable(source=name)
    first = read_table(config)
    parts = [first, *(read_again(config, locate(name, part=part), first.mapping) for part in range(1, len(sizes)))]
    assert [len(part.codes) for part in parts] == sizes and first.k == 5
    assert first.labels is not None and len(first.labels.unique()) == 2
    assert min(len(column.unique()) for column in first.codes.T) >= 2
