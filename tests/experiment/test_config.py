"""The dataclass tree of a trial, and `settings`: digest, JSON, and what the command line may say."""

import dataclasses
import functools
import json
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from commands import changes

from raydiff.data.datasets import Data, load
from raydiff.data.partition import ByClass, Dirichlet, Entangled, Iid, MajorityMinority, UnseenClients
from raydiff.data.tables.cells import Csv
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.experiment import config, overrides
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import convert, flat, has_path, override, to_dict
from raydiff.methods._averaging import Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.scaffold import Scaffold
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import UNet
from raydiff.models.schedules import CosineBetas
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.feddistr.method import FedDistr
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.filters import Budget
from raydiff.settings import alternatives


def from_dict(tree: dict[str, Any]) -> Any:
    """The experiment of a config.json."""
    return overrides.from_dict(tree, Experiment)


SPECIAL: dict[str, Any] = {
    "method": FedAvg(),
    "method.model.network": UNet(widths=(8, 8)),
    "method.model.schedule": CosineBetas(),
    "method.model.shape": (3, 8, 8),
    "method.model.labels": (12, 2),
    "method.t0": 20,
    "data.labels": ("digit",),
    "data.bins": 4,
    "data.exclude": ("id",),
    "data.types": ("zip=text",),
    "data.classes": ("no", "yes"),
    "data.csv.delimiter": ";",
    "data.csv.encoding": "latin-1",
    "data.csv.decimal": ",",
    "data.csv.missing": ("-",),
    "data.superclasses": "pairs",
    "partition": Iid(),
    "unseen": UnseenClients(),
    "evaluation": None,
    "evaluation.per_class": 7,
    "evaluation.downstream": ("mlp",),
    "evaluation.attacks": ("loss", "pia"),
    "evaluation.metrics": ("accuracy",),
    "runtime.budget": Budget(epsilon=3),
    "runtime.noise_secret": "00112233445566778899aabbccddeeff",
    "audit": RowAudit(),
}
"""Other values of fields where `other` finds none that fits."""
FIRST: dict[str, dict[str, Any]] = {
    "method.local.momentum": {"method.local.optimizer": "sgd"},
    "method.server.momentum": {"method.server.optimizer": "sgd"},
}
"""What must be so before these fields may have it."""


def fields(obj: Any, prefix: str = "") -> Iterator[str]:
    """The paths of all fields, those that hold one of several dataclasses included."""
    for f in dataclasses.fields(obj):
        value = getattr(obj, f.name)
        nested = dataclasses.is_dataclass(value)
        if not nested or prefix + f.name in SPECIAL:
            yield prefix + f.name
        if nested:
            yield from fields(value, f"{prefix}{f.name}.")


EXPERIMENTS: dict[str, Callable[[Experiment], Experiment]] = {
    "tiny": lambda e: e,
    "fine-tuned": lambda e: replace(e, method=FedAvg(finetune=Training(steps=3)), evaluation=None),
    "unet": lambda e: replace(e, method=LocalOnly(model=DDPM(network=UNet(widths=(8, 16)), labels=(3, 2)))),
    "secret": lambda e: replace(e, runtime=Runtime(workers=2, noise_secret="ab" * 16)),
    "own data": lambda e: replace(e, data=Data(name="/birds", colour="grey", labels=("a", "b"), public_from="hub:x/y")),
    "own table": lambda e: replace(
        e, data=Data(name="/t.csv", csv=Csv(decimal=",", missing=("-",)), types=("a=text",))
    ),
    "entangled": lambda e: replace(e, partition=Entangled(xi=0.057), data=Data(superclasses="pairs"), clients=5),
    "scaffold": lambda e: replace(e, method=Scaffold()),
    "audited": lambda e: replace(e, audit=RowAudit(remove=0.03)),
    "budgeted": lambda e: replace(e, runtime=Runtime(budget=Budget(epsilon=3, unit="client"))),
    "by class": lambda e: replace(e, partition=ByClass(), method=PFDM(epsilon=None, t0=300)),
}


# --- digest and JSON ---


