"""A bucket on a real S3 server that answers with errors, loses answers, and lists nothing."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from buckets import begun, through, told
from object_store import CREDENTIALS, LATE_S, Proxy, s3_server

from raydiff.storage import artifact_sync as readable
from raydiff.storage import bucket as module
from raydiff.storage import staging as away
from raydiff.storage.bucket import Bucket, Unreachable


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "RETRIES", 3)
    made = Proxy(server)
    yield made
    made.close()


def test_what_is_put_is_there_whole(proxy: Proxy) -> None:
    there, large = Bucket(proxy.uri), bytes(range(256)) * 80_000  # in three parts
    there.put("a/large", (large[i : i + 10**6] for i in range(0, len(large), 10**6)))
    there.put("a/small", b"small")
    assert there.get("a/large") == large and there.part("a/large", 10**7, 10**7 + 9) == large[10**7 : 10**7 + 9]
    assert there.get("a/small") == b"small" and there.get("a/none") is there.part("a/none", 0, 5) is None
    assert there.part("a/small", 2, 9) is None and there.written("a/none") is None
    assert there.below("") == ["a"] and there.written("a/small") is not None
    assert sum("uploads" in seen or "uploadId" in seen for seen in proxy.seen) > 3
    there.remove(["a/small", "a/none"])
    assert there.get("a/small") is None


def test_of_two_who_put_first_one_does(proxy: Proxy) -> None:
    there = Bucket(proxy.uri)
    assert there.first("first", b"one") and not there.first("first", b"two")
    assert there.get("first") == b"one"


def test_who_put_first_has_it_though_the_answer_was_lost(proxy: Proxy) -> None:
    there, lost = Bucket(proxy.uri), list[str]()

    def loses_one(method: str, path: str, count: int) -> str:
        if method == "PUT" and not lost:
            lost.append(path)
            return "lost"
        return ""

    proxy.fault = loses_one
    assert there.first("mine", b"one") and lost
    assert not there.first("mine", b"two")


def test_an_answer_that_comes_too_late_is_asked_for_again(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", LATE_S / 4)
    late = iter(["slow", "", "slow", "slow", "", "slow"])
    proxy.fault = lambda *_: next(late, "")
    there = Bucket(proxy.uri)
    there.put("x", b"1")
    assert there.get("x") == b"1"
    assert there.first("y", b"2") and not there.first("y", b"3")  # Its own answer came late: it was there first.
    assert next(late, None) is None


def test_a_large_object_that_was_put_in_part_is_not_there(proxy: Proxy) -> None:
    there = Bucket(proxy.uri)
    there.put("large", b"before")
    proxy.fault = lambda method, path, count: "refused" if "partNumber=2" in path else ""
    with pytest.raises(Unreachable, match=r"^s3://lab/diffusion/large cannot be reached: [^\n]*503"):
        there.put("large", bytes(3 * 10**7))
    proxy.fault = lambda *_: ""
    assert there.get("large") == b"before"


def test_a_store_that_does_not_answer_is_said_in_a_sentence(proxy: Proxy) -> None:
    proxy.close()
    for asked in (lambda b: b.get("x"), lambda b: b.put("x", b""), lambda b: b.first("x", b""), lambda b: b.below("")):
        with pytest.raises(OSError, match=r"^s3://lab/diffusion/x? ?cannot be reached: [^\n]{10,}$") as found:
            asked(Bucket(proxy.uri))
        assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)  # As it comes from another process.
    with pytest.raises(ValueError, match=r"^the bucket s3://lab/diffusion cannot be written: "):
        away.prepare(proxy.uri)


def test_among_errors_and_lost_answers_a_trial_gives_the_same_bits(
    proxy: Proxy,
    noised,
    machine: Callable[[], str],
    alone,
) -> None:
    dice = random.Random(0)
    proxy.fault = lambda method, path, count: dice.choice(["", "", "", "", "refused", "lost"])
    machine()
    assert told(through(begun(noised, proxy.uri))) == alone
    machine()
    this = begun(noised, proxy.uri)
    assert told(this) == alone


def test_a_list_that_lags_hides_no_planned_trial(
    noised,
    machine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    uri = machine()
    this = through(begun(noised, uri))
    (this.sweep / "sweep.json").write_text(f'{{"trials": ["{this.folder.name}"]}}')
    readable.put(this.sweep)
    machine()
    away.prepare(uri)
    monkeypatch.setattr(Bucket, "below", lambda *_: [])
    sweep = away.root(uri) / "sweeps" / "lab"
    assert readable.get_sweep(sweep) and (sweep / "trials" / this.folder.name / "outcome.json").exists()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://lab/x", "a bucket is s3://NAME/PREFIX"),
        ("s3:///x", "a bucket is s3://NAME/PREFIX"),
        ("s3://key:word@lab/x", "must hold no password"),
        ("s3://lab/x?secret=1", "takes endpoint and region, got 'secret'"),
    ],
)
def test_a_uri_that_will_not_do(uri: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Bucket(uri)
