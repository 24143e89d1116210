"""The audit of a file: what is printed, saved, logged and refused. Nothing is trained."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from reference import pdp_reference

from raydiff.data.tables.read import RawTable, read_table
from raydiff.models.d3pm_kernel import Sigmoid
from raydiff.papers.discrete import audit_command as audit
from raydiff.papers.discrete.audit_results import AuditResults
from raydiff.papers.discrete.bound import UNCONDITIONAL, ReleasedRows
from raydiff.papers.discrete.kernel import Kernel
from raydiff.tracking import mlflow_store

PEOPLE = ["--label", "income", "--bins", "4", "--steps", "5", "--schedule", "sigmoid"]


def people() -> pd.DataFrame:
    """60 rows; row 41 has a colour of its own and row 7 no label."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "colour": rng.choice(["red", "blue"], 60),
            "size": rng.choice(["s", "m", "l"], 60),
            "age": rng.integers(20, 70, 60),
            "income": rng.choice(["low", "high"], 60),
        }
    )
    frame.loc[41, "colour"] = "green"
    frame.loc[7, "income"] = None
    return frame


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("people") / "people.csv"
    people().to_csv(path, index=False)
    return path


def run(file: Path, out: Path, *more: str) -> str:
    """What the command prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert audit.main([str(file), *PEOPLE, "--out", str(out), *more]) == 0
    return printed.getvalue()


def audited(file: Path, *more: str) -> AuditResults:
    """The results without any file written; nothing is removed unless --remove is among `more`."""
    return audit.audit_table(*audit.parse_arguments([str(file), *PEOPLE, "--out", "none", "--remove", *more]))


@pytest.fixture(scope="module")
def saved(file: Path) -> tuple[Path, str]:
    out = file.parent / "out"
    return out, run(file, out, "--release", "7", "--epsilon", "0.5", "--remove", "0.1")


def test_prints_and_saves(saved: tuple[Path, str]) -> None:
    out, text = saved
    assert (out / "report.txt").read_text() in text
    assert "row 41: 1 or more  no other record of its income has its colour" in text
    assert "59 records, 3 columns, k = 4" in text
    assert "1 of them infinite" in text
    assert "conditional on the removed set, not the pipeline's guarantee" in text
    assert "valid for a perfectly trained model, training error not included" in text
    assert "data-dependent, confidential to the curator, no replacement for DP" in text
    assert text.count("  row ") == 10
    (removal,) = json.loads((out / "removals.json").read_text())
    assert (removal["share"], removal["left"]["records"], removal["left"]["infinite"]) == (0.1, 53, 0)
    assert (out / "audit.png").stat().st_size > 1000


def test_rows_hold_the_bound_of_algorithm_1(file: Path, saved: tuple[Path, str]) -> None:
    frame = pd.read_parquet(saved[0] / "records.parquet")
    assert frame["row"].tolist() == [row for row in range(60) if row != 7]
    table = read_table(RawTable(source=str(file), label="income", bins=4))
    release = ReleasedRows(kernel=Kernel(alpha=Sigmoid().alpha(5).tolist(), categories=4), samples=7, epsilon=0.5)
    assert table.labels is not None
    for label in (0, 1):  # each label's rows by themselves, as a model that is conditional on it knows them
        mine = (table.labels == label).numpy()
        expected = pdp_reference.deltas(table.codes.numpy()[mine], release)
        np.testing.assert_allclose(frame["delta"][mine], expected, rtol=1e-9)
    assert {f"{name}_{t}" for name in ("psi", "radius", "similarity") for t in range(1, 6)} < set(frame.columns)
    assert frame.loc[frame["row"] == 41, "alone_in"].item() == "colour"
    assert frame["alone_in"].isna().sum() == 58


def test_a_model_that_is_conditional_on_nothing(file: Path) -> None:
    results = audited(file, "--unconditional", "--epsilon", "0.5")
    table = read_table(RawTable(source=str(file), label="income", bins=4)).codes.numpy()
    release = ReleasedRows(kernel=Kernel(alpha=Sigmoid().alpha(5).tolist(), categories=4), epsilon=0.5)
    np.testing.assert_allclose(results.frame()["delta"], pdp_reference.deltas(table, release), rtol=1e-9)
    assert UNCONDITIONAL in results.caveats


def test_rows_of_each_label(file: Path) -> None:
    once, more = (audited(file, "--release", *rows).frame()["delta"] for rows in (["1"], ["low=3", "high=20"]))
    income = people()["income"].dropna().to_numpy()
    np.testing.assert_allclose(more, once * np.where(income == "low", 3, 20), rtol=1e-9)


def test_the_only_record_of_a_label_is_said_to_be(tmp_path: Path) -> None:
    frame = people()
    frame.loc[20, "income"] = "unknown"
    frame.to_csv(tmp_path / "people.csv", index=False)
    results = audited(tmp_path / "people.csv")
    bounds = results.frame().set_index("row")
    assert (bounds.loc[20, "delta"], bounds.loc[20, "alone_in"]) == (np.inf, "income")
    assert "  row 20: 1 or more  no other record has its income" in results.record_lines()


def test_columns_with_lone_bins_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    """Nearly all have no savings, so quantiles cut the others: < 100, 100 to < 200, 200 to < 400, >= 400."""
    frame = people().assign(savings=0, colour=["red", "blue"] * 30)
    frame.loc[[1, 11, 21, 31, 51], "savings"] = [100, 200, 300, 400, 500]
    frame.to_csv(tmp_path / "people.csv", index=False)
    results = audited(tmp_path / "people.csv", "--unconditional")
    assert any("alone in a quantile bin of savings" in line for line in results.setting)
    bounds = results.frame()
    infinite = bounds[np.isinf(bounds["delta"])]
    assert set(infinite["row"]) == {1} and set(infinite["alone_in"]) == {"savings"}
    without = audited(tmp_path / "people.csv", "--exclude", "savings", "age")
    assert "2 columns, k = 3" in without.setting[0] and not any("alone" in line for line in without.setting)


def test_a_later_step_and_a_schedule_that_stops_early(file: Path) -> None:
    results = audited(file, "--release-step", "2", "--schedule", "linear", "--rate", "0.1")
    assert results.summary.infinite == 0 and "psi_2" not in results.frame().columns
    assert any("of the signal at T, but generation starts from pure noise" in line for line in results.caveats)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--epsilon", "0"], "epsilon must be"),
        (["--release", "0"], "samples must be at least 1, got 0"),
        (["--release", "many"], "a number of rows or LABEL=ROWS, got 'many'"),
        (["--release", "low=1", "low=1"], "once each of high, low"),
        (["--release", "low=1", "higher=1"], "once each of high, low"),
        (["--release-step", "6"], r"step must be in 0\.\.5, got 6"),
        (["--remove", "1.5"], "--remove must be .*, got 1.5"),
        (["--remove", "0.99"], "removing 58 of 59 records leaves fewer than two"),
    ],
)
def test_bad_input(file: Path, more: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audited(file, *more)


# --- MLflow ---


@pytest.fixture
def store(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A storage folder with an MLflow store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "storage").mkdir()
    shutil.copy(migrated, tmp_path / "storage" / "mlflow.db")
    return tmp_path / "storage"


def logged(store: Path) -> tuple[Any, dict[str, Path], dict[str, list[tuple[int, float]]]]:
    """(the run, its artifacts by name, its metrics as (step, value))."""
    client = mlflow_store.connect(f"sqlite:///{store}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("raydiff-audit").experiment_id])
    at = Path(run.info.artifact_uri.removeprefix("file://"))
    files = {str(p.relative_to(at)): p for p in at.rglob("*") if p.is_file()}
    history = {k: client.get_metric_history(run.info.run_id, k) for k in run.data.metrics}
    return run, files, {k: [(m.step, m.value) for m in v] for k, v in history.items()}


def test_without_a_flag_nothing_is_logged(file: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (store / "mlflow.db").read_bytes()
    monkeypatch.setattr(mlflow_store, "log_folder", lambda *a, **k: pytest.fail("it logs"))
    run(file, store.parent / "out", "--remove", "--storage", str(store))
    assert [p.name for p in store.iterdir()] == ["mlflow.db"] and (store / "mlflow.db").read_bytes() == before


def test_the_log_has_a_summary_and_no_record(file: Path, store: Path) -> None:
    """Everything that is logged is listed here, so nothing else is."""
    out = store.parent / "out"
    printed = run(file, out, "--log", "--release", "7", "--remove", "0.1", "0.5", "--storage", str(store))
    assert "holds summary numbers, which depend on the records" in printed
    entry, files, metrics = logged(store)
    frame, text = pd.read_parquet(out / "records.parquet"), files["audit/report.txt"].read_text()
    assert sorted(files) == ["audit/audit.png", "audit/removals.json", "audit/report.txt"]
    private = [
        line for line in (out / "report.txt").read_text().splitlines() if line.startswith(("  row ", "most exposed"))
    ]
    assert len(private) == 11 and "has its colour" in private[1]
    assert "row 41" not in text and "its colour" not in text and not [line for line in private if line in text]
    assert "after removing the most exposed" in text and "confidential to the curator" in text
    with Image.open(files["audit/audit.png"]) as logged_picture, Image.open(out / "audit.png") as whole:
        assert (logged_picture.width, whole.width) == (600, 1200)  # only the panel of removals
    assert set(entry.data.params) == {"table", "label", "columns", "k", *audit.SETTINGS}
    assert (entry.data.params["table"], entry.data.params["release"]) == ("people.csv", "7")
    finite = frame["delta"][np.isfinite(frame["delta"])]
    names = ("records", "delta_mean", *(f"delta_q{q}" for q in ("05", "25", "50", "75", "95")), "vacuous", "infinite")
    assert metrics["pdp/delta_mean"] == [(0, pytest.approx(finite.mean()))]
    assert metrics["pdp/records"] == [(0, 59)] and metrics["pdp/infinite"] == [(0, 1)]
    assert metrics["pdp/delta_q50"] == [(0, frame["delta"].sort_values().iloc[29])]
    assert metrics["pdp/after_removal/share"] == [(6, 0.1), (30, 0.5)]
    after = {f"pdp/after_removal/{name}" for name in (*names, "delta_largest", "share")}
    assert set(metrics) == {f"pdp/{name}" for name in names} | after
    assert sum(map(len, metrics.values())) == 9 + 2 * 11 - 1  # one bound is infinite after a removal
    tags = {k: v for k, v in entry.data.tags.items() if not k.startswith("raydiff.made_by.")}
    kinds = {"kind": "audit", "privacy": "none", "audit.delta_largest": "inf"}
    assert {k: tags[f"raydiff.{k}"] for k in kinds} == kinds
    names_of_tags = {*(f"raydiff.{t}" for t in (*kinds, "confidential", "audit")), "mlflow.note.content"}
    assert set(tags) == {*names_of_tags, "mlflow.runName"}
    for note in (tags["raydiff.audit"], tags["mlflow.note.content"]):
        assert "confidential to the curator" in note and "row" not in note.replace("grow", "")
    assert entry.info.run_name == "out" and entry.info.status == "FINISHED"


@pytest.mark.slow
def test_confidential_it_has_the_records_too(file: Path, store: Path) -> None:
    out = store.parent / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    run(file, out, "--log-confidential", "--remove", "--storage", str(store))
    entry, files, metrics = logged(store)
    names = ("audit.png", "records.parquet", "removals.json", "report.txt")
    assert sorted(files) == [f"audit/{name}" for name in names]
    assert (out / "report.txt").read_bytes() == files["audit/report.txt"].read_bytes()
    assert pq.read_table(files["audit/records.parquet"])["row"].to_pylist() == [r for r in range(60) if r != 7]
    assert entry.data.tags["raydiff.confidential"].startswith("holds the bound of every record")
    assert not [name for name in metrics if "after_removal" in name]
