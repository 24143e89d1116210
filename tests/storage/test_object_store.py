"""An object store: a real S3 server that answers with errors and loses answers. And what encryption hides and finds."""

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from s3_server import CREDENTIALS, LATE_S, Proxy, s3_server

from raydiff.storage import conditional_put, object_store, staging
from raydiff.storage.local import LocalFolder
from raydiff.storage.object_store import Cipher, ObjectStore
from raydiff.storage.storage import Storage, storage_at

SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "RETRIES", 3)
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture(params=["folder", "bucket", "encrypted"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Each implementation, below a prefix."""
    if request.param == "folder":
        return LocalFolder(tmp_path / request.node.name)
    proxy = request.getfixturevalue("proxy")
    (tmp_path / "secret").write_bytes(SECRET)
    cipher = None if request.param == "bucket" else Cipher(tmp_path)
    return ObjectStore(proxy.uri, f"{request.param}/{request.node.name}", cipher)


def test_every_storage_keeps_what_is_put(storage: Storage) -> None:
    large = bytes(range(256)) * 80_000  # in three parts
    storage.put("a/large", large)
    storage.put("a/small", b"before")
    storage.put("a/small", b"small")
    assert storage.get("a/large") == large and storage.get("a/small") == b"small"
    assert storage.get("a/none") is None and storage.modified("a/none") is None
    assert storage.list_names() == ["a"] and storage.list_names("a") == ["large", "small"]
    assert storage.list_names("none") == []
    storage.append("a/log", b"1\n")
    storage.append("a/log", b"2\n")
    assert storage.get("a/log") == b"1\n2\n"
    storage.delete(["a/log"])
    before = storage.modified("a/small")
    storage.touch("a/small")
    assert before is not None and (storage.modified("a/small") or 0) >= before and storage.get("a/small") == b"small"
    storage.delete(["a/small", "a/none"])
    assert storage.list_names("a") == ["large"] and storage.describe("a/large").endswith("/a/large")


def test_a_removal_takes_everything_below_and_the_listing_last(storage: Storage) -> None:
    """What a removal that fails has left is found by the sweep's `sweep.json`."""
    beside = replace(storage, prefix=f"{storage.prefix}-more") if isinstance(storage, ObjectStore) else None
    for name in ("sweep.json", "secret", "trials/a/outcome.json", "trials/a/commit-00000.json"):
        storage.put(name, b"1")
        if beside:
            beside.put(name, b"1")
    if isinstance(storage, ObjectStore):
        assert storage.keys()[-1] == storage.key("sweep.json")
    storage.remove_all()
    assert storage.list_names() == [] and (beside is None or len(beside.keys()) == 4)


def test_of_two_who_put_if_absent_one_does(storage: Storage) -> None:
    assert storage.put_if_absent("first", b"one") and not storage.put_if_absent("first", b"one")
    assert storage.get("first") == b"one"


def test_who_put_first_has_it_though_the_answer_was_lost(proxy: Proxy) -> None:
    store, lost = ObjectStore(proxy.uri), list[str]()

    def loses_one(method: str, path: str, count: int) -> str:
        if method == "PUT" and not lost:
            lost.append(path)
            return "lost"
        return ""

    proxy.fault = loses_one
    assert store.put_if_absent("mine", b"one") and lost
    assert not store.put_if_absent("mine", b"one")


def test_a_conflict_in_which_nothing_was_stored_is_no_other_writer(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, conflicts = ObjectStore(proxy.uri), iter(["conflict"] * 2)
    proxy.fault = lambda method, *_: next(conflicts, "") if method == "PUT" else ""
    assert store.put_if_absent("contended", b"one") and store.get("contended") == b"one"
    monkeypatch.setattr(conditional_put, "RETRY_S", 0.0)
    proxy.fault = lambda method, *_: "conflict" if method == "PUT" else ""
    with pytest.raises(ConnectionError, match="never cannot be created: the storage says that it exists, and does not"):
        store.put_if_absent("never", b"one")


def test_a_store_that_ignores_the_condition_is_refused(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(staging.PLACE, str(tmp_path))
    proxy.fault = lambda method, *_: "ignored" if method == "PUT" else ""
    with pytest.raises(ValueError, match=r"^the bucket s3://lab/diffusion ignores If-None-Match: two drivers could"):
        staging.prepare_storage(proxy.uri)


def test_a_link_whose_answer_was_lost_is_this_writer_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lost(*paths: Path) -> None:
        link(*paths)
        raise FileExistsError

    monkeypatch.setattr(os, "link", lost)
    assert LocalFolder(tmp_path).put_if_absent("x", b"1") and not LocalFolder(tmp_path).put_if_absent("x", b"1")


@pytest.mark.slow
def test_an_answer_that_comes_too_late_is_asked_for_again(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "ANSWER_S", LATE_S / 4)
    late = iter(["slow", "", "slow", "slow", "", "slow"])
    proxy.fault = lambda *_: next(late, "")
    store = ObjectStore(proxy.uri)
    store.put("x", b"1")
    assert store.get("x") == b"1"
    assert store.put_if_absent("y", b"2") and not store.put_if_absent("y", b"3")  # Its own answer came late.
    assert next(late, None) is None


def test_a_large_object_that_was_put_in_part_is_not_there(proxy: Proxy) -> None:
    store = ObjectStore(proxy.uri)
    store.put("large", b"before")
    proxy.fault = lambda method, path, count: "refused" if "partNumber=2" in path else ""
    with pytest.raises(ConnectionError, match=r"^s3://lab/diffusion/large cannot be reached: [^\n]*503"):
        store.put("large", bytes(3 * 10**7))
    proxy.fault = lambda *_: ""
    assert store.get("large") == b"before"


def test_a_store_that_does_not_answer_is_said_in_a_sentence(proxy: Proxy) -> None:
    proxy.close()
    store = ObjectStore(proxy.uri)
    for ask in (lambda: store.get("x"), lambda: store.put_if_absent("x", b""), lambda: store.list_names()):
        with pytest.raises(OSError, match=r"^s3://lab/diffusion(/x)? cannot be reached: [^\n]{10,}$") as error:
            ask()
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)  # As it comes from another process.
    with pytest.raises(ValueError, match=r"^the bucket s3://lab/diffusion cannot be written: "):
        staging.prepare_storage(proxy.uri)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("http://lab/x", "a bucket is s3://NAME/PREFIX"),
        ("s3:///x", "a bucket is s3://NAME/PREFIX"),
        ("s3://key:word@lab/x", "password"),
        ("s3://lab/x?secret=1", "takes endpoint and region, got 'secret'"),
    ],
)
def test_a_uri_that_will_not_do(uri: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ObjectStore(uri)


@pytest.mark.parametrize("size", [0, 5, 1005])
def test_encrypted_bytes_are_refused_if_changed_exchanged_or_under_another_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(object_store, "CHUNK_BYTES", 1000)
    (tmp_path / "secret").write_bytes(SECRET)
    uri, data = f"file://{tmp_path}/bucket", b"x" * size
    store, encrypted = ObjectStore(uri), ObjectStore(uri, cipher=Cipher(tmp_path))
    encrypted.put("a", data)
    stored = store.get("a")
    assert encrypted.get("a") == data and stored is not None and (not size or b"xxxxx" not in stored)
    for damaged in (stored[:-1], stored[:20], stored[:15] + bytes([stored[15] ^ 1]) + stored[16:]):
        store.put("a", damaged)
        with pytest.raises(ValueError, match=r"^file://.*/bucket/a is damaged, or encrypted under another"):
            encrypted.get("a")
    store.put("b", stored)
    with pytest.raises(ValueError, match="b is damaged"):
        encrypted.get("b")
    store.put("a", stored)
    (tmp_path / "secret").write_bytes(SECRET[::-1])
    with pytest.raises(ValueError, match="another noise secret"):
        encrypted.get("a")
    (tmp_path / "secret").unlink()
    with pytest.raises(ValueError, match="RAYDIFF_NOISE_SECRET must be the noise secret of"):
        encrypted.get("a")


@pytest.mark.parametrize("text", ["{", "[]", '{"url": "s3://lab"}'])
def test_a_folder_that_does_not_name_its_bucket_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bucket.json").write_text(text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/bucket.json does not name a bucket "):
        storage_at(tmp_path / "sweeps" / "s" / "trials" / "d")
