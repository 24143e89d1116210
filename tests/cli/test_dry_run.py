"""jobs/sweep.py --dry-run, and its arithmetic."""

from pathlib import Path

import pytest

from raydiff.cli import sweep

QUICK = "--method.model.network.width 16 --method.local.steps 4 --method.server.steps 4"


def test_it_says_what_is_needed_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr("raydiff.runtime.place.os.cpu_count", lambda: 4)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    storage = tmp_path / "storage"
    arguments = ["digits", "--dry-run", *QUICK.split(), "--runtime.storage", str(storage), "--runtime.workers", "2"]
    assert sweep.main([*arguments, "--grid", "method.epsilon=50,none", "clients=2,4"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("8 trials, 2 at once: each 2 worker(s), 2 CPU\navailable: 4 CPU and 0 GPU on 1 node(s)\n")
    assert not storage.exists()


def test_a_slot_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one trial needs 999 CPU"):
        sweep.main(["digits", "--dry-run", "--numerics.threads", "999", "--runtime.storage", str(tmp_path / "s")])
