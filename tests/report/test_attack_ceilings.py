"""The plot of attacks under their ceiling, and the table that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from raydiff.report import attack_ceilings as ceilings

TABLE = """attack,fpr,tpr,low,high
pia,0.001,0.002,0.0,0.006
pia,0.01,0.02,0.012,0.03
pia,auc,0.55,0.53,0.57
loss,0.01,0.01,,
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "attacks.csv").write_text(TABLE)
    return tmp_path / "attacks.csv"


def test_the_ceiling_is_pfdm_s_at_epsilon_10() -> None:
    assert ceilings.ceiling(1.761, 0.01) == pytest.approx(0.286, abs=5e-4)


def test_the_command_draws_the_attacks_under_their_ceiling(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    ceilings.main([str(table), "--mu", "1.761", "--canary", "1.4", "--out", "out.png"])
    assert capsys.readouterr().out == "out.png\n"
    (axes,) = figures[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_legend_handles_labels()[1] == [
        "ceiling of any attack, mu 1.76 (AUC 0.893)",
        "chance",
        "canaries: mu between 1.4 and 1.76",
        "pia, AUC 0.550 [0.530, 0.570]",
        "loss",
    ]
    drawn = {tuple(line.get_xydata()[0]) for line in axes.get_lines()}
    assert (0.001, 0.002) in drawn and (0.01, 0.01) in drawn
    bars = [segment.tolist() for c in axes.collections if hasattr(c, "get_segments") for segment in c.get_segments()]
    assert any(segment == [[0.01, pytest.approx(0.012)], [0.01, pytest.approx(0.03)]] for segment in bars)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("attack,fpr\npia,0.1\n", "tpr, low, high"),
        (TABLE + "pia,half,0.1,,\n", "must have an fpr"),
        (TABLE + "pia,0.1,1.1,,\n", r"tpr in \[0, 1\]"),
    ],
)
def test_bad_tables_are_refused(table: Path, text: str, says: str) -> None:
    table.write_text(text)
    with pytest.raises(ValueError, match=says):
        ceilings.read(table)
