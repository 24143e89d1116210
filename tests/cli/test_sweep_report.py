"""The end of a sweep: what its trials spent together, and the report, whose failure is one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from raydiff.data.partition import Iid
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.formats.rounding import up
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian
from raydiff.report import after_sweep, page as report
from raydiff.results.spent import composed_guarantee
from raydiff.storage.checkpoint import Checkpoint


def write_trial(folder: Path, digest: str, std: float, **changes: Any) -> None:
    """A trial of one client that sent one noised value."""
    path = folder / "trials" / digest
    path.mkdir(parents=True)
    event = Gaussian(std, **({"unit": "example", "relation": "replace_one", "trust": "local"} | changes))
    Checkpoint(path).commit(0, {"ledger": Ledger().with_uploads(0, [(0, event, 100)]).to_json()})
    (path / "config.json").write_text(json.dumps({"method": {"kind": "PFDM", "delta": 1e-5}, "seed": int(digest)}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for digest in ("0", "1"):
        write_trial(tmp_path, digest, std=1.0)
    return tmp_path


def test_what_the_end_composes_is_what_the_report_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = composed_guarantee(folder)
    assert printed.startswith("all 2 trials composed: epsilon 6.58 ")  # mu = sqrt(2); 4.38 for each
    after_sweep.print_report(folder, composed_guarantee)
    assert f"report: {folder / 'report' / 'report.html'}" in capsys.readouterr().out
    page = (folder / "report" / "report.html").read_text()
    assert printed.splitlines()[0] in page and "leaves out" not in page


def test_a_line_cut_short_is_named_and_costs_neither_table_nor_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "trials" / "0" / "metrics.jsonl"
    path.write_text('{"step": 0, "ti\n{"step": 0, "time": 17.0, "metrics": []}\n')
    after_sweep.print_report(folder, composed_guarantee)
    output = capsys.readouterr().out
    assert f"line 1 of {path} " in output and "no table" not in output and "no report" not in output
    assert str(path) in (folder / "report" / "report.html").read_text()


def test_kinds_of_epsilon_that_do_not_compose_have_a_line_each(folder: Path) -> None:
    """Two trials of one kind and one of each of two others: none of the lines speaks of all four."""
    write_trial(folder, "2", std=2.0, unit="client")
    write_trial(folder, "3", std=0.5, relation="add_remove")
    lines = composed_guarantee(folder).splitlines()
    wanted = [
        accountants.exact([Gaussian(s, "client", "replace_one", "local") for s in noises], 1e-5)
        for noises in ([2.0], [0.5], [1.0, 1.0])
    ]
    kinds = ["per client, replace-one", "per example, add-remove", "per example, replace-one"]
    for some in (lines[:3], lines[3:]):  # all of them, and the noised ones, which are all
        for line, kind, epsilon in zip(some, kinds, wanted, strict=True):
            assert f": epsilon {up(epsilon)} ({kind}, local trust" in line and "of 3" in line
    assert json.loads((folder / "composed.json").read_text())["text"] == lines


def resolved(folder: Path, digest: str, std: float, tiny: Experiment, unit: str = "example", **changes: Any) -> None:
    write_trial(folder, digest, std=std, unit=unit)
    experiment = overrides.override(tiny, changes)
    (folder / "trials" / digest / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))


@pytest.mark.parametrize("cut", [{"data.split_seed": 1}, {"data.public": 251}, {"data.public_from": "mnist"}])
def test_trials_with_other_public_records_have_no_composed_epsilon(
    tmp_path: Path, tiny: Experiment, cut: dict[str, Any]
) -> None:
    """A record that is public in one of them is published there. Rows count, not the settings, and not what is held."""
    resolved(tmp_path, "0", 1.0, tiny)
    resolved(tmp_path, "1", 1.0, tiny, **{"data.train": 100, "data.fitted_on": "all", "seed": 5})
    assert composed_guarantee(tmp_path).startswith("all 2 trials composed: epsilon 6.58 ")
    resolved(tmp_path, "2", 1.0, tiny, **cut)
    assert composed_guarantee(tmp_path) == "no composed epsilon: trials declare different records public"


@pytest.mark.parametrize("dealt", [{"seed": 1}, {"clients": 3}, {"data.train": 100}, {"partition": Iid}])
def test_clients_that_are_other_records_have_none(tmp_path: Path, tiny: Experiment, dealt: dict[str, Any]) -> None:
    resolved(tmp_path, "0", 1.0, tiny, "client")
    resolved(tmp_path, "1", 1.0, tiny, "client", **{"method.epsilon": 3.0})
    assert "trials composed: epsilon 6.58 (per client" in composed_guarantee(tmp_path)
    resolved(tmp_path, "2", 1.0, tiny, **dealt)  # Per example it may be dealt anew.
    assert "kind 1 of 2: epsilon 6.58 (per client" in composed_guarantee(tmp_path)
    resolved(tmp_path, "3", 1.0, tiny, "client", **dealt)
    lines = composed_guarantee(tmp_path).splitlines()
    assert lines[0].startswith("all 4 trials composed, kind 1 of 2: no composed epsilon per client: trials deal the")
    assert lines[1].startswith("all 4 trials composed, kind 2 of 2: epsilon 4.38 (per example")


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"suggested": 4}, "the search chose trials"),
        ({"scheduler": ["asha", {}]}, "the search chose trials"),
        ({"extended": True}, "trials were added when others had been seen"),
    ],
)
def test_trials_that_were_chosen_by_others_have_none(folder: Path, plan: dict[str, Any], why: str) -> None:
    trials = [path.name for path in (folder / "trials").iterdir()]
    (folder / "sweep.json").write_text(json.dumps({**plan, "trials": trials}))
    assert composed_guarantee(folder).startswith(f"no composed epsilon: {why}")
    (folder / "sweep.json").write_text(json.dumps({"search": ["random", {}], "trials": trials}))
    assert composed_guarantee(folder).startswith("all 2 trials composed: epsilon 6.58 ")


def test_a_report_that_fails_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(report, "write_page", fails)
    after_sweep.print_report(folder, composed_guarantee)
    assert "no report: RuntimeError: no room\n" in capsys.readouterr().out
