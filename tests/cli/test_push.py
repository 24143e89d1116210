"""What leaves for the hub, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydiff.cli import push

EPSILON = "epsilon 9.71 (per example, replace-one, local trust, delta 1e-05, exact accountant)"


class Hub:
    """Huggingface's client, without its hub."""

    endpoint = "https://hub"

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refusal = ""

    def __call__(self) -> Hub:
        return self

    def create_repo(self, repository: str, **how: Any) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.calls.append((repository, how))

    def upload_folder(self, **how: Any) -> None:
        self.calls.append(("files", {**how, "files": sorted(p.name for p in how["folder_path"].iterdir())}))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", fake)
    return fake


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """As `raydiff generate --source global` leaves them."""
    card = {"about": "x_t0 of the global model", "privacy": EPSILON, "guarantee": {"epsilon": 9.71}, "rows": 20}
    card |= {"covers": "every client's records", "labels": "every combination of labels alike often"}
    card |= {"method": {"kind": "PFDM"}, "made_by": {"raydiff": "0.1.0"}}
    card |= {"chosen": {"from_trials": 24, "spent_together": ["all 24 trials composed"], "says": "no epsilon"}}
    (tmp_path / "card.json").write_text(json.dumps(card))
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(b"parts")
    return tmp_path


def test_without_yes_it_says_what_would_leave_and_nothing_does(
    hub: Hub, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(samples.iterdir())
    assert push.main([str(samples), "hub:me/digits"]) == 0
    output = capsys.readouterr().out
    assert "card.json, train-00000-of-00001.parquet: 20 samples" in output and f"privacy: {EPSILON}" in output
    assert output.endswith("nothing was uploaded: --yes uploads it to hub:me/digits, private\n")
    assert hub.calls == [] and sorted(samples.iterdir()) == before


@pytest.mark.parametrize("public", [False, True])
def test_the_card_and_a_page_made_of_it_go_along(
    public: bool, hub: Hub, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push.main([str(samples), "hub:me/digits", "--yes", *["--public"] * public]) == 0
    (_, created), (_, sent) = hub.calls
    assert created == {"repo_type": "dataset", "private": not public, "exist_ok": True}
    assert (sent["repo_id"], sent["repo_type"], sent["folder_path"]) == ("me/digits", "dataset", samples)
    assert sent["files"] == ["README.md", "card.json", "train-00000-of-00001.parquet"]
    page = (samples / "README.md").read_text()
    assert f"**Privacy: {EPSILON}.** What it covers: every client's records." in page
    assert capsys.readouterr().out.endswith("uploaded: https://hub/datasets/me/digits\n")


@pytest.mark.parametrize("guarantee", [None, {"epsilon": "inf"}])
def test_what_no_epsilon_covers_goes_only_when_told_to(guarantee: Any, hub: Hub, samples: Path) -> None:
    card = json.loads((samples / "card.json").read_text())
    (samples / "card.json").write_text(json.dumps({**card, "guarantee": guarantee, "privacy": "none"}))
    for more in ([], ["--yes"]):
        with pytest.raises(ValueError, match="no epsilon covers the records behind these samples"):
            push.main([str(samples), "hub:me/digits", *more])
    assert hub.calls == []
    assert push.main([str(samples), "hub:me/digits", "--yes", "--without-guarantee"]) == 0
    assert len(hub.calls) == 2


def test_what_generate_did_not_write_stays(hub: Hub, samples: Path) -> None:
    (samples / "clients.csv").write_text("private")
    with pytest.raises(ValueError, match=r"holds clients\.csv, which raydiff generate did not write"):
        push.main([str(samples), "hub:me/digits", "--yes"])
    (samples / "card.json").unlink()
    with pytest.raises(ValueError, match=r"has no card\.json"):
        push.main([str(samples), "hub:me/digits", "--yes"])
    assert hub.calls == []


def test_a_hub_that_refuses_is_one_sentence(hub: Hub, samples: Path) -> None:
    hub.refusal = "401 Client Error. (Request ID: 1)\nInvalid user token."
    with pytest.raises(ValueError, match=r"^hub:me/digits cannot be written: 401 Client Error$"):
        push.main([str(samples), "hub:me/digits", "--yes"])
