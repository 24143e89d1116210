"""A finished trial is found by the names that people have, and refused in one sentence where it cannot be sampled."""

import json
import math
import re
import shutil
from collections.abc import Callable
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
from raydiff.data.unseen_client import Choice, choose_client
from raydiff.evaluation import suite
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.quality import features
from raydiff.evaluation.suite import Instruments
from raydiff.experiment import config, overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.formats.json_files import read_json, read_outcome
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training, fit
from raydiff.papers.spire.method import SPIRE
from raydiff.results import sampler
from raydiff.results.finished import find, open_finished, single_trial
from raydiff.results.personalization import Joining, Stage, prepare_distances, save_personal
from raydiff.results.sampler import Card, Sampler
from raydiff.seeding import generator
from raydiff.storage.checksums import load_tensors

LABELS = torch.tensor([[0], [1], [6]])


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as e:
        call(*arguments)
    assert "\n" not in str(e.value)
    return str(e.value)


# --- finding it ---


def test_all_its_names_find_the_trial(storage) -> None:
    folder = storage.folder("pfdm")
    digest, sweep = folder.name, storage.sweeps / "pfdm"
    for name in (folder, f"pfdm/{digest}", f"pfdm/{digest[:4]}", digest, digest[:6], "pfdm", sweep):
        assert single_trial(find(str(name), storage.sweeps)) == folder
    says = f"there is no run or sweep {storage.sweeps} in "
    assert refusal(find, str(storage.sweeps), storage.sweeps).startswith(says)


@pytest.mark.parametrize("run", ["pfmd", "abc", "0123456789abcdef", "pfdm/0123", "nix/0123"])
def test_what_is_not_there(storage, run: str) -> None:
    assert re.match(rf"there is no (run or sweep|trial) {run}", refusal(find, run, storage.sweeps))


def test_a_name_of_several_trials_is_refused(copied) -> None:
    folder = copied.folder("pfdm")
    shutil.copytree(copied.sweeps / "pfdm", copied.sweeps / "twice")
    both = f"{folder.name[:8]} may be pfdm/{folder.name}, twice/{folder.name}: give more digits"
    assert refusal(find, folder.name[:8], copied.sweeps).startswith(both)
    assert find(f"twice/{folder.name[:8]}", copied.sweeps) == copied.folder("twice")
    shutil.copytree(copied.folder("fedavg"), copied.sweeps / "pfdm" / "trials" / "ffff")
    assert refusal(single_trial, copied.sweeps / "pfdm").endswith("pfdm/ffff: say which, as SWEEP/DIGEST")


# --- opening it ---


def test_a_clients_samples_are_those_of_its_deployed_model(storage) -> None:
    finished = open_finished(storage.folder("pfdm"))
    source = finished.source(1)
    deployed = trial.make_clients(finished.trial, [1])[0].deploy(finished.server, 3)
    assert torch.equal(source.sample(LABELS, generator(5)), deployed.sample(LABELS, generator(5)))
    other = finished.source(0)
    assert not torch.equal(source.sample(LABELS, generator(5)), other.sample(LABELS, generator(5)))
    assert (source.privacy, source.client) == ("none", 1) and not torch.equal(source.labels, other.labels)


def test_the_servers_model_carries_the_runs_guarantee(storage) -> None:
    finished = open_finished(storage.folder("pfdm"))
    source = finished.source(None)
    outcome = json.loads((storage.folder("pfdm") / "outcome.json").read_text())
    assert source.privacy == outcome["text"] and source.privacy.startswith("epsilon 5.97")
    assert source.labels.flatten().tolist() == list(range(10)) and source.guarantee == finished.published
    assert finished.published.epsilon == outcome["outsiders"]["epsilon"]


@pytest.mark.parametrize("name", ["pfdm", "fedavg", "localonly"])
def test_the_outcome_states_what_holds_for_published_samples(storage, name: str) -> None:
    finished = open_finished(storage.folder(name))
    released = read_outcome(storage.folder(name))["released"]
    assert finished.source(1).privacy == "none" and released.endswith("of a client's own model, no guarantee")
    if name == "localonly":
        assert "server" not in released
    else:
        epsilon = finished.source(None).privacy.split()[1]
        assert f"of the server's model, epsilon {epsilon};" in released


