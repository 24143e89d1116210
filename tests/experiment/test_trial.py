"""A trial from start to end, and what its files say."""

import importlib
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from raydiff.data import picture_files
from raydiff.data.datasets import Data, load_dataset
from raydiff.data.partition import ByClass, Dirichlet, Iid, MajorityMinority, Pooled, UnseenClients
from raydiff.evaluation import suite as evaluate
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.suite import Instruments
from raydiff.experiment import config, overrides, trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.trial import Trial, make_clients, noise_secret, open_trial
from raydiff.federated.client import Failed
from raydiff.federated.method import Round
from raydiff.formats.json_files import read_lines
from raydiff.formats.metric_records import Metric, columns, read_metrics
from raydiff.methods._averaging import Averaging
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.evolution import Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.papers.pfdm.method import PFDM
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy import accountants, client_level, gaussian
from raydiff.privacy.ceilings import AboveCeiling
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.ledger import Exposure, Ledger, PrivacyOdometer
from raydiff.privacy.release import Gaussian, disclose
from raydiff.results.finished import open_finished

SECRET = "00112233445566778899aabbccddeeff"
Finished = tuple[Trial, list[dict[str, Any]]]
"""A trial and its results."""


def execute(opened: Trial) -> list[dict[str, Any]]:
    return list(trial.run_trial(opened, trial.local_executor(opened)))


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """What may not differ between two runs: all but the clock."""
    return {k: v for k, v in metrics.items() if k != "time/seconds"}


@pytest.fixture(scope="module")
def protocol(tiny: Experiment) -> Experiment:
    """No instruments."""
    return replace(tiny, evaluation=None)


