"""A finished trial is found by the names that people have, and refused in one sentence where it cannot be sampled."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raydiff.experiment import config, overrides, trial
from raydiff.formats.json_files import read_json, read_outcome
from raydiff.results.finished import find, open_finished, single_trial
from raydiff.seeding import generator

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
    experiment = replace(config.read(folder / "config.json"), data_digest="other")
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