def other(tree: Any, path: str) -> Any:
    """Another value that the field at this path takes."""
    if path in SPECIAL:
        return SPECIAL[path]
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, tree)
    value, declared = getattr(owner, name), typing.get_type_hints(type(owner))[name]
    for kind in alternatives(declared):
        if typing.get_origin(kind) is typing.Literal:
            return next(v for v in typing.get_args(kind) if v != value)
        if kind in (bool, int, float):
            return {bool: not value, int: (value or 0) + 1, float: (value or 0.4) / 2}[kind]
    return {"sampler": "ddim", "features": "inception"}.get(name, "/elsewhere")


LOCATIONS = {"runtime", "data.root", "data.name", "data.public_from", "evaluation.weights", "method.model.path"}
"""All fields that may declare themselves a location."""


def location(tree: Any, path: str) -> str | None:
    """What the field at this path, or one above it, declares of its location."""
    name, _, below = path.partition(".")
    declared = next(f.metadata.get("location") for f in dataclasses.fields(tree) if f.name == name)
    return declared or (location(getattr(tree, name), below) if below else None)


@pytest.mark.parametrize(
    ("changes", "part"), [({}, ""), ({"method": FedDistr(model=LatentModel(path="/a/model"))}, "method.model.")]
)
def test_every_field_is_in_the_digest_or_declares_a_location(tiny: Experiment, changes: Any, part: str) -> None:
    tiny = replace(tiny, **changes)
    for path in (path for path in fields(tiny) if path.startswith(part)):
        start = override(tiny, FIRST.get(path, {}))
        changed, declared = override(start, {path: other(start, path)}), location(start, path)
        assert changed != start and (changed.digest == start.digest) == (declared == "value"), path
        assert declared is None or {path, path.partition(".")[0]} & LOCATIONS, path
        if declared == "folder":
            moved = override(changed, {path: "/another" + other(start, path)})
            assert moved != changed and moved.digest == changed.digest, path


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_comes_back_from_json(tiny: Experiment, name: str) -> None:
    experiment = EXPERIMENTS[name](tiny)
    back = from_dict(json.loads(json.dumps(to_dict(experiment))))
    assert back == experiment and back.digest == experiment.digest


def test_json_of_another_version_is_refused_by_name(tiny: Experiment) -> None:
    tree = to_dict(tiny)
    tree["method"]["epsilonn"] = 3
    with pytest.raises(ValueError, match=r"^PFDM has no field 'epsilonn'; did you mean epsilon\?$"):
        from_dict(tree)
    tree = to_dict(tiny)
    tree["partition"] = {"kind": "Quantity"}
    with pytest.raises(ValueError, match=r"^partition: must be one of iid, dirichlet, .*got 'Quantity'"):
        from_dict(tree)
    with pytest.raises(ValueError, match=r"^must be one of experiment, got 'None'$"):
        from_dict({})


def test_what_is_printed_names_every_field_but_shows_no_secret(tiny: Experiment) -> None:
    shown = flat(replace(tiny, runtime=Runtime(noise_secret="ab" * 16)))
    assert set(shown) == {*fields(tiny)} - {"evaluation"}  # a field of one dataclass or none has no name to show
    kinds = [shown[path] for path in ("method", "method.model.network", "partition")]
    assert kinds == ["PFDM", "MLP", "MajorityMinority"]
    assert shown["runtime.noise_secret"] == "given" and flat(tiny)["runtime.noise_secret"] == "random"
    assert "abab" not in str(shown)


def test_resolve_fills_in_what_the_data_tell() -> None:
    dataset = load(Data())
    resolved = config.resolve(Experiment(method=LocalOnly(model=DDPM(shape=(3, 32, 32), labels=()))), dataset)
    assert (resolved.method.model.shape, resolved.method.model.labels) == ((1, 8, 8), (10,))
    assert resolved.data_digest == ""


# --- overrides ---


TYPED: list[tuple[str, Any, Any]] = [("method.epsilon", "1e2", 100.0), ("method.t0", "None", None), ("seed", "-3", -3)]
TYPED += [("method.model.labels", "10 2", (10, 2)), ("method.model.shape", ["3", "8", "8"], (3, 8, 8))]
TYPED += [("method.model.schedule", "cosine", CosineBetas), ("evaluation.attacks", "pia sima", ("pia", "sima"))]
TYPED += [
    ("evaluation.ceiling", "True", True),
    ("evaluation", "none", None),
    ("data.root", "/some/where", "/some/where"),
]
TYPED += [("partition", "by_class", ByClass), ("partition", "majority-minority", MajorityMinority)]
TYPED += [("method.model.network", "UNet", UNet)]


