"""The end of a sweep: what its trials spent together, and the report, whose failure is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydiff.privacy import accountants
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian
from raydiff.report import page as report
from raydiff.results.spent import composed
from raydiff.runtime import launch

ROOT = Path(__file__).resolve().parents[2]


def write_trial(folder: Path, digest: str, std: float, **changes: Any) -> None:
    """A trial of one client that sent one noised value."""
    own = folder / "trials" / digest
    own.mkdir(parents=True)
    kind = {"unit": "example", "relation": "replace_one", "trust": "local", **changes}
    event = Gaussian(std_over_sensitivity=std, **kind)
    (own / "commit-00000.json").write_text(json.dumps({"ledger": Ledger().with_upload(0, 0, event, 100).to_json()}))
    (own / "config.json").write_text(json.dumps({"method": {"kind": "PFDM", "delta": 1e-5}, "seed": int(digest)}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for digest in ("0", "1"):
        write_trial(tmp_path, digest, std=1.0)
    return tmp_path


def test_what_the_end_composes_is_what_the_report_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = composed(folder)
    assert printed.startswith("all 2 trials composed: epsilon 6.57 ")  # mu = sqrt(2); 4.38 for each
    launch._report(folder, folder / "report")
    assert f"report: {folder / 'report' / 'report.html'}" in capsys.readouterr().out
    page = (folder / "report" / "report.html").read_text()
    assert printed.splitlines()[0] in page and "leaves out" not in page


def test_a_line_cut_short_is_named_and_costs_neither_table_nor_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "trials" / "0" / "metrics.jsonl"
    path.write_text('{"step": 0, "ti\n{"step": 0, "time": 17.0, "train/loss": 0.5}\n')
    launch._report(folder, folder / "report")
    said = capsys.readouterr().out
    assert f"line 1 of {path} " in said and "no table" not in said and "no report" not in said
    assert str(path) in (folder / "report" / "report.html").read_text()


def test_kinds_of_epsilon_that_do_not_compose_have_a_line_each(folder: Path) -> None:
    """Two trials of one kind and one of each of two others: none of the lines speaks of all four."""
    write_trial(folder, "2", std=2.0, unit="client")
    write_trial(folder, "3", std=0.5, relation="add_remove")
    lines = composed(folder).splitlines()
    wanted = [
        accountants.exact([Gaussian(s, "client", "replace_one", "local") for s in noises], 1e-5)
        for noises in ([2.0], [0.5], [1.0, 1.0])
    ]
    kinds = ["per client, replace-one", "per example, add-remove", "per example, replace-one"]
    for some in (lines[:3], lines[3:]):  # all of them, and the protected ones, which are all
        for line, kind, epsilon in zip(some, kinds, wanted, strict=True):
            assert f": epsilon {epsilon:.2f} ({kind}, local trust" in line and "of 3" in line
    assert json.loads((folder / "composed.json").read_text())["says"] == lines


def test_a_report_that_fails_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(report, "write", fails)
    launch._report(folder, folder / "report")
    assert "no report: RuntimeError: no room\n" in capsys.readouterr().out