def test_sampling_writes_nothing_not_even_a_secret(copied) -> None:
    folder, secret = copied.folder("pfdm"), copied.sweeps / "pfdm" / "secret"
    before = sorted(copied.root.rglob("*"))
    finished = open_finished(folder)
    for client in (0, None):
        finished.source(client).sample(LABELS, generator(0))
    assert sorted(copied.root.rglob("*")) == before
    secret.unlink()
    assert refusal(open_finished, folder).startswith(f"{secret} is gone, ")
    assert sorted(copied.root.rglob("*")) == [p for p in before if p != secret]


@pytest.mark.parametrize("name", ["pfdm", "localonly"])
def test_a_client_model_that_is_gone_is_not_trained_again(copied, name: str) -> None:
    shutil.rmtree(copied.sweeps / name / "cache")
    finished = open_finished(copied.folder(name))
    says = refusal(finished.source, 0)
    assert says.startswith(f"the model of client 0 is gone from {copied.sweeps / name / 'cache'}: run the trial again")
    assert not (copied.sweeps / name / "cache").exists()
    if name == "pfdm":
        assert finished.source(None).sample(LABELS, generator(0)).shape == (3, 1, 8, 8)


def test_data_that_have_changed(copied) -> None:
    folder = copied.folder("pfdm")
    experiment = replace(config.read_config(folder / "config.json"), data_digest="other")
    (folder / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))
    (folder / "outcome.json").write_text(json.dumps(read_json(folder / "outcome.json")))
    moved = folder.rename(folder.with_name(experiment.digest))
    assert f"the data set digits is no longer the one that {moved} was trained on" in refusal(open_finished, moved)


def rename(folder: Path) -> Path:
    return folder.rename(folder.with_name("0123456789abcdef"))


def lose_server(folder: Path) -> None:
    for state in folder.glob("server-*"):
        state.unlink()


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "it was failed (nan)": lambda folder: trial.end(folder, "failed", reason="nan"),
    "it was stopped (asha)": lambda folder: trial.end(folder, "stopped", reason="asha"),
    "has not finished": lambda folder: (folder / "outcome.json").unlink(),
    "there is no trial": lambda folder: (folder / "config.json").unlink(),
    "is gone, and the trial cannot go on without it": lose_server,
    "another version of raydiff, or is a copy of another trial": rename,
}


@pytest.mark.parametrize("says", DAMAGES)
def test_a_trial_that_cannot_be_sampled(copied, says: str) -> None:
    folder = copied.folder("pfdm")
    folder = DAMAGES[says](folder) or folder
    message = refusal(open_finished, folder)
    assert says in message and str(folder) in message


def test_models_that_do_not_exist(storage) -> None:
    assert "no client 2" in refusal(open_finished(storage.folder("pfdm")).source, 2)
    assert "no client -1" in refusal(open_finished(storage.folder("pfdm")).source, -1)
    assert "LocalOnly" in refusal(open_finished(storage.folder("localonly")).source, None)


# --- A saved sampler: what is in its folder, and that it samples what the run's own model would


ROWS_OF = [0, 1, 6, 7]


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
    out = Sampler(saved).predict(table(label=ROWS_OF, client=[1, 0, 1, 1]), {"seed": 4})
    assert out.shape == (4, 8, 8, 1) and out.dtype == np.uint8
    for client, rows in ((0, [1]), (1, [0, 2, 3])):
        labels = torch.tensor(ROWS_OF)[rows][:, None]
        own = finished.source(client).sample(labels, generator(4, "predict", client))
        assert np.array_equal(out[rows], to_bytes(own).numpy())
    assert out.std() > 10


def test_without_a_seed_they_are_new_ones(saved: Path) -> None:
    loaded, rows = Sampler(saved), table(label=ROWS_OF)
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
    own = finished.source(None).sample(torch.tensor(ROWS_OF)[:, None], generator(0, "predict", "global"))
    assert np.array_equal(loaded.predict(table(label=ROWS_OF), {"seed": 0}), to_bytes(own).numpy())


