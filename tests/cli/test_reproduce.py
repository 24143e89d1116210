"""The papers' tables as studies."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import latents
import pytest

from raydiff.cli import arguments as command
from raydiff.cli import sweep
from raydiff.cli.options import parse_known
from raydiff.experiment.overrides import flat
from raydiff.experiment.study import trials as trials_of
from raydiff.methods.dpsgd import DPSGD
from raydiff.papers import presets as papers
from raydiff.papers.claims import rows_of, where


@functools.cache
def trials(paper: str, scale: str) -> list:
    study = papers.study(paper, scale)
    return [*trials_of(study.experiment, study.grid, study.beside), *study.others({})]


@pytest.mark.parametrize(("paper", "scale"), papers.STUDIES)
def test_the_trials_differ_and_share_a_slot(paper, scale):
    planned = trials(paper, scale)
    assert len({e.digest for e in planned}) == len(planned) > 10
    assert len({e.runtime for e in planned}) == 1
    assert len({e.seed for e in planned} | {e.data.split_seed for e in planned}) >= 3  # intervals need three


@pytest.mark.parametrize("paper", ["pfdm", "spire"])
def test_a_gpu_measures_the_papers_fid_and_kid(paper):
    assert {e.evaluation.features for e in trials(paper, "gpu")} == {"inception"}
    assert {e.evaluation.features for e in trials(paper, "cpu")} == {"cnn"}


def test_every_paper_has_both_scales():
    assert set(papers.STUDIES) == {(p, s) for p in papers.PAPERS for s in ("cpu", "gpu")}


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_smoke_has_each_kind_of_trial_once_and_a_hundredth_of_the_steps(paper):
    whole, small = trials(paper, "cpu"), trials(paper, "smoke")
    seeds = {(e.seed, e.data.split_seed) for e in small}
    assert len(seeds) == 1
    of_seed = [e for e in whole if (e.seed, e.data.split_seed) in seeds]
    assert len(small) == len({e.digest for e in small}) == len(of_seed)
    for one, other in zip(small, of_seed, strict=True):
        steps = {path: v for path, v in flat(one).items() if path.endswith("steps")}
        trained = [path for path in steps if path.removesuffix(".steps") + ".batch" in flat(other)]
        assert trained and all(steps[path] == max(1, flat(other)[path] // 100) for path in trained)
        assert all(v == flat(other)[path] for path, v in steps.items() if path not in trained)


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers.PAPERS)
def test_smoke_runs_to_its_report(paper, tmp_path, data_root):
    command = [sys.executable, "jobs/sweep.py", "reproduce", "--paper", paper, "--scale", "smoke"]
    model = ["--method.model.path", str(latents.write(tmp_path / "latent"))] if paper == "feddistr" else []
    command += ["--name", "smoke", "--runtime.storage", str(tmp_path), *model]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sweep = tmp_path / "sweeps" / "smoke"
    assert len(list(sweep.glob("trials/*/outcome.json"))) == len(trials(paper, "smoke"))
    assert "not tested" in (sweep / "report" / "report.html").read_text()  # the claims, none of them to be judged yet


def test_private_baselines_have_the_budget_of_the_method():
    for scale in papers.SCALES:
        planned = trials("pfdm", scale)
        assert {e.method.epsilon for e in planned if isinstance(e.method, DPSGD)} == {10.0}


def test_competitors_of_the_table_are_all_run():
    claims = [row for row in rows_of("claims") if row["about"] == "SPIRE" and row["metric"]]
    names = {"gpu": {row["data"] for row in claims if not row["data"].startswith("not ")}, "cpu": {"digits"}}
    methods = {where(row[side])["method"] for row in claims for side in ("ours", "others")}
    assert len(methods) == 4 and names["gpu"] == {"mnist", "cifar10"}
    for scale, of in names.items():
        for name in of:
            assert {type(e.method).__name__ for e in trials("spire", scale) if e.data.name == name} >= methods


def test_the_command_takes_a_paper_and_a_scale():
    name, study, rest = command.preset(["reproduce", "--paper", "pdp", "--scale", "gpu", "--seed", "3"])
    assert (name, rest) == ("reproduce-pdp-gpu", ["--seed", "3"])
    assert study == papers.pdp_gpu()
    assert command.preset(["reproduce", "--paper", "pdp"])[0] == "reproduce-pdp-cpu"
    for words, message in (
        ("", "--paper is missing"),
        ("--paper dp", "--paper must"),
        ("--paper pdp --scale x", "--scale"),
    ):
        with pytest.raises(ValueError, match=message):
            command.preset(["reproduce", *words.split()])


def test_overrides_reach_every_study(data_root):
    _, study, rest = command.preset(
        ["reproduce", "--paper", "pdp", "--scale", "smoke", "--seed=7", "--runtime.storage=/elsewhere"]
    )
    planned = sweep.planned("reproduce", study, *parse_known(sweep.SweepOptions, rest, None, study.experiment)).trials
    assert {e.seed for e in planned} == {7}
    assert {e.runtime.storage for e in planned} == {"/elsewhere"}
    assert {e.evaluation.attack for e in planned} == {False, True}  # removal, and the attack beside it
