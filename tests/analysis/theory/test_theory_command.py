"""`python -m analysis.theory`: its tables and files."""

import csv
import itertools
from pathlib import Path

import pytest

from analysis.theory import __main__ as theory, on_data, theorems
from raydiff.models.samplers import MEASURED

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
