"""A sweep's folder as tables: every kind of trial, and one sentence for every kind of damage."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trial_folders import GAUSSIAN, finished, line, write_trial, written

from raydiff.report import load


def only(frame: pd.DataFrame) -> dict[str, Any]:
    assert len(frame) == 1
    return frame.iloc[0].to_dict()


def test_finished_trial_has_config_guarantee_and_final_numbers(tmp_path: Path) -> None:
    write_trial(tmp_path, "aa", outcome=finished(9.77, 3.02), lines=[line(0)])
    row = only(load.runs(tmp_path))
    expected = {"digest": "aa", "outcome": "finished", "method": "PFDM", "method.epsilon": 10.0}
    expected |= {"method.model": "DDPM", "method.model.shape": "[1, 8, 8]", "method.server.steps": 1000}
    guarantee = {"epsilon": 9.77, **GAUSSIAN, "delta": 1e-5, "accountant": "exact", "declared": "labels"}
    expected |= {f"server/{name}": value for name, value in guarantee.items()}
    expected |= {"outsiders/epsilon": 9.77, "final/eval/fd_cnn/minor": 3.02, "final/time/seconds": 6.46}
    assert {k: row[k] for k in expected} == expected
    assert row["reason"] is None
    assert not any(c == "kind" or c.endswith(".kind") for c in row)


def so_far(**changes: Any) -> dict[str, Any]:
    """The guarantee that a line of metrics.jsonl says."""
    about = {"epsilon": 5.0, "delta": 1e-5, "accountant": "exact", "declared": ["labels"], "unprotected": []}
    return {**about, **GAUSSIAN, **changes}


@pytest.mark.parametrize("outcome", [None, {"outcome": "stopped"}])
def test_without_a_guarantee_of_its_end_a_trial_has_that_of_its_last_round(tmp_path: Path, outcome: Any) -> None:
    outsiders = so_far(unit="client", trust="central", declared=[], unprotected=["weights"])
    lines = [
        line(0, 3.0, **{"validation/fd_cnn/minor": 4.0}, server=so_far(epsilon=3.0), outsiders=so_far(epsilon=3.0)),
        line(1, 5.0, server=so_far(), outsiders=outsiders),
    ]
    write_trial(tmp_path, "aa", outcome=outcome, lines=lines)
    row = only(load.runs(tmp_path))
    wanted = {"server": so_far(declared="labels", unprotected="")}
    wanted["outsiders"] = {**outsiders, "declared": "", "unprotected": "weights"}
    for view, fields in wanted.items():
        assert {k: row[f"{view}/{k}"] for k in fields} == fields
    assert row["final/privacy/epsilon_server"] == row["server/epsilon"]
    assert (row["final/comm/bytes_up"], row["final/time/seconds"]) == (100.0, 4.0)
    assert row["last/validation/fd_cnn/minor"] == 4.0
    assert set(load.read_rounds(tmp_path)["metric"]).isdisjoint({"server", "outsiders"})


def test_trial_without_outcome_is_unfinished_and_its_epsilon_unknown_before_a_round(tmp_path: Path) -> None:
    write_trial(tmp_path, "aa")
    row = only(load.runs(tmp_path))
    assert row["outcome"] == "unfinished" and pd.isna(row["server/epsilon"]) and load.read_rounds(tmp_path).empty


@pytest.mark.parametrize(
    ("file", "committed"),
    [
        ("00007-00001.safetensors", False),
        ("00001-0123456789ab.jsonl", False),
        ("00007-00000.safetensors", True),  # of the round that counts: the driver died before it was removed
        (".00007-00001.safetensors.0a1b2c3d", True),  # nothing is sent before it is written
    ],
)
def test_what_was_sent_after_the_last_line_leaves_nothing_guaranteed(
    tmp_path: Path, file: str, committed: bool
) -> None:
    write_trial(tmp_path, "aa", lines=[line(0, 5.0)])
    releases = tmp_path / "trials" / "aa" / "releases"
    releases.mkdir()
    (releases / file).touch()
    row = only(load.runs(tmp_path))
    assert row["server/epsilon"] == (5.0 if committed else math.inf)
    assert committed or row["server/unprotected"] == load.UNRECORDED


def test_rounds_are_long_and_leave_the_clock_out(tmp_path: Path) -> None:
    each = ({"train/loss": 0.5, "e": math.inf}, {"train/loss": 0.25})
    lines = [{"step": i, "time": 1.8e9, "metrics": written(values)} for i, values in enumerate(each)]
    write_trial(tmp_path, "aa", lines=lines)
    write_trial(tmp_path, "bb")
    rows = list(load.read_rounds(tmp_path).itertuples(index=False, name=None))
    assert rows == [("aa", 0, "train/loss", 0.5), ("aa", 0, "e", math.inf), ("aa", 1, "train/loss", 0.25)]


def test_a_line_cut_short_before_others_costs_no_table_and_is_named(tmp_path: Path) -> None:
    """A crash cut it; the resumed trial wrote the next round on a new line."""
    path = write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0), lines=[line(0), line(1), line(2)]) / "metrics.jsonl"
    assert load.describe_cut_short(tmp_path) == []
    first, second, third = path.read_text().splitlines(keepends=True)
    for cut in (1, len(second) // 2, len(second) - 2):
        path.write_text(f"{first}{second[:cut]}\n{third}")
        assert list(load.runs(tmp_path)["digest"]) == ["aa"] and set(load.read_rounds(tmp_path)["step"]) == {0, 2}
        (message,) = load.describe_cut_short(tmp_path)
        assert str(path) in message and "line 2" in message


def test_files_hold_the_tables(tmp_path: Path, command) -> None:
    write_trial(tmp_path / "s", "aa", outcome=finished(math.inf, 3.0), lines=[line(0)])
    write_trial(tmp_path / "s", "bb", fields={"clip": "median", "epsilon": None})  # text and numbers in one field
    code, out, _ = command("report", tmp_path / "s", "--out", tmp_path / "o")
    assert code == 0 and Path(out.strip()) == tmp_path / "o" / "report.html"
    runs = pd.read_parquet(tmp_path / "o" / "runs.parquet")
    assert list(runs["method.clip"]) == ["6.4", "median"]
    assert runs["server/epsilon"][0] == math.inf
    assert pd.isna(runs["method.epsilon"][1])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "o" / "rounds.parquet"), load.read_rounds(tmp_path / "s"))
    assert list(pd.read_csv(tmp_path / "o" / "runs.csv")["digest"]) == ["aa", "bb"]


def damaged(sweep: Path, name: str, text: str) -> None:
    (write_trial(sweep, "aa", outcome=finished(9.77, 3.0), lines=[line(0)]) / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: None, "there is no folder"),
        (lambda s: (s / "trials" / "aa").mkdir(parents=True), "has no trials"),
        (lambda s: damaged(s, "config.json", '{"method": '), "config.json is not valid JSON"),
        (lambda s: damaged(s, "config.json", "[]"), "config.json has no field 'method'"),
        (lambda s: damaged(s, "outcome.json", ""), "outcome.json is not valid JSON"),
        (lambda s: damaged(s, "outcome.json", "{}"), "outcome.json has no field 'outcome'"),
    ],
)
def test_one_sentence_for_what_cannot_be_read(tmp_path: Path, damage: Any, words: str) -> None:
    sweep = tmp_path / "sweep"
    damage(sweep)
    with pytest.raises(ValueError, match=words):
        load.runs(sweep)
