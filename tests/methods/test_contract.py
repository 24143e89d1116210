"""What every method promises. A new one is under test as soon as it is in METHODS."""

import copy
import functools
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import float_attack
import pytest
import torch
from cases import slow_but
from fake_gpu import attached
from toys import aggregated, mean_upload

from raydiff import tree
from raydiff.data.datasets import Records
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client, Keys
from raydiff.federated.method import SCRATCH, SERVER_ONLY, Deployed, Method, Round, Upload
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.federated.upload_validator import UploadValidator
from raydiff.methods import METHODS
from raydiff.methods._averaging import Averaged
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.evolution import Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.marginals import Marginals
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sharedrep import SharedRep
from raydiff.methods.sketch import Sketch
from raydiff.models.classifier import Classifier, LeNet
from raydiff.models.forest import Forest
from raydiff.models.networks import UNet
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.feddistr.method import FedDistr
from raydiff.privacy import grid
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.filters import covers
from raydiff.privacy.release import Gaussian, NonPrivate, Nothing
from raydiff.seeding import NoiseStream, generator
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params

KEYS = Keys(0, b"0123456789abcdef", "digest")
LABELS = torch.arange(10)[:, None]

OTHER: dict[str, Any] = {
    "epsilon": 50.0,
    "delta": 1e-6,
    "clip": 2.0,
    "t0": 20,
    "center": "public",
    "start": "noise",
    "local_parts": 2,
    "public_only": True,
    "skip": True,
    "prediction": "v",
    "levels": "uniform",
    "snr_cap": 5.0,
    "flip": True,
    "sigma_data": 1.0,
    "lognormal_mean": 0.0,
    "precision": "bfloat16",
    "compile": True,
    "accountant": "rdp",
    "server_rounds": 2,
    "network": UNet(widths=(8, 8)),
    "classifier.network": LeNet(),
    "width": 16,
    "depth": 2,
    "schedule": "cosine",
    "timesteps": 25,
    "labels": (12,),
    "steps": 5,
    "batch": 4,
    "learning_rate": 1e-2,
    "weight_decay": 0.5,
    "optimizer": "sgd",
    "epochs": 2,
    "momentum": 0.5,
    "replacement": False,
    "warmup": 2,
    "max_grad_norm": 0.1,
    "ema": 0.2,
    "decay": "constant",
    "conditional": False,
    "embedding": True,
    "sampler": "ddim",
    "model": Classifier(),
    "upload": "latents",
    "clusters": 2,
    "least": 1,
    "threshold": 0.5,
    "images": 30,
    "guidance": 1.0,
    "widths": (8,),
    "hidden": 8,
}
"""Another valid value for every field of the methods with first states, by the field's name."""
ALSO: dict[str, dict[str, Any]] = {
    "center": {"clip": 2.0},
    "model": {"clip": None},
    "upload": {"epsilon": None},
    **{f"{path}.momentum": {f"{path}.optimizer": "sgd"} for path in ("local", "server", "inversion", "training")},
}
"""What else these fields need, by their path or name."""
REFUSED = ("inversion.epochs", "inversion.replacement")
"""Fields that the method they are in refuses: it draws its own batches."""


AVERAGED = [name for name in METHODS if issubclass(METHODS[name], Averaged)]
NOISED = [name for name in METHODS if name not in AVERAGED and hasattr(METHODS[name], "epsilon")]
SUMMED = ["sketch", "dpmerf", "evolution", "marginals"]
SENDERS = ["fedavg", "dpsgd", *NOISED]
"""One method for each mechanism: the other averaging methods release their updates as fedavg does."""
CENTRAL = "dpsgd, central images"
FIRST_STATES = ["pfdm", "localonly", "feddistr"]
"""Methods whose first states a sweep shares by `init_key`."""


