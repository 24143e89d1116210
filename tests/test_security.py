"""What others can do who send a data set, a trial's folder or a model, or who write to MLflow: docs/security.md."""

import ast
import io
import json
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sets import message as refusal

from raydiff.data import hub, pictures, sizes
from raydiff.data.datasets import Data, load_dataset
from raydiff.data.tables import cells
from raydiff.evaluation.quality import inception
from raydiff.experiment import config, overrides
from raydiff.experiment.config import Experiment
from raydiff.formats.json_files import parse_sealed, sealed
from raydiff.tracking import mlflow_models

ROOT = Path(__file__).resolve().parents[1]
RUNS_CODE = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "dill.loads"),
    *("torch.load", "torch.jit.load", "joblib.load", "pd.read_pickle", "pandas.read_pickle", "np.load", "numpy.load"),
    *("yaml.load", "yaml.unsafe_load", "eval", "exec", "compile", "os.system", "os.popen", "shelve.open"),
    *("pyfunc.load_model", "mlflow.pyfunc.load_model", "marshal.loads", "runpy.run_path", "torch.hub.load"),
}
"""What runs code that lies in what it reads."""
BENCH = ["analysis/bench/peers/work.py: np.load", "analysis/bench/scale.py: pickle.loads"]
"""They read what the same command has just written; numpy takes no pickles."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def calls(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    renamed = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            yield renamed.get(name, name)


def test_nothing_is_unpickled_and_no_text_is_run() -> None:
    files = [path for top in ("raydiff", "jobs", "analysis") for path in (ROOT / top).rglob("*.py")]
    calls_by_file = [f"{path.relative_to(ROOT)}: {name}" for path in files for name in calls(path.read_text())]
    assert sorted({f for f in calls_by_file if f.split(": ")[1] in RUNS_CODE}) == BENCH


@pytest.mark.parametrize(
    "text", ["torch.load(p)", "from pickle import loads\nloads(b)", "np.load(p, allow_pickle=True)"]
)
def test_it_would_be_seen(text: str) -> None:
    assert RUNS_CODE & set(calls(text))


# --- data sets ---


def png(width: int, height: int) -> bytes:
    """100 bytes that declare a picture of this size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height", "has"), [(8193, 8192, "67,117,056 pixels"), (60_000, 60_000, "far more pixels than that")]
)
def test_a_picture_that_says_it_is_huge_is_not_unpacked(
    width: int, height: int, has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("it is unpacked"))
    with pytest.raises(ValueError, match=f"^it: a picture may have 67,108,864 pixels, and it has {has}"):
        pictures.decode(png(width, height), "it")


def grey(value: int = 0, more: int = 0) -> bytes:
    """A picture of 4 x 4, and so many bytes behind it, which nobody looks at."""
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(out, "PNG")
    return out.getvalue() + bytes(more)


FEW: dict[str, Any] = {"train": None, "public": 2, "validation": 0, "calibration": 0, "test": 4}


