"""Presets build, and their public numbers are what they say."""

from collections import Counter
from dataclasses import replace

import pytest

from raydiff.data import datasets
from raydiff.data.partition import Pooled
from raydiff.experiment import overrides, presets as names, trial
from raydiff.experiment.study import Arm, trials as trials_of
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.evolution import Evolution
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import UNet
from raydiff.papers.feddistr.method import FedDistr
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy import accountants


def public_images(data):
    """Of the public split; a cap on the training records moves no other split, and saves reading them."""
    return datasets.load(replace(data, train=100)).splits["public"].images


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
    assert trial.resolve(names.PRESETS["digits"]().experiment).method.model.shape == (1, 8, 8)


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
    base = overrides.flat(study.experiment)
    for arm in (Arm(), *study.beside):
        experiment = arm.apply(study.experiment)
        other = overrides.flat(experiment)
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
    return [trial.resolve(e).method for e in trials_of(study.experiment, {}, study.beside)]


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
    trials = [trial.resolve(e) for e in trials_of(study.experiment, {**study.grid, "seed": (0,)}, study.beside)]
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
