"""`raydiff account`: mechanisms that ran elsewhere, against formulas and mechanisms written out here."""

import math
from typing import get_args

import numpy as np
import pytest
from opacus.accountants import RDPAccountant
from scipy import integrate, optimize, stats

from raydiff.cli import account
from raydiff.cli.options import parse_options
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Exposure, Guarantee
from raydiff.privacy.release import Relation

LOCAL_CLIENT = "--unit client --trust local"


def exposure(arguments: str) -> Exposure:
    return parse_options(account.AccountOptions, arguments.split(), None).exposure


def guarantee(arguments: str) -> Guarantee:
    return accountants.tightest(lambda name: exposure(arguments).guarantee(1e-5, name))


def epsilon_by_quadrature(mu: float, delta: float) -> float:
    """Where the integral of max(0, p - e^epsilon q) is delta, for p = N(mu, 1) and q = N(0, 1)."""

    def gap(epsilon: float) -> float:
        edge = epsilon / mu + mu / 2  # p > e^epsilon q above it
        x = np.linspace(edge, max(edge, mu) + 12, 20001)
        return float(integrate.simpson(stats.norm.pdf(x, mu) - np.exp(epsilon + stats.norm.logpdf(x)), x=x))

    return float(optimize.brentq(lambda e: gap(e) - delta, 0, 1000))


@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 10.4), (10, 48.4), (50, 167.9)])
@pytest.mark.parametrize(("relation", "moved"), [("zero_out", 1), ("replace_one", 2)])
def test_flowers_local_noise_is_calibrated_for_one_round(
    rounds: int, epsilon: float, relation: str, moved: int
) -> None:
    """LocalDpMod at epsilon 10: standard deviation sqrt(2 ln(1.25 / delta)) / 10 in each round."""
    std = math.sqrt(2 * math.log(1.25 / 1e-5)) / 10
    result = guarantee(f"--noise {std} --rounds {rounds} {LOCAL_CLIENT} --relation {relation}")
    assert result.epsilon == pytest.approx(epsilon_by_quadrature(moved * math.sqrt(rounds) / std, 1e-5), rel=1e-5)
    assert moved == 2 or round(result.epsilon, 1) == epsilon
    assert (result.unit, result.trust, result.relation, result.accountant) == ("client", "local", relation, "exact")


def test_no_attack_on_such_a_mechanism_exceeds_the_ceilings_and_half_the_noise_does() -> None:
    """The best attack on a client that sends an update of the clip norm, or nothing in its place, in 4 rounds."""
    bound = exposure("--noise 3 --rounds 4 --unit client --relation zero_out")
    rng = np.random.default_rng(0)

    def attack(sigma: float) -> tuple[float, float]:
        outside, inside = (mean + rng.normal(0, sigma, (200_000, 4)).mean(axis=1) for mean in (0.0, 1.0))
        ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
        auc = (ranks.sum() - len(inside) * (len(inside) + 1) / 2) / len(inside) ** 2
        return float(auc), float((inside > np.quantile(outside, 0.99)).mean())

    auc, tpr = attack(3.0)
    assert auc == pytest.approx(bound.auc_ceiling(), abs=4e-3)
    assert tpr == pytest.approx(bound.tpr_ceiling(account.FPR), abs=4e-3)
    auc, tpr = attack(1.5)
    assert auc > bound.auc_ceiling() + 0.05 and tpr > bound.tpr_ceiling(account.FPR) + 0.05


def test_opacus_history_costs_what_opacus_says() -> None:
    opacus = RDPAccountant()
    opacus.history = [(1.1, 0.01, 500)]
    epsilons = {r: guarantee(f"--noise 1.1 --q 0.01 --steps 500 --relation {r}").epsilon for r in get_args(Relation)}
    for relation in ("zero_out", "add_remove"):
        assert 0.7 * opacus.get_epsilon(1e-5) < epsilons[relation] <= opacus.get_epsilon(1e-5) + 1e-6
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
    assert exposure("--noise 2 --rounds 9 --relation replace_one").mu() == pytest.approx(2 * 3 / 2)


def test_an_epsilon_is_printed_with_its_definition_and_rounded_up(capsys: pytest.CaptureFixture[str]) -> None:
    account.main(f"--noise 0.4845 --rounds 10 {LOCAL_CLIENT}".split())
    out = capsys.readouterr().out
    for part in ("per client", "zero-out", "local trust", "delta 1e-05", "exact accountant", "AUC", "TPR"):
        assert part in out
    assert 0 <= float(out.split()[1]) - guarantee(f"--noise 0.4845 --rounds 10 {LOCAL_CLIENT}").epsilon < 0.01


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("--noise -1", "noise"),
        ("--noise nan", "noise"),
        ("--noise 1 --q 0", "q"),
        ("--noise 1 --steps 0", "steps"),
        ("--noise 1 --rounds 0", "rounds"),
        ("--noise 1 --delta 1", "delta"),
        (f"--noise 1 {LOCAL_CLIENT} --relation add_remove", "relation"),
    ],
)
def test_a_mechanism_that_cannot_be_is_refused(arguments: str, option: str) -> None:
    with pytest.raises(ValueError, match=rf"^--{option} must be .*, got "):
        account.main(arguments.split())
