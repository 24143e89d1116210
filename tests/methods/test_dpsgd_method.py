"""Federated DP-SGD against FedAvg, its budget, and what it sends."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from commands import changes
from scipy.stats import kstest
from torch import Tensor
from toys import KEYS, records, run

from raydiff import tree
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Failed
from raydiff.methods import dpsgd
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.training import Training
from raydiff.privacy import accountants
from raydiff.privacy.private_gradient import StepBudget, noise_multiplier_for
from raydiff.privacy.release import Gaussian, Nothing
from raydiff.seeding import generator
from raydiff.tree import Params

BUDGET = StepBudget(epsilon=10.0, delta=1e-5)
UNPROTECTED: dict[str, Any] = {"epsilon": None, "max_grad_norm": 1e6}


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> DPSGD:
    return DPSGD(model=tiny.method.model, local=tiny.method.local, rounds=3)  # 8 steps of 8 records


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_without_noise_and_clip_it_is_fedavg(method: DPSGD, optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients with one record each: the one case in which both draw the same batches."""
    fixed = DDPM.draws(method.model, 1, generator(0))
    monkeypatch.setattr(DDPM, "draws", lambda self, count, rng: fixed)
    local = Training(steps=8, batch=1, learning_rate=1e-2, optimizer=optimizer)
    data = [records(0, 1), records(1, 1)]
    private = run(replace(method, local=local, **UNPROTECTED), data)[-1]
    plain = run(FedAvg(model=method.model, local=local, rounds=3), data)[-1]
    torch.testing.assert_close(private.server, plain.server, rtol=1e-4, atol=1e-5)
    assert private.metrics["train/loss"] == pytest.approx(plain.metrics["train/loss"], rel=1e-4)
    assert private.ledger.epsilon(1e-5, "rdp") == math.inf


def test_what_is_sent_is_noised_at_the_scale_that_the_event_says(method: DPSGD) -> None:
    """One step of SGD: the update is -rate (signal + sigma C z) / B, and the signal small."""
    sigma, norm, rate, batch = 300.0, 0.5, 1e-2, 8
    local = Training(steps=1, batch=batch, learning_rate=rate, optimizer="sgd", decay="constant")
    noisy = replace(method, rounds=1, local=local, epsilon=None, noise_multiplier=sigma, max_grad_norm=norm)
    (only,) = run(noisy, [records(0)])
    start = noisy.init_server(None, generator(KEYS.seed, "server", "init"))
    update = torch.cat([v.flatten() for v in tree.sub(only.server, start).values()]).double()
    unit = rate * sigma * norm / batch
    assert kstest(update / unit, "norm").pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert kstest(update / unit / wrong, "norm").pvalue < 1e-9
    (entry,) = only.ledger.entries
    assert entry.event == Gaussian(sigma, "example", "zero_out", "local", 8 / 12, 1, ("examples",))


def test_a_round_without_a_step_sends_nothing(method: DPSGD) -> None:
    few = replace(method, local=replace(method.local, steps=2), rounds=4)
    progress = run(few)
    steps = [0 if isinstance(e.event, Nothing) else e.event.steps for e in progress[-1].ledger.entries]  # type: ignore[union-attr]
    assert steps == [0, 0, 1, 1, 0, 0, 1, 1]
    assert tree.digest(progress[1].server) == tree.digest(progress[2].server)
    assert progress[-1].ledger.epsilon(1e-5, "pld") <= 10


def test_a_training_that_diverges_says_so(method: DPSGD) -> None:
    wild = replace(method, local=replace(method.local, learning_rate=1e30))
    with pytest.raises(Failed, match=r"^client 0, in round \d: the loss became"):
        run(wild, [records(0)])