def zoo(folder: Path) -> Path:
    for i in range(12):
        (folder / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (folder / "ab"[i % 2] / f"{i}.png").write_bytes(grey(i))
    return folder


def test_a_file_that_is_too_large_for_a_picture_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = zoo(tmp_path / "zoo")
    with (folder / "b" / "1.png").open("ab") as f:
        f.truncate(2**28 + 1)  # It has a hole, and takes no room.
    monkeypatch.setattr(Path, "read_bytes", lambda path: path.stat().st_size < 2**20 and path.open("rb").read())
    assert f"{folder}/b/1.png takes 256 MB, but a picture may take 256 MB" in refusal(Data(name=str(folder), **FEW))
    with pytest.raises(ValueError, match=r"^it takes 256 MB"):
        pictures.decode(memoryview(np.broadcast_to(np.uint8(0), 2**28 + 1)), "it")  # type: ignore[arg-type]


def test_pictures_that_do_not_fit_together_are_refused_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = zoo(tmp_path / "zoo")
    monkeypatch.setattr(sizes, "memory", lambda: 12 * 16 * 4)
    load_dataset(Data(name=str(folder), **FEW))
    monkeypatch.setattr(sizes, "memory", lambda: 12 * 16 * 4 - 1)
    assert "12 pictures like" in refusal(Data(name=str(folder), **{**FEW, "test": 5}))


def parquet(path: Path, image: bytes, labels: list[Any]) -> Path:
    """600 rows with one picture, which the file has once, as it has each label."""
    path.parent.mkdir(exist_ok=True)
    rows = pa.array(np.zeros(600, np.int32))
    column, label = pa.DictionaryArray.from_arrays(rows, [image]), pa.array(labels * 300)
    table = pa.table({"image": column, "label": label})
    how: dict[str, Any] = {"dictionary_pagesize_limit": 2**26, "compression": "zstd", "store_schema": False}
    pq.write_table(table, path, **how)
    return path


def test_one_large_picture_in_every_row_is_unpacked_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """In one go these 600 rows, a file of a few kB, would take 600 MB."""
    path = parquet(tmp_path / "set" / "x.parquet", grey(more=2**20), [0, 1])
    assert path.stat().st_size < 100_000
    before = pa.default_memory_pool().max_memory()
    data = load_dataset(Data(name=str(path.parent), **{**FEW, "train": 60, "public": 20}))
    assert len(data.splits["train"]) == 60
    assert pa.default_memory_pool().max_memory() < max(before, 300 * 2**20)


def test_rows_and_labels_that_do_not_fit_are_refused_by_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "set" / "x.parquet", grey(), [0, 1])
    monkeypatch.setattr(sizes, "memory", lambda: 600 * 8 - 1)
    assert f"the labels of 600 rows in {path} would take 0 MB" in refusal(Data(name=str(path.parent), **FEW))
    long = parquet(tmp_path / "long" / "x.parquet", grey(), ["a" * 2**16, "b" * 2**16])
    assert long.stat().st_size < 100_000
    before = pa.default_memory_pool().max_memory()
    monkeypatch.setattr(sizes, "memory", lambda: 100 * 2**20)
    assert len(load_dataset(Data(name=str(long.parent), fitted_on="all", **FEW)).label_names[0]) == 2
    assert pa.default_memory_pool().max_memory() <= max(before, 10 * 2**20)  # each text is in memory once
    monkeypatch.setattr(sizes, "memory", lambda: 600 * 8)
    wide = parquet(tmp_path / "wide" / "x.parquet", grey(more=2**16), [0, 1])
    assert f"the pictures of one row group in {wide} would take 0" in refusal(Data(name=str(wide.parent), **FEW))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_that_does_not_fit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    if suffix == "csv":
        path.write_text("a,b\n" + "1,2\n3,4\n" * 500)
        monkeypatch.setattr(sizes, "memory", lambda: 4004)
        assert len(cells.read_cells(path, cells.Csv()).frame) == 1000
    else:
        pq.write_table(pa.table({"a": [1] * 1000, "b": [2] * 1000}), path)
    monkeypatch.setattr(sizes, "memory", lambda: 4003)
    with pytest.raises(ValueError, match=f"^the table {path} would take 0 MB"):
        cells.read_cells(path, cells.Csv())


def test_a_data_set_of_the_hub_is_not_downloaded_where_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [SimpleNamespace(rfilename=f"data/{name}", size=2**36) for name in ("0.parquet", "1.parquet", "x.zip")]
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **how: SimpleNamespace(siblings=files))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: "/nowhere")
    assert str(hub.snapshot_of("some/birds", kind="dataset", patterns=["*.parquet"], says="it")) == "/nowhere"
    files.append(SimpleNamespace(rfilename="2.parquet", size=1))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("downloaded"))
    with pytest.raises(ValueError, match=r"^'it' takes 128\.0 GB, more than the 128\.0 GB"):
        hub.snapshot_of("some/birds", kind="dataset", patterns=["*.parquet"], says="it")


# --- experiments, finished trials and models of others ---


