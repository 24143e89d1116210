"""The page of a sweep: what its sections and tables say, damaged files, and sections of other packages."""

import json
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image, PngImagePlugin
from trial_folders import finished, line, stop, write_trial

from raydiff.cli import paired_command, report as report_command
from raydiff.papers.discrete.row_bounds import show_row_bounds
from raydiff.report import after_sweep, page as report
from raydiff.report.attack_readings import read_attacks
from raydiff.report.conclusion import conclude, means
from raydiff.report.paired import pair_settings
from raydiff.report.sweep_view import SweepView, open_sweep


def attack(target: str, *numbers: float, name: str = "pia") -> dict[str, float]:
    return {f"attack/{target}/{name}/auc{end}": v for end, v in zip(("", "_low", "_high"), numbers, strict=True)}


def write_samples(folder: Path) -> None:
    (folder / "artifacts").mkdir()
    privacy = PngImagePlugin.PngInfo()
    privacy.add_text("privacy", "none")
    Image.new("L", (400, 200), 128).save(folder / "artifacts" / "samples.png", pnginfo=privacy)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PFDM at two budgets and LocalOnly over six seeds, a stopped, a failed, a killed and a running trial."""
    folder = tmp_path_factory.mktemp("sweep")
    arms: tuple[tuple[str, str, dict[str, Any], float, float], ...] = (
        ("a", "PFDM", {"epsilon": 10.0}, 9.77, 3.0),
        ("b", "PFDM", {"epsilon": 50.0}, 48.9, 2.0),
        ("c", "LocalOnly", {}, 0.0, 2.02),
    )
    for name, method, fields, epsilon, distance in arms:
        for seed, more in enumerate((0.02, -0.01, 0.0, 0.03, -0.02, 0.01)):
            numbers = {**attack("client", 0.85, 0.81, 0.88), "attack/client/pia/tpr_at_1pct_fpr": 0.125}
            if method == "PFDM":
                numbers |= attack("global", 0.95, 0.93, 0.97) if (name, seed) == ("a", 0) else {}
                numbers |= attack("global_uploaded", 0.99, 0.98, 1.0)
            end = finished(epsilon, distance + (more if name != "c" else -more), **numbers)
            common = {"method": method, "fields": fields, "seed": seed, "outcome": end, "lines": [line(0, epsilon)]}
            write_samples(write_trial(folder, f"{name}{seed}", **common))
    stop(folder, "s0", 9.0, 4.0)
    write_trial(folder, "x0", outcome={"outcome": "failed", "reason": "ValueError: <script>alert(1)</script> & co"})
    write_trial(folder, "x1", seed=1, outcome={"outcome": "killed", "reason": "time budget"})
    write_trial(folder, "y0", seed=2, lines=[line(0)])
    about = {"opened_by": "http://127.0.0.1:5000/#/experiments/3", "tuned": ["FedAvg: rate 0.1"], "version": "9.9"}
    (folder / "sweep.json").write_text(json.dumps(about))
    composed = {"trials": [p.name for p in (folder / "trials").iterdir()][1:], "text": ["all 21 composed: epsilon 71"]}
    (folder / "composed.json").write_text(json.dumps(composed))
    return folder


@pytest.fixture(scope="module")
def view(sweep: Path) -> SweepView:
    return open_sweep(sweep)


@pytest.fixture(scope="module")
def page(view: SweepView) -> Path:
    return report.write_page(view.folder / "report", view)


def sections(page: Path) -> dict[str, str]:
    """Title -> text of each section, without tags."""
    parts = re.findall(r"<section><h2>(.*?)</h2>(.*?)</section>", page.read_text(), re.S)
    return {title: unescape(re.sub("<[^>]+>", " ", text)) for title, text in parts}


def texts(folder: Path) -> dict[str, str]:
    return sections(report.write_page(folder / "report", open_sweep(folder)))


def test_every_section_is_there_and_none_failed(page: Path) -> None:
    found = sections(page)
    assert list(found) == [title for title in report.SECTIONS if title != "What released rows reveal"]
    assert "could not be made" not in "".join(found.values())
    assert "all 21 composed: epsilon 71" in found["Frontier"] and "leaves out 1 of 22 trials" in found["Frontier"]
    assert "failed: PFDM" in found["Frontier"] and "real half against real half: 0.686" in found["Frontier"]
    assert "9.77" in found["Guarantees"] and "per example, replace-one, local trust" in found["Guarantees"]


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(page: Path) -> None:
    text = page.read_text()
    assert "alert(1)" in text and "<script" not in text
    links = re.findall(r'(?:src|href)="([^"]{5})', text)
    assert set(links) == {"data:"} and not re.search(r"<(iframe|object|embed|base)\b|\son\w+=", text)
    footer = text.partition("<footer>")[2]
    assert "http://127.0.0.1:5000" in footer and "FedAvg: rate 0.1" in footer and "raydiff 9.9" in footer


def test_how_each_trial_ended(view: SweepView) -> None:
    table = report.list_trials(view).set_index("digest")
    assert len(table) == 22 and table.loc["s0", "outcome"] == "stopped" and table.loc["s0", "epsilon_server"] == 9.0
    assert table.loc["x1", "reason"] == "time budget" and "still running" in table.loc["y0", "reason"]
    assert table.loc["a0", ["rounds", "seconds", "bytes_up"]].tolist() == [1, 6.46, 223608.0]


def test_attacks_on_what_was_sent_stand_beside_its_ceiling(view: SweepView) -> None:
    table = read_attacks(view)
    (row,) = table[table["target"] == "global"].to_dict("records")
    assert (row["auc"], row["auc_low"], row["auc_ceiling"]) == (0.95, 0.93, 0.917)
    assert set(table["target"]) == {"global", "global_uploaded", "client"}
    client = table[(table["target"] == "client") & (table["attack"] == "pia")]
    assert set(client["tpr_at_1pct_fpr"]) == {0.125}
    assert client["auc_ceiling"].isna().all()  # No noise bounds attacks on a model that is not sent.


def test_samples_are_those_of_the_best_setting_of_each_method_and_budget(page: Path) -> None:
    pictures = re.findall(r'alt="samples of ([^"]+)"', page.read_text())
    settings = ("LocalOnly", "PFDM, method.epsilon 10", "PFDM, method.epsilon 50")
    assert pictures == [f"{name}; privacy: none" for name in settings]


def test_of_tables_the_report_counts_the_records_whose_bound_says_nothing(tmp_path: Path) -> None:
    for i, (vacuous, largest) in enumerate(((1.0, 3.66e5), (0.5, 0.25))):
        numbers = {"pdp/own/records": 1410.0, "pdp/own/vacuous_share": vacuous, "pdp/own/largest": largest}
        write_trial(tmp_path, f"a{i}", method="LocalOnly", seed=i, outcome=finished(0.0, 2.0, **numbers))
    rows = pd.DataFrame(re.findall(r"<td>(.*?)</td>", show_row_bounds(open_sweep(tmp_path))))[0].tolist()
    assert rows[2:5] == ["1410", "1410", "1 or more"] and rows[7:] == ["1410", "705", "0.25"]


def test_a_section_of_another_package_is_added_and_a_failing_one_leaves_the_others(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def cost(sweep):\n    return f'<p>{len(sweep.runs)} trials</p>'\n\n\ndef broken(sweep):\n    return 1 / 0\n"
    (tmp_path / "mylab_sections.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    names = ["mylab_sections:cost", "mylab_sections:broken"]
    report_command.main([str(sweep), "--out", str(tmp_path), "--section", *names])
    found = sections(Path(capsys.readouterr().out.strip()))
    assert "22 trials" in found["cost"] and "could not be made: ZeroDivisionError" in found["broken"]
    with pytest.raises(ValueError, match="mylab_sections has no costs; did you mean cost"):
        report_command.main([str(sweep), "--out", str(tmp_path), "--section", "mylab_sections:costs"])


# ----------------------------------------------------------------------------------------------- the conclusion


def write_two_levels(sweep: Path, count: int, gain: float) -> Path:
    """LocalOnly, FedAvg and PFDM at epsilon 10 and 50, the second 0.3 worse, with as many seeds."""
    for seed in range(count):
        write_trial(sweep, f"l{seed}", method="LocalOnly", seed=seed, outcome=finished(0.0, 2 + seed / 100))
        write_trial(sweep, f"f{seed}", method="FedAvg", seed=seed, outcome=finished(math.inf, 1 + seed / 100))
        for epsilon, worse in ((10.0, 0.0), (50.0, 0.3)):
            distance = 2 + gain + worse + seed / 100 + (0.0 if gain else (-1) ** seed / 50)
            more = {"seed": seed, "fields": {"epsilon": epsilon}}
            end = finished(epsilon - 0.3, distance, **attack("client", 0.9, 0.85, 0.95, name="best"))
            write_trial(sweep, f"p{seed}-{epsilon}", **more, outcome=end)
    return sweep


@pytest.mark.parametrize(
    ("count", "gain", "line"),
    [
        (1, -0.5, "at epsilon 10: PFDM, 1.500"),
        (4, -0.5, "at epsilon 10: PFDM, 1.515, better than LocalOnly (-0.500 [-0.500, -0.500])"),
        (4, 0.0, "at epsilon 10: PFDM, 2.015, not distinguishable from LocalOnly (+0.000 [-0.037, +0.037])"),
    ],
)
def test_the_conclusion_says_what_is_best_at_each_epsilon_beside_training_alone(
    tmp_path: Path, count: int, gain: float, line: str
) -> None:
    sentences, lines = conclude(open_sweep(write_two_levels(tmp_path, count, gain)))
    assert "By Fréchet distance of cnn features, minority classes, lower is better" in sentences[0]
    assert ("; one seed: differences may be chance." in sentences[0]) == (count == 1)
    assert f"{4 * count} of {4 * count} trials finished" in sentences[0] and line in lines
    starts = ["nothing sent", "at epsilon 10", "at epsilon 50", "without a guarantee"]
    assert [text.partition(":")[0] for text in lines] == starts


def test_the_conclusion_names_what_carries_a_guarantee_and_what_attacks_reached(tmp_path: Path) -> None:
    _, guaranteed, attacked = conclude(open_sweep(write_two_levels(tmp_path, 1, 0.0)))[0]
    assert "With a guarantee: PFDM (2 trials), per example, replace-one, local trust, delta 1e-05" in guaranteed
    assert "Nothing sent: LocalOnly (1 trial)." in guaranteed and "Without a guarantee: FedAvg (1 trial)." in guaranteed
    assert "Samples of a client's own model carry no guarantee" in guaranteed
    assert "0.90 [0.85, 0.95] on clients' own models" in attacked and "send or make" not in attacked


def test_means_of_settings_are_named_by_what_was_swept(view: SweepView) -> None:
    rows = means(view)
    order = ["PFDM epsilon=10", "LocalOnly", "PFDM epsilon=50"]  # The last created is on top in MLflow.
    assert list(rows) == [f"{name} (mean of 6 seeds)" for name in order]
    row = rows["PFDM epsilon=50 (mean of 6 seeds)"]
    assert (row["method"], row["method.epsilon"], row["seeds"]) == ("PFDM", "50.0", "6")
    assert row["distance_minority"] == pytest.approx(2.005) and row["epsilon"] == 48.9
    low, high = map(float, row["interval"].split(" to "))
    assert low < row["distance_minority"] < high and not any("/" in name for name in row)


@pytest.mark.parametrize(
    ("metric", "digest"), [(None, "c"), (["eval/fd_cnn/all", True], "b"), (["eval/accuracy", False], "a")]
)
def test_the_best_trial_is_best_by_the_sweeps_metric(tmp_path: Path, metric: Any, digest: str) -> None:
    for name, minor, every, accuracy in (("a", 3.0, 3.0, 0.9), ("b", 2.0, 1.0, 0.8), ("c", 1.0, 2.0, 0.7)):
        end = finished(9.0, minor, **{"eval/fd_cnn/all": every, "eval/accuracy": accuracy})
        write_trial(tmp_path, name, seed=ord(name), outcome=end)
    (tmp_path / "sweep.json").write_text(json.dumps({"command": ["raydiff", "sweep"], "metric": metric}))
    assert open_sweep(tmp_path).best[0] == digest
    summary = after_sweep.summarize_sweep(tmp_path)
    assert summary.best == digest and summary.measure.split()[0] in ("distance_minority", "distance_all", "accuracy")


# ----------------------------------------------------------------------------------------------- missing pieces


def test_one_trial_without_anything_else_has_few_sections(tmp_path: Path) -> None:
    end = finished(9.77, 3.0)
    end["final"] = [metric for metric in end["final"] if "attack" not in metric]
    write_trial(tmp_path, "aa", outcome=end)
    found = texts(tmp_path)
    assert "could not be made" not in "".join(found.values()) and "composed is computed" in found["Frontier"]
    assert list(found) == ["What came out", "Frontier", "Trials", "Guarantees"]


def test_trials_that_all_failed_or_still_run_leave_sentences(tmp_path: Path) -> None:
    write_trial(tmp_path, "t0", outcome={"outcome": "failed", "reason": "out of memory"})
    write_trial(tmp_path, "t1", seed=1, lines=[line(0)])
    found = texts(tmp_path)
    assert "could not be made" not in "".join(found.values())
    assert "No trial finished" in found["Frontier"] and "None has a measure" in found["What came out"]
    assert "out of memory" in found["Frontier"]


def test_damaged_files_of_a_trial_are_named_and_the_rest_stands(tmp_path: Path) -> None:
    folder = write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "samples.png").write_bytes(b"no picture")
    (tmp_path / "composed.json").write_text("{")
    found = texts(tmp_path)
    assert "the picture cannot be read" in found["Samples"] and "could not be made" in found["Frontier"]
    assert "finished" in found["Trials"]


# ----------------------------------------------------------------------------------------- paired differences


def test_each_setting_stands_beside_training_alone_with_an_interval(view: SweepView) -> None:
    table = pair_settings(view).set_index("setting")
    assert table.loc["PFDM, method.epsilon 10", "difference"] == pytest.approx(0.99)
    assert table.loc["PFDM, method.epsilon 10", "low"] == pytest.approx(0.951, abs=1e-3)
    assert set(table["base"]) == {"LocalOnly"} and set(table["n"]) == {6} and math.isnan(table.loc["LocalOnly", "low"])
    other = pair_settings(view, reading="eval/fd_cnn/all", against="PFDM, method.epsilon 50").set_index("setting")
    assert other.loc["LocalOnly", "difference"] == pytest.approx(0.6 * 0.01)


def test_the_command_prints_the_table_and_refuses_what_there_is_not(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paired_command.main([str(sweep), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert re.search(r"all trials +PFDM, method.epsilon 10 +9.77 +3.005 +LocalOnly +\+0.990 \[\+0.951, .* 6\n", out)
    assert len(pd.read_csv(tmp_path / "paired.csv")) == 3
    with pytest.raises(ValueError, match="has no setting 'LocalOnli'; did you mean LocalOnly"):
        paired_command.main([str(sweep), "--against", "LocalOnli"])
    with pytest.raises(ValueError, match=r"no finished trial of .* has eval/nothing"):
        paired_command.main([str(sweep), "--reading", "eval/nothing"])


def test_splits_of_the_data_repeat_a_setting_as_seeds_do(tmp_path: Path) -> None:
    for method, distance in (("PFDM", 1.0), ("LocalOnly", 3.0)):
        for seed, split in ((0, 0), (0, 1), (1, 1)):
            end = finished(1.0 if method == "PFDM" else 0.0, distance + 0.1 * seed + 0.2 * split)
            write_trial(tmp_path, f"{method}{seed}{split}", method=method, seed=seed, split=split, outcome=end)
    sweep = open_sweep(tmp_path)
    table = pair_settings(sweep)
    assert list(table["n"]) == [3, 3] and list(table["difference"].dropna()) == pytest.approx([-2.0])
    assert sorted(set(sweep.trials["seed"])) == ["0/0", "0/1", "1/1"] and sweep.fields == {}
