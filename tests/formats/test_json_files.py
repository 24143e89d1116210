"""JSON files: of what is sealed every flipped bit is found, and lines are whole after a crash."""

import ast
import csv
import datetime
import itertools
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import raydiff
from raydiff.data.tables import cells, rows_file
from raydiff.data.tables.encode import Column, Mapping
from raydiff.formats import json_files as files, rounding as bounds
from raydiff.formats.csv_files import read_csv, write_csv
from raydiff.formats.intervals import ratio, student
from raydiff.formats.json_files import dumps, read_lines
from raydiff.formats.metric_records import (
    COMPARED,
    DETAILED,
    Metric,
    columns,
    mean_metrics,
    read_metrics,
    select_shown,
)
from raydiff.formats.tables import publish
from raydiff.privacy import release
from raydiff.privacy.ledger import Guarantee, Ledger
from raydiff.report.guarantees import shown
from raydiff.seeding import generator
from raydiff.storage.json_lines import JsonLines
from raydiff.storage.local import LocalFolder

FIELDS = {"ledger": "[]", "states": {"0": [1, "ab"]}, "Bär": [1, 2], "hash": "0" * 64}


def log_at(folder: Path) -> JsonLines:
    return JsonLines(LocalFolder(folder), "metrics.jsonl")


def test_every_flipped_bit_of_a_sealed_file_is_found() -> None:
    whole = files.sealed(FIELDS, "d/commit-00001.json").encode()
    assert files.parse_sealed(whole, "x", of="d/commit-00001.json") == FIELDS
    for at, bit in itertools.product(range(len(whole)), range(8)):
        flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        with pytest.raises(ValueError, match=r"^x is damaged"):
            files.parse_sealed(flipped, "x", of="d/commit-00001.json")


def test_a_sealed_file_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^x is damaged: it is a copy of d/commit-00001\.json$"):
        files.parse_sealed(files.sealed(FIELDS, "d/commit-00001.json").encode(), "x", of="d/commit-00002.json")
    with pytest.raises(ValueError, match=r"^x is damaged: it is not what was written$"):
        files.parse_sealed(json.dumps(FIELDS).encode(), "x", of="d/commit-00001.json")


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b'{"other": 1}'])
def test_a_file_that_cannot_be_read_is_named_with_what_to_do(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a/outcome\.json (is not valid JSON|has no field 'outcome').*: delete it, "):
        files.parse_json(data, "a/outcome.json", needs="outcome")


def test_lines_are_read_from_where_the_last_ones_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step}) + "\n" for step in range(3)]
    assert files.read_lines_from(path, 0) == ([], 0)
    path.write_text(lines[0] + lines[1][:5])
    assert files.read_lines_from(path, 0) == ([{"step": 0}], len(lines[0]))
    path.write_text(lines[0] + lines[1] + lines[2])
    assert files.read_lines_from(path, len(lines[0])) == ([{"step": 1}, {"step": 2}], len("".join(lines)))
    path.write_text(lines[2])  # another file in its place
    assert files.read_lines_from(path, len("".join(lines))) == ([{"step": 2}], len(lines[2]))


def test_a_line_per_round_and_none_twice_also_in_the_next_process(tmp_path: Path) -> None:
    for _ in range(2):
        log = log_at(tmp_path / "deep")
        log.log(0, {"loss": 0.5, "epsilon": math.inf})
        log.log(0, {"loss": 9.0})
    log.log(1, {"loss": 0.25})
    lines = read_lines(tmp_path / "deep" / "metrics.jsonl")
    assert [(line["step"], line["loss"]) for line in lines] == [(0, 0.5), (1, 0.25)]
    assert lines[0]["epsilon"] == "inf" and lines[0]["time"] <= lines[1]["time"]
    log = log_at(tmp_path / "deep")
    log.log(2, {})
    assert sum(line.get("loss", 0.0) for line in log.lines) == 0.75


