"""The report: what it says of a sweep, that it says it without a traceback, and that a browser can show it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pages import Page, Part, Table
from PIL import Image, PngImagePlugin
from written import finished, line, stop, write_trial

from raydiff.formats import tables as cells
from raydiff.formats.tables import strong
from raydiff.papers import report_sections as studies
from raydiff.papers.claims import rows_of
from raydiff.report import page as report
from raydiff.report.html import html, sheet
from raydiff.report.sections import conclusion, seeds
from raydiff.report.sections import curves as training
from raydiff.report.sweep_view import Section, SweepView, open_sweep, together

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
STATS = ("auc", "auc_low", "auc_high")


def attack(target: str, name: str, *numbers: float) -> dict[str, float]:
    return {f"attack/{target}/{name}/{stat}": v for stat, v in zip(STATS, numbers, strict=True)}


def write_artifacts(folder: Path, *, samples: bool = True) -> None:
    """A ledger of three clients, two alike, and a sample grid."""
    (folder / "artifacts").mkdir()
    event = "1 x Gaussian noise 0.51 x sensitivity (per example, replace-one, local trust)"
    rows = [[str(c), "1", event, "9.77", "10.48", "None", "1000"] for c in (0, 1)]
    rows.append(["2", "0", "nothing sent", "0.0", "0.0", "0.0", "0"])
    columns = ["client", "rounds", "events", "epsilon_exact", "epsilon_rdp", "epsilon_theorem", "bytes"]
    (folder / "artifacts" / "ledger.json").write_text(json.dumps({"columns": columns, "data": rows}))
    if samples:
        privacy = PngImagePlugin.PngInfo()
        privacy.add_text("privacy", "none")
        Image.new("L", (400, 200), 128).save(folder / "artifacts" / "samples.png", pnginfo=privacy)


def write_about(sweep: Path, preset: str, trials: int = 0) -> None:
    command = ["jobs/sweep.py", preset, "--name", "x"]
    about = {"command": command, "trials": [str(i) for i in range(trials)]}
    about |= {"opened_by": "at http://127.0.0.1:5000/#/experiments/3 after: mlflow ui"}
    (sweep / "sweep.json").write_text(json.dumps(about))


def write_sweep(sweep: Path) -> Path:
    """PFDM at two budgets and LocalOnly over six seeds, a stopped, a failed, a killed and a running trial."""
    arms: tuple[tuple[str, str, dict[str, Any], float, float], ...] = (
        ("a", "PFDM", {"epsilon": 10.0}, 9.77, 3.0),
        ("b", "PFDM", {"epsilon": 50.0}, 48.9, 2.0),
        ("c", "LocalOnly", {}, 0.0, 2.02),
    )
    noise = (0.02, -0.01, 0.0, 0.03, -0.02, 0.01)
    for name, method, fields, epsilon, distance in arms:
        for seed, more in enumerate(noise):
            numbers = {
                **attack("client", "pia", 0.85, 0.81, 0.88),
                "attack/client/pia/tpr_at_1pct_fpr": 0.125,
                "eval/class/7/label_accuracy": 0.75,
                "eval/class/10/label_accuracy": 0.5,
            }
            if method == "PFDM":
                numbers |= attack("global", "pia", 0.95, 0.93, 0.97) if (name, seed) == ("a", 0) else {}
                numbers |= attack("global_uploaded", "pia", 0.99, 0.98, 1.0)
            own = more if name != "c" else -more
            lines = [line(s, epsilon, **{"client/0/train/loss": 0.5, "client/1/train/loss": 0.7}) for s in range(3)]
            end = finished(epsilon, distance + own, **numbers)
            if (name, seed) == ("b", 1):  # died after the first round: the clock stood still for a minute
                lines[1:] = [{**each, "time": each["time"] + 60} for each in lines[1:]]
            common = {"method": method, "fields": fields, "seed": seed, "outcome": end, "lines": lines}
            write_artifacts(write_trial(sweep, f"{name}{seed}", **common))
    stop(sweep, "s0", 9.0, 4.0)
    reason = "ValueError: <script>alert(1)</script> & co"
    write_trial(sweep, "x0", outcome={"outcome": "failed", "reason": reason})
    write_trial(sweep, "x1", seed=1, outcome={"outcome": "killed", "reason": "time budget"})
    write_trial(sweep, "y0", seed=2, lines=[line(0)])
    write_about(sweep, "digits", trials=30)
    covered = {"trials": [p.name for p in (sweep / "trials").iterdir()][1:], "says": ["all 21 composed: epsilon 71"]}
    (sweep / "composed.json").write_text(json.dumps(covered))
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


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 trials: 40 settings of 5 seeds, each with a sample grid."""
    sweep = tmp_path_factory.mktemp("large")
    for i in range(200):
        fields = {"clip": float(i // 20), "epsilon": (10.0, 50.0, 200.0, None)[i % 4]}
        end = finished((9.7, 49.0, 197.0, math.inf)[i % 4], 2 + (i % 7) / 7, **attack("client", "pia", 0.8, 0.7, 0.9))
        write_artifacts(write_trial(sweep, f"{i:016x}", fields=fields, seed=i // 4 % 5, outcome=end))
    write_about(sweep, "digits", trials=200)
    return report.write(sweep / "report", sweep)


def part(make: Callable[[SweepView, Path], Section], sweep: Path) -> Part:
    """One section alone."""
    made = make(open_sweep(sweep), sweep)
    path = sweep / "section.html"
    path.write_text(html.page("alone", [], [("this", made.blocks)]))
    return Page(path).sections["this"]


def one(tables: list[Table], *header: str) -> Table:
    """The one table with these columns."""
    found = [t for t in tables if set(header) <= set(t.header)]
    assert len(found) == 1
    return found[0]


# ------------------------------------------------------------------------------------------------- the sections


def test_every_section_is_there_and_none_failed(page: Page) -> None:
    of_other_sweeps = {"Paired comparisons of the presets", "The paper's claims", "Beside the papers"}
    assert list(page.sections) == [title for title in report.SECTIONS if title not in of_other_sweeps | {"Training"}]
    assert [t for t, part in page.sections.items() if "could not be made" in part.text] == []


def test_it_opens_with_what_came_out(page: Page) -> None:
    said = page.sections["What came out"].text
    assert next(iter(page.sections)) == "What came out"
    assert "18 of 22 trials finished. By fd_cnn/minor, lower is better" in said
    assert "LocalOnly (2.0" in said and "PFDM" in said
    assert "which sends nothing: " in said and "clear difference" in said


@pytest.mark.parametrize(
    ("seeds", "gap", "first", "second"),
    [
        (1, -0.5, "one seed of each setting is too few to rank; PFDM (1.500) has the least.", "-0.500, one seed."),
        (4, -0.5, "PFDM (1.515) is best; the next, LocalOnly (2.015), is worse by a clear inter", "a clear difference"),
        (4, 0.0, "not clearly worse: ", "no clear difference"),
    ],
)
def test_conclusions_are_made_of_paired_intervals(
    tmp_path: Path, seeds: int, gap: float, first: str, second: str
) -> None:
    for seed in range(seeds):
        write_trial(tmp_path, f"l{seed}", method="LocalOnly", seed=seed, outcome=finished(0.0, 2 + seed / 100))
        more = {"seed": seed, "outcome": finished(9.7, 2 + gap + seed / 100 + (0.0 if gap else (-1) ** seed / 50))}
        write_trial(tmp_path, f"p{seed}", **more)
    said = part(conclusion.conclusion, tmp_path).text
    assert first in said and second in said
    assert "with an epsilon per example, replace-one, local trust, PFDM is best (9.70 spent)" in said
    assert ("The best of several is picked on the same numbers" in said) == (seeds > 1)


def test_means_of_settings_begin_with_what_is_compared_first(sweep: Path) -> None:
    found = conclusion.means(open_sweep(sweep))
    order = ["PFDM, method.epsilon 10", "LocalOnly", "PFDM, method.epsilon 50"]  # The last made is on top in MLflow.
    assert list(found) == [f"mean: {name} (6 seeds)" for name in order]
    row = found["mean: PFDM, method.epsilon 50 (6 seeds)"]
    measure = "final/eval/fd_cnn/minor"
    assert list(row)[:4] == ["epsilon", "method", "seeds", measure] and row["epsilon"] == "48.90"
    assert row[measure] == pytest.approx(2.005) and row["final/attack/client/pia/auc"] == pytest.approx(0.85)
    assert row[f"{measure}/low"] < row[measure] < row[f"{measure}/high"]


def test_losses_are_drawn_where_there_are_rounds(tmp_path: Path) -> None:
    write_trial(
        tmp_path, "a", outcome=finished(9.7, 2.0), lines=[line(s, **{"train/loss": 1 / (1 + s)}) for s in (0, 1)]
    )
    assert part(training.training, tmp_path).pictures == []
    write_trial(
        tmp_path, "b", seed=1, outcome=finished(9.7, 2.0), lines=[line(s, **{"train/loss": 1.0}) for s in range(3)]
    )
    assert len(part(training.training, tmp_path).pictures) == 1


def test_only_what_varies_is_in_the_first_table_and_the_rest_is_folded(page: Page) -> None:
    own = page.sections["What was run"]
    varies = one(own.tables, "field", "values", "trials that have it")
    assert varies.column("field") == ["method", "method.epsilon", "seed"]
    assert varies.row(field="method.epsilon")["trials that have it"] == "16"
    common = one(own.tables, "field", "value")
    assert common.row(field="clients")["value"] == "2" and "method.epsilon" not in common.column("field")
    assert "22 trials: 18 finished" in own.text and "8 of 30 planned trials have not begun" in own.text


def test_the_frontier_has_plot_table_floor_and_composed_epsilon(page: Page) -> None:
    own = page.sections["Frontier"]
    assert [p["src"][:22] for p in own.pictures] == ["data:image/png;base64,"]
    rows = one(own.tables, "method", "epsilon server")
    assert rows.row(**{"method.epsilon": "50"})["epsilon server"] == "48.90"
    assert rows.rows[-1][rows.header.index("method")] == "floor"
    assert rows.row(method="floor")["fd_cnn minor"] == "0.686"
    assert "o" in [row[0] for row in rows.rows]  # the stopped one
    assert "all 21 composed: epsilon 71" in own.text and "leaves out 1 of 22 trials" in own.text
    assert "failed: PFDM" in own.text


def test_a_clear_difference_has_a_rank_and_an_unclear_one_is_a_tie(page: Page) -> None:
    table = one(page.sections["Seeds, intervals and ranks"].tables, "rank", "bootstrap")
    assert table.column("rank") == ["1 (tie)", "1 (tie)", "3"]
    assert [s.split(",")[0] for s in table.column("setting")] == ["PFDM", "LocalOnly", "PFDM"]
    assert table.column("n") == ["6", "6", "6"] and table.column("mean")[0] == "2.005"
    assert table.column("minus leader")[2] == "+1.000"
    low, high = table.column("bootstrap")[1].split(" to ")
    assert float(low) < 0 < float(high)


def test_attacks_are_drawn_beside_their_ceilings(page: Page) -> None:
    (picture,) = page.sections["Attacks against their ceilings"].pictures
    assert picture["alt"] == "membership AUC of the strongest attack on each target, by setting"


def test_attacks_are_marked_above_the_ceiling_for_the_global_model_alone(page: Page) -> None:
    own = page.sections["Attacks against their ceilings"]
    table = one(own.tables, "target", "attack", "AUC")
    assert [table.rows[i][table.header.index("target")] for i in table.marked] == ["global"]
    row = table.row(target="global")
    assert row["AUC"] == "0.950 [0.930 0.970]" and row["AUC's ceiling"] == "0.917"
    assert row["TPR at 1 % FPR"] == "n too small"
    assert set(table.column("target")) == {"global", "global_uploaded", "client"}
    client = [r for r in table.rows if {"client", "pia"} <= set(r)]
    assert {r[table.header.index("TPR at 1 % FPR")] for r in client} == {"0.125"}
    assert "Above their ceiling with their whole interval: 1." in own.text and "leaks nothing new" in own.text


def test_ledgers_join_clients_that_are_alike(page: Page) -> None:
    table = one(page.sections["Ledgers"].tables, "clients", "events", "bytes")
    own = [dict(zip(table.header, r, strict=True)) for r in table.rows if r[0] == "a0"]
    assert [(r["clients"], r["bytes"], r["epsilon, exact"]) for r in own] == [
        ("0 to 1", "2 kB", "9.77"),
        ("2", "0 B", "0"),
    ]
    assert own[0]["epsilon, theorem"] == "no theorem" and "replace-one, local trust" in own[0]["events"]


def test_quality_by_class_and_by_client(page: Page) -> None:
    tables = page.sections["Quality"].tables
    classes = one(tables, "class 7", "class 10")
    assert classes.header.index("class 7") < classes.header.index("class 10")
    assert set(classes.column("class 7")) == {"0.750"} and len(classes.rows) == 3
    clients = one(tables, "client 0", "client 1")
    assert set(clients.column("client 1")) == {"0.700"}
    means = one(tables, "setting", "n", "fd_cnn/minor")
    assert means.row(n="6", setting="LocalOnly")["fd_cnn/minor"] == "2.015±0.019 [0.686]"


def test_ends_reasons_and_interruptions(page: Page) -> None:
    own = page.sections["Cost, failures and resumes"]
    table = one(own.tables, "trial", "outcome", "interruptions")
    assert len(table.rows) == 22
    assert table.row(trial="x0")["reason"] == "ValueError: <script>alert(1)</script> & co"
    assert table.row(trial="b1")["interruptions"] == "1" and table.column("interruptions").count("1") == 1
    assert table.row(trial="s0")["outcome"] == "stopped" and table.row(trial="s0")["epsilon, server"] == "9.00"
    assert "killed" in own.text and "still running" in own.text


def test_samples_show_one_of_each_setting_and_fold_the_other_seeds(page: Page) -> None:
    own = page.sections["Samples"]
    assert len(own.pictures) == 18 and own.folded_pictures == 15 and own.folded == ["15 more"]
    assert own.text.count("privacy: none") == 18


def test_tables_are_csv_and_parquet_too(sweep: Path, page: Page) -> None:
    for name in ("runs", "frontier", "seeds", "quality", "quality-class", "attacks", "ledger", "trials"):
        csv, parquet = (sweep / "report" / f"{name}.{kind}" for kind in ("csv", "parquet"))
        assert len(pd.read_csv(csv)) == len(pd.read_parquet(parquet)) > 0
    marked = pd.read_parquet(sweep / "report" / "attacks.parquet").query("above_ceiling")
    assert list(marked["digest"]) == ["a0"]


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    names = {tag for tag, _ in page.tags}
    assert not names & {"iframe", "object", "embed", "base"}
    assert [a for tag, a in page.tags if tag == "script"] == [{}]  # The page's own, from no address.
    links = [a[k] for tag, a in page.tags for k in ("src", "href", "srcset", "action") if k in a and tag != "a"]
    assert [link[:30] for link in links if not link.startswith(("data:", "#"))] == []
    style = next(t for t, _ in page.tags if t == "style")
    assert style and not any(k.startswith("on") for _, a in page.tags for k in a)


def test_a_printed_table_is_shown_without_its_empty_columns_and_with_its_bold_cells(tmp_path: Path) -> None:
    table = cells.Table(["a", "none", "b"], [["<i>", "", strong("+1 & 2")], ["x", "", ""]], "A title", "A note")
    assert str(table) == "## A title\n\n| a | none | b |\n|---|---|---|\n| <i> |  | **+1 & 2** |\n| x |  |  |\n\nA note"
    (tmp_path / "page.html").write_text(html.page("x", [], [("x", [*sheet(table, "a table")])]))
    own = Page(tmp_path / "page.html").sections["x"]
    assert (own.tables[0].header, own.tables[0].rows) == (["a", "b"], [["<i>", "+1 & 2"], ["x", ""]])
    assert own.text == "A title\nA note\n" and "<strong>+1 &amp; 2</strong>" in (tmp_path / "page.html").read_text()


# ------------------------------------------------------------------------------------------ the papers' numbers


def beside(tmp_path: Path, preset: str, *, size: int | None = None) -> Part:
    """A sweep of PFDM at epsilon 10 on colour-mnist, said to be of this preset."""
    folder = write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    config = json.loads((folder / "config.json").read_text())
    config["data"] |= {"name": "colour-mnist", "train": 22_000, "size": size}
    (folder / "config.json").write_text(json.dumps(config))
    write_about(tmp_path, preset)
    return part(studies.papers, tmp_path)


def test_a_papers_number_stands_beside_ours_with_what_differs(tmp_path: Path) -> None:
    table = one(beside(tmp_path, "colour-mnist").tables, "its number", "our number")
    minor = table.row(**{"its measure": "FID, minor"})
    assert minor["its number"] == "4.79" and minor["our number"] == "3.000 (n = 1)"
    assert minor["the paper's method"] == "PFDM" and "Inception" in minor["what differs"]


@pytest.mark.parametrize(("preset", "size"), [("mnist-cpu", None), ("colour-mnist", 14)])
def test_a_look_alike_never_stands_beside_a_paper(tmp_path: Path, preset: str, size: int | None) -> None:
    assert beside(tmp_path, preset, size=size).tables == []


def test_every_published_number_says_what_differs_and_names_a_preset() -> None:
    from raydiff.experiment import presets

    numbers = rows_of("published")
    assert {n["preset"] for n in numbers} <= set(presets.PRESETS)
    assert all(all(n.values()) for n in numbers)


# ----------------------------------------------------------------------------------------------- missing pieces


@pytest.mark.parametrize(
    ("command", "preset"),
    [
        ("jobs/sweep.py spire-mnist --name x", "spire-mnist"),
        ("/opt/bin/raydiff sweep spire-mnist --name x", "spire-mnist"),
        ("raydiff/__main__.py sweep --name x", "digits"),
        ("jobs/sweep.py", "digits"),
        ("raydiff sweep reproduce --paper=pdp --scale gpu", "reproduce-pdp-gpu"),
        ("my_study.py digits", None),
        ("", None),
    ],
)
def test_the_preset_is_that_of_the_command(tmp_path: Path, command: str, preset: str | None) -> None:
    write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    (tmp_path / "sweep.json").write_text(json.dumps({"command": command.split(), "trials": []}))
    assert open_sweep(tmp_path).preset == preset


def test_a_reproduction_has_a_verdict_for_each_claim(tmp_path: Path) -> None:
    for method, distances in (("PFDM", (1.0, 1.2, 1.1)), ("LocalOnly", (2.0, 2.3, 2.2))):
        for seed, distance in enumerate(distances):
            more = {"fields": {"epsilon": 10.0}} if method == "PFDM" else {}
            of = {"outcome": finished(9.77, distance), "partition": {"kind": "MajorityMinority"}, **more}
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, **of)
    for words in (["reproduce", "--paper", "pfdm"], ["reproduce", "--scale=cpu", "--paper=pfdm"]):
        (tmp_path / "sweep.json").write_text(json.dumps({"command": ["jobs/sweep.py", *words], "trials": []}))
        assert open_sweep(tmp_path).preset == "reproduce-pfdm-cpu"
        own = Page(report.write(tmp_path / "report", tmp_path)).sections["The paper's claims"]
        outcomes = one(own.tables, "claim", "outcome").column("outcome")
        assert outcomes[:3] == ["reproduced", "reproduced", "not tested: no such trials or reading"]
    (tmp_path / "sweep.json").write_text(json.dumps({"command": ["jobs/sweep.py", "digits"], "trials": []}))
    assert "The paper's claims" not in Page(report.write(tmp_path / "report", tmp_path)).sections


def test_one_trial_without_anything_else_has_few_sections(tmp_path: Path) -> None:
    end = finished(9.77, 3.0)
    end["final"] = {k: v for k, v in end["final"].items() if not k.startswith("attack")}
    write_trial(tmp_path, "aa", outcome=end)
    page = Page(report.write(tmp_path / "report", tmp_path))
    said = {title: part.text for title, part in page.sections.items()}
    assert "could not be made" not in "".join(said.values())
    assert "Nothing varies" in said["What was run"] and "no sweep.json" in said["What was run"]
    assert "There is no ledger" in said["Ledgers"]
    assert "is the only setting" in said["What came out"]
    assert "was not computed" in said["Frontier"]
    kept = ["What came out", "What was run", "Frontier", "Quality", "Ledgers", "Cost, failures and resumes"]
    assert list(said) == kept


@pytest.mark.parametrize("outcome", [None, {"outcome": "failed", "reason": "out of memory"}])
def test_trials_that_all_failed_or_still_run_leave_sentences(tmp_path: Path, outcome: dict[str, Any] | None) -> None:
    for seed in (0, 1):
        write_trial(tmp_path, f"t{seed}", seed=seed, outcome=outcome, lines=[] if outcome else [line(0)])
    page = Page(report.write(tmp_path / "report", tmp_path))
    said = {title: part.text for title, part in page.sections.items()}
    assert "could not be made" not in "".join(said.values())
    assert "No trial finished" in said["Frontier"] and "nothing is compared" in said["What came out"]
    assert ("out of memory" if outcome else "still running") in said["Cost, failures and resumes"]


def test_damaged_files_of_a_trial_are_named_and_the_rest_stands(tmp_path: Path) -> None:
    folder = write_trial(tmp_path, "aa", outcome=finished(9.77, 3.0))
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "ledger.json").write_text('{"columns": ["client"], "data": [["0", "1"]]}')
    (folder / "artifacts" / "samples.png").write_bytes(b"no picture")
    (tmp_path / "composed.json").write_text("{")
    said = {title: part.text for title, part in Page(report.write(tmp_path / "out", tmp_path)).sections.items()}
    assert "ledger.json cannot be read" in said["Ledgers"] and "cannot be read" in said["Samples"]
    assert "could not be made" in said["Frontier"] and "finished" in said["What was run"]


def test_a_folder_without_trials_is_one_sentence(tmp_path: Path, command) -> None:
    said = f"error: {tmp_path} has no trials: nothing matches trials/*/config.json\n"
    assert command("report", tmp_path) == (2, "", said)


# --------------------------------------------------------------------------------------------------- the numbers


def test_bootstrap_resamples_pairs() -> None:
    low, high = seeds.bootstrap(pd.Series([1.0] * 5))
    assert low == high == 1.0
    low, high = seeds.bootstrap(pd.Series([-1.0, 1.0] * 50))
    assert low == pytest.approx(-0.2, abs=0.03) and high == pytest.approx(0.2, abs=0.03)  # 1.96 / sqrt(100)
    assert all(map(math.isnan, seeds.bootstrap(pd.Series([2.0]))))


def test_few_seeds_of_one_sign_are_still_a_tie(tmp_path: Path) -> None:
    """The bootstrap of two seeds excludes 0 whenever both agree; Student's interval does not."""
    for method, distances in (("PFDM", (1.0, 2.0)), ("LocalOnly", (1.1, 2.9))):
        for seed, distance in enumerate(distances):
            write_trial(tmp_path, f"{method}{seed}", method=method, seed=seed, outcome=finished(1.0, distance))
    table = seeds.ranking(open_sweep(tmp_path))
    assert table["low"].iloc[1] > 0 > table["student_low"].iloc[1] and list(table["rank"]) == [1, 1]


def test_splits_of_the_data_repeat_a_setting_as_seeds_do(tmp_path: Path) -> None:
    for method, distance in (("PFDM", 1.0), ("LocalOnly", 3.0)):
        for seed, split in ((0, 0), (0, 1), (1, 1)):
            end = finished(1.0, distance + 0.1 * seed + 0.2 * split)
            write_trial(tmp_path, f"{method}{seed}{split}", method=method, seed=seed, split=split, outcome=end)
    sweep = open_sweep(tmp_path)
    table = seeds.ranking(sweep)
    assert list(table["n"]) == [3, 3] and list(table["rank"]) == [1, 2] and table["std"].iloc[0] > 0.1
    assert sorted(set(sweep.trials["seed"])) == ["0/0", "0/1", "1/1"] and sweep.fields == {}


def test_settings_of_other_data_are_not_ranked_against_each_other(tmp_path: Path) -> None:
    for clients in (2, 4):
        for seed in (0, 1):
            end = finished(1.0, 1.0 * clients)
            write_trial(tmp_path, f"{clients}{seed}", clients=clients, seed=seed, outcome=end)
    table = seeds.ranking(open_sweep(tmp_path))
    assert list(table["cell"]) == ["clients 2", "clients 4"] and list(table["rank"]) == [1, 1]


def test_the_page_leads_to_the_runs(page: Page) -> None:
    assert "Its runs in MLflow: at http://127.0.0.1:5000/#/experiments/3 after: mlflow ui" in (
        " ".join(page.sections["What was run"].text.split())
    )
    assert [a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("http")] == [
        "http://127.0.0.1:5000/#/experiments/3"
    ]


def two_sweeps(at: Path) -> tuple[Path, Path]:
    """PFDM and LocalOnly with four seeds, before and after PFDM became better by 1."""
    for name, better in (("before", 0.0), ("after", 1.0)):
        for seed in range(4):
            for method, distance in (("PFDM", 3.0 - better), ("LocalOnly", 2.5)):
                end = finished(9.0 if method == "PFDM" else 0.0, distance + 0.01 * seed)
                lines = [line(s, 9.0) for s in range(2)]
                common = {"method": method, "seed": seed, "outcome": end, "lines": lines}
                write_artifacts(write_trial(at / name, f"{name}{method}{seed}", **common))
        write_about(at / name, "digits", trials=8)
    return at / "before", at / "after"


def test_several_sweeps_on_one_page_are_settings_of_it(tmp_path: Path) -> None:
    joined = together([open_sweep(folder) for folder in two_sweeps(tmp_path)])
    assert joined.fields == {"sweep": "sweep"}
    table = seeds.ranking(joined)
    assert list(zip(table["setting"], table["rank"], strict=True)) == [
        ("PFDM, sweep after", 1),
        ("LocalOnly, sweep after", 2),
        ("LocalOnly, sweep before", 2),
        ("PFDM, sweep before", 4),
    ]
    assert joined.trial("beforePFDM0") == tmp_path / "before" / "trials" / "beforePFDM0"


def test_the_page_of_several_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = two_sweeps(tmp_path)
    with pytest.raises(ValueError, match="the page of several sweeps is none of theirs: give --out"):
        report.main([str(before), str(after)])
    report.main([str(before), str(after), "--out", str(tmp_path / "out")])
    page = Page(Path(capsys.readouterr().out.strip()))
    assert not [title for title, part in page.sections.items() if "could not be made" in part.text]
    said = page.sections["What was run"].text
    assert "16 trials: 16 finished" in said
    assert "before. Preset digits, by: python jobs/sweep.py digits" in said and "after. Preset digits" in said
    assert not list(before.glob("report")) and len(pd.read_csv(tmp_path / "out" / "runs.csv")) == 16


def test_sweeps_that_cannot_be_told_apart_are_not_compared(tmp_path: Path) -> None:
    before, _ = two_sweeps(tmp_path)
    with pytest.raises(ValueError, match="need names of their own, got before, before"):
        report.write(tmp_path / "out", before, before)
    shutil.copytree(before, tmp_path / "copy")
    with pytest.raises(ValueError, match="trial beforeLocalOnly0 is in more than one of before, copy"):
        report.write(tmp_path / "out", before, tmp_path / "copy")


# ---------------------------------------------------------------------------------------------------- many trials


@pytest.mark.slow
def test_two_hundred_trials_stay_small_and_folded(large: Path) -> None:
    page = Page(large)
    assert large.stat().st_size < 3_000_000
    own = page.sections["Samples"]
    assert len(own.pictures) - own.folded_pictures == 24 and len(own.pictures) == 200
    assert "400 rows" in page.sections["Attacks against their ceilings"].folded[0]
    assert [t for t, p in page.sections.items() if "could not be made" in p.text] == []


@pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")
def test_a_browser_shows_it_at_both_widths_and_in_both_themes(large: Path, written: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        for page in (large, written):
            papers = [_shown(driver, page, width, theme) for width in (1280, 400) for theme in ("light", "dark")]
            assert papers[0] != papers[1]
        heads = "[...document.querySelectorAll('table')].find(t => t.tHead.innerText.includes('interruptions'))"
        column = f"return [...{heads}.tBodies[0].rows].map(r => r.cells[2].textContent)"
        first = driver.execute_script(column)
        driver.execute_script(f"{heads}.tHead.rows[0].cells[2].click()")
        assert driver.execute_script(column) == sorted(first, key=int) != first
        driver.execute_script(f"{heads}.tHead.rows[0].cells[2].click()")
        assert driver.execute_script(column) == sorted(first, key=int, reverse=True)
        assert max(_printed_widths(driver)) <= 965 < max(_printed_widths(driver, "afterprint"))
        assert driver.get_log("browser") == []
    finally:
        driver.quit()


def _printed_widths(driver: Any, event: str = "beforeprint") -> list[float]:
    """Of the open page's tables, in pixels; a page of A4 or letter, on its side, has 965 within its margins."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    driver.execute_script(f"dispatchEvent(new Event({event!r}))")
    tables = "[...document.querySelectorAll('table')]"
    widths: list[float] = driver.execute_script(f"return {tables}.map(t => t.getBoundingClientRect().width)")
    return widths


def _shown(driver: Any, page: Path, width: int, theme: str) -> str:
    """Load the page, check it, and give the colour of its paper."""
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
    driver.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    tables, shown = driver.execute_script("""return [document.querySelectorAll('table').length,
        [...document.images].every(i => i.complete && i.naturalWidth > 0)]""")
    assert tables > 5 and shown
    colour: str = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    return colour
