"""`python -m analysis.theory`: its tables and files."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from analysis.theory import __main__ as theory
from analysis.theory import feddistr_theory as feddistr
from analysis.theory import on_data, theorems
from analysis.theory import spire_theory as spire
from raydiff.models.chains import MEASURED

pytestmark = pytest.mark.slow

COLUMNS = "data,minority,epsilon,sampler,arm,w2_squared,w2_low,w2_high,gain_over_local,gain_low,gain_high"


def test_digits_as_a_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_data, "EPSILONS", (10.0, None))
    monkeypatch.setattr(theory, "MINORITIES", (3, 20))
    path = tmp_path / "new" / "mine.csv"
    assert theory.main(["digits", "--seeds", "2", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"written: {path}" in out and "clip 6.8 (centre 4.3); t0 by epsilon: 10: 617 (centre 541)," in out
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert ",".join(rows[0]) == COLUMNS
    keys = [(r["data"], r["minority"], r["epsilon"], r["sampler"], r["arm"]) for r in rows]
    assert keys == [*itertools.product(["digits"], ["3", "20"], ["10", "none"], MEASURED, on_data.ARMS)]
    for r in rows:
        assert float(r["w2_low"]) <= float(r["w2_squared"]) <= float(r["w2_high"])
        assert r["arm"] != "localonly" or float(r["gain_over_local"]) == 0
    _, helped = (r for r in rows if (r["minority"], r["epsilon"], r["arm"]) == ("3", "none", "pfdm"))
    assert float(helped["gain_low"]) > 0
    cells = next(line.split() for line in out.splitlines() if line.split()[:3] == ["3", "none", "ddim"])
    assert cells[4] == f"{float(helped['w2_squared']):.3f}+" and cells[5].endswith("-")  # pfdm, no-server


def test_the_theory_shows_the_chains_weights() -> None:
    lines = [line.split() for line in theorems.report(trials=4)]
    assert ["740", "1", "ddim", "0.0624", "0.0623", "0.0607"] in lines
    assert ["690", "5", "ancestral", "0.0388", "0.0388", "0.0388"] in lines
    assert sum(line[:2] == ["10", "528"] for line in lines) == 8  # (n, N) at epsilon 10


def files_of(lines: list[str]) -> set[str]:
    return {line.removeprefix("written: ") for line in lines if line.startswith("written: ")}


def test_spire_measures_the_orders(tmp_path: Path) -> None:
    lines = spire.report(tmp_path, seeds=3, trials=1)
    assert files_of(lines) == {str(path) for path in tmp_path.iterdir()} and len(files_of(lines)) == 1
    cells = [line.split() for line in lines]
    assert ["4", "0.1", "29.280", "0.229", "0.229"] in cells  # mu, t: the DDPM loss far above Theorem 4.2's bound
    assert [row[:2] for row in cells if row[-1:] == ["(-1)"]] == [["records", "n"]]
    in_m = next(row for row in cells if row[:2] == ["clients", "m"])
    assert float(in_m[5]) == pytest.approx(-1, abs=0.2) and in_m[8] == "(-1)"


def test_feddistr_measures_the_theorems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feddistr, "XIS", (0.0, 0.057))
    monkeypatch.setattr(feddistr, "CLIENTS", (5, 20))
    lines = feddistr.report(tmp_path, repetitions=200)
    assert files_of(lines) == {str(path) for path in tmp_path.iterdir()} and len(files_of(lines)) == 1
    rows = [line.split() for line in lines[4:12]]
    assert [row[:3] for row in rows] == [[k, n, xi] for k in ("5", "20") for n in ("10", "50") for xi in ("0", "0.057")]
    for row in rows:
        *promised, fails, _ = row[4:]
        assert all(value == "-" or float(value) > float(row[3]) for value in promised)  # all hold at b - a = 1
        assert (fails == "-") == (row[2] != "0") and (fails == "-" or 10 < float(fails) < 100)
