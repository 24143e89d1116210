"""A saved sampler: what is in its folder, and that it samples what the run's own model would."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from raydiff import tree
from raydiff.data.picture_files import to_bytes
from raydiff.experiment.config import Experiment
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training
from raydiff.results import sampler
from raydiff.results.finished import open_finished
from raydiff.results.sampler import Card, Sampler
from raydiff.seeding import generator

LABELS = [0, 1, 6, 7]


@pytest.fixture(scope="module")
def saved(storage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All clients of the PFDM run."""
    folder = tmp_path_factory.mktemp("saved") / "sampler"
    open_finished(storage.folder("pfdm")).save_sampler(folder)
    return folder


def table(**columns: list[int]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_the_folder_holds_states_and_a_card_alone(saved: Path) -> None:
    names = sorted(re.sub("-[0-9a-f]{16}", "", str(p.relative_to(saved))) for p in saved.rglob("*") if p.is_file())
    assert names == [
        "clients/00000-00003.safetensors",
        "clients/00001-00003.safetensors",
        "commit-00003.json",
        "sampler.json",
        "server-00003.safetensors",
    ]
    with safe_open(str(saved / "server-00003.safetensors"), framework="pt") as f:
        assert [k for k in f.keys() if not k.startswith("model/")] == []  # noqa: SIM118
    card = Sampler(saved).card
    assert (card.clients, card.privacy, card.shape, card.round) == ((0, 1), "none", (1, 8, 8), 3)
    assert card.labels == {"label": tuple(str(c) for c in range(10))} and "diffusers" not in card.requires


def test_it_samples_as_the_clients_model_does(saved: Path, storage) -> None:
    finished = open_finished(storage.folder("pfdm"))
    out = Sampler(saved).predict(table(label=LABELS, client=[1, 0, 1, 1]), {"seed": 4})
    assert out.shape == (4, 8, 8, 1) and out.dtype == np.uint8
    for client, rows in ((0, [1]), (1, [0, 2, 3])):
        labels = torch.tensor(LABELS)[rows][:, None]
        own = finished.source(client).sample(labels, generator(4, "predict", client))
        assert np.array_equal(out[rows], to_bytes(own).numpy())
    assert out.std() > 10


def test_without_a_seed_they_are_new_ones(saved: Path) -> None:
    loaded, rows = Sampler(saved), table(label=LABELS)
    seeded = [loaded.predict(rows, {"seed": 1}), Sampler(saved).predict(rows, {"seed": 1})]
    assert np.array_equal(*seeded)
    news = [loaded.predict(rows), loaded.predict(rows, {"seed": None}), loaded.predict(rows, {"seed": 2}), seeded[0]]
    assert len({n.tobytes() for n in news}) == 4


BAD = {"got 10": {"label": [3, 10]}, "got -1": {"label": [-1]}, "'label'": {"client": [0]}}
BAD["no client 2"] = {"label": [1], "client": [2]}


@pytest.mark.parametrize("says", BAD)
def test_rows_that_it_cannot_sample(saved: Path, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Sampler(saved).predict(table(**BAD[says]))


def test_the_servers_model(storage, tmp_path: Path) -> None:
    """Nothing of a client is in its files; it may be published under the run's guarantee."""
    finished = open_finished(storage.folder("pfdm"))
    finished.save_sampler(tmp_path, shared=True)
    loaded = Sampler(tmp_path)
    assert not (tmp_path / "clients").exists() and loaded.card.clients == ()
    assert loaded.card.privacy == str(finished.published) and loaded.card.privacy.startswith("epsilon ")
    own = finished.source(None).sample(torch.tensor(LABELS)[:, None], generator(0, "predict", "global"))
    assert np.array_equal(loaded.predict(table(label=LABELS), {"seed": 0}), to_bytes(own).numpy())


@pytest.mark.parametrize("name", ["localonly", "fedavg"])
def test_other_methods(storage, tmp_path: Path, name: str) -> None:
    finished = open_finished(storage.folder(name))
    finished.save_sampler(tmp_path, 1)
    own = finished.source(1).sample(torch.tensor(LABELS)[:, None], generator(0, "predict", 1))
    assert np.array_equal(Sampler(tmp_path).predict(table(label=LABELS), {"seed": 0}), to_bytes(own).numpy())


def test_a_fine_tuned_sampler_needs_no_records(tiny: Experiment, copied, tmp_path: Path) -> None:
    short = Training(steps=2, batch=4)
    method = FedAvg(model=tiny.method.model, local=short, rounds=1, finetune=short)
    finished = open_finished(copied.finish("finetuned", replace(tiny, method=method, evaluation=None)))
    labels = torch.tensor(LABELS)[:, None]
    own = {client: finished.source(client).sample(labels, generator(4)) for client in (0, 1, None)}
    finished.save_sampler(tmp_path / "own")
    finished.save_sampler(tmp_path / "shared", shared=True)
    for client, images in own.items():
        loaded = Sampler(tmp_path / ("shared" if client is None else "own"))
        assert torch.equal(loaded.of(client)(labels, generator(4)), images)
    assert len({tree.digest({"x": images}) for images in own.values()}) == 3


def test_a_client_whose_state_is_gone_is_no_sample_of_the_servers(storage, tmp_path: Path) -> None:
    open_finished(storage.folder("fedavg")).save_sampler(tmp_path)
    next((tmp_path / "clients").glob("00001-*")).unlink()
    assert Sampler(tmp_path).of(0) is not None
    with pytest.raises(ValueError, match=r"/clients/00001-00001-[0-9a-f]{16}\.safetensors is gone, "):
        Sampler(tmp_path).of(1)


def test_too_many_weights(storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = open_finished(storage.folder("pfdm"))
    monkeypatch.setattr(sampler, "LARGEST", 100_000)  # a model of these has about 40 KB
    with pytest.raises(ValueError, match=r"^the models of 2 clients take \d+ MB, .*: choose one client$"):
        finished.save_sampler(tmp_path / "all")
    assert not (tmp_path / "all").exists()
    finished.save_sampler(tmp_path / "one", 0)


def save(folder: Path, model: DDPM, **more: Any) -> Sampler:
    """Client 3 of local training, untrained."""
    card = Card(trial="t", seed=0, round=0, clients=(3,), about="", shape=model.shape, **more)
    sampler.save(folder, card, LocalOnly(model=model), server={}, states={3: model.init(generator(0))})
    return Sampler(folder)


def test_two_label_columns(tmp_path: Path) -> None:
    model = DDPM(network=MLP(width=16, depth=1), timesteps=3, shape=(3, 4, 4), labels=(3, 2))
    loaded = save(tmp_path, model, labels={"label": ("a", "b", "c"), "hue": ("x", "y")})
    assert loaded.predict(table(label=[0, 2], hue=[1, 0])).shape == (2, 4, 4, 3)
    with pytest.raises(ValueError, match=r"^hue must be in 0\.\.1, got 2$"):
        loaded.predict(table(label=[0, 2], hue=[1, 2]))
    with pytest.raises(ValueError, match=r"^the input has no column 'hue'$"):
        loaded.predict(table(label=[0, 2]))


def test_a_unet_imports_diffusers(tmp_path: Path) -> None:
    model = DDPM(network=UNet(widths=(8, 8)), timesteps=2, shape=(1, 8, 8), labels=(2,))
    loaded = save(tmp_path, model, labels={"label": ("a", "b")})
    assert "diffusers" in loaded.card.requires and loaded.predict(table(label=[1])).shape == (1, 8, 8, 1)
    assert json.loads((tmp_path / "sampler.json").read_text())["method"]["kind"] == "LocalOnly"
