"""The report: each section from a sweep's files, damaged files, and a browser."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import Page, Part, Table
from PIL import Image, PngImagePlugin
from trial_folders import finished, line, stop, write_trial

from raydiff.formats import tables
from raydiff.formats.tables import strong
from raydiff.papers.discrete import row_bounds
from raydiff.report import after_sweep
from raydiff.report import page as report
from raydiff.report.gain_over_local import gains
from raydiff.report.html import html, sheet
from raydiff.report.sections import conclusion
from raydiff.report.sweep_view import Section, SweepView, open_sweep

MLFLOW = "http://127.0.0.1:5000/#/experiments/3"


def attack(target: str, *numbers: float, name: str = "pia") -> dict[str, float]:
    return {f"attack/{target}/{name}/auc{end}": v for end, v in zip(("", "_low", "_high"), numbers, strict=True)}


def write_artifacts(folder: Path) -> None:
    """A ledger of three clients, two alike, and a sample grid."""
    (folder / "artifacts").mkdir()
    event = "1 x Gaussian noise 0.51 x sensitivity (per example, replace-one, local trust)"
    rows = [[str(c), "1", event, "9.77", "10.48", "None", "1000"] for c in (0, 1)]
    rows.append(["2", "0", "nothing sent", "0.0", "0.0", "0.0", "0"])
    columns = ["client", "rounds", "events", "epsilon_exact", "epsilon_rdp", "epsilon_theorem", "bytes"]
    (folder / "artifacts" / "ledger.json").write_text(json.dumps({"columns": columns, "data": rows}))
    privacy = PngImagePlugin.PngInfo()
    privacy.add_text("privacy", "none")
    Image.new("L", (400, 200), 128).save(folder / "artifacts" / "samples.png", pnginfo=privacy)


def write_about(sweep: Path, command: str = "jobs/sweep.py digits --name x", trials: int = 0) -> None:
    about = {"command": command.split(), "trials": [str(i) for i in range(trials)]}
    (sweep / "sweep.json").write_text(json.dumps(about | {"opened_by": f"at {MLFLOW} after: mlflow ui"}))


def write_sweep(sweep: Path) -> Path:
    """PFDM at two budgets and LocalOnly over six seeds, a stopped, a failed, a killed and a running trial."""
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
            write_artifacts(write_trial(sweep, f"{name}{seed}", **common))
    stop(sweep, "s0", 9.0, 4.0)
    write_trial(sweep, "x0", outcome={"outcome": "failed", "reason": "ValueError: <script>alert(1)</script> & co"})
    write_trial(sweep, "x1", seed=1, outcome={"outcome": "killed", "reason": "time budget"})
    write_trial(sweep, "y0", seed=2, lines=[line(0)])
    write_about(sweep, trials=30)
    composed = {"trials": [p.name for p in (sweep / "trials").iterdir()][1:], "text": ["all 21 composed: epsilon 71"]}
    (sweep / "composed.json").write_text(json.dumps(composed))
    return sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def written(sweep: Path) -> Path:
    return report.write(sweep / "report", sweep)


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written)


def part(make: Callable[[SweepView, Path], Section], sweep: Path) -> Part:
    """One section alone."""
    path = sweep / "section.html"
    path.write_text(html.page("alone", [], [("this", make(open_sweep(sweep), sweep).blocks)]))
    return Page(path).sections["this"]


def one(tables: list[Table], *header: str) -> Table:
    """The one table with these columns."""
    sections = [t for t in tables if set(header) <= set(t.header)]
    assert len(sections) == 1
    return sections[0]


def texts(folder: Path) -> dict[str, str]:
    """The text of each section of a sweep's page."""
    return {title: part.text for title, part in Page(report.write(folder / "report", folder)).sections.items()}


# ------------------------------------------------------------------------------------------------- the sections


def test_every_section_is_there_and_none_failed(page: Page) -> None:
    of_papers = {"What released rows reveal", "Paired comparisons of the presets", "The paper's claims"}
    assert list(page.sections) == [title for title in report.SECTIONS if title not in of_papers]
    assert [t for t, part in page.sections.items() if "could not be made" in part.text] == []


