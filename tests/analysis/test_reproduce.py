"""Presets outside the package: the papers' tables, and benchmarks that others published."""

import functools
import math

import pytest

from analysis import referee_presets, reproduce
from analysis.claims import rows_of, where
from raydiff.cli.arguments import split_preset
from raydiff.experiment.study import trials as trials_of
from raydiff.methods.dpsgd import DPSGD

pytestmark = pytest.mark.slow
PAPERS = [f"{paper}_{scale}" for paper in ("pfdm", "spire", "feddistr", "pdp") for scale in ("cpu", "gpu")]


@functools.cache
def trials(name: str) -> list:
    study = getattr(reproduce, name)()
    return [*trials_of(study.experiment, study.grid, study.beside), *study.others({})]


@pytest.mark.parametrize("name", PAPERS)
def test_the_trials_differ_and_share_a_slot(name):
    planned = trials(name)
    assert len({e.digest for e in planned}) == len(planned) > 10
    assert len({e.runtime for e in planned}) == 1
    assert len({e.seed for e in planned} | {e.data.split_seed for e in planned}) >= 3  # intervals need three
    private = {e.method.epsilon for e in planned if isinstance(e.method, DPSGD) and name.startswith("pfdm")}
    assert private <= {10.0}
    if name.startswith(("pfdm", "spire")):
        assert {e.evaluation.features for e in planned} == {"inception" if name.endswith("gpu") else "cnn"}


def test_competitors_of_spires_table_are_all_run():
    claims = [row for row in rows_of("claims") if row["about"] == "SPIRE" and row["metric"]]
    methods = {where(row[side])["method"] for row in claims for side in ("ours", "others")}
    assert len(methods) == 4
    for name, data in (("spire_cpu", "digits"), ("spire_gpu", "mnist"), ("spire_gpu", "cifar10")):
        assert {type(e.method).__name__ for e in trials(name) if e.data.name == data} >= methods


def test_a_sweep_takes_a_preset_of_another_module_by_its_name():
    name, study, rest = split_preset(["analysis.reproduce:pdp_cpu", "--seed", "3"])
    assert (name, study, rest) == ("pdp_cpu", reproduce.pdp_cpu(), ["--seed", "3"])
    with pytest.raises(ValueError, match=r"analysis.reproduce has no pdp_cpx; did you mean pdp_cpu"):
        split_preset(["analysis.reproduce:pdp_cpx"])
    with pytest.raises(ValueError, match="must return a Study, got"):
        split_preset(["analysis.reproduce:Arm"])


@pytest.mark.parametrize("name", ["dpimagebench", "dpimagebench_dpsgd", "dpimagebench_gpu"])
def test_dpimagebench_has_the_benchmark_s_split_and_delta_and_nothing_public(name):
    """Its train_size, and its 1 / (N ln N)."""
    study = getattr(referee_presets, name)()
    for experiment in trials_of(study.experiment, study.grid, study.beside):
        data, method = experiment.data, experiment.method
        assert (data.public, data.validation, data.test, data.train) == (0, 5000, 10_000, None)
        first = getattr(method, "central", None) or method
        assert 0.9999 < first.delta * 55_000 * math.log(55_000) <= 1 and method.delta == first.delta
        assert experiment.clients == 1 and getattr(first, "center", "black") == "black"