@pytest.mark.parametrize("name", ["shutil:rmtree", "os:listdir", "pandas:read_pickle", "raydiff.lookup:imported"])
def test_a_config_s_data_set_is_no_function_that_has_nothing_to_do_with_data_sets(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "mine"
    victim.mkdir()
    assert f"{name} is no data set: it must be a function of (folder, labels)" in refusal(
        Data(name=name, root=str(victim))
    )
    assert victim.is_dir()


@pytest.mark.parametrize("kind", ["subprocess:Popen", "os:system", "http.server:HTTPServer"])
def test_a_config_s_method_is_no_other_class(tmp_path: Path, tiny: Experiment, kind: str) -> None:
    fields = overrides.to_dict(tiny)
    fields["method"] = {"kind": kind, "args": ["touch", str(tmp_path / "made")]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"{kind} is no method"):
        config.read_config(tmp_path / "config.json")
    with pytest.raises(ValueError, match=f"{kind} is no method"):
        overrides.from_dict(fields["method"], config.AnyMethod)
    assert not (tmp_path / "made").exists()


def test_a_module_in_the_folder_that_was_sent_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text("from pathlib import Path\nPath('made').touch()\n")
    (tmp_path / "config.json").write_text(json.dumps({"kind": "theirs:Method"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])  # "" is `python -m` alone
    with pytest.raises(ValueError, match=r"^theirs:Method cannot be imported: ModuleNotFoundError"):
        overrides.from_dict(json.loads((tmp_path / "config.json").read_text()), config.AnyMethod)
    assert not (tmp_path / "made").exists()


def test_who_can_write_can_write_a_digest_too() -> None:
    """It says so on the page: digests are against damage."""
    fields = parse_sealed(sealed({"bytes": 9}, "commit").encode(), "commit", of="commit")
    forged = sealed(fields | {"bytes": 1}, "commit")
    assert parse_sealed(forged.encode(), "commit", of="commit")["bytes"] == 1


@pytest.mark.parametrize(
    "tags",
    [
        {"raydiff.sweep": "../other", "raydiff.id": "x"},
        {"raydiff.sweep": "/etc", "raydiff.id": "x"},
        {"raydiff.sweep": "..", "raydiff.id": "x"},
        {"raydiff.sweep": "mine", "raydiff.id": "x", "raydiff.trial": "../../other/trials/0"},
    ],
)
def test_a_run_of_mlflow_names_no_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: dict[str, str]
) -> None:
    for name in ("sweeps/mine", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "sweep.json").write_text(json.dumps({"id": "x"}))
    run = SimpleNamespace(data=SimpleNamespace(tags=tags))
    monkeypatch.setattr(mlflow_models, "open_client", lambda _: SimpleNamespace(get_run=lambda _: run))
    with pytest.raises(ValueError, match=r"^the run r in sqlite:///x names no sweep and trial: '"):
        mlflow_models.find_trial("sqlite:///x", "r", tmp_path / "sweeps")
    tags |= {"raydiff.sweep": "mine", "raydiff.trial": "0123"}
    assert mlflow_models.find_trial("sqlite:///x", "r", tmp_path / "sweeps") == "mine/0123"


# --- other users of the machine ---


def test_weights_that_another_user_has_put_into_tmp_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inception, "USUAL", tmp_path)
    (tmp_path / inception.FILE).write_bytes(b"code")
    assert inception.find_weights(None) == tmp_path / inception.FILE
    owner = SimpleNamespace(st_uid=os.getuid() + 1, st_mode=stat.S_IFREG)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: owner)
    with pytest.raises(ValueError, match="belongs to another user of this machine, and holds code that would run here"):
        inception.find_weights(None)


def test_a_local_ray_s_sockets_are_in_a_folder_of_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raydiff.runtime import cluster

    monkeypatch.setattr(cluster, "MAX_FOLDER_CHARS", 200)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = tmp_path / f"raydiff-{os.getuid()}"
    for _ in range(2):
        assert cluster._own_folder() == f"{folder}/r" and stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o770)
    with pytest.raises(ValueError, match="must be a folder of yours alone"):
        cluster._own_folder()
    folder.rename(tmp_path / "theirs")
    (tmp_path / "theirs").chmod(0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match="must be a folder of yours alone"):
        cluster._own_folder()
    monkeypatch.setattr(cluster, "MAX_FOLDER_CHARS", len(f"{folder}/r") - 1)
    assert cluster._own_folder() is None