@pytest.fixture(scope="module")
def finished(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A trial with all instruments, run to its end, and its results."""
    every = overrides.override(tiny, {"evaluation.every": 2, "runtime.noise_secret": SECRET})
    opened = open_trial(every, tmp_path_factory.mktemp("sweep"))
    return opened, execute(opened)


# --- a finished trial ---


def test_there_is_a_result_per_round_and_a_last_one(finished: Finished) -> None:
    opened, results = finished
    assert [(r["round"], r["finished"]) for r in results] == [*((number, False) for number in range(4)), (4, True)]
    lines = read_lines(opened.folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    for line, result in zip(lines, results, strict=False):
        assert columns(read_metrics(line["metrics"])).items() <= result.items()


def test_privacy_comes_from_the_ledger(finished: Finished) -> None:
    opened, results = finished
    ledger = opened.store.ledger()
    assert len(ledger.entries) == 2
    assert ledger_of(opened.folder) == ledger and trial.ledger_of(opened.sweep) == Ledger()
    epsilon = ledger.epsilon(1e-5, "exact")
    assert 0 < epsilon <= 10
    assert all(r["privacy/epsilon_server"] == r["privacy/epsilon_outsiders"] == epsilon for r in results)
    assert all(0.5 < r["privacy/auc_ceiling"] < 1 and r["comm/bytes_up"] == ledger.bytes_up for r in results)
    assert all(r["privacy/mu"] == Exposure(ledger).mu() for r in results)


def _dpsgd(experiment: Experiment) -> Experiment:
    local = replace(experiment.method.local, steps=1)
    method = DPSGD(model=experiment.method.model, local=local, rounds=1, noise_multiplier=5.0)
    return replace(experiment, method=method)


@pytest.mark.parametrize(("of", "low", "ceiling"), [(lambda e: e, 0.999, r"0\.82"), (_dpsgd, 0.95, r"0\.5")])
def test_an_attack_above_the_ceiling_fails_the_trial(
    tiny: Experiment, tmp_path: Path, monkeypatch: Any, of: Any, low: float, ceiling: str
) -> None:
    """Also above that of DP-SGD's sampled noise; with its whole interval."""
    real = evaluate.summarise
    reached = Metric(name="auc", target="global", attack="pia", role="low", value=low)
    monkeypatch.setattr(evaluate, "summarise", lambda r: [*(m for m in real(r) if str(m) != str(reached)), reached])
    opened = open_trial(of(tiny), tmp_path)
    with pytest.raises(
        AboveCeiling, match=f"attack pia on target global has an AUC of at least {low}, above the ceiling {ceiling}"
    ):
        execute(opened)
    assert opened.outcome() is None  # whoever runs it writes that it failed


@pytest.mark.slow
def test_a_server_that_adds_no_noise_is_found_by_an_attack_on_its_model(
    tiny: Experiment, tmp_path: Path, monkeypatch: Any
) -> None:
    """Under central trust, of which the ceiling of what is published is; the server itself has seen every update."""
    monkeypatch.setattr(client_level, "add_noise_to_leaves", lambda value, **_: dict(value))
    privacy = ClientPrivacy(trust="central", epsilon=1.0, clip=1000.0)
    model = DDPM(network=MLP(width=128, depth=2), timesteps=10)
    averaging = Averaging(weights="uniform", privacy=privacy)
    method = FedAvg(model=model, rounds=1, local=Training(steps=300, batch=16), averaging=averaging)
    instruments = Evaluation(members=30, attacks=("loss",), metrics=("accuracy",))
    opened = open_trial(replace(tiny, method=method, partition=Iid(), evaluation=instruments), tmp_path)
    ceiling = f"{gaussian.gaussian_auc_ceiling(accountants.mu_for(1.0, 1e-5)):.4g}"
    with pytest.raises(AboveCeiling, match=rf"attack \w+ on target global .* the ceiling {ceiling} that the ledger"):
        execute(opened)


def test_labels_are_covered_where_the_partition_leaves_them_private(tiny: Experiment) -> None:
    """DP-SGD covers them; a partition that counts labels makes them public, as unseen clients do, and it says so."""
    event = Gaussian(1.0, "example", "zero_out", "local", 0.1, 5)
    odometer = PrivacyOdometer(Ledger().with_uploads(0, [(0, event, 1), (1, event, 1)]))
    late = UnseenClients(clients=1, classes=2, records=4)
    for changes, public in (
        ({"partition": Iid()}, False),
        ({"partition": Dirichlet()}, False),
        ({"partition": Dirichlet(balanced=True)}, True),
        ({"partition": MajorityMinority()}, True),
        ({"partition": ByClass()}, True),
        ({"partition": Iid(), "unseen": late}, True),
    ):
        experiment = replace(_dpsgd(tiny), **changes)
        for view in trial.state_guarantees(odometer, experiment):
            assert (view.declared == ("labels",)) == public == ("public by declaration: labels" in str(view))


def test_the_outcome_has_the_final_numbers_and_the_guarantee(finished: Finished) -> None:
    opened, results = finished
    outcome = opened.outcome() or {}
    final = columns(read_metrics(outcome["final"]))
    assert outcome["outcome"] == "finished"
    assert final == {k: v for k, v in results[-1].items() if k not in ("round", "finished")}
    assert {"eval/fd_cnn/all", "attack/global/pia/auc", "attack/client/best/auc", "time/seconds"} <= set(final)
    assert re.match(r"epsilon \d+\.\d\d \(per example, replace-one, local trust, delta 1e-05, exact", outcome["text"])
    assert outcome["server"]["epsilon"] == final["privacy/epsilon_server"]


def test_a_trial_for_the_choice_of_settings_reads_no_test_record(
    tiny: Experiment, tmp_path: Path, monkeypatch: Any
) -> None:
    """Its last numbers are those of the validation split, of clients that join too; nothing is attacked."""
    read: list[str] = []
    of_client = Instruments.of_client
    monkeypatch.setattr(Instruments, "of_client", lambda self, split: read.append(split) or of_client(self, split))
    method = FedAvg(model=tiny.method.model, rounds=2, local=Training(steps=4, batch=4))
    changes = {"method": method, "unseen": UnseenClients(clients=1, classes=3, records=10), "data.train": 100}
    changes |= {"evaluation.split": "validation", "evaluation.every": 2, "evaluation.metrics": ("kernel",)}
    *_, last, final = execute(open_trial(overrides.override(tiny, changes), tmp_path))
    assert set(read) == {"validation"} and "unseen/kd_cnn/all" in final
    readings = {k.removeprefix("eval/"): v for k, v in final.items() if k.startswith("eval/")}
    assert readings == {k.removeprefix("validation/"): v for k, v in last.items() if k.startswith("validation/")}
    assert "kd_cnn/all" in readings and not [k for k in final if k.startswith("attack/")]


def test_artifacts(finished: Finished) -> None:
    folder = finished[0].folder / "artifacts"
    table = json.loads((folder / "ledger.json").read_text())
    assert [row[table["columns"].index("client")] for row in table["data"]] == ["0", "1"]
    assert all(len(row) == len(table["columns"]) and {*map(type, row)} == {str} for row in table["data"])
    with Image.open(folder / "samples.png") as image:
        assert image.info["privacy"] == "none"
        assert image.height == 3 * 9 * picture_files.SCALE  # two clients below the public pictures
    assert sorted(p.name for p in folder.iterdir()) == ["ledger.json", "partition.png", "samples.png"]


@pytest.mark.parametrize("covered", [True, False])
def test_samples_of_the_servers_model_name_its_guarantee(tiny: Experiment, tmp_path: Path, *, covered: bool) -> None:
    """Not under client-level privacy: which classes a client's row shows is not covered."""
    averaging = Averaging(weights="uniform", privacy=ClientPrivacy(epsilon=5.0))
    method = Evolution(epsilon=5.0, rounds=1, candidates=4)
    changes: dict[str, Any] = {"method": method, "evaluation": Evaluation(attacks=None, metrics=("accuracy",))}
    if not covered:
        changes["method"] = FedAvg(model=tiny.method.model, rounds=1, local=Training(steps=1), averaging=averaging)
    opened = open_trial(overrides.override(tiny, changes), tmp_path)
    execute(opened)
    outcome = opened.outcome()
    assert outcome is not None and outcome["server"]["epsilon"] == pytest.approx(5.0, rel=1e-3)
    with Image.open(opened.folder / "artifacts" / "samples.png") as image:
        assert image.info["privacy"] == (outcome["text"] if covered else "none")


def test_the_control_of_public_pictures_alone_sends_nothing(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "data" / "frontier")
    method = importlib.import_module("public_only").PublicOnly(candidates=4)
    changes = {"method": method, "evaluation": Evaluation(attacks=None, metrics=("accuracy",))}
    *_, final = execute(open_trial(overrides.override(tiny, changes), tmp_path))
    assert final["comm/bytes_up"] == 0 and final["privacy/epsilon_server"] == 0


def test_a_finished_trial_gives_its_numbers_again_and_does_nothing(finished: tuple[Trial, list[Any]]) -> None:
    opened, results = finished
    before = {p: p.stat().st_mtime_ns for p in opened.sweep.rglob("*")}
    assert list(trial.run_trial(opened, None)) == results[-1:]  # type: ignore[arg-type]
    assert {p: p.stat().st_mtime_ns for p in opened.sweep.rglob("*")} == before


def test_config_json_is_enough_to_run_it_again(finished: Finished) -> None:
    opened, _ = finished
    read = config.read_config(opened.folder / "config.json")
    assert read.digest == opened.experiment.digest == opened.folder.name
    assert read.data_digest == config.keyed(load_dataset(read.data), bytes.fromhex(SECRET))
    assert overrides.override(read, {"runtime.noise_secret": SECRET}) == opened.experiment


# --- resuming ---


def test_a_trial_begins_as_it_was_resolved_and_on_the_same_data_alone(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver resolves, once; a coordinator that finds other data under the name refuses, and writes nothing."""
    trial.keep_secret(tmp_path, b"the noise secret")
    planned = Trial(trial.resolve_on_data(tiny, b"the noise secret"), tmp_path)
    other = Trial(replace(planned.experiment, data_digest=f"hmac:{'0' * 64}"), tmp_path)
    monkeypatch.setattr(trial, "resolve_on_data", lambda *_: pytest.fail("it is resolved again"))
    with pytest.raises(ValueError, match=r"^the data set digits is not the one that the trial was planned for, .*"):
        trial.begin(other)
    assert not (tmp_path / "trials").exists()
    trial.begin(planned)
    assert (planned.folder / "config.json").exists()


def killed(experiment: Experiment, sweep: Path, done: int) -> Trial:
    """A trial whose process died after so many rounds."""
    opened = open_trial(experiment, sweep)
    running = trial.run_trial(opened, trial.local_executor(opened))
    list(itertools.islice(running, done))
    running.close()  # type: ignore[attr-defined]
    return opened


@pytest.mark.parametrize("done", [1, 4])
def test_a_killed_trial_ends_with_the_same_numbers(finished: Finished, tmp_path: Path, done: int) -> None:
    opened, results = finished
    log = killed(opened.experiment, tmp_path, done).folder / "metrics.jsonl"
    if done == 4:  # The last round was committed, but not logged.
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]) + '{"step": 3, "ti')
    rest = execute(open_trial(opened.experiment, tmp_path))
    assert [numbers(r) for r in rest] == [numbers(r) for r in results[done - 1 :]]
    assert [line["step"] for line in read_lines(log)] == [0, 1, 2, 3]


def test_a_state_that_no_round_looks_at_any_more_is_checked_before_the_trial_ends(
    noised: Experiment, tmp_path: Path
) -> None:
    """The process died between the last commit and the outcome."""
    first = killed(noised, tmp_path, noised.method.rounds)
    state = max((first.folder / "clients").iterdir())
    whole = state.read_bytes()
    for damage in (lambda: state.write_bytes(whole[:-9]), state.unlink):
        damage()
        again = open_trial(noised, tmp_path)
        with pytest.raises(ValueError, match=f"^{state} is (damaged|gone)"):
            execute(again)
        assert again.outcome() is None
    state.write_bytes(whole)
    assert execute(again)[-1]["finished"]


def test_what_was_sent_in_a_round_that_never_committed_is_spent(protocol: Experiment, tmp_path: Path) -> None:
    opened = open_trial(protocol, tmp_path)
    assert ledger_of(opened.folder) == Ledger()
    client = make_clients(opened, [1])[0]
    upload, _ = client.run({}, 0)
    (entry,) = ledger_of(opened.folder).entries
    assert (entry.round, entry.client, entry.event, entry.bytes) == (0, 1, upload.release.event, upload.release.nbytes)
    trial.end_unfinished(opened.folder, "killed", reason="why")
    outcome = opened.outcome() or {}
    assert (outcome["outcome"], outcome["reason"]) == ("killed", "why")
    assert 0 < outcome["server"]["epsilon"] <= 10 and outcome["text"].startswith("epsilon ")
    execute(opened)
    assert len(ledger_of(opened.folder).entries) == 2


def test_a_trial_whose_ledger_is_damaged_ends_without_a_guarantee(protocol: Experiment, tmp_path: Path) -> None:
    opened = open_trial(protocol, tmp_path)
    execute(opened)
    (opened.folder / "commit-00000.json").unlink()
    (opened.folder / "outcome.json").unlink()
    trial.end_unfinished(opened.folder, "killed", reason="why")
    outcome = opened.outcome() or {}
    assert outcome["reason"] == "why" and outcome["server"]["epsilon"] == math.inf
    assert outcome["text"].startswith("epsilon inf (no guarantee: ") and "has lost commit 0" in outcome["text"]
    with pytest.raises(ValueError, match="has lost commit 0"):
        execute(opened)


def test_one_digit_of_a_commit_buys_no_epsilon(protocol: Experiment, tmp_path: Path) -> None:
    opened = open_trial(protocol, tmp_path)
    execute(opened)
    path = opened.folder / "commit-00000.json"
    text = path.read_text()
    path.write_text(re.sub(r"(std_over_sensitivity[^0-9]*)", r"\g<1>9", text, count=1))
    assert path.read_text() != text
    damaged = f"^{re.escape(str(path))} is damaged: [^\n]*$"
    with pytest.raises(ValueError, match=damaged):
        open_finished(opened.folder)
    (opened.folder / "outcome.json").unlink()
    for read in (ledger_of, lambda _: execute(opened)):
        with pytest.raises(ValueError, match=damaged):
            read(opened.folder)
    trial.end_unfinished(opened.folder, "failed", reason="why")
    outcome = opened.outcome() or {}
    assert outcome["server"]["epsilon"] == outcome["outsiders"]["epsilon"] == math.inf
    assert str(path) in outcome["text"]


# --- the noise secret ---


def test_the_secret_is_its_owners_alone(protocol: Experiment, tmp_path: Path) -> None:
    opened = open_trial(protocol, tmp_path)
    execute(opened)
    path = tmp_path / "secret"
    secret = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600 and len(secret) == 32
    assert opened.keys.secret == secret
    written = [p for p in tmp_path.rglob("*") if p.is_file() and p != path]
    assert {"config.json", "metrics.jsonl", "outcome.json"} <= {p.name for p in written}
    for p in written:
        text = p.read_bytes()
        assert secret not in text and secret.hex().encode() not in text, p


def test_a_sweep_has_one_secret(protocol: Experiment, tmp_path: Path) -> None:
    configured = replace(protocol, runtime=Runtime(pool="local", noise_secret=SECRET))
    assert noise_secret(tmp_path, configured) == noise_secret(tmp_path, protocol) == bytes.fromhex(SECRET)
    other = replace(protocol, runtime=Runtime(pool="local", noise_secret="ab" * 16))
    with pytest.raises(ValueError, match=r"^runtime.noise_secret is not the one that [^\n]* was started with"):
        noise_secret(tmp_path, other)
    (tmp_path / "secret").write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"^the noise secret [^\n]* is damaged: [^\n]*$"):
        noise_secret(tmp_path, protocol)


def uploads(opened: Trial) -> torch.Tensor:
    """Run the trial: the noised images that the server got."""
    execute(opened)
    number, _ = opened.store.last_commit() or (0, {})
    return opened.store.load_server(number)["server_only/pool/x"]


def test_sweeps_have_their_own_noise_unless_the_secret_is_given(protocol: Experiment, tmp_path: Path) -> None:
    same = replace(protocol, runtime=Runtime(pool="local", noise_secret=SECRET))
    pairs = ((protocol, "a"), (protocol, "b"), (same, "c"), (same, "d"))
    opened = [open_trial(experiment, tmp_path / name) for experiment, name in pairs]
    assert [o.experiment.digest == opened[3].experiment.digest for o in opened] == [False, False, True, True]
    a, b, c, d = map(uploads, opened)
    assert torch.equal(c, d)
    correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten(), c.flatten()]))
    assert float((correlation - torch.eye(3)).abs().max()) < 0.5  # the images are the same, the noise is not
    differences = torch.stack([(a - c).flatten(), (b - c).flatten()])
    assert float(torch.corrcoef(differences)[0, 1]) == pytest.approx(0.5, abs=0.1)


# --- data, clients, checks ---


def test_clients_share_the_training_records_and_no_others(protocol: Experiment, tmp_path: Path) -> None:
    opened = open_trial(replace(protocol, clients=3, partition=Iid()), tmp_path)
    held = [client.data.numbers.tolist() for client in make_clients(opened, range(3))]
    train = load_dataset(protocol.data).splits["train"].numbers.tolist()
    assert sorted(n for numbers in held for n in numbers) == sorted(train)
    (second,) = make_clients(opened, [1])
    assert (second.client_id, second.data.numbers.tolist()) == (1, held[1])
    other = open_trial(replace(protocol, clients=3, partition=Iid(), seed=1), tmp_path)
    assert make_clients(other, [1])[0].data.numbers.tolist() != held[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"partition": Pooled()}, "clients must be 1 for a Pooled partition, got 2"),
        ({"partition": Iid(), "clients": 61}, "client 60 would get no record"),
        ({"data": Data(train=5000)}, "too few for"),
        ({"data": Data(train=100, test=0), "evaluation": Evaluation(dim=4)}, "needs records in the split test"),
        ({"evaluation": Evaluation(dim=500)}, "dim must be at most n/5"),
        ({"data": Data(name="no such set", root="/")}, "unknown data set 'no such set'"),
        ({"data": Data(train=100, public=0), "method": PFDM(center="public")}, "a center needs public records"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_is_written(
    protocol: Experiment, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as refusal:
        open_trial(replace(protocol, **changes), tmp_path)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def joined(tiny: Experiment) -> Experiment:
    """Two clients, and two that join later with two classes each."""
    method = SPIRE(
        model=replace(tiny.method.model, conditional=False),
        local=tiny.method.local,
        rounds=2,
        joining=Training(steps=3, batch=8, decay="constant"),
    )
    late = UnseenClients(clients=2, classes=2, records=10)
    instruments = Evaluation(dim=4, attacks=None, metrics=("kernel", "labels"))
    data = replace(tiny.data, train=90)  # chance gives no class too few for them
    return replace(tiny, data=data, method=method, partition=Iid(), unseen=late, evaluation=instruments)


def tree_size(experiment: Experiment) -> int:
    method = trial.resolve_on_data(experiment).method
    assert isinstance(method, SPIRE)
    return sum(v.numel() for v in method.trained_model.init(torch.Generator()).values())


def test_unseen_clients_are_measured_and_send_nothing(joined: Experiment, tmp_path: Path) -> None:
    opened = open_trial(joined, tmp_path)
    final = execute(opened)[-1]
    for reading in ("kd_cnn/all", "kd_cnn/all_floor", "kd_cnn/all_spread", "own_classes", "ddim/kd_cnn/all"):
        assert math.isfinite(final[f"unseen/{reading}"]) and math.isfinite(final[f"eval/{reading}"]), reading
    assert final["unseen/kd_cnn/all"] != final["eval/kd_cnn/all"]
    assert not [k for k in final if "fd_" in k or "label_accuracy" in k or "minor" in k]  # no labels are asked for
    assert final["unseen/parameters"] == 32  # the embedding, as wide as the network
    assert final["unseen/parameters_share"] == 32 / tree_size(joined)
    assert set(ledger_of(opened.folder).bytes_by_client) == {0, 1}
    assert (opened.folder / "artifacts" / "unseen.png").exists()


def test_rejected_uploads_are_counted_and_named(
    protocol: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FedAvg.local_update

    def broken(self: FedAvg, server: Any, state: Any, data: Any, rnd: Round) -> Any:
        result = honest(self, server, state, data, rnd)
        lost = rnd.number == 1 and int(data.numbers[0]) == first
        return replace(result, release=disclose({}, "nothing of use")) if lost else result

    method = FedAvg(model=protocol.method.model, local=protocol.method.local, rounds=2)
    opened = open_trial(replace(protocol, method=method), tmp_path)
    (client,) = make_clients(opened, [1])
    first = int(client.data.numbers[0])
    monkeypatch.setattr(FedAvg, "local_update", broken)
    results = execute(opened)
    assert [list(r["rejected"]) for r in results[:-1]] == [[], ["client 1"]]
    assert "clients/rejected" not in results[0] and results[1]["clients/rejected"] == 1.0
    assert results[-1]["clients/rejected"] == 1.0 and "rejected" not in results[-1]
    (line,) = read_lines(opened.folder / "rejected.jsonl")
    assert line["step"] == 1 and line["client 1"] == results[1]["rejected"]["client 1"]
    assert re.match("its leaf .* is missing", line["client 1"])
    with pytest.raises(Failed, match="1 of 2 uploads can be used, fewer than min_clients = 2"):
        execute(open_trial(replace(opened.experiment, min_clients=2), tmp_path))


def test_a_trial_runs_on_the_threads_it_says(protocol: Experiment, tmp_path: Path) -> None:
    opened = open_trial(overrides.override(protocol, {"numerics.threads": 2, "method.local.steps": 0}), tmp_path)
    try:
        pool = trial.local_executor(opened)  # trains the feature network, where there is one
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        next(trial.run_trial(opened, pool))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