def test_every_client_keeps_to_the_budget_and_uses_it(method: DPSGD) -> None:
    sizes = (8, 12, 31)
    last = run(method, [records(i, n) for i, n in enumerate(sizes)])[-1]
    sigmas = []
    for client, n in enumerate(sizes):
        events = [e.event for e in last.ledger.entries if e.client == client]
        assert 9.99 < accountants.pld(events, 1e-5) <= 10
        rate = 8 / n
        sigma = noise_multiplier_for(BUDGET, sampling_rate=rate, steps=8)
        assert {(e.std_over_sensitivity, e.sampling_rate) for e in events} == {(sigma, rate)}  # type: ignore[union-attr]
        assert last.client_metrics[client]["upload/noise_multiplier"] == sigma
        sigmas.append(sigma)
    assert sigmas == sorted(sigmas, reverse=True) and len(set(sigmas)) == 3  # more records, less noise
    assert 9.99 < last.ledger.epsilon(method.delta, method.accountant) <= 10
    (guarantee,) = last.ledger.guarantees(method.delta, method.accountant)
    assert (guarantee.unit, guarantee.relation, guarantee.trust) == ("example", "zero_out", "local")
    assert guarantee.declared == ("examples",) and guarantee.clients == 3


def test_the_relation_is_what_the_event_says_and_the_noise_is_for(method: DPSGD) -> None:
    """Under replace-one the sum moves twice as far; where every record is drawn, twice the noise goes with it."""
    everyone = replace(method, local=replace(method.local, batch=12))
    for of, factor in ((everyone, pytest.approx(2, rel=1e-3)), (method, 2)):
        replaced = replace(of, relation="replace_one")
        sigma, known = replaced.mechanism(12).noise_multiplier, of.mechanism(12).noise_multiplier
        assert sigma / known == factor if of is everyone else known < sigma < 2 * known
        event = run(replaced, [records(0)])[-1].ledger.entries[-1].event
        assert event == replaced.upload_event(12, 2)
        assert isinstance(event, Gaussian) and (event.relation, event.std_over_sensitivity) == (
            "replace_one",
            sigma / 2,
        )
        assert 9.99 < accountants.pld([replace(event, steps=8)], 1e-5) <= 10


def test_a_given_noise_multiplier_must_keep_to_the_budget(method: DPSGD) -> None:
    needed = noise_multiplier_for(BUDGET, sampling_rate=8 / 12, steps=8)
    more = replace(method, noise_multiplier=needed * 1.01)
    assert more.mechanism(12).noise_multiplier == needed * 1.01
    less = replace(method, noise_multiplier=0.5)
    says = (
        r"^noise_multiplier = 0\.5 spends epsilon \d+\.\d+ > 10 on a client's 12 records: it must be at least \d\.\d+$"
    )
    with pytest.raises(ValueError, match=says):
        less.check_records(records(0, 12))
    assert replace(less, epsilon=None).mechanism(12).noise_multiplier == 0.5
    assert replace(method, epsilon=None).mechanism(12).noise_multiplier == 0.0


def test_what_cannot_be_is_refused_before_anything_is_trained(tiny: Experiment, method: DPSGD) -> None:
    fits, too_many = (replace(method, local=Training(steps=8, batch=b)) for b in (10, 61))
    assert trial.resolve_on_data(replace(tiny, method=fits)).method.local.batch == 10
    with pytest.raises(ValueError, match=r"^batch must be in 1\.\.\d+ \(the client's number of records\), got 61$"):
        trial.resolve_on_data(replace(tiny, method=too_many))


# --- central images ----------------------------------------------------------------------------------------