def only(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("experiment", names, indirect=True)


@pytest.fixture(params=[*METHODS, CENTRAL])
def experiment(request: pytest.FixtureRequest, tiny: Experiment, latent_model: LatentModel) -> Experiment:
    """The tiny experiment with each method in turn, which takes over the fields that PFDM has too."""
    switched: Experiment = overrides.override(
        tiny, {"method": overrides.parse_field(tiny, "method", request.param.partition(",")[0])}
    )
    if request.param == CENTRAL:
        sums = Sketch(epsilon=5.0, relation="zero_out", moment=0.0)
        more = {"rounds": 4, "central": sums, "pretraining": Training(steps=3, batch=5)}
        switched = overrides.override(switched, {f"method.{k}": v for k, v in more.items()})
    for path in ("method.local.steps", "method.server.steps"):  # what DPSGD does in four rounds: one in each
        if overrides.has_path(switched, path):
            switched = overrides.override(switched, {path: 4})
    if overrides.has_path(switched, "method.rounds"):
        switched = overrides.override(switched, {"method.rounds": 4})
    if isinstance(switched.method, Sketch):  # At epsilon 10 the Gaussians of 24 records may be those of no record.
        switched = overrides.override(switched, {"method.epsilon": 100.0})
    if isinstance(switched.method, DPMERF):
        small = {"features": 64, "length": 3.0, "server_rounds": 3, "training": Training(steps=4, batch=20)}
        switched = overrides.override(switched, {f"method.{k}": v for k, v in small.items()})
    if isinstance(switched.method, Marginals):  # A picture's pixels, without what follows the point, are codes.
        switched = overrides.override(switched, {"method.model": Forest(counts=(2,) * 64, labels=(10,))})
    if isinstance(switched.method, FedDistr):
        small = {"clusters": 1, "inversion": Training(steps=2, batch=2), "images": 20, "steps": 2, "threshold": 0.1}
        small |= {"training": Training(steps=2, batch=8), "model": latent_model}
        switched = overrides.override(switched, {f"method.{k}": v for k, v in small.items()})
    return switched


@pytest.fixture
def method(experiment: Experiment) -> Method:
    return experiment.method


def records(client: int, *, blank: bool = False) -> Records:
    rng = generator(client, "records")
    images = torch.rand(12, 1, 8, 8, generator=rng) * 2 - 1
    return Records(images * (0.0 if blank else 1.0), torch.randint(10, (12, 1), generator=rng), torch.arange(12))


def pool(method: Method, keys: Keys = KEYS, store: Checkpoint | None = None, *, blank: bool = False) -> LocalExecutor:
    return LocalExecutor([Client(i, method, records(i, blank=blank), keys=keys, store=store) for i in range(2)])


def run(method: Method, keys: Keys = KEYS, store: Checkpoint | None = None) -> list[Progress]:
    return list(run_rounds(method, pool(method, keys, store), keys=keys, store=store))


@functools.cache
def whole(method: Method) -> list[Progress]:
    """The undisturbed run, for tests that only look at it: it has the same bits each time, as the first test says."""
    return run(method)


def shape(method: Method) -> tuple[int, int, int]:
    """Of a sample."""
    return (1, 1, 64) if isinstance(method, Marginals) else (1, 8, 8)


def deployed(method: Method, progress: Progress, keys: Keys = KEYS) -> Deployed:
    return Client(1, method, records(1), keys=keys).deploy(progress.sent, progress.number)


def summary(method: Method, progress: Progress, keys: Keys = KEYS) -> tuple[Any, ...]:
    samples = deployed(method, progress, keys).sample(LABELS, generator(keys.seed, "samples"))
    return progress.number, tree.digest(progress.server), progress.ledger, tree.digest({"samples": samples})


def test_the_same_seed_gives_the_same_bits(method: Method) -> None:
    first = summary(method, whole(method)[-1])
    assert first == summary(method, run(copy.deepcopy(method))[-1])
    other = replace(KEYS, seed=1)
    assert first[3] != summary(method, run(method, other)[-1], other)[3]


@pytest.mark.slow
def test_a_gpu_has_the_bits_of_the_cpu(method: Method) -> None:
    """Rounds, deployment, samples, on an accelerator that is none."""
    expected = summary(method, whole(method)[-1])
    with attached() as gpu:
        assert summary(method, run(method)[-1]) == expected
    assert gpu.counts["ops"] > 0 or isinstance(method, Sketch | Evolution | Marginals)  # which train nothing


def test_the_number_of_rounds_is_what_it_says(method: Method) -> None:
    progress = whole(method)
    assert [p.number for p in progress] == list(range(method.rounds))
    took_part = {e.round for e in progress[-1].ledger.entries}
    assert took_part == set(range(method.participating_rounds))


@only([*AVERAGED, *SUMMED])
def test_an_exact_mean_is_that_of_floats_to_rounding(method: Method) -> None:
    server = tree.without(SERVER_ONLY, method.init_server(None, generator(0)))
    validator = UploadValidator(method, server, 0, 5)
    assert validator.mean_spec is not None
    uploads = [Client(i, method, records(i), keys=KEYS).run(server, 0)[0] for i in range(5)]
    weights = [validator.mean_spec.weight(upload.examples) for upload in uploads]
    summands = [tree.scale(u.release.value, weight) for u, weight in zip(uploads, weights, strict=True)]
    floats = tree.scale(functools.reduce(tree.add, summands), 1 / sum(weights))
    assert tree.norm(floats) > 0 and tree.norm(
        tree.sub(mean_upload(validator, uploads).value, floats)
    ) <= 1e-6 * tree.norm(floats)


def test_a_release_shares_no_memory_with_what_stays(method: Method) -> None:
    """What a client keeps may change later, and a view's pickle carries all that lies in the same memory."""
    server, data = method.init_server(None, generator(0)), records(0)
    state = method.init_client({}, data, None, Round(0, generator(1)))
    result = method.local_update(server, state, data, Round(0, generator(2), NoiseStream(KEYS.secret, (0,))))
    kept = [*server.values(), *state.values(), *result.state.values(), data.images, data.labels]
    elsewhere = {v.untyped_storage().data_ptr() for v in kept if v.numel()}
    for leaf in result.release.value.values():
        assert leaf.untyped_storage().data_ptr() not in elsewhere
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size()


def test_nothing_is_changed_in_place(method: Method) -> None:
    data = [records(0), records(1)]
    server = method.init_server(None, generator(0))
    states = [method.init_client({}, own, None, Round(0, generator(1))) for own in data]
    everything: list[Params] = [server, *states, *[{"x": own.images, "y": own.labels} for own in data]]

    def digests() -> list[str]:
        return [tree.digest(p) for p in everything]

    for number in range(method.rounds):
        before, uploads = digests(), []
        for i in range(2 if number < method.participating_rounds else 0):
            noise = NoiseStream(KEYS.secret, (i, number))
            result = method.local_update(server, states[i], data[i], Round(number, generator(2, i), noise))
            uploads.append(Upload(i, len(data[i]), result.release))
            states[i] = result.state
            everything += [result.state, result.release.value]
            before += [tree.digest(result.state), tree.digest(result.release.value)]
        server, _, _ = aggregated(method, server, uploads, Round(number, generator(3)))
        assert digests() == before
        everything.append(server)
    before = digests()
    personal = method.personalize(server, states[0], data[0], generator(4))
    method.deploy(server, personal).sample(LABELS, generator(5))
    assert digests() == before


def test_state_is_detached_and_on_the_cpu(method: Method) -> None:
    last = whole(method)[-1]
    state = method.init_client({}, records(0), None, Round(0, generator(1)))
    leaves = [*last.server.values(), *state.values()]
    assert all(type(v) is torch.Tensor and not v.requires_grad and v.device.type == "cpu" for v in leaves)


def test_a_killed_run_continues_bit_for_bit(method: Method, tmp_path: Path) -> None:
    uninterrupted = [summary(method, p) for p in whole(method)]
    for done in {max(1, method.rounds // 2), method.rounds}:
        store = Checkpoint(tmp_path / str(done), tmp_path / "cache")
        running = run_rounds(method, pool(method, store=store), keys=KEYS, store=store)
        first = list(itertools.islice(running, done))
        running.close()  # type: ignore[attr-defined]
        fresh = copy.deepcopy(method)
        rest = run(fresh, store=Checkpoint(tmp_path / str(done), tmp_path / "cache"))
        both = first + rest[1:]
        assert [summary(fresh, p) for p in both] == uninterrupted, done


def test_every_event_is_accounted_for(method: Method) -> None:
    """LocalOnly alone sends nothing."""
    silent = all(isinstance(entry.event, Nothing) for entry in whole(method)[-1].ledger.entries)
    assert silent == (whole(method)[-1].ledger.epsilon(1e-5, method.accountant) == 0) == isinstance(method, LocalOnly)
    for entry in whole(method)[-1].ledger.entries:
        if isinstance(entry.event, Gaussian):
            assert 0 < entry.event.std_over_sensitivity < math.inf
        elif isinstance(entry.event, NonPrivate):
            assert entry.event.what
        else:
            assert isinstance(entry.event, Nothing) and entry.bytes == 0


@only(SUMMED)
@pytest.mark.parametrize("epsilon", [0.5, 50.0, None])
@pytest.mark.usefixtures("real_gaussians")
def test_noised_sums_of_all_rounds_keep_to_the_budget_and_use_it(experiment: Experiment, epsilon: float | None) -> None:
    method = overrides.override(experiment, {"method.epsilon": epsilon}).method
    ledger = whole(method)[-1].ledger
    spent = ledger.epsilon(method.delta, "exact")
    assert spent == pytest.approx(epsilon or math.inf, rel=1e-6) and spent <= (epsilon or math.inf) * (1 + 1e-8)
    expected = NonPrivate(method.what) if epsilon is None else method.upload_event(12, 0)
    assert [e.event for e in ledger.entries] == [expected] * 2 * method.participating_rounds
    for event in {expected} if isinstance(expected, Gaussian) else ():
        assert (event.unit, event.relation, event.trust) == ("example", "replace_one", "local")
        assert event.declared == ("labels",)


@only(SUMMED)
def test_clients_sample_from_noised_sums_what_the_server_samples(method: Method) -> None:
    """From releases alone, so that the run's epsilon covers samples of the client too."""
    last = whole(method)[-1]
    drawn = deployed(method, last).sample(LABELS, generator(1))
    assert torch.equal(drawn, method.deploy(last.sent).sample(LABELS, generator(1)))
    assert Client(1, method, records(1), keys=KEYS).personalized(last.sent, last.number) == {}


@pytest.mark.parametrize("private", [True, False])
def test_a_late_client_is_charged_what_its_upload_costs(experiment: Experiment, private: bool) -> None:
    """The event that `upload_event` tells is that of the upload, to rounding, at any number of records."""
    method = experiment.method
    if overrides.has_path(experiment, "method.epsilon"):
        budget: dict[str, Any] = {"method.epsilon": 10.0 if private else None}
        clip = {"method.clip": 2.0} if overrides.has_path(experiment, "method.clip") else {}
        method = overrides.override(experiment, budget | clip).method
    elif overrides.has_path(experiment, "method.averaging.privacy") and not isinstance(method, Scaffold):
        method = overrides.override(method, {"averaging.privacy": ClientPrivacy() if private else None})
    entries = whole(method)[-1].ledger.entries
    assert entries
    for entry in entries:
        message = method.upload_event(12, entry.round)
        assert covers(message, entry.event)  # else a client with a budget would not send it
        if isinstance(entry.event, Gaussian):
            assert isinstance(message, Gaussian)
            ratio = pytest.approx(entry.event.std_over_sensitivity, rel=1e-12)
            assert replace(message, std_over_sensitivity=1.0) == replace(entry.event, std_over_sensitivity=1.0)
            assert message.std_over_sensitivity == ratio
        else:
            assert message == entry.event


@only(SENDERS)
@pytest.mark.parametrize("drawn", ["on the grid", "in float32"])
def test_the_bytes_of_an_upload_rule_no_record_out(
    experiment: Experiment, drawn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of two neighbouring data sets a client has: with noise as it is, and with float32 noise, which is found
    wherever what leaves is signal plus noise."""
    method = experiment.method
    if isinstance(method, FedAvg):
        method = overrides.override(method, {"averaging.privacy": ClientPrivacy(epsilon=1.0)})
    event = method.upload_event(12, 0)
    assert isinstance(event, Gaussian)
    if drawn == "in float32":
        monkeypatch.setattr(
            grid, "add_noise_on_grid", lambda signal, z, *, std: (signal.float() + std * z.float()).double()
        )
    both = [records(0), replace(records(0), images=torch.cat([records(1).images[:1], records(0).images[1:]]))]
    server = method.init_server(None, generator(0))
    states = [method.init_client({}, data, None, Round(0, generator(1))) for data in both]

    def upload(which: bool, noise: NoiseStream) -> tree.Tensors:
        rnd = Round(0, generator(2), noise)
        return method.local_update(server, states[which], both[which], rnd).release.value

    found = float_attack.audit(float_attack.of_uploads(upload, 24), count=24, rng=generator(3))
    if drawn == "on the grid":
        assert found.named == found.misnamed == 0
        assert not found.flags(mu_of(event))
    elif not isinstance(method, DPSGD | Evolution | Marginals):  # noise in gradients that an optimiser takes; counts
        assert found.named > 0 and found.misnamed == 0


def mu_of(event: Gaussian) -> float:
    """mu of one upload, without amplification."""
    return math.sqrt(event.steps) / event.std_over_sensitivity


def test_what_a_method_sends_is_all_that_it_accepts(method: Method) -> None:
    server = method.init_server(None, generator(0))
    assert all(p.rejected == {} for p in whole(method))
    for upload, _ in pool(method).run([0, 1], server, 0):
        value = upload.release.value
        form = method.upload_spec(server, upload.examples, 0)
        assert form.mismatch(value) is None
        spoiled = [{**value, "more": torch.zeros(1)}]
        for k, v in value.items():
            longer = torch.cat([v, v]) if v.dim() else v[None]
            spoiled += [{**value, k: longer}, {**value, k: v[None]}, {**value, k: v.half()}]
            spoiled += [{name: leaf for name, leaf in value.items() if name != k}]
            spoiled += [{**value, k: v - 100} for _ in range(not v.is_floating_point())]  # labels, counts
        for other in spoiled:
            assert form.mismatch(other), list(other)


@only(["dpsgd", *NOISED])
def test_trials_of_different_epsilon_do_not_share_noise(experiment: Experiment) -> None:
    def sent_at(epsilon: float | None) -> torch.Tensor:
        """What is sent for blank images."""
        trial = overrides.override(experiment, {"method.epsilon": epsilon})
        if overrides.has_path(trial, "method.inversion"):
            trial = overrides.override(trial, {"method.inversion.steps": 0})  # all vectors at the start
        keys = replace(KEYS, digest=trial.digest)
        server = trial.method.init_server(None, generator(0))
        sent = [upload.release.value for upload, _ in pool(trial.method, keys, blank=True).run([0, 1], server, 0)]
        return torch.cat([v.flatten() for value in sent for v in value.values() if v.is_floating_point()])

    def noise(epsilon: float) -> torch.Tensor:
        """Noise alone, at whatever scale: but for features and votes, of which a blank image has some, it is all."""
        return sent_at(epsilon) - (sent_at(None) if isinstance(experiment.method, DPMERF | Evolution) else 0.0)

    def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.corrcoef(torch.stack([a, b]))[0, 1])

    first, second = noise(10.0), noise(50.0)
    assert correlation(first, noise(10.0)) == pytest.approx(1)
    assert abs(correlation(first, second)) < 5 / math.sqrt(len(first))
    client_0, client_1 = first.chunk(2)
    assert abs(correlation(client_0, client_1)) < 5 / math.sqrt(len(client_0))


@pytest.mark.parametrize(
    ("sampler", "schedule"), slow_but([("ddim", "cosine")], [("ancestral", "linear"), ("ddim", "cosine")])
)
def test_deploy_gives_images(experiment: Experiment, sampler: str, schedule: str) -> None:
    chains = [p for p in ("method.sampling", "method.client_sampling") if overrides.has_path(experiment, p)]
    changes: dict[str, Any] = {p: Sampling(sampler=sampler, steps=7) for p in chains}
    if overrides.has_path(experiment, "method.model.schedule"):
        changes["method.model.schedule"] = schedule
    method = overrides.override(experiment, changes).method
    model = deployed(method, whole(method)[-1])
    images = model.sample(LABELS, generator(0))
    assert images.shape == (10, *shape(method)) and images.dtype == torch.float32
    assert bool(images.isfinite().all()) and float(images.abs().max()) <= 1 + 1e-4
    assert torch.equal(images, model.sample(LABELS, generator(0)))
    assert not torch.equal(images, model.sample(LABELS, generator(1)))


@only([name for name in METHODS if name != "marginals"])
def test_the_denoisers_can_be_asked(method: Method) -> None:
    model = deployed(method, whole(method)[-1])
    assert set(model.targets) <= {"global", "client", "pool"} and model.targets
    for target in model.targets.values():
        assert target.alphas_bar.shape == (target.timesteps + 1,) and float(target.alphas_bar[0]) == 1
        x = torch.randn(10, 1, 8, 8, generator=generator(0))
        x = x if target.encode is None else target.encode(x)
        for z in target.denoisers:
            out = z(x, torch.arange(1, 11), LABELS)
            assert out.shape == x.shape and bool(out.isfinite().all()) and not out.requires_grad


def test_the_servers_model_alone_has_nothing_of_a_client(method: Method) -> None:
    last = whole(method)[-1]
    try:
        model = method.deploy(last.sent)
    except ValueError as e:  # it has none, and says so
        assert "\n" not in str(e) and isinstance(method, LocalOnly | SharedRep)
        return
    images = model.sample(LABELS, generator(0))
    assert images.shape == (10, *shape(method))
    assert bool(images.isfinite().all()) and float(images.abs().max()) <= 1 + 1e-4
    assert model.about and "client" not in model.targets and model.uploads is None


def test_a_personalised_state_is_all_that_deploy_needs(method: Method) -> None:
    """Twice the same samples from it, also where it was kept without the client's scratch."""
    clients = [Client(i, method, records(i), keys=KEYS) for i in range(2)]
    last, client = list(run_rounds(method, LocalExecutor(clients), keys=KEYS))[-1], clients[1]
    state = client.personalized(last.sent, last.number)
    kept = method.deploy(last.sent, tree.without(SCRATCH, state))
    images = client.deploy(last.sent, last.number).sample(LABELS, generator(0))
    assert torch.equal(kept.sample(LABELS, generator(0)), images)


@only(FIRST_STATES)
def test_init_key_has_all_that_a_first_state_depends_on(experiment: Experiment) -> None:
    """Changing any field either changes `init_key` or leaves the first state as it is, bit for bit."""
    method, data = experiment.method, records(0)
    public, same = records(9), []
    digest = tree.digest(method.init_client({}, data, public, Round(0, generator(1))))
    for path in overrides.flatten_settings(method):
        name = path.rpartition(".")[2]
        if name == "shape" or path in ("model.path", "model.digest"):  # the data's; the model as it is, see FedDistr
            continue
        both = ALSO.get(path) or ALSO.get(name, {})
        if path in REFUSED:
            with pytest.raises(ValueError, match=r"^--inversion: |^inversion\.epochs must be none"):
                overrides.override(method, {path: OTHER[name]})
            continue
        other = overrides.override(method, {**both, path: OTHER[path if path in OTHER else name]})
        assert other != method, path
        if other.init_key == method.init_key:
            assert tree.digest(other.init_client({}, data, public, Round(0, generator(1)))) == digest, path
            same.append(path)
    assert {"sampling.steps", "steps"} & set(same)  # sampling comes later


@only(FIRST_STATES)
def test_a_shared_first_state_is_a_fresh_one(method: Method, tmp_path: Path) -> None:
    expected = summary(method, whole(method)[-1])
    for trial in ("a", "b"):  # the second takes what the first one left
        assert summary(method, run(method, store=Checkpoint(tmp_path / trial, tmp_path / "cache"))[-1]) == expected
