"""The dataclass tree of a trial, and `settings`: digest, JSON, and what the command line may say."""

import dataclasses
import functools
import json
import math
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import changes

import raydiff as rd
from raydiff.cli import arguments
from raydiff.data import datasets
from raydiff.data.datasets import Data, load_dataset
from raydiff.data.partition import ByClass, Dirichlet, Entangled, Iid, MajorityMinority, Pooled, UnseenClients
from raydiff.data.tables.cells import Csv
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.experiment import config, overrides, presets as names, trial
from raydiff.experiment.client_records import client_shares
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.measurements import _label_distance
from raydiff.experiment.overrides import flatten_settings, has_path, override, parse_field, to_dict
from raydiff.experiment.presets import PRESETS
from raydiff.experiment.study import Arm, trials as trials_of, varying
from raydiff.experiment.trial import resolve_on_data
from raydiff.lookup import distinguishing_fields
from raydiff.methods._averaging import Averaging
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.evolution import Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import UNet
from raydiff.models.schedules import CosineBetas
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.feddistr.method import FedDistr
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy import accountants
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
    shown = flatten_settings(replace(tiny, runtime=Runtime(noise_secret="ab" * 16)))
    assert set(shown) == {*fields(tiny)} - {"evaluation"}  # a field of one dataclass or none has no name to show
    kinds = [shown[path] for path in ("method", "method.model.network", "partition")]
    assert kinds == ["PFDM", "MLP", "MajorityMinority"]
    assert shown["runtime.noise_secret"] == "given" and flatten_settings(tiny)["runtime.noise_secret"] == "random"
    assert "abab" not in str(shown)


def test_resolve_fills_in_what_the_data_tell() -> None:
    dataset = load_dataset(Data())
    resolved = config.resolve_shapes(Experiment(method=LocalOnly(model=DDPM(shape=(3, 32, 32), labels=()))), dataset)
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
    converted = parse_field(tiny, path, text)
    assert converted == value and type(converted) is type(value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_field_can_be_said_as_it_is_printed(tiny: Experiment, name: str) -> None:
    experiment = EXPERIMENTS[name](tiny)
    for path, value in flatten_settings(experiment).items():
        if path == "runtime.noise_secret" or value == "":
            continue
        text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert override(experiment, {path: parse_field(experiment, path, text)}) == experiment, path


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
        parse_field(tiny, path, text)


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
    before, after = flatten_settings(tiny), flatten_settings(override(tiny, {"method.local.steps": 9, "seed": 4}))
    assert {path for path in before if before[path] != after[path]} == {"method.local.steps", "seed"}
    assert flatten_settings(tiny) == before


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


# --- Experiment files: a preset with changes, axes, and errors that say where


WHOLE = """\
preset = "digits"
clients = 4

[data]
name = "digits"
public = 200
labels = []

[method]
epsilon = "none"
t0 = 3

[method.model.network]
kind = "unet"
widths = [32, 64]

[grid]
method.t0 = [1, 5]
seed = [0, 1]
"""


def at(tmp_path: Path, text: str = WHOLE) -> str:
    path = tmp_path / "my own.toml"
    path.write_text(text)
    return str(path)


def test_a_file_is_its_preset_with_what_it_says(tmp_path: Path) -> None:
    name, study, rest = arguments.split_preset([at(tmp_path), "--seed", "3"])
    expected = override(
        PRESETS["digits"]().experiment,
        {
            "clients": 4,
            "data.public": 200,
            "method.epsilon": None,
            "method.t0": 3,
            "method.model.network": UNet,
            "method.model.network.widths": (32, 64),
        },
    )
    assert name == "my-own" and rest == ["--seed", "3"]
    assert study.experiment == expected
    assert study.grid == {"method.t0": (1, 5), "seed": (0, 1)}
    assert study.beside == PRESETS["digits"]().beside
    assert rd.preset(at(tmp_path)) == study


def test_without_axes_those_of_the_preset_stay_that_the_file_leaves_open(tmp_path: Path) -> None:
    study = rd.preset(at(tmp_path, 'clients = 3\n[method]\nkind = "fedavg"\n'))
    assert isinstance(study.experiment.method, FedAvg)
    assert list(study.grid) == ["method.model.schedule"]  # It has neither epsilon nor, any more, clients.


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("clients = 4", "cliens = 4", r"unknown field --cliens; did you mean clients\?"),
        ("[32, 64]", '["a"]', "--method.model.network.widths must be some values, each an integer, got 'a'"),
        ('"unet"', '"unt"', r"--method\.model\.network must be one of mlp, unet, .*, got 'unt'; did you mean"),
        ("[1, 5]", '[1, "x"]', r"--method\.t0 must be an integer or none, got 'x'"),
        ('"digits"\nclients', '"digit"\nclients', r"--preset must be one of .*; did you mean digits\?"),
        ("clients = 4", "clients =", "Invalid value .at line 2"),
        ("clients = 4", "clients = 0", "clients must be at least 1, got 0"),
        ("[grid]", "[search]\nsamples = 0\n[grid]", "search.samples must be at least 1, got 0"),
        ("[grid]", "[search]\nsampels = 2\n[grid]", r"search.sampels is no field of Search; did you mean samples\?"),
        (
            "[grid]",
            '[search.space]\nseed = "normal:1,2"\n[grid]',
            "a sampled field looks like .*'seed=normal:1,2'",
        ),
        ("[grid]", '[runtime]\nnoise_secret = "aa"\n[grid]', "must not be where others can read it"),
    ],
)
def test_bad_files_are_refused_in_one_sentence_that_names_the_field(
    tmp_path: Path, was: str, now: str, says: str
) -> None:
    path = at(tmp_path, WHOLE.replace(was, now))
    with pytest.raises(ValueError, match=says) as error:
        rd.preset(path)
    assert str(error.value).startswith(path) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        rd.preset(str(tmp_path / "gone.toml"))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"bad\.toml: .*codec can't decode"):
        rd.preset(str(tmp_path / "bad.toml"))