@pytest.mark.parametrize("cut", ['{"step": 1, "time": 17, "lo', '{"step": 1, "time": 17, "loss": 0.25}'])
def test_a_line_cut_short_spoils_no_other(tmp_path: Path, cut: str) -> None:
    """The second lacks only its end of line, and counts."""
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    log_at(tmp_path).log(0, {"loss": 0.5})
    with path.open("a") as f:
        f.write(cut)
    assert [line["step"] for line in read_lines(path)] == ([0, 1] if cut.endswith("}") else [0])
    log = log_at(tmp_path)
    log.log(1, {"loss": 0.25})
    log.log(2, {"loss": 0.125})
    assert [(line["step"], line["loss"]) for line in read_lines(path)] == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert files.unreadable_lines(path) == ([] if cut.endswith("}") else [2])


def test_nothing_else_writes_json() -> None:
    """What writes it elsewhere may write Infinity and NaN, which other parsers refuse."""
    package = Path(files.__file__).parents[1]
    others = [path for path in package.rglob("*.py") if re.search(r"\bjson\.dumps?\(", path.read_text())]
    assert others == [Path(files.__file__)]
    assert json.loads(files.dumps({"a": [math.inf, (-math.inf, math.nan)]})) == {"a": ["inf", ["-inf", None]]}


# --- The interval of a ratio of means, against its definition


def test_a_ratio_is_in_the_interval_where_the_difference_that_it_means_may_be_0() -> None:
    rng = np.random.default_rng(3)
    under = pd.Series(rng.normal(2.0, 0.4, 6))
    over = 0.7 * under + rng.normal(0.0, 0.3, 6)
    mean, low, high = ratio(over, under)
    assert mean == pytest.approx(over.mean() / under.mean()) and low < mean < high
    for r in np.linspace(-1, 3, 401):
        _, least, most = student(over - r * under)
        assert (least <= 0 <= most) == (low <= r <= high)


def test_a_ratio_to_what_may_be_0_has_no_interval() -> None:
    assert all(map(math.isnan, ratio(pd.Series([1.0, 1.1, 0.9]), pd.Series([0.1, -0.1, 0.05]))))


# --- What is shown of a bound is a bound: an epsilon is rounded up, an audit's lower bound down, wherever it is tex


ABOUT = {"unit": "example", "relation": "replace_one", "trust": "local", "clients": 1, "delta": 1e-5}


@given(st.floats(0, allow_infinity=False), st.integers(1, 6))
@example(0.1049, 2)
@example(0.1, 2)
@example(0.09999999, 2)
@example(9.7149, 2)
@example(1e300, 2)
@example(5e-324, 2)
def test_up_is_not_below_and_down_not_above(epsilon: float, digits: int) -> None:
    high, low = Decimal(bounds.up(epsilon, digits)), Decimal(bounds.down(epsilon, digits))
    assert float(low) <= epsilon <= float(high)
    step = Decimal(10) ** -digits if epsilon >= 0.1 else Decimal(10) ** (1 - digits + high.adjusted())
    assert high - low <= step


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (0.1049, "0.11", "0.10"),
        (0.1, "0.10", "0.10"),
        (9.71, "9.71", "9.71"),
        (9.7101, "9.72", "9.71"),
        (0.0561, "0.057", "0.056"),
        (0, "0", "0"),
        (math.inf, "inf", "inf"),
    ],
)
def test_as_text(epsilon: float, up: str, down: str) -> None:
    assert (bounds.up(epsilon), bounds.down(epsilon)) == (up, down)


@given(st.floats(1e-12, 1e12))
def test_a_guarantee_and_the_tables_show_no_less_than_epsilon(epsilon: float) -> None:
    says = str(Guarantee(epsilon=epsilon, accountant="exact", **ABOUT))  # type: ignore[arg-type]
    for text in (re.findall(r"^epsilon (\S+) \(", says)[0], shown(epsilon)):
        assert float(text) >= epsilon


