"""`raydiff calibrate`: the published settings, and one sentence for bad input."""

import pytest

from raydiff.papers.pfdm import calibrate_command as calibrate


def rows(out: str) -> dict[str, list[str]]:
    return {cells[0]: cells[1:] for line in out.splitlines() if (cells := line.split())}


@pytest.mark.parametrize("clip, depths", [(15, (749, 740, 732)), (10, (693, 683, 675)), (35, (854, 845, 839))])
def test_the_papers_settings(capsys: pytest.CaptureFixture[str], clip: int, depths: tuple[int]) -> None:
    calibrate.main(["--clip", str(clip), "--epsilon", "10", "--delta", "1e-5"])
    lines = rows(capsys.readouterr().out)
    assert tuple(int(lines[name][0]) for name in ("theorem", "rdp", "exact")) == depths and "given" not in lines


def test_a_given_depth_shows_all_three_epsilons_below_their_definition(capsys: pytest.CaptureFixture[str]) -> None:
    calibrate.main(["--clip", "15", "--t0", "740"])
    out = capsys.readouterr().out
    assert rows(out)["given"] == rows(out)["rdp"] == ["740", "15.99", "10.77", "9.93", "9.25"]
    parts = (
        "clip 15:",
        "epsilon 10,",
        "delta 1e-05",
        "per example",
        "replace-one",
        "local trust",
        "linear",
        "T = 1000",
    )
    assert all(part in out.splitlines()[0] for part in parts)


def test_a_budget_that_only_some_accountants_can_keep(capsys: pytest.CaptureFixture[str]) -> None:
    calibrate.main(["--clip", "35", "--epsilon", "2"])
    lines = rows(capsys.readouterr().out)
    assert lines["theorem"] == ["none", "-", "-", "-", "-"] and int(lines["exact"][0]) <= 1000
    calibrate.main(["--clip", "35", "--epsilon", "1", "--t0", "1000"])  # none can, but a given depth has its epsilons
    assert rows(capsys.readouterr().out)["given"] == ["1000", "157.41", "2.24", "1.91", "1.75"]
