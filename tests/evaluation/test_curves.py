"""The picture of a new client's training: a panel for each distance, a line for each rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from raydiff.evaluation.figures import draw_curves


def row(rate: float, epoch: int, kd: float, **more: float) -> dict[str, float]:
    return {"learning_rate": rate, "epoch": epoch, "kd_cnn": kd, "kd_cnn_spread": 0.5, "kd_cnn_floor": -0.25, **more}


ROWS = [row(0.1, 0, 3.0), row(0.1, 2, 90.0), row(0.1, 1, 2.0), row(0.01, 0, 3.0), row(0.01, 1, 2.5)]


def drawn(rows: list[dict[str, float]], path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    draw_curves(rows, path, title="a client")
    return figures[0].axes


def test_a_line_for_each_rate_in_the_order_of_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (axes,) = drawn(ROWS, tmp_path / "curves.png", monkeypatch)
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert lines["0.1"] == ([0, 1, 2], [3.0, 2.0, 90.0]) and lines["0.01"] == ([0, 1], [3.0, 2.5])
    assert lines["floor"][1] == [-0.25, -0.25]
    assert axes.get_ylim()[1] == 6.0  # twice the distance at epoch 0: not as far as 90
    assert Image.open(tmp_path / "curves.png").info["privacy"] == "none"
