"""The end of a sweep: what its trials spent together, and the report, whose failure is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

import sweep

from analysis import report
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian


def write_trial(folder: Path, digest: str, std: float) -> None:
    """A trial of one client that sent one noised value."""
    own = folder / "trials" / digest
    own.mkdir(parents=True)
    event = Gaussian(std_over_sensitivity=std, unit="example", relation="replace_one", trust="local")
    (own / "commit-00000.json").write_text(json.dumps({"ledger": Ledger().with_upload(0, 0, event, 100).to_json()}))
    (own / "config.json").write_text(json.dumps({"method": {"kind": "PFDM", "delta": 1e-5}, "seed": int(digest)}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for digest in ("0", "1"):
        write_trial(tmp_path, digest, std=1.0)
    return tmp_path


def test_what_the_end_composes_is_what_the_report_says(folder: Path) -> None:
    printed = sweep._composed(folder)
    assert printed.startswith("all 2 trials composed: epsilon 6.57 ")  # mu = sqrt(2); 4.38 for each
    line = sweep._page(folder, folder / "report")
    assert line == f"report: {folder / 'report' / 'report.html'}"
    page = (folder / "report" / "report.html").read_text()
    assert printed.splitlines()[0] in page and "leaves out" not in page


def test_a_report_that_fails_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(report, "write", fails)
    assert sweep._page(folder, folder / "report") == "no report: RuntimeError: no room"
