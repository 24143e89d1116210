"""CSV files for spreadsheets: no text is a formula, no number is changed, and what is read is what was written."""

import ast
import csv
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import raydiff
from raydiff.data.tables import cells, rows_file
from raydiff.data.tables.encode import Column, Mapping
from raydiff.formats.csv_files import read_csv, write_csv
from raydiff.formats.tables import publish
from raydiff.seeding import generator

FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1", "\r=1", "\n=1", " =1", "-2+3\nb", "="]
FORMULAS += ["'=1", "''=1", "+49 30 123", "-inf", "\N{FULLWIDTH EQUALS SIGN}1+1", "@", "\tb"]
HARMLESS = ["-1.5", "+5", "-1e-5", "-1,5", "-.5", "+5%", "-", "'", "'-", "a=1", "2-1", "NA", "'quoted'", "a\rb", "x,y"]


def held(path: Path) -> list[list[str]]:
    """The fields that a spreadsheet would show, by the standard library."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def by_rows(path: Path, table: pd.DataFrame) -> None:
    columns = tuple(Column(name, tuple(cells)) for name, cells in table.items())
    codes = np.arange(len(table))[:, None].repeat(len(columns), axis=1)
    write_csv(path, rows_file.rows(Mapping(columns), codes, codes[:, 0], generator(0)))


def by_report(path: Path, table: pd.DataFrame) -> None:
    publish(path.parent, "report", "text", {path.stem: table})


@pytest.mark.parametrize("write", [write_csv, by_rows, by_report])
@pytest.mark.parametrize("kind", ["object", "str", "category"])
def test_no_text_is_a_formula_and_each_is_read_again(
    tmp_path: Path, kind: str, write: Callable[[Path, pd.DataFrame], None]
) -> None:
    texts = [*FORMULAS, *HARMLESS]
    table = pd.DataFrame({text: pd.Series(texts, dtype=kind) for text in texts})
    write(path := tmp_path / "t.csv", table)
    names, *rows = held(path)
    assert names == [*(f"'{text}" for text in FORMULAS), *HARMLESS]
    assert [set(row) for row in rows] == [{name} for name in names]
    again = read_csv(path, dtype=str, keep_default_na=False)
    assert again.columns.tolist() == texts and again.equals(table.astype(again.dtypes))


def test_numbers_and_times_are_written_as_pandas_writes_them(tmp_path: Path) -> None:
    day = datetime.date(2020, 1, 2)
    table = pd.DataFrame({"whole": [-1, 2], "part": [-1.5, np.nan], "end": [-np.inf, 1], "truth": [True, False]})
    table["few"] = pd.array([-1, None], dtype="Int64")
    table["time"] = pd.to_datetime(["2020-01-02", "2020-03-04"])
    table["mixed"] = pd.Series([-1, None], dtype=object)
    table["day"] = [day, day]
    write_csv(tmp_path / "t.csv", table)
    assert (tmp_path / "t.csv").read_text() == table.to_csv(index=False)
    write_csv(tmp_path / "t.csv", table, form="%.2g")
    assert (tmp_path / "t.csv").read_text() == table.to_csv(index=False, float_format="%.2g")
    write_csv(tmp_path / "t.csv", pd.DataFrame())
    assert not (tmp_path / "t.csv").read_text().strip()


signs = st.text("'=+-@\t\r\n 1.,;\"ab", max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(signs, min_size=1, max_size=4), name=signs)
def test_reading_undoes_writing(tmp_path: Path, texts: list[str], name: str) -> None:
    table = pd.DataFrame({f"n{name}": texts, "beside": 1})
    write_csv(path := tmp_path / "t.csv", table)
    again = read_csv(path, dtype=str, keep_default_na=False)
    assert again.iloc[:, 0].tolist() == texts and again.columns[0] == f"n{name}"


def test_a_table_of_raydiff_is_read_with_the_same_cells(tmp_path: Path) -> None:
    table = pd.DataFrame({"=a": FORMULAS, "b": "x"})
    write_csv(tmp_path / "t.csv", table)
    assert cells.read_cells(tmp_path / "t.csv", cells.Csv()).frame["=a"].tolist() == [text.strip() for text in FORMULAS]


def test_there_is_one_writer_of_csv() -> None:
    """No other module of the package calls pandas' writer, nor the standard library's."""
    root, writers = Path(raydiff.__file__).parent, {"to_csv", "writer", "DictWriter"}

    def calls(path: Path) -> set[Any]:
        nodes = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        return {node.attr for node in nodes if isinstance(node, ast.Attribute)} & writers

    assert [path.relative_to(root).as_posix() for path in root.rglob("*.py") if calls(path)] == ["formats/csv_files.py"]