# --- How the trials of a study are called


BASE = PRESETS["digits"]().experiment


def test_fields_that_follow_from_others_tell_nothing() -> None:
    settings = [{"a": 1, "b": "x", "c": 1}, {"a": 2, "b": "y", "c": 1}, {"a": 2, "b": "y", "c": 2}, {"a": 2, "b": "y"}]
    assert distinguishing_fields(settings, ["a", "b", "c"]) == ["a", "c"]
    assert distinguishing_fields(settings, ["c", "b", "a"]) == ["c", "b"]
    assert distinguishing_fields(settings[:1], ["a", "b", "c"]) == []


def test_a_trial_is_called_by_what_tells_it_from_others_of_its_method() -> None:
    alone = override(replace(BASE, method=LocalOnly()), {"seed": 1, "method.local.steps": 7})
    trials = [BASE, override(BASE, {"method.epsilon": 50.0}), alone, override(alone, {"seed": 2})]
    name = varying(trials)
    assert [name(e) for e in trials] == [
        "PFDM epsilon=10",
        "PFDM epsilon=50",
        "LocalOnly seed=1",
        "LocalOnly seed=2",
    ]


def test_what_will_be_drawn_is_named_though_all_have_one_value_yet() -> None:
    assert varying([BASE], ["method.clip"])(BASE) == f"PFDM clip={BASE.method.clip:g}"


# --- What is measured of a trial; the rest of it is seen in test_trial.py


def test_labels_that_differ_raise_the_ceiling_by_their_total_variation(tiny: Experiment) -> None:
    """Two clients with all classes, five often and five seldom, are together like the test split; one is not."""
    resolved = resolve_on_data(tiny)
    dataset = load_dataset(resolved.data)
    parts = client_shares(resolved, dataset)
    test = dataset.splits["test"].labels[:, 0].bincount(minlength=10).double()
    mixes = [dataset.splits["train"].labels[part, 0].bincount(minlength=10).double() for part in parts]
    apart = float((mixes[0] / mixes[0].sum() - test / test.sum()).abs().sum() / 2)
    assert _label_distance(resolved, resolved.evaluation, [0]) == pytest.approx(apart) and apart > 0.2
    each = [m / m.sum() for m in mixes]  # both have more records than are attacked
    together = float(((each[0] + each[1]) / 2 - test / test.sum()).abs().sum() / 2)
    assert (
        _label_distance(resolved, resolved.evaluation, [0, 1]) == pytest.approx(together, abs=1e-12)
        and together < apart / 1.5
    )
    assert _label_distance(resolved, resolved.evaluation, []) == 0


# --- Presets build, and their public numbers are what they say


def public_images(data):
    """Of the public split; a cap on the training records moves no other split, and saves reading them."""
    return datasets.load_dataset(replace(data, train=100)).splits["public"].images