def test_the_conclusion_and_the_samples_come_first_and_the_list_of_sections_after_the_conclusion(page: Page) -> None:
    assert list(page.sections)[:2] == ["What came out", "Samples"]
    tags = [tag for tag, _ in page.tags if tag in ("h1", "section", "nav", "footer")]
    assert tags[:4] == ["h1", "section", "nav", "section"] and tags[-1] == "footer"
    assert [picture["src"][:22] for picture in page.sections["What came out"].pictures] == ["data:image/png;base64,"]


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
    ("count", "gain", "verdict", "line"),
    [
        (1, -0.5, "The best settings at each epsilon by Fréchet distance", "at epsilon 10: PFDM, 1.500"),
        (
            4,
            -0.5,
            "the best private setting is better than training alone at epsilon 10 and at epsilon 50 (paired 95 %",
            "at epsilon 10: PFDM, 1.515, better than LocalOnly (-0.500 [-0.500, -0.500])",
        ),
        (
            4,
            0.0,
            "is not distinguishable from training alone at epsilon 10, worse than training alone at epsilon 50 (paired",
            "at epsilon 10: PFDM, 2.015, not distinguishable from LocalOnly (+0.000 [-0.037, +0.037])",
        ),
    ],
)
def test_the_conclusion_says_what_is_best_at_each_epsilon_beside_training_alone(
    tmp_path: Path, count: int, gain: float, verdict: str, line: str
) -> None:
    sentences, lines = conclusion.summary(open_sweep(write_two_levels(tmp_path, count, gain)))
    assert verdict in sentences[0] and "Fréchet distance of cnn features, minority classes" in sentences[0]
    assert ("; one seed: differences may be chance." in sentences[0]) == (count == 1)
    assert f"{4 * count} of {4 * count} trials finished" in sentences[0] and line in lines
    assert [text.partition(":")[0] for text in lines] == [
        "nothing sent",
        "at epsilon 10",
        "at epsilon 50",
        "without a guarantee",
    ]


def test_the_conclusion_names_what_carries_a_guarantee_and_what_attacks_reached(tmp_path: Path) -> None:
    _, guaranteed, attacked = conclusion.summary(open_sweep(write_two_levels(tmp_path, 1, 0.0)))[0]
    assert "With a guarantee: PFDM (2 trials), per example, replace-one, local trust, delta 1e-05" in guaranteed
    assert "Nothing sent: LocalOnly (1 trial)." in guaranteed and "Without a guarantee: FedAvg (1 trial)." in guaranteed
    assert "Samples of a client's own model carry no guarantee" in guaranteed
    assert "0.90 [0.85, 0.95] on clients' own models" in attacked and "send or make" not in attacked


def test_arms_that_are_as_good_as_the_best_at_its_epsilon_are_named_with_several_seeds(tmp_path: Path) -> None:
    for method, distances in (("PFDM", (1.0, 2.0, 1.5)), ("DPSGD", (1.1, 1.9, 1.8)), ("Sketch", (3.0, 4.0, 3.5))):
        for seed, distance in enumerate(distances):
            more = {"fields": {"epsilon": 10.0}, "outcome": finished(9.7, distance)}
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, **more)
    _, (line,) = conclusion.summary(open_sweep(tmp_path))
    assert line == "at epsilon 9.7: PFDM, 1.500; not distinguishable from DPSGD"


def test_means_of_settings_are_named_by_what_was_swept(sweep: Path) -> None:
    sections = conclusion.means(open_sweep(sweep))
    order = ["PFDM epsilon=10", "LocalOnly", "PFDM epsilon=50"]  # The last created is on top in MLflow.
    assert list(sections) == [f"{name} (mean of 6 seeds)" for name in order]
    row = sections["PFDM epsilon=50 (mean of 6 seeds)"]
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
    summary = after_sweep.describe(tmp_path)
    assert summary.best == digest and summary.measure.split()[0] in ("distance_minority", "distance_all", "accuracy")


def test_only_what_varies_is_in_the_first_table_and_the_rest_is_folded(page: Page) -> None:
    section = page.sections["What was run"]
    varies = one(section.tables, "field", "values", "trials that have it")
    assert varies.column("field") == ["method", "method.epsilon", "seed"]
    assert varies.row(field="method.epsilon")["trials that have it"] == "16"
    common = one(section.tables, "field", "value")
    assert common.row(field="clients")["value"] == "2" and "method.epsilon" not in common.column("field")
    assert "22 of 30 trials: 18 finished" in section.text
    assert "raydiff sweep digits" in section.text and "`" not in section.text
    links = [a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("http")]
    assert links == [MLFLOW]


def test_the_frontier_has_table_floor_and_composed_epsilon(page: Page) -> None:
    section = page.sections["Frontier"]
    rows = one(section.tables, "method", "epsilon")
    assert rows.row(**{"method.epsilon": "50"})["epsilon"] == "48.90"
    assert rows.row(method="noise floor")["fd_cnn/minor"] == "0.686"
    assert "o" in [row[0] for row in rows.rows]  # the stopped one
    assert "all 21 composed: epsilon 71" in section.text and "leaves out 1 of 22 trials" in section.text
    assert "failed: PFDM" in section.text


