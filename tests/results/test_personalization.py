"""A client that joins a finished run: what it trains, what it leaves alone, and what it is measured by."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raydiff import tree
from raydiff.data.unseen_client import Choice, choose_client
from raydiff.evaluation import suite
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.quality import features
from raydiff.evaluation.suite import Instruments
from raydiff.experiment.config import Experiment
from raydiff.methods.sharedrep import SharedRep
from raydiff.models.training import Training, fit
from raydiff.papers.spire.method import SPIRE
from raydiff.results.finished import open_finished
from raydiff.results.personalization import Joining, Stage, prepare, save
from raydiff.seeding import generator
from raydiff.storage.checksums import load_tensors

LABELS = torch.tensor([[0], [1], [6]])
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


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
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
    path = save(tmp_path, joined, stage, rate=RATE, more={})
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
    assert "has no shared model" in refusal(Joining, finished, client, instruments)


# --- measuring ---


def test_the_feature_network_is_the_run_s_own(copied, monkeypatch: pytest.MonkeyPatch) -> None:
    finished, setup, cnn = open_finished(copied.folder("fedavg")), Evaluation(dim=4), {"conv0.weight": torch.ones(1)}
    measured = replace(finished.trial, experiment=replace(finished.trial.experiment, evaluation=setup))
    keys: list[str] = []
    suite.prepare(finished.dataset, setup, lambda key, make: keys.append(key) or {})  # type: ignore[func-returns-value]
    finished.trial.store.results.cached(keys[0], lambda: cnn)
    assert equal(prepare(replace(finished, trial=measured)).cnn, cnn)
    trained: list[int] = []
    monkeypatch.setattr(features, "train_cnn", lambda public, **k: trained.append(len(public)) or cnn)
    assert prepare(finished).config.dim == Evaluation.dim and trained == [80]  # a run without instruments


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
    return stage, save(folder, joined, stage, rate=RATE, more={"measured": {"kd_cnn": 1.5}})


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