CLIPPED = {name for name, study in names.PRESETS.items() if isinstance(study().experiment.method, PFDM)}
SEARCHED = ["spire-digits", "spire-mnist14"]  # The rates of their arms are not the paper's.
COMPARED = [name for name, study in names.PRESETS.items() if study().experiment.unseen]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLIPPED - {"cifar10", "colour-mnist"}))  # these have the paper's clip
def test_clip_is_the_median_norm_of_the_public_split(name, data_root):
    experiment = names.PRESETS[name]().experiment
    origin = {"grey": 0.0, "black": -1.0}[experiment.method.center]
    public = (public_images(experiment.data) - origin).flatten(1).norm(dim=1)
    assert experiment.method.clip == pytest.approx(float(public.median()), abs=0.05)


def test_coloured_pictures_are_clipped_around_black_to_the_papers_norm():
    """Its C = 10 is for pixels on [0, 1]; on [-1, 1] differences are twice as large."""
    large, small = (names.PRESETS[name]().experiment.method for name in ("colour-mnist", "collaboration-colour"))
    assert (large.clip, large.center, small.center) == (2 * 10, "black", "black")


def test_digits_needs_no_data_folder(monkeypatch):
    monkeypatch.delenv("RAYDIFF_DATA", raising=False)
    assert trial.resolve_on_data(names.PRESETS["digits"]().experiment).method.model.shape == (1, 8, 8)