def test_each_setting_stands_beside_training_alone_with_an_interval(page: Page) -> None:
    table = one(page.sections["Seeds and intervals"].tables, "setting", "epsilon", "minus", "is")
    rows = {row["setting"]: row for row in (dict(zip(table.header, cells, strict=True)) for cells in table.rows)}
    assert rows["PFDM, method.epsilon 10"]["is"].startswith("+0.990 [+0.951, ")
    assert rows["PFDM, method.epsilon 50"]["is"].startswith("-0.010 [-0.0")
    assert rows["LocalOnly"]["is"] == "-" and {row["minus"] for row in rows.values()} == {"LocalOnly"}
    assert set(table.column("n")) == {"6"} and rows["PFDM, method.epsilon 50"]["epsilon"] == "48.90"


def test_attacks_are_marked_above_the_ceilings_of_the_uploads(page: Page) -> None:
    section = page.sections["Attacks against their ceilings"]
    table = one(section.tables, "target", "attack", "AUC")
    assert [table.rows[i][table.header.index("target")] for i in table.marked] == ["global"]
    row = table.row(target="global")
    assert row["AUC"] == "0.950 [0.930 0.970]" and row["AUC's ceiling"] == "0.917"
    assert row["TPR at 1 % FPR"] == "n too small"
    assert set(table.column("target")) == {"global", "global_uploaded", "client"}
    client = [dict(zip(table.header, r, strict=True)) for r in table.rows if {"client", "pia"} <= {*r}]
    assert {r["TPR at 1 % FPR"] for r in client} == {"0.125"}
    assert {r["AUC's ceiling"] for r in client} == {"-"}  # No noise bounds attacks on a model that is not sent.


def test_ledgers_join_clients_that_are_alike(page: Page) -> None:
    table = one(page.sections["Ledgers"].tables, "clients", "events", "bytes")
    section = [dict(zip(table.header, r, strict=True)) for r in table.rows if r[0] == "a0"]
    rows_shown = [(r["clients"], r["bytes"], r["epsilon, exact"]) for r in section]
    assert rows_shown == [("2", "2 kB", "9.77"), ("1", "0 B", "0")]
    assert section[0]["epsilon, theorem"] == "no theorem" and "replace-one, local trust" in section[0]["events"]


def test_quality_has_means_and_floors(page: Page) -> None:
    means = one(page.sections["Quality"].tables, "setting", "n", "fd_cnn/minor")
    assert means.row(n="6", setting="LocalOnly")["fd_cnn/minor"] == "2.015±0.019 [0.686]"


def test_ends_and_reasons(page: Page) -> None:
    section = page.sections["Cost, failures and resumes"]
    table = one(section.tables, "trial", "outcome", "seconds")
    assert len(table.rows) == 22
    assert table.row(trial="x0")["reason"] == "ValueError: <script>alert(1)</script> & co"
    assert table.row(trial="s0")["outcome"] == "stopped" and table.row(trial="s0")["epsilon, server"] == "9.00"
    assert table.row(trial="x1")["reason"] == "time budget" and "still running" in table.row(trial="y0")["reason"]


def test_samples_of_the_best_settings_are_large_with_their_first_seed_and_the_others_folded(page: Page) -> None:
    section = page.sections["Samples"]
    assert len(section.pictures) == 18 and section.folded_pictures == 15 and section.folded == ["15 more"]
    assert section.text.count("privacy: none") == 18
    names = [picture["alt"] for picture in section.pictures[:3]]
    settings = ("LocalOnly", "PFDM, method.epsilon 10", "PFDM, method.epsilon 50")
    assert names == [f"samples of {name}, seed 0; privacy: none" for name in settings]


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    assert not {tag for tag, _ in page.tags} & {"iframe", "object", "embed", "base"}
    assert [a for tag, a in page.tags if tag == "script"] == [{}]  # The page's own, from no address.
    links = [a[k] for tag, a in page.tags for k in ("src", "href", "srcset", "action") if k in a and tag != "a"]
    assert [link[:30] for link in links if not link.startswith(("data:", "#"))] == []
    assert not any(k.startswith("on") for _, a in page.tags for k in a)


def test_a_printed_table_is_shown_without_its_empty_columns_and_with_its_bold_cells(tmp_path: Path) -> None:
    table = tables.Table(["a", "none", "b"], [["<i>", "", strong("+1 & 2")], ["x", "", ""]], "A title", "A note")
    assert str(table) == "## A title\n\n| a | none | b |\n|---|---|---|\n| <i> |  | **+1 & 2** |\n| x |  |  |\n\nA note"
    (tmp_path / "page.html").write_text(html.page("x", [], [("x", [*sheet(table, "a table")])]))
    section = Page(tmp_path / "page.html").sections["x"]
    assert (section.tables[0].header, section.tables[0].rows) == (["a", "b"], [["<i>", "+1 & 2"], ["x", ""]])
    assert section.text == "A title\nA note\n" and "<strong>+1 &amp; 2</strong>" in (tmp_path / "page.html").read_text()


