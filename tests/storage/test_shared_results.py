"""Results that the trials of a sweep share: made once, whoever is faster, and named by keyed digests."""

import hashlib
from pathlib import Path

import pytest
import torch

from raydiff.storage.local import LocalFolder
from raydiff.storage.shared_results import SharedResults, result_key
from raydiff.tree import Params


def result_of(value: float) -> Params:
    return {"x": torch.tensor([value])}


@pytest.fixture
def results(tmp_path: Path) -> SharedResults:
    return SharedResults(LocalFolder(tmp_path))


def test_a_result_is_made_once_for_all_trials_of_a_sweep(results: SharedResults, tmp_path: Path) -> None:
    for value, shared in enumerate((results, results, SharedResults(LocalFolder(tmp_path)))):
        assert float(shared.cached("key", lambda value=value: result_of(value))["x"]) == 0
    assert float(results.cached("another", lambda: result_of(5))["x"]) == 5 and results.has("another")


def test_of_two_trials_that_make_at_once_the_first_to_write_counts(results: SharedResults) -> None:
    def slow() -> Params:
        results.cached("key", lambda: result_of(1))  # meanwhile, in another trial
        return result_of(2)

    assert float(results.cached("key", slow)["x"]) == 1


def test_a_forgotten_result_is_made_again(results: SharedResults) -> None:
    results.cached("part", lambda: result_of(1))
    results.forget(["part", "never made"])
    assert results.get("part") is None and not results.has("part")


def test_names_are_keyed() -> None:
    parts = ("what", 1, "digest of records")
    plain = f"client-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"
    keyed = result_key("client", b"secret", parts)
    others = [result_key("client", b"another", parts), result_key("shadow", b"secret", parts)]
    assert len({plain, keyed, *others}) == 4 and keyed == result_key("client", b"secret", parts)
