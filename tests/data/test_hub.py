"""Data sets of the hub: what is asked for, what is read, and what is said without a network."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from sets import FEW, grey_set, message

from raydiff.data import hub
from raydiff.data.datasets import Data, load_dataset


@pytest.fixture(autouse=True)
def fresh() -> None:
    hub.folder.cache_clear()


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the hub downloads, without a hub."""
    asked: dict[str, Any] = {}

    def download(repository: str, **how: Any) -> str:
        asked.update(how, repository=repository)
        assert asked == {
            "repository": "some/birds",
            "repo_type": "dataset",
            "allow_patterns": ["*.parquet"],
            "local_files_only": False,
        }
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *asked, **_: SimpleNamespace(siblings=None))
    return tmp_path


def test_a_snapshot_is_read_as_a_folder(snapshot: Path) -> None:
    grey_set(snapshot / "data")
    data = load_dataset(Data(name="hub:some/birds", **FEW))
    assert data.digest == load_dataset(Data(name=str(snapshot / "data"), **FEW)).digest
    assert data.says == f"3 parquet files in {snapshot}/data"


def test_several_folders_are_told_apart_by_name(snapshot: Path) -> None:
    for name in ("large", "small"):
        grey_set(snapshot / name)
    choices = f"{snapshot}/large or {snapshot}/small"
    assert message(Data(name="hub:some/birds")) == f"{snapshot} has parquet files in several folders: name {choices}"
    assert load_dataset(Data(name="hub:some/birds/small", **FEW)).says == f"3 parquet files in {snapshot}/small"
    assert "'hub:some/birds/tiny' has no parquet files" in message(Data(name="hub:some/birds/tiny"))


def test_offline_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what the variable HF_HUB_OFFLINE=1 sets at import
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    began = time.monotonic()
    output = message(Data(name="hub:some/birds"))
    assert output.startswith("'hub:some/birds' is not in the local cache, and the hub does not answer: Cannot reach")
    assert "offline mode is enabled" in output and time.monotonic() - began < 5