@pytest.mark.parametrize("name", ["localonly", "fedavg"])
def test_other_methods(storage, tmp_path: Path, name: str) -> None:
    finished = open_finished(storage.folder(name))
    finished.save_sampler(tmp_path, 1)
    own = finished.source(1).sample(torch.tensor(ROWS_OF)[:, None], generator(0, "predict", 1))
    assert np.array_equal(Sampler(tmp_path).predict(table(label=ROWS_OF), {"seed": 0}), to_bytes(own).numpy())


def test_a_fine_tuned_sampler_needs_no_records(tiny: Experiment, copied, tmp_path: Path) -> None:
    short = Training(steps=2, batch=4)
    method = FedAvg(model=tiny.method.model, local=short, rounds=1, finetune=short)
    finished = open_finished(copied.finish("finetuned", replace(tiny, method=method, evaluation=None)))
    labels = torch.tensor(ROWS_OF)[:, None]
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


def save_model(folder: Path, model: DDPM, **more: Any) -> Sampler:
    """Client 3 of local training, untrained."""
    card = Card(trial="t", seed=0, round=0, clients=(3,), about="", shape=model.shape, **more)
    sampler.save_sampler(folder, card, LocalOnly(model=model), server={}, states={3: model.init(generator(0))})
    return Sampler(folder)


def test_two_label_columns(tmp_path: Path) -> None:
    model = DDPM(network=MLP(width=16, depth=1), timesteps=3, shape=(3, 4, 4), labels=(3, 2))
    loaded = save_model(tmp_path, model, labels={"label": ("a", "b", "c"), "hue": ("x", "y")})
    assert loaded.predict(table(label=[0, 2], hue=[1, 0])).shape == (2, 4, 4, 3)
    with pytest.raises(ValueError, match=r"^hue must be in 0\.\.1, got 2$"):
        loaded.predict(table(label=[0, 2], hue=[1, 2]))
    with pytest.raises(ValueError, match=r"^the input has no column 'hue'$"):
        loaded.predict(table(label=[0, 2]))


def test_a_unet_imports_diffusers(tmp_path: Path) -> None:
    model = DDPM(network=UNet(widths=(8, 8)), timesteps=2, shape=(1, 8, 8), labels=(2,))
    loaded = save_model(tmp_path, model, labels={"label": ("a", "b")})
    assert "diffusers" in loaded.card.requires and loaded.predict(table(label=[1])).shape == (1, 8, 8, 1)
    assert json.loads((tmp_path / "sampler.json").read_text())["method"]["kind"] == "LocalOnly"


# --- A client that joins a finished run: what it trains, what it leaves alone, and what it is measured by


RATE = 0.05


@pytest.fixture(scope="session")
def late(storage, tiny: Experiment, tmp_path_factory: pytest.TempPathFactory):
    """The sweeps spire, several (embeddings) and sharedrep, beside those of `storage`."""
    made = type(storage)(tmp_path_factory.mktemp("late"))
    model, short = tiny.method.model, Training(steps=8, batch=8)
    unlabelled = replace(model, conditional=False)
    for name, method in {
        "spire": SPIRE(model=model, local=short, rounds=2),
        "several": SPIRE(model=unlabelled, local=short, rounds=2, embeddings=3),
        "sharedrep": SharedRep(model=model, local=short, rounds=2),
    }.items():
        made.finish(name, replace(tiny, method=method, evaluation=None))
    return made


@pytest.fixture(scope="session")
def instruments(storage) -> Instruments:
    """With four features: twenty records in a half are enough for a Frechet distance."""
    dataset = open_finished(storage.folder("fedavg")).dataset
    cnn = features.train_cnn(dataset.splits["public"], classes=10, dim=4, steps=50)
    return Instruments(Evaluation(dim=4), dataset, cnn)


@pytest.fixture
def joining(storage, late, instruments: Instruments) -> Callable[..., Joining]:
    def join(name: str, *, seed: int = 0, **choice: Any) -> Joining:
        finished = open_finished((storage if name == "fedavg" else late).folder(name))
        asked = Choice(**{"classes": ("2", "7"), "records": 20, **choice})
        client = choose_client(asked, finished.trial.experiment.data, finished.dataset, usual=30)
        return Joining(finished, client, instruments, seed)

    return join


def last(joined: Joining, *epochs: int, rate: float = RATE) -> Stage:
    return list(joined.stages(rate, epochs))[-1]


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return tree.digest(a) == tree.digest(b)


