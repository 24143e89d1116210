"""The report: each section from a sweep's files, damaged files, and a browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import Page, Part, Table
from PIL import Image, PngImagePlugin
from trial_folders import finished, line, stop, write_trial

from raydiff.formats import tables
from raydiff.formats.tables import strong
from raydiff.papers import report_sections
from raydiff.report import after_sweep
from raydiff.report import page as report
from raydiff.report.html import html, sheet
from raydiff.report.sections import conclusion, seeds
from raydiff.report.sweep_view import Section, SweepView, open_sweep

MLFLOW = "http://127.0.0.1:5000/#/experiments/3"


def attack(target: str, *numbers: float) -> dict[str, float]:
    return {f"attack/{target}/pia/auc{end}": v for end, v in zip(("", "_low", "_high"), numbers, strict=True)}


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
    of_papers = {
        "What released rows reveal",
        "Paired comparisons of the presets",
        "The paper's claims",
        "Beside the papers",
    }
    assert list(page.sections) == [title for title in report.SECTIONS if title not in of_papers]
    assert [t for t, part in page.sections.items() if "could not be made" in part.text] == []


@pytest.mark.parametrize(
    ("count", "gain", "verdict"), [(1, -0.5, "one seed"), (4, -0.5, "(clear"), (4, 0.0, "no clear")]
)
def test_the_conclusion_has_the_best_private_setting_beside_local_training(
    tmp_path: Path, count: int, gain: float, verdict: str
) -> None:
    for seed in range(count):
        write_trial(tmp_path, f"l{seed}", method="LocalOnly", seed=seed, outcome=finished(0.0, 2 + seed / 100))
        for epsilon, worse in ((10.0, 0.0), (50.0, 0.3)):
            distance = 2 + gain + worse + seed / 100 + (0.0 if gain else (-1) ** seed / 50)
            more = {"seed": seed, "fields": {"epsilon": epsilon}, "outcome": finished(epsilon - 0.3, distance)}
            write_trial(tmp_path, f"p{seed}-{epsilon}", **more)
    first, *lines = part(conclusion.conclusion, tmp_path).text.strip().splitlines()
    assert first.startswith(f"{3 * count} of {3 * count} trials finished.") and len(lines) == 1
    assert "PFDM, method.epsilon 10, epsilon 9.70 (per example, replace-one, local trust, delta 1e-05)" in lines[0]
    assert f"minus LocalOnly {gain:+.3f}" in lines[0] and verdict in lines[0]


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
        end = finished(9.0, minor)
        end["final"] |= {"eval/fd_cnn/all": every, "eval/accuracy": accuracy}
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
    assert "raydiff sweep digits" in section.text
    links = [a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("http")]
    assert links == [MLFLOW]


def test_the_frontier_has_plot_table_floor_and_composed_epsilon(page: Page) -> None:
    section = page.sections["Frontier"]
    assert [p["src"][:22] for p in section.pictures] == ["data:image/png;base64,"]
    rows = one(section.tables, "method", "epsilon")
    assert rows.row(**{"method.epsilon": "50"})["epsilon"] == "48.90"
    assert rows.row(method="noise floor")["fd_cnn/minor"] == "0.686"
    assert "o" in [row[0] for row in rows.rows]  # the stopped one
    assert "all 21 composed: epsilon 71" in section.text and "leaves out 1 of 22 trials" in section.text
    assert "failed: PFDM" in section.text


def test_a_clear_difference_has_a_rank_and_an_unclear_one_is_a_tie(page: Page) -> None:
    table = one(page.sections["Seeds, intervals and ranks"].tables, "rank", "minus leader")
    assert table.column("rank") == ["1 (tie)", "1 (tie)", "3"]
    assert [s.split(",")[0] for s in table.column("setting")] == ["PFDM", "LocalOnly", "PFDM"]
    assert table.column("n") == ["6", "6", "6"] and table.column("mean")[0] == "2.005"
    assert table.column("minus leader")[2].startswith("+1 [+1, +1")


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


def test_samples_show_one_of_each_setting_and_fold_the_other_seeds(page: Page) -> None:
    section = page.sections["Samples"]
    assert len(section.pictures) == 18 and section.folded_pictures == 15 and section.folded == ["15 more"]
    assert section.text.count("privacy: none") == 18


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
    section = part(report_sections.row_bounds, tmp_path)
    (row,) = one(section.tables, "largest bound on delta").rows
    assert row[2:] == ["1410", f"{1410 * vacuous:.0f}", shown] and "--method marginals" in section.text


@pytest.mark.parametrize(("preset", "size"), [("colour-mnist", None), ("mnist-cpu", 14)])
def test_a_papers_number_stands_beside_ours_only_where_preset_and_data_are_its_own(
    tmp_path: Path, preset: str, size: int | None
) -> None:
    folder = write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    config = json.loads((folder / "config.json").read_text())
    config["data"] |= {"name": "colour-mnist", "train": 22_000, "size": size}
    (folder / "config.json").write_text(json.dumps(config))
    write_about(tmp_path, f"raydiff sweep {preset}")
    beside = part(report_sections.papers, tmp_path).tables
    if (preset, size) != ("colour-mnist", None):
        assert beside == []
        return
    minor = one(beside, "its number", "our number").row(**{"its measure": "FID, minor"})
    assert minor["its number"] == "4.79" and minor["our number"] == "3.000 (n = 1)"
    assert minor["the paper's method"] == "PFDM" and "Inception" in minor["what differs"]


def test_the_preset_is_that_of_the_command(tmp_path: Path) -> None:
    write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    for command, preset in (
        ("jobs/sweep.py spire-mnist --name x", "spire-mnist"),
        ("raydiff/__main__.py sweep --name x", "digits"),
        ("raydiff sweep reproduce --paper=pdp --scale gpu", "reproduce-pdp-gpu"),
        ("my_study.py digits", None),
        ("", None),
    ):
        write_about(tmp_path, command)
        assert open_sweep(tmp_path).preset == preset, command


def test_a_reproduction_has_a_verdict_for_each_claim(tmp_path: Path) -> None:
    for method, distances in (("PFDM", (1.0, 1.2, 1.1)), ("LocalOnly", (2.0, 2.3, 2.2))):
        for seed, distance in enumerate(distances):
            more = {"fields": {"epsilon": 10.0}} if method == "PFDM" else {}
            of = {"outcome": finished(9.77, distance), "partition": {"kind": "MajorityMinority"}, **more}
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, **of)
    write_about(tmp_path, "jobs/sweep.py reproduce --scale=cpu --paper=pfdm")
    section = part(report_sections.claims, tmp_path)
    outcomes = one(section.tables, "claim", "outcome").column("outcome")
    assert outcomes[:3] == ["reproduced", "reproduced", "not tested: no such trials or reading"]
    write_about(tmp_path)
    assert part(report_sections.claims, tmp_path).tables == []


# ----------------------------------------------------------------------------------------------- missing pieces


def test_one_trial_without_anything_else_has_few_sections(tmp_path: Path) -> None:
    end = finished(9.77, 3.0)
    end["final"] = {k: v for k, v in end["final"].items() if not k.startswith("attack")}
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
    assert "No trial finished" in sections["Frontier"] and "no private setting" in sections["What came out"]
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


# --------------------------------------------------------------------------------------------------- ranks


def test_few_seeds_of_one_sign_are_still_a_tie(tmp_path: Path) -> None:
    for method, distances in (("PFDM", (1.0, 2.0)), ("LocalOnly", (1.1, 2.9))):
        for seed, distance in enumerate(distances):
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, outcome=finished(1.0, distance))
    ranks = seeds.ranking(open_sweep(tmp_path))
    half = 12.706204736432095 * 0.8 / 2  # Student's t, 1 degree of freedom; differences 0.1 and 0.9
    assert (ranks["low"].iloc[1], ranks["high"].iloc[1]) == pytest.approx((0.5 - half, 0.5 + half))
    assert list(ranks["rank"]) == [1, 1]


def test_splits_of_the_data_repeat_a_setting_as_seeds_do(tmp_path: Path) -> None:
    for method, distance in (("PFDM", 1.0), ("LocalOnly", 3.0)):
        for seed, split in ((0, 0), (0, 1), (1, 1)):
            end = finished(1.0, distance + 0.1 * seed + 0.2 * split)
            write_trial(tmp_path, f"{method}{seed}{split}", method=method, seed=seed, split=split, outcome=end)
    sweep = open_sweep(tmp_path)
    ranks = seeds.ranking(sweep)
    assert list(ranks["n"]) == [3, 3] and list(ranks["rank"]) == [1, 2] and ranks["std"].iloc[0] > 0.1
    assert sorted(set(sweep.trials["seed"])) == ["0/0", "0/1", "1/1"] and sweep.fields == {}
