"""`raydiff account`: mechanisms that ran elsewhere, against formulas and mechanisms written out here."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from opacus.accountants import RDPAccountant
from scipy import integrate, optimize, stats

from raydiff.cli import account
from raydiff.cli.options import parse
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Exposed, Guarantee
from raydiff.privacy.release import Relation

LOCAL_CLIENT = "--unit client --trust local"


def seen(arguments: str) -> Exposed:
    return account.exposed(parse(account.Options, arguments.split(), None).event)


def guarantee(arguments: str) -> Guarantee:
    return accountants.tightest(lambda name: seen(arguments).guarantee(1e-5, name))


def epsilon_by_quadrature(mu: float, delta: float) -> float:
    """Where the integral of max(0, p - e^epsilon q) is delta, for p = N(mu, 1) and q = N(0, 1)."""

    def gap(epsilon: float) -> float:
        edge = epsilon / mu + mu / 2  # p > e^epsilon q above it
        where = np.linspace(edge, max(edge, mu) + 12, 20001)
        return float(integrate.simpson(stats.norm.pdf(where, mu) - np.exp(epsilon + stats.norm.logpdf(where)), x=where))

    return float(optimize.brentq(lambda e: gap(e) - delta, 0, 1000))


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 10.4), (10, 48.4), (50, 167.9)])
@pytest.mark.parametrize(("relation", "moved"), [("zero_out", 1), ("replace_one", 2)])
def test_flowers_local_noise_is_calibrated_for_one_round(
    rounds: int, epsilon: float, relation: str, moved: int
) -> None:
    """LocalDpMod at epsilon 10: standard deviation sqrt(2 ln(1.25 / delta)) / 10 in each round."""
    std = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    found = guarantee(f"--noise {std} --rounds {rounds} {LOCAL_CLIENT} --relation {relation}")
    assert found.epsilon == pytest.approx(epsilon_by_quadrature(moved * math.sqrt(rounds) / std, 1e-5), rel=1e-5)
    assert moved == 2 or round(found.epsilon, 1) == epsilon
    assert (found.unit, found.trust, found.relation, found.accountant) == ("client", "local", relation, "exact")


def test_no_attack_on_such_a_mechanism_exceeds_the_ceilings_and_half_the_noise_does() -> None:
    """The best attack on a client that sends an update of the clip norm, or nothing in its place, in 4 rounds."""
    bound = seen("--noise 3 --rounds 4 --unit client --relation zero_out")
    rng = np.random.default_rng(0)

    def attack(sigma: float) -> tuple[float, float]:
        outside, inside = (mean + rng.normal(0, sigma, (200_000, 4)).mean(axis=1) for mean in (0.0, 1.0))
        threshold = np.quantile(outside, 0.99)
        ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
        auc = (ranks.sum() - len(inside) * (len(inside) + 1) / 2) / len(inside) ** 2
        return float(auc), float((inside > threshold).mean())

    auc, tpr = attack(3.0)
    assert auc == pytest.approx(bound.auc_ceiling(), abs=4e-3)
    assert tpr == pytest.approx(bound.tpr_ceiling(account.FPR), abs=4e-3)
    auc, tpr = attack(1.5)
    assert auc > bound.auc_ceiling() + 0.05 and tpr > bound.tpr_ceiling(account.FPR) + 0.05


def test_opacus_history_costs_what_opacus_says() -> None:
    theirs = RDPAccountant()
    theirs.history = [(1.1, 0.01, 500)]
    epsilons = {r: guarantee(f"--noise 1.1 --q 0.01 --steps 500 --relation {r}").epsilon for r in get_args(Relation)}
    for relation in ("zero_out", "add_remove"):
        assert 0.7 * theirs.get_epsilon(1e-5) < epsilons[relation] <= theirs.get_epsilon(1e-5) + 1e-6
    assert epsilons["replace_one"] > epsilons["zero_out"]


@pytest.mark.parametrize("unit", ["example", "client"])
@pytest.mark.parametrize("trust", ["local", "central"])
def test_sampling_counts_where_nobody_sees_who_is_drawn(
    unit: str, trust: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled, who = "--noise 1 --q 0.01 --steps 1000", f"--unit {unit} --trust {trust}"
    account.main(f"{sampled} {who}".split())
    note = capsys.readouterr().out.splitlines()[-1]
    epsilon = guarantee(f"{sampled} {who}").epsilon
    if (unit, trust) == ("client", "local"):
        assert note == account.SEEN and epsilon == guarantee(f"--noise 1 --steps 1000 {who}").epsilon
    else:
        assert note == account.SAMPLED and epsilon < 2


def test_steps_and_rounds_are_all_counted() -> None:
    sampled = "--noise 1.1 --q 0.01"
    assert guarantee(f"{sampled} --steps 50 --rounds 2") == guarantee(f"{sampled} --steps 100")
    assert guarantee(f"{sampled} --steps 100").epsilon > guarantee(f"{sampled} --steps 50").epsilon
    assert seen("--noise 2 --rounds 9 --relation replace_one").mu() == pytest.approx(2 * 3 / 2)


def test_an_epsilon_is_printed_with_its_definition_and_rounded_up(capsys: pytest.CaptureFixture[str]) -> None:
    account.main(f"--noise 0.4845 --rounds 10 {LOCAL_CLIENT}".split())
    out = capsys.readouterr().out
    for part in ("per client", "zero-out", "local trust", "delta 1e-05", "exact accountant", "AUC", "TPR"):
        assert part in out
    shown = float(out.split()[1])
    assert 0 <= shown - guarantee(f"--noise 0.4845 --rounds 10 {LOCAL_CLIENT}").epsilon < 0.01


@pytest.mark.parametrize(
    ("option", "value"),
    [("noise", "-1"), ("noise", "nan"), ("q", "0"), ("steps", "0"), ("rounds", "0"), ("delta", "1")],
)
def test_a_mechanism_that_cannot_be_is_refused(option: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"^--{option} must be .*, got {value}"):
        account.main(["--noise", "1", f"--{option}", value])


def test_clients_that_the_server_sees_are_not_added_or_removed() -> None:
    with pytest.raises(ValueError, match="--relation add_remove"):
        account.main(f"--noise 1 {LOCAL_CLIENT} --relation add_remove".split())