@pytest.mark.parametrize(("path", "text", "value"), TYPED)
def test_values_are_typed_by_their_field(tiny: Experiment, path: str, text: Any, value: Any) -> None:
    converted = convert(tiny, path, text)
    assert converted == value and type(converted) is type(value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_field_can_be_said_as_it_is_printed(tiny: Experiment, name: str) -> None:
    experiment = EXPERIMENTS[name](tiny)
    for path, value in flat(experiment).items():
        if path == "runtime.noise_secret" or value == "":
            continue
        text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert override(experiment, {path: convert(experiment, path, text)}) == experiment, path


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("method.epsilonn", "5", r"unknown field --method.epsilonn; did you mean method.epsilon\?$"),
        ("method.epsilon.x", "5", r"unknown field --method.epsilon.x; did you mean method.epsilon\?$"),
        ("method.epsilon", "much", "--method.epsilon must be a number or none, got 'much'$"),
        ("method.model.schedule", "linaer", "--method.model.schedule must be one of linear, cosine, .*did you mean"),
        ("clients", "2 3", "--clients must be an integer, got '2 3'$"),
        ("evaluation.ceiling", "maybe", "--evaluation.ceiling must be true or false, got 'maybe'$"),
        ("method", "fedavgg", "--method must be one of pfdm, localonly, fedavg, .*did you mean"),
        ("partition", "none", "--partition must be one of iid, dirichlet, majority-minority, "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tiny: Experiment, path: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        convert(tiny, path, text)


OUT_OF_RANGE = [("clients", 0), ("participants", 3), ("min_clients", 0), ("min_clients", 3)]
OUT_OF_RANGE += [("method.clip", -1.0), ("method.local.steps", -1), ("method.model.network.width", 0)]
OUT_OF_RANGE += [("numerics.threads", 0), ("numerics.server_workers", 0), ("runtime.workers", 0)]
OUT_OF_RANGE += [("runtime.gpu_server", 1.5), ("runtime.gpu_per_worker", -1.0), ("runtime.revive_s", 0.0)]
OUT_OF_RANGE += [("runtime.client_timeout_s", 4.0), ("runtime.client_timeout_s", math.inf), ("runtime.failures", -1)]
OUT_OF_RANGE += [("evaluation.clients", 0), ("evaluation.members", 1), ("data.test", -1)]


@pytest.mark.parametrize(("path", "value"), [*OUT_OF_RANGE, ("runtime.noise_secret", "ab" * 15)])
def test_values_out_of_range_are_refused_in_one_line(tiny: Experiment, path: str, value: Any) -> None:
    """It says where, the field, and what was given, but for a secret."""
    with pytest.raises(ValueError) as refusal:
        override(tiny, {path: value})
    says, (parent, _, name) = str(refusal.value), path.rpartition(".")
    assert "\n" not in says and name in says
    assert says.startswith((f"{path} must be ", f"--{parent}: "))
    assert (str(value) in says) == (name != "noise_secret")


def test_a_field_that_is_not_there_has_its_default(tiny: Experiment) -> None:
    tree = to_dict(tiny)
    del tree["data"]["fitted_on"], tree["evaluation"]["split"]
    assert from_dict(tree) == replace(tiny, evaluation=replace(tiny.evaluation, split="test"))


def test_a_sum_needs_as_many_as_share_its_noise(tiny: Experiment) -> None:
    averaging = Averaging(weights="uniform", privacy=ClientPrivacy(trust="aggregate", shares=2))
    summed = {"method": FedAvg(model=tiny.method.model, averaging=averaging)}
    assert override(tiny, {**summed, "min_clients": 2}).min_clients == 2
    with pytest.raises(ValueError, match=r"^min_clients must be at least .*privacy\.shares = 2, got 1$"):
        override(tiny, summed)


def test_overrides_are_checked_together(tiny: Experiment) -> None:
    """t0 = 3 breaks the old budget, and a large budget alone would be for naught."""
    with pytest.raises(ValueError, match="must be at least"):
        override(tiny, {"method.t0": 3})
    both = override(tiny, {"method.t0": 3, "method.epsilon": 1e6})
    assert (both.method.t0, both.method.epsilon, both.method.depth) == (3, 1e6, 3)


def test_override_changes_nothing_else(tiny: Experiment) -> None:
    before, after = flat(tiny), flat(override(tiny, {"method.local.steps": 9, "seed": 4}))
    assert {path for path in before if before[path] != after[path]} == {"method.local.steps", "seed"}
    assert flat(tiny) == before


def test_a_switch_keeps_the_fields_in_common(tiny: Experiment) -> None:
    alone = override(tiny, {"method": LocalOnly}).method
    assert alone == LocalOnly(model=tiny.method.model, local=tiny.method.local, clip=6.4)
    assert override(tiny, {"method": PFDM}).method is tiny.method
    few = override(tiny, {"partition": Dirichlet(alpha=0.3)})
    assert override(few, {"partition": MajorityMinority}).partition == MajorityMinority()
    unevaluated = override(tiny, {"evaluation": None})
    assert override(unevaluated, {"evaluation": Evaluation}).evaluation == Evaluation()


@pytest.mark.parametrize("switch_first", [True, False])
def test_fields_below_a_switch_may_come_in_any_order(tiny: Experiment, switch_first: bool) -> None:
    words = [["--method", "fedavg"], ["--method.rounds=3"], ["--method.model.network", "unet"]]
    words.append(["--method.model.network.widths", "8", "16"])
    argv = [w for word in (words if switch_first else words[::-1]) for w in word]
    experiment = override(tiny, changes(tiny, argv))
    network = UNet(widths=(8, 16))
    expected = FedAvg(model=replace(tiny.method.model, network=network), rounds=3, local=tiny.method.local)
    assert experiment == replace(tiny, method=expected)


def test_a_method_that_refuses_a_default_has_its_own(tiny: Experiment) -> None:
    """SCAFFOLD needs SGD. What was set stays: the tiny experiment's 8 steps in batches of 8, a UNet."""
    argv = ["--method", "scaffold", "--method.model.network", "unet", "--method.local.learning-rate", "0.5"]
    switched = override(tiny, changes(tiny, argv)).method
    training = Training(steps=8, batch=8, optimizer="sgd", decay="constant", learning_rate=0.5)
    assert switched == Scaffold(model=replace(tiny.method.model, network=UNet()), local=training)
    taken = override(replace(tiny, method=switched), {"method": FedAvg}).method
    assert taken == FedAvg(model=switched.model, local=training)


def test_what_a_method_refuses_is_not_dropped(tiny: Experiment) -> None:
    private = FedAvg(averaging=Averaging(privacy=ClientPrivacy(clip=2.0)))
    with pytest.raises(ValueError, match=r"^averaging\.privacy must be none: SCAFFOLD's control"):
        override(replace(tiny, method=private), {"method": Scaffold})


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["--method.epsilon", "5", "--seed=3"], {"method.epsilon": 5.0, "seed": 3}),
        (["--evaluation.ceiling"], {"evaluation.ceiling": True}),
        (["--method.server-rounds", "2"], {"method.server_rounds": 2}),
        (["--seed", "1", "--seed", "-2"], {"seed": -2}),
        (["--data.root=/a=b"], {"data.root": "/a=b"}),
    ],
)
def test_arguments(tiny: Experiment, argv: list[str], values: dict[str, Any]) -> None:
    assert changes(tiny, argv) == values


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("5", "unexpected argument '5'"),
        ("--method fedavg --method.epsilon 5", "unknown field --method.epsilon"),
        ("--evaluation none --evaluation.every 1", "unknown field --evaluation.every"),
        ("--clients", "--clients must be an integer, got 'true'"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(tiny: Experiment, argv: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        changes(tiny, argv.split())


def test_paths(tiny: Experiment) -> None:
    assert all(has_path(tiny, path) for path in fields(tiny))
    for path in ("method.rounds", "method.epsilon.x", "x", "", "method."):
        assert not has_path(tiny, path), path
