"""`raydiff canary --bits`: of uploads as they are nothing is ruled out, with float32 noise records are named."""

from __future__ import annotations

import re

import pytest

from raydiff.cli import canary
from raydiff.privacy import grid


@pytest.mark.parametrize(
    "what", [["digits"], ["frontier", "--method", "sketch"], ["frontier", "--method", "dpsgd", "--epsilon", "1"]]
)
def test_no_upload_names_its_record(what: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert canary.main([*what, "--bits", "--seeds", "1", "--canaries", "12"]) == 0
    assert "name the record of 0 of 12 uploads, and a wrong one of 0\n" in capsys.readouterr().out


def test_float32_noise_names_records(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "noised", lambda signal, z, *, std: (signal.float() + std * z.float()).double())
    canary.main(["digits", "--bits", "--seeds", "1", "--canaries", "40"])
    said = re.search(r"name the record of (\d+) of 40 uploads, and a wrong one of 0", capsys.readouterr().out)
    assert said is not None and int(said[1]) > 0


def test_a_method_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^FedAvg adds no Gaussian noise to what clients send here"):
        canary.main(["digits", "--method", "fedavg", "--bits"])