@given(st.floats(0.05, 500))
def test_what_a_ledger_says_is_no_less_than_its_epsilon(noise: float) -> None:
    event = release.Gaussian(noise, "example", "replace_one", "local")
    guarantee = Ledger().with_uploads(0, [(0, event, 1)]).guarantee(1e-5, "exact")
    assert float(re.findall(r"^epsilon (\S+) ", str(guarantee))[0]) >= guarantee.epsilon


# --- Metrics as records: their columns, their files, and which ones are shown


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("eval/fd_cnn/minor", {"name": "fd_cnn", "split": "eval", "group": "minor"}),
        ("ddim/fd_cnn/minor_floor", {"name": "fd_cnn", "sampler": "ddim", "group": "minor", "role": "floor"}),
        ("eval/class/7/vendi", {"name": "vendi", "split": "eval", "part": ("class", 7)}),
        ("client/0/train/loss", {"name": "train/loss", "part": ("client", 0)}),
        ("attack/client/best/auc_low", {"name": "auc", "target": "client", "attack": "best", "role": "low"}),
        ("eval/label_accuracy/real", {"name": "label_accuracy", "split": "eval", "group": "real", "role": "real"}),
        ("eval/recall/all_real", {"name": "recall", "split": "eval", "group": "all", "role": "real"}),
        ("eval/blackbox/n_members", {"name": "blackbox/n_members", "split": "eval", "role": "count"}),
        ("eval/percent_real", {"name": "percent_real", "split": "eval"}),
    ],
)
@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf])
def test_a_metric_names_its_column_and_is_read_back_from_a_file(
    column: str, fields: dict[str, Any], value: float
) -> None:
    metric = Metric(value=value, unit="s", lower_is_better=True, bounds=(0.0, math.inf), shown="x", **fields)
    (read,) = read_metrics([json.loads(dumps(metric.to_json()))])
    assert read == metric and str(read) == column


def test_a_number_that_was_not_measured_is_null() -> None:
    written = dumps([Metric(name="spread").to_json()])
    assert written == '[{"name": "spread", "value": null}]'
    assert math.isnan(read_metrics(json.loads(written))[0].value)


@pytest.mark.parametrize("written", [{"value": 1.0}, {"name": "a", "colour": 1}, {"name": "a", "value": "many"}])
def test_what_is_no_metric_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no metric"):
        read_metrics([written])


def test_a_metric_that_is_measured_twice_is_refused() -> None:
    floor = Metric(name="fd", role="floor", value=1.0)
    assert columns([floor, Metric(name="fd", value=2.0)]) == {"fd_floor": 1.0, "fd": 2.0}
    for other in (floor.with_value(2.0), Metric(name="fd_floor", value=3.0)):
        with pytest.raises(ValueError, match="fd_floor was measured twice"):
            columns([floor, other])


def test_a_mean_is_over_the_parts_that_have_the_metric() -> None:
    a, b = Metric(name="a", lower_is_better=True), Metric(name="b", role="low")
    parts = [[a.with_value(1.0), b.with_value(4.0)], [a.with_value(2.0)]]
    assert mean_metrics(parts) == [a.with_value(1.5), b.with_value(4.0)]
    assert mean_metrics(parts, complete=True) == [a.with_value(1.5)]


def test_at_most_twelve_are_shown_quality_first_and_raydiffs_details_last() -> None:
    named = [Metric(name=name, shown=name, value=1.0) for name in (*DETAILED, *COMPARED)]
    others = [Metric(name=f"own_{i}", shown=f"own_{i}", value=2.0) for i in range(3)]
    assert [*select_shown([*others, *named])] == [*COMPARED, "own_0", "own_1"]
    few = [*others, named[0], named[-1], Metric(name="hidden", value=0.0), named[-1].with_value(3.0)]
    assert select_shown(few) == {COMPARED[-1]: 1.0, **{m.name: 2.0 for m in others}, DETAILED[0]: 1.0}


# --- CSV files for spreadsheets: no text is a formula, no number is changed, and what is read is what was written


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
