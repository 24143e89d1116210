"""The audit of an experiment's tables: whose rows, at which step, and what is left out of training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from reference.pdp_reference import deltas

from raydiff.data.datasets import Data
from raydiff.data.partition import Iid
from raydiff.data.records import Records, images_of
from raydiff.evaluation.evaluation_settings import Evaluation, RowAudit
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.trial import open_trial
from raydiff.formats.metric_records import columns
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.training import Training
from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.client_audit import bound_records, measure_bounds, select_records
from raydiff.papers.discrete.kernel import Kernel
from raydiff.seeding import generator

MODEL = DiscreteDiffusion(hidden=16, layers=2, steps=5, counts=(3, 3, 3))
RELEASE = ReleasedRows(kernel=Kernel(alpha=MODEL.schedule.alpha(5).tolist(), categories=3))


def skewed(count: int, seed: int) -> Records:
    """Rows of three columns, the first value more often than the others."""
    codes = torch.randint(5, (count, 3), generator=generator(seed)).sub(2).clamp_min(0)
    return Records(images_of(codes), torch.zeros(count, 1).long(), torch.arange(count))


def told(records: Records, release: ReleasedRows = RELEASE) -> list[float]:
    """The bounds by Algorithm 1 as it is printed, record by record."""
    return [float(d) for d in deltas(records.images.flatten(1).long().numpy(), release)]


def left_by_hand(records: Records, count: int, size: int, release: ReleasedRows = RELEASE) -> list[int]:
    """Positions that are left after `count` removals, `size` at a time: each batch audits the rest from the start."""
    rest = list(range(len(records)))
    while count:
        part = records.select(torch.tensor(rest))
        bounds = np.empty(len(rest))
        for label in part.labels.unique():
            mine = torch.nonzero(part.labels[:, 0] == label)[:, 0]
            bounds[mine.numpy()] = told(part.select(mine), release)
        out = set(np.argsort(-bounds, kind="stable")[: min(size, count)].tolist())
        rest, count = [r for i, r in enumerate(rest) if i not in out], count - len(out)
    return rest


@pytest.fixture
def own() -> Records:
    return skewed(40, 0)


def test_bounds_are_those_of_the_plain_algorithm_at_the_step_that_is_released(own: Records) -> None:
    assert bound_records(RowAudit(), own, MODEL) == pytest.approx(told(own), rel=1e-9)
    later = replace(MODEL, release=2)
    assert bound_records(RowAudit(), own, later) == pytest.approx(told(own, replace(RELEASE, step=2)), rel=1e-9)
    assert bound_records(RowAudit(samples=3, epsilon=2.0), own, MODEL) == pytest.approx(
        told(own, replace(RELEASE, samples=3, epsilon=2.0)), rel=1e-9
    )


def test_a_conditional_model_is_audited_within_each_label() -> None:
    records = skewed(60, 4)
    labels = torch.arange(60).remainder(3)[:, None]
    of_three = Records(records.images, labels, records.numbers)
    result = bound_records(RowAudit(), of_three, replace(MODEL, labels=(3,)))
    for label in range(3):
        mine = torch.nonzero(labels[:, 0] == label)[:, 0]
        assert result[mine.numpy()] == pytest.approx(told(records.select(mine)), rel=1e-9)
    assert bound_records(RowAudit(), of_three, MODEL) == pytest.approx(told(records), rel=1e-9)


@pytest.mark.parametrize(("batch", "size"), [(0.01, 1), (0.1, 4), (1.0, 40)])
def test_the_most_exposed_are_left_out_and_the_rest_audited_again(batch: float, size: int) -> None:
    """10 of 40 records: one at a time (at least), in batches of which the last is cut short, and in one pass."""
    records = skewed(40, 109)
    ways = {s: left_by_hand(records, 10, s) for s in (1, 4, 40)}
    assert select_records(RowAudit(remove=0.25, batch=batch), records, MODEL).tolist() == ways[size]
    assert select_records(RowAudit(batch=batch), records, MODEL).tolist() == list(range(40))
    assert ways[1] != ways[4] != ways[40] != ways[1]


def test_one_pass_leaves_a_record_alone_with_its_value_and_removal_by_batches_does_not() -> None:
    """Three records have a 2 in the second column, and two of them are removed: not by batches of one."""
    codes = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 2, 0], [0, 2, 0], [1, 2, 0]])
    table = Records(images_of(codes), torch.zeros(8, 1).long(), torch.arange(8))
    assert bound_records(RowAudit(), table, MODEL).max() < np.inf
    largest = {}
    for batch in (0.125, 1.0):
        kept = select_records(RowAudit(remove=0.25, batch=batch), table, MODEL)
        largest[batch] = bound_records(RowAudit(), table.select(kept), MODEL).max()
    assert largest[0.125] < np.inf == largest[1.0]


def test_tables_are_one_only_where_the_model_is_of_all(own: Records) -> None:
    other = skewed(60, 1)
    apart = columns(measure_bounds(RowAudit(), [own, other], MODEL, together=False))
    assert apart["pdp/own/largest"] == pytest.approx(max(told(own) + told(other)))
    assert apart["pdp/own/mean"] == pytest.approx(np.mean(told(own) + told(other)))
    assert apart["pdp/own/records"] == 100
    both = Records(*(torch.cat([getattr(r, k) for r in (own, other)]) for k in ("images", "labels", "numbers")))
    one = columns(measure_bounds(RowAudit(), [own, other], MODEL, together=True))
    assert one["pdp/union/largest"] == pytest.approx(max(told(both)))
    assert one["pdp/union/vacuous_share"] == np.mean(np.array(told(both)) >= 1)


BAD = [
    ("remove", 1.0),
    ("remove", -0.1),
    ("epsilon", 0.0),
    ("samples", 0),
    ("batch", 0.0),
    ("batch", 1.5),
    ("condition", "both"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_what_an_audit_cannot_be(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        RowAudit(**{field: value})


# --- trials ---


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    path = tmp_path_factory.mktemp("tables") / "three.csv"
    codes = skewed(300, 2).images.flatten(1).long()
    frame = pd.DataFrame(codes.numpy(), columns=["a", "b", "c"]).assign(label=np.arange(300) % 2)
    frame.to_csv(path, index=False)
    return Experiment(
        method=LocalOnly(model=replace(MODEL, counts=(2,)), local=Training(steps=2, batch=8)),
        data=Data(name=str(path), labels=("label",), public=0, validation=0, calibration=0, test=100, fitted_on="all"),
        clients=2,
        partition=Iid(),
        evaluation=Evaluation(attacks=None),
        audit=RowAudit(remove=0.1),
        runtime=Runtime(pool="local"),
    )


def final(experiment: Experiment, folder: Path) -> dict[str, Any]:
    opened = open_trial(experiment, folder)
    return list(trial.run_trial(opened, trial.local_executor(opened)))[-1]


def test_clients_train_on_what_their_own_audit_leaves(experiment: Experiment, tmp_path: Path) -> None:
    everything = replace(experiment, audit=RowAudit())
    opened = [open_trial(e, tmp_path / name) for name, e in (("all", everything), ("some", experiment))]
    model = opened[0].experiment.method.model
    for whole, part in zip(*(trial.make_clients(o, (0, 1)) for o in opened), strict=True):
        release = replace(RELEASE, kernel=Kernel(alpha=RELEASE.kernel.alpha, categories=model.k))
        left = left_by_hand(whole.data, 10, 1, release)
        assert (len(whole.data), len(part.data)) == (100, 90)
        assert part.data.numbers.tolist() == whole.data.numbers[left].tolist()


def test_a_trial_says_whose_rows_were_audited(experiment: Experiment, tmp_path: Path) -> None:
    alone = final(experiment, tmp_path)
    assert alone["pdp/own/records"] == 180
    assert not any(k.startswith("pdp/union") for k in alone)
    federated = replace(experiment, method=FedAvg(model=experiment.method.model, rounds=1, local=Training(steps=2)))
    together = final(federated, tmp_path)
    assert together["pdp/union/records"] == 180 and not any(k.startswith("pdp/own") for k in together)
    assert together["pdp/union/mean"] < alone["pdp/own/mean"]  # a record hides among more of them


def test_leaving_out_is_refused_where_a_guarantee_would_not_cover_it(experiment: Experiment) -> None:
    private = DPSGD(model=experiment.method.model, rounds=1, local=Training(steps=2, batch=8), epsilon=5.0)
    with pytest.raises(ValueError, match=r"audit.remove must be 0 where the method has epsilon, got 0\.1"):
        trial.resolve_on_data(replace(experiment, method=private))
    trial.resolve_on_data(replace(experiment, method=private, audit=RowAudit()))
    noisy = replace(private, epsilon=None, noise_multiplier=5.0)
    with pytest.raises(ValueError, match=r"audit.remove must be 0 where the method has noise_multiplier"):
        trial.resolve_on_data(replace(experiment, method=noisy))
    with pytest.raises(ValueError, match="'digits' is no table: audit must be none"):
        trial.resolve_on_data(overrides.override(Experiment(), {"audit": RowAudit()}))