@pytest.mark.parametrize("name", ["collaboration", "collaboration-colour", "frontier"])
def test_a_centred_clip_is_the_median_norm_around_the_public_mean(name, data_root):
    study = names.PRESETS[name]()
    public = public_images(study.experiment.data)
    clips = {arm.changes["method.clip"] for arm in study.beside if arm.changes.get("method.center") == "public"}
    assert len(clips) == 1
    assert clips.pop() == pytest.approx(float((public - public.mean(0)).flatten(1).norm(dim=1).median()), abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", names.PRESETS)
def test_the_trials_of_a_preset_differ(name):
    study = names.PRESETS[name]()
    trials = trials_of(study.experiment, study.grid, study.beside)
    assert len({e.digest for e in trials}) == len(trials) > 1


DIFFER = {("frontier", "PFDM", "DPSGD"): {"method.accountant": ("exact", "pld")}}  # each the tightest that it has


@pytest.mark.parametrize("name", names.PRESETS)
def test_arms_differ_in_nothing_but_what_they_declare(name):
    """And every denoiser of pictures has the one recipe, which a preset derived from another could lose."""
    study = names.PRESETS[name]()
    base = overrides.flatten_settings(study.experiment)
    for arm in (Arm(), *study.beside):
        experiment = arm.apply(study.experiment)
        other = overrides.flatten_settings(experiment)
        apart = {k: (base[k], other[k]) for k in base.keys() & other.keys() - {"method"} if base[k] != other[k]}
        declared = tuple(f"{path}." for path in arm.changes if path != "method")
        undeclared = {k: v for k, v in apart.items() if not f"{k}.".startswith(declared)}
        assert undeclared == DIFFER.get((name, base["method"], other["method"]), {})
        if isinstance(model := getattr(experiment.method, "model", None), DDPM):
            assert (model.prediction, model.levels) == ("edm", "lognormal")
            assert isinstance(model.network, UNet) or model.network.skip


@pytest.mark.parametrize("name", [name for name in COMPARED if name not in SEARCHED])
def test_the_arms_of_a_comparison_for_unseen_clients_differ_in_the_method_alone(name):
    study = names.PRESETS[name]()
    trials = trials_of(study.experiment, {}, study.beside)
    assert [type(e.method).__name__ for e in trials] == ["SPIRE", "FedAvg", "SharedRep", "PerFedAvg", "LocalOnly"]
    spire, *others = (e.method for e in trials)
    assert not spire.model.conditional and spire.joining.steps == 100
    for method in others:
        assert (method.model, method.local, method.sampling) == (spire.model, spire.local, spire.sampling)
        rounds = spire.rounds if hasattr(method, "averaging") else 1
        assert method.rounds == rounds and getattr(method, "averaging", spire.averaging) == spire.averaging
        assert getattr(method, "joining", spire.joining).steps == 100


@pytest.fixture(scope="module")
def frontier():
    """The resolved methods of its arms."""
    study = names.PRESETS["frontier"]()
    return [trial.resolve_on_data(e).method for e in trials_of(study.experiment, {}, study.beside)]


def test_the_frontier_has_every_kind_of_guarantee_and_differs_in_method_and_privacy_alone(frontier):
    methods = frontier
    trained = [m for m in methods if not isinstance(m, Sketch | DPMERF | Evolution)]
    assert len({(m.local, m.model, m.sampling) for m in trained}) == 1
    averaged = [m.averaging for m in methods if hasattr(m, "averaging")]
    assert {a.weights for a in averaged} == {"uniform"}
    privacy = [a.privacy and (a.privacy.trust, a.privacy.epsilon) for a in averaged]
    assert [p for p in privacy if p] == [("local", 10.0), ("central", 10.0)] and privacy[-1] is None
    assert [type(m).__name__ for m in methods[-2:]] == ["FedAvg", "LocalOnly"]


def test_all_that_states_an_epsilon_per_example_under_replace_one_stands_in_one_column(frontier):
    """At the same five epsilons, of which each arm is charged at least four fifths."""
    targets = {}
    for method in frontier:
        event = method.upload_event(423, 0)
        if getattr(event, "unit", None) == "example" and event.relation == "replace_one":
            assert event.trust == "local" and method.delta == 1e-5
            arm = f"{type(method).__name__}{' centred' if getattr(method, 'center', None) == 'public' else ''}"
            arm += " refined" if getattr(method, "refine", 0) else ""
            targets.setdefault(arm, []).append(method.epsilon)
            events = [method.upload_event(423, r) for r in range(method.rounds)]
            epsilon = accountants.epsilon_of(events, 1e-5, method.accountant)
            assert 0.8 * method.epsilon < epsilon <= method.epsilon * (1 + 1e-6), arm
    assert {arm: sorted(epsilons) for arm, epsilons in targets.items()} == {
        arm: [0.5, 1.0, 3.0, 10.0, 50.0]
        for arm in ("PFDM", "PFDM centred", "Sketch centred", "Sketch centred refined", "DPMERF", "Evolution", "DPSGD")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tabular-adult", "tabular-german"])
def test_every_arm_on_a_table_resolves_with_a_fifth_of_the_rows_as_members(name, data_root):
    study = names.PRESETS[name]()
    trials = [trial.resolve_on_data(e) for e in trials_of(study.experiment, {**study.grid, "seed": (0,)}, study.beside)]
    assert all(e.data.test == 4 * e.data.train and e.evaluation.attacks for e in trials)
    kinds = Counter((type(e.method).__name__, e.clients, type(e.method.model.schedule).__name__) for e in trials)
    of_local = {("LocalOnly", 1, "Linear"): 10, ("LocalOnly", 1, "Sigmoid"): 4, ("LocalOnly", 1, "Cosine"): 2}
    assert kinds == {**of_local, ("FedAvg", 4, "Linear"): 10}
    epochs = {round(e.method.local.steps * e.method.local.batch * e.clients / e.data.train) for e in trials}
    assert len({e.method.model.counts for e in trials}) == 1 and max(epochs) <= 100 and min(epochs) >= 99
    assert {e.method.model.steps for e in trials} == {20, 30}


def test_arms_keep_to_the_axes_that_were_asked_for():
    study = names.PRESETS["collaboration"]()
    base = overrides.override(study.experiment, {"method.clip": 5.0})
    trials = trials_of(base, {"method.epsilon": (20.0, None)}, study.beside)
    methods = [e.method for e in trials if isinstance(e.method, PFDM)]
    assert {m.epsilon for m in methods} == {20.0, None}
    depths = {m.center: m.depth for m in methods if m.epsilon}
    at = [(m.start, m.center, m.t0) for m in methods if m.epsilon is None]
    real = [("real", center, depths[center]) for center in ("grey", "public")]
    assert at == [("denoiser", "grey", None), ("denoiser", "grey", depths["grey"]), *real]


def test_feddistr_is_compared_on_the_same_clients_and_classifier():
    study = names.PRESETS["feddistr-cifar100"]()
    axes = {"seed": (0,), "partition.xi": (0.0, 0.385), "clients": (5, 10)}
    trials = trials_of(study.experiment, axes, study.beside)
    pooled = [e for e in trials if isinstance(e.partition, Pooled)]
    assert [(type(e.method).__name__, e.clients) for e in pooled] == [("LocalOnly", 1)] * 2
    control, central = (e.method for e in pooled)
    assert control == replace(central, public_only=True) and not central.public_only
    shared = {e.method.classifier if isinstance(e.method, FedDistr) else e.method.model for e in trials}
    assert shared == {study.experiment.method.classifier}
    cells = {(e.clients, e.partition.xi) for e in trials if e not in pooled}
    assert cells == {(clients, xi) for clients in (5, 10) for xi in (0.0, 0.385)}