def refuses(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    with pytest.raises(ValueError) as e:
        call(*arguments, **named)
    assert "\n" not in str(e.value)
    return str(e.value)


# --- training ---


@pytest.mark.parametrize("name", ["fedavg", "spire", "several", "sharedrep"])
def test_looking_along_the_way_changes_nothing(joining, name: str) -> None:
    joined = joining(name)
    zero, one, two = joined.stages(RATE, (1, 2))
    assert [s.epoch for s in (zero, one, two)] == [0, 1, 2]
    assert equal(two.state, last(joined, 2).state) and equal(one.state, last(joined, 1).state)
    assert not equal(zero.state, one.state) and not equal(one.state, two.state)


def test_it_is_the_method_s_own_training(joining) -> None:
    """From the shared model, by plain `fit`, the rate constant: 20 records in batches of 8 are three steps an epoch."""
    joined = joining("fedavg")
    finished, records, experiment = joined.finished, joined.client.records, joined.finished.trial.experiment
    zero, two = joined.stages(RATE, (2, 0))
    assert (zero.epoch, zero.steps, two.steps) == (0, 0, 6) and math.isnan(zero.loss)
    shared = finished.source(None).sample(LABELS, generator(5))
    assert torch.equal(joined.deploy(zero.state).sample(LABELS, generator(5)), shared)
    training = Training(steps=6, batch=8, learning_rate=RATE, decay="constant")
    rng, model = generator(experiment.seed, "newcomer", 0, "join"), experiment.method.model
    by_hand, _, loss = fit(model, finished.server, records.images, records.labels, training=training, rng=rng)
    assert equal(two.state, by_hand) and two.loss == pytest.approx(loss)


def test_the_rate_is_constant_whatever_the_method_s_own_is(joining) -> None:
    joined = joining("fedavg")
    trial = joined.finished.trial
    tuned = replace(trial.experiment.method, finetune=Training(batch=5, decay="cosine", optimizer="sgd"))
    trial = replace(trial, experiment=replace(trial.experiment, method=tuned))
    other = replace(joined, finished=replace(joined.finished, trial=trial))
    assert other.training(0.5, 3) == Training(steps=12, batch=5, learning_rate=0.5, decay="constant", optimizer="sgd")


def test_only_the_personal_part_is_trained(joining) -> None:
    """Of SPIRE the embedding, of shared representation the middle; the server's state stays as it was."""
    for name, mine in {"spire": {"conditions.client"}, "sharedrep": None}.items():
        joined = joining(name)
        server, method = joined.finished.server, joined.finished.trial.experiment.method
        before = tree.digest(server)
        zero, stage = joined.stages(RATE, (2,))
        assert tree.digest(server) == before
        wanted = mine or {k for k in method.model.init(generator(0)) if k.startswith("blocks.0.")}
        assert set(stage.state) == set(zero.state) == wanted
        assert all(not torch.equal(stage.state[k], v) for k, v in zero.state.items())
        fixed = {k: v for k, v in server.items() if not k.startswith("start/")}
        z = joined.deploy(stage.state).targets["client"].denoisers[0]
        x, t = torch.randn(3, 1, 8, 8, generator=generator(1)), torch.tensor([1, 7, 20])
        assert torch.equal(z(x, t, LABELS), method.trained_model.denoiser({**fixed, **stage.state})(x, t, LABELS))


def test_how_much_of_the_model_it_trains(joining) -> None:
    """An MLP of width 32: 32 of an embedding, in its block two norms, and Linear layers 32 -> 64, 32 -> 32 (twice)."""
    embedding, block = 32, 2 * 32 + (32 * 64 + 64) + 2 * (32 * 32 + 32)
    touched, whole = joining("fedavg").touched()
    assert touched == whole == sum(v.numel() for v in joining("fedavg").finished.server.values())
    assert joining("spire").touched() == (embedding, whole + embedding)
    assert joining("several").touched()[0] == 3 * embedding
    assert joining("sharedrep").touched() == (block, whole)


def test_of_several_embeddings_the_shares_are_kept_and_not_trained(joining, tmp_path: Path) -> None:
    """20 pictures in three clusters; the card, which may be shown, has nothing of their sizes."""
    joined = joining("several")
    zero, stage = joined.stages(RATE, (2,))
    assert set(stage.state) == {"conditions.tables.0.weight", "shares"}
    counts = stage.state["shares"] * 20
    torch.testing.assert_close(counts, counts.round())
    assert torch.equal(zero.state["shares"], stage.state["shares"]) and float(counts.sum()) == pytest.approx(20)
    path = save_personal(tmp_path, joined, stage, rate=RATE, more={})
    assert "shares" not in path.with_suffix(".json").read_text() and path.stat().st_size < 1024


def test_the_seed_says_where_it_starts(joining) -> None:
    states = [next(joining("spire", seed=s).stages(RATE, (1,))).state for s in (0, 0, 1)]
    assert equal(states[0], states[1]) and not equal(states[0], states[2])
    a, b = (last(joining("fedavg", seed=s), 1).state for s in (0, 1))
    assert not equal(a, b)


@pytest.mark.parametrize("name", ["pfdm", "localonly"])
def test_a_method_with_nothing_to_personalise(storage, instruments: Instruments, name: str) -> None:
    finished = open_finished(storage.folder(name))
    client = choose_client(Choice(), finished.trial.experiment.data, finished.dataset, usual=5)
    assert "has no shared model" in refuses(Joining, finished, client, instruments)


# --- measuring ---


def test_the_feature_network_is_the_run_s_own(copied, monkeypatch: pytest.MonkeyPatch) -> None:
    finished, setup, cnn = open_finished(copied.folder("fedavg")), Evaluation(dim=4), {"conv0.weight": torch.ones(1)}
    measured = replace(finished.trial, experiment=replace(finished.trial.experiment, evaluation=setup))
    keys: list[str] = []
    suite.prepare_instruments(finished.dataset, setup, lambda key, make: keys.append(key) or {})  # type: ignore[func-returns-value]
    finished.trial.store.results.cached(keys[0], lambda: cnn)
    assert equal(prepare_distances(replace(finished, trial=measured)).cnn, cnn)
    trained: list[int] = []
    monkeypatch.setattr(features, "train_cnn", lambda public, **k: trained.append(len(public)) or cnn)
    assert prepare_distances(finished).config.dim == Evaluation.dim and trained == [80]  # a run without instruments


def test_an_embedding_or_a_private_middle_makes_nobody_forget(joining) -> None:
    for name in ("spire", "several", "sharedrep"):
        joined = joining(name)
        finished, server = joined.finished, joined.finished.server
        client, fixed = finished.client(0), finished.trial.experiment.method.join(server, generator(1))[1]
        before = client.deploy(server, finished.round).sample(LABELS, generator(5))
        state = last(joined, 3).state
        start = {f"start/{k}": v for k, v in state.items() if f"start/{k}" in server}  # of a private middle
        after = client.deploy({**server, **start}, finished.round).sample(LABELS, generator(5))
        assert fixed and torch.equal(before, after)


# --- what is kept ---


def kept(joined: Joining, folder: Path) -> tuple[Stage, Path]:
    stage = last(joined, 1, 2)
    return stage, save_personal(folder, joined, stage, rate=RATE, more={"measured": {"kd_cnn": 1.5}})


@pytest.mark.parametrize("name", ["fedavg", "spire", "several", "sharedrep"])
def test_deployed_again_it_gives_the_same_samples(joining, tmp_path: Path, name: str) -> None:
    joined = joining(name)
    stage, path = kept(joined, tmp_path)
    again = joined.deploy(load_tensors(path.read_bytes(), path)[0]).sample(LABELS, generator(5))
    assert torch.equal(again, joined.deploy(stage.state).sample(LABELS, generator(5)))


def test_a_request_is_named_by_the_sweeps_secret(joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is in MLflow, and the client's records are part of what it stands for."""
    joined, request = joining("fedavg"), ((1, 2), (0.1,))
    key = joined.key(*request)
    assert key == joining("fedavg").key(*request) and len(key) == 16
    others = [joining("fedavg", records=19), replace(joined, seed=1), joining("spire")]
    keys = [joined.key((1,), (0.1,)), joined.key((1, 2), (0.2,)), *(other.key(*request) for other in others)]
    monkeypatch.setattr(type(joined.finished), "secret", b"another secret")
    assert len({key, *keys, joined.key(*request)}) == 7