def central(method: DPSGD, **changes: Any) -> DPSGD:
    sums = Sketch(**{"moment": 0.0, "relation": "zero_out", "epsilon": 0.5, **changes})
    return replace(method, rounds=4, central=sums, pretraining=Training(steps=3, batch=5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "part", "moment"), [(1.0, 0.4, 0.0), pytest.param(4.0, 1.5, 1.0, marks=pytest.mark.slow)]
)
def test_sums_and_steps_together_keep_to_the_budget(
    epsilon: float, part: float, moment: float, tiny: Experiment
) -> None:
    """By Opacus's PRV accountant too (Gopi et al. 2021), an independent convolution. Steps whose noise forgets the sums
    overspend, by both."""
    opacus = pytest.importorskip("opacus.accountants")
    local = replace(tiny.method.local, steps=9, batch=4)
    method = central(DPSGD(model=tiny.method.model, local=local, epsilon=epsilon), epsilon=part, moment=moment)

    def by_prv(events: list[Any]) -> float:
        accountant = opacus.PRVAccountant()
        accountant.history = [(e.std_over_sensitivity, e.sampling_rate, e.steps) for e in events]
        return float(accountant.get_epsilon(1e-5, eps_error=0.02, delta_error=1e-9))

    last = run(method, [records(0, 40), records(1, 50)])[-1]
    for client in (1, 0):
        events: list[Any] = [e.event for e in last.ledger.entries if e.client == client]
        assert [(e.sampling_rate, e.steps) for e in events] == [(1.0, 1)] + 3 * [(4 / (40 + 10 * client), 3)]
        assert events == [method.upload_event(40 + 10 * client, r) for r in range(4)]
        assert 0.999 * epsilon < accountants.pld(events, 1e-5) <= epsilon
        assert 0.999 * part < accountants.exact(events[:1], 1e-5) <= part
    assert by_prv(events) == pytest.approx(epsilon, abs=0.022)  # an upper bound, 0.02 above the truth at most
    forgotten = [events[0], replace(replace(method, central=None).upload_event(40, 1), steps=9)]  # type: ignore[type-var]
    assert accountants.pld(forgotten, 1e-5) > 1.03 * epsilon and by_prv(forgotten) > 1.03 * epsilon
    (guarantee,) = last.ledger.guarantees(method.delta, method.accountant)
    assert (guarantee.relation, guarantee.trust, guarantee.declared) == ("zero_out", "local", ("labels", "examples"))


def test_the_server_trains_on_the_clients_class_means_and_dpsgd_goes_on_from_there(
    method: DPSGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def fit(
        model: DDPM, params: Params, images: Tensor, labels: Tensor, **options: Any
    ) -> tuple[Params, Params, float]:
        seen.update(images=images, labels=labels, training=options["training"])
        return tree.scale(params, 2.0), {}, 0.5

    monkeypatch.setattr(dpsgd, "fit", fit)
    bare = replace(central(method, clip=100.0, epsilon=None), **UNPROTECTED)
    parts = [records(0, 30), records(1, 20)]
    progress = run(bare, parts)
    x, y = torch.cat([p.images for p in parts]), torch.cat([p.labels[:, 0] for p in parts])
    means = torch.stack([x[y == k].mean(0) for k in range(10)]).clamp(-1, 1)
    torch.testing.assert_close(seen["images"], means[seen["labels"][:, 0]])
    assert seen["labels"][:, 0].bincount().tolist() == [1000] * 10 and seen["training"].steps == 3
    start = tree.scale(method.init_server(None, generator(KEYS.seed, "server", "init")), 2.0)
    assert tree.digest(progress[0].server) == tree.digest(start) != tree.digest(progress[1].server)
    assert progress[-1].ledger.epsilon(1e-5, "pld") == math.inf
    run(replace(bare, central=replace(bare.central, moment=1.0)), parts)  # type: ignore[type-var]
    assert len(seen["images"].unique(dim=0)) > 9000


def test_central_images_can_be_set_field_by_field(tiny: Experiment, method: DPSGD) -> None:
    settings = ["--method.central", "sketch", "--method.central.relation", "zero_out", "--method.central.epsilon", "1"]
    start = replace(tiny, method=method)
    changed = overrides.override(start, changes(start, settings)).method
    assert changed.central == Sketch(relation="zero_out", epsilon=1.0) and changed.mechanism(50).noise_multiplier > 0


def test_bad_central_images_are_refused(method: DPSGD) -> None:
    for change in ({"relation": "replace_one"}, {"delta": 1e-6}, {"center": "public"}, {"refine": 0.5}):
        with pytest.raises(ValueError, match="central must have the method's delta and relation, center grey or black"):
            central(method, **change).check_records(records(0, 12))
    with pytest.raises(ValueError, match="rounds must be at least 2 with central"):
        replace(central(method), rounds=1).check_records(records(0, 12))
    for part in (10.1, None):
        with pytest.raises(ValueError, match=r"before the steps spends epsilon (10\.1|inf) of 10: give it less"):
            central(method, epsilon=part).check_records(records(0, 12))


# --- fields ------------------------------------------------------------------------------------------------