# ------------------------------------------------------------------------------------------- sections of the papers


@pytest.mark.parametrize(("vacuous", "largest", "shown"), [(1.0, 3.66e5, "1 or more"), (0.5, 0.25, "0.25")])
def test_of_tables_the_report_counts_the_records_whose_bound_says_nothing(
    tmp_path: Path, vacuous: float, largest: float, shown: str
) -> None:
    numbers = {"pdp/own/records": 1410.0, "pdp/own/vacuous_share": vacuous, "pdp/own/largest": largest}
    write_trial(tmp_path, "a", method="LocalOnly", outcome=finished(0.0, 2.0, **numbers))
    section = part(row_bounds.row_bounds, tmp_path)
    (row,) = one(section.tables, "largest bound on delta").rows
    assert row[2:] == ["1410", f"{1410 * vacuous:.0f}", shown] and "--method marginals" in section.text


def test_the_preset_is_that_of_the_command(tmp_path: Path) -> None:
    write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    for command, preset in (
        ("jobs/sweep.py spire-mnist --name x", "spire-mnist"),
        ("raydiff/__main__.py sweep --name x", "tradeoff"),
        ("my_study.py digits", None),
        ("", None),
    ):
        write_about(tmp_path, command)
        assert open_sweep(tmp_path).preset == preset, command


# ----------------------------------------------------------------------------------------------- missing pieces


def test_one_trial_without_anything_else_has_few_sections(tmp_path: Path) -> None:
    end = finished(9.77, 3.0)
    end["final"] = [metric for metric in end["final"] if "attack" not in metric]
    write_trial(tmp_path, "aa", outcome=end)
    sections = texts(tmp_path)
    assert "could not be made" not in "".join(sections.values())
    assert "Nothing varies" in sections["What was run"] and "was not computed" in sections["Frontier"]
    kept = ["What came out", "What was run", "Frontier", "Quality", "Ledgers", "Cost, failures and resumes"]
    assert list(sections) == kept


def test_trials_that_all_failed_or_still_run_leave_sentences(tmp_path: Path) -> None:
    write_trial(tmp_path, "t0", outcome={"outcome": "failed", "reason": "out of memory"})
    write_trial(tmp_path, "t1", seed=1, lines=[line(0)])
    sections = texts(tmp_path)
    assert "could not be made" not in "".join(sections.values())
    assert "No trial finished" in sections["Frontier"] and "None has a measure" in sections["What came out"]
    assert "out of memory" in sections["Frontier"]


def test_damaged_files_of_a_trial_are_named_and_the_rest_stands(tmp_path: Path) -> None:
    folder = write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "ledger.json").write_text('{"columns": ["client"], "data": [["0", "1"]]}')
    (folder / "artifacts" / "samples.png").write_bytes(b"no picture")
    (tmp_path / "composed.json").write_text("{")
    sections = texts(tmp_path)
    assert "ledger.json cannot be read" in sections["Ledgers"] and "cannot be read" in sections["Samples"]
    assert "could not be made" in sections["Frontier"] and "finished" in sections["What was run"]


# ---------------------------------------------------------------------------------------- over seeds and splits


def test_few_seeds_of_one_sign_are_not_distinguishable(tmp_path: Path) -> None:
    for method, epsilon, distances in (("PFDM", 1.0, (1.0, 2.0)), ("LocalOnly", 0.0, (1.1, 2.9))):
        for seed, distance in enumerate(distances):
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, outcome=finished(epsilon, distance))
    sweep = open_sweep(tmp_path)
    row = gains(sweep).set_index("setting").loc["PFDM"]
    half = 12.706204736432095 * 0.8 / 2  # Student's t, 1 degree of freedom; differences -0.1 and -0.9
    assert (row["low"], row["high"]) == pytest.approx((-0.5 - half, -0.5 + half))
    assert "not distinguishable from training alone" in conclusion.summary(sweep)[0][0]


def test_splits_of_the_data_repeat_a_setting_as_seeds_do(tmp_path: Path) -> None:
    for method, distance in (("PFDM", 1.0), ("LocalOnly", 3.0)):
        for seed, split in ((0, 0), (0, 1), (1, 1)):
            end = finished(1.0 if method == "PFDM" else 0.0, distance + 0.1 * seed + 0.2 * split)
            write_trial(tmp_path, f"{method}{seed}{split}", method=method, seed=seed, split=split, outcome=end)
    sweep = open_sweep(tmp_path)
    table = gains(sweep)
    assert list(table["n"]) == [3, 3] and list(table["difference"].dropna()) == pytest.approx([-2.0])
    assert sorted(set(sweep.trials["seed"])) == ["0/0", "0/1", "1/1"] and sweep.fields == {}
