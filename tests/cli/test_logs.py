"""`raydiff logs`: a trial's rounds as lines, how it ended, and waiting for more."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from trial_folders import written as records

from raydiff.cli import logs
from raydiff.experiment import trial
from raydiff.formats.metric_records import columns, read_metrics
from raydiff.storage.json_lines import JsonLines
from raydiff.storage.local import LocalFolder


def test_a_finished_trial(storage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs.main(["fedavg", "--storage", str(storage.root)]) == 0
    first, *rounds, outcome, guarantee, released, final = capsys.readouterr().out.splitlines()[:7]
    folder = storage.folder("fedavg")
    written = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert first == f"fedavg/{folder.name}"
    assert [re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d round (\d): ", line)[1] for line in rounds] == ["1", "2"]
    sent = columns(read_metrics(written[1]["metrics"]))["comm/bytes_up"]
    assert f"comm/bytes_up {sent:.4g}" in rounds[1] and "client/" not in rounds[1]
    assert (
        outcome == "finished"
        and guarantee.startswith("epsilon inf")
        and "no guarantee" in released
        and final.startswith("  ")
    )


def test_rejected_clients_are_named_below_their_round(tmp_path: Path) -> None:
    for number in (0, 1):
        JsonLines(LocalFolder(tmp_path), "metrics.jsonl").log(number, {"metrics": records({"loss": 0.5})})
    reasons = {"client 3": "it is not finite", "client 10": "it is too long"}
    JsonLines(LocalFolder(tmp_path), "rejected.jsonl").log(0, reasons)
    shown = [line.partition("round ")[2] or line for line in list(logs.log_lines(tmp_path))[1:-1]]
    said = ["  rejected client 3: it is not finite", "  rejected client 10: it is too long"]
    assert shown == ["1: loss 0.5", *said, "2: loss 0.5"]


def test_following_shows_each_round_once_and_ends_with_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, slept = JsonLines(LocalFolder(tmp_path), "metrics.jsonl"), []
    log.log(0, {"metrics": records({"loss": 0.5})})

    def trial_goes_on(seconds: float) -> None:
        slept.append(seconds)
        log.log(len(slept), {"metrics": records({"loss": 0.25})})
        if len(slept) == 2:
            trial.end(tmp_path, "stopped", reason="scheduler")

    monkeypatch.setattr(time, "sleep", trial_goes_on)
    shown = list(logs.log_lines(tmp_path, follow=True))
    assert [line.partition("round ")[2] for line in shown[1:-1]] == ["1: loss 0.5", "2: loss 0.25", "3: loss 0.25"]
    assert shown[-1] == "stopped: scheduler" and slept == [logs.PERIOD_S] * 2


def test_a_trial_ends_with_its_outcome_and_traceback(tmp_path: Path) -> None:
    assert list(logs.log_lines(tmp_path))[-1].startswith("no outcome yet")
    trial.end(tmp_path, "failed", reason="no room")
    (tmp_path / "error.txt").write_text("Traceback\nMemoryError\n")
    assert list(logs.log_lines(tmp_path))[1:] == ["failed: no room", "Traceback\nMemoryError"]
