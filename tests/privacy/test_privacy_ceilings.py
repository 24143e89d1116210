"""Ceilings on attacks: the published settings, a ledger's curve, and the check of a run's attacks."""

import math
from collections.abc import Mapping

import pytest
import torch
from trial_folders import metric

from raydiff.evaluation.attacks import membership
from raydiff.formats.metric_records import AUC_CEILING, columns
from raydiff.privacy import ceilings, gaussian, tradeoff as losses
from raydiff.privacy.ceilings import AboveCeiling, check_attacks
from raydiff.privacy.ledger import Ledger, PrivacyOdometer
from raydiff.privacy.release import Gaussian, NonPrivate

CEILING, MU = str(AUC_CEILING), str(ceilings.MU)


def check(values: Mapping[str, float], *, unlike: float = 0.0) -> None:
    check_attacks([metric(column, value) for column, value in values.items()], unlike=unlike)


def of_ledger(ledger: Ledger) -> dict[str, float]:
    return columns(ceilings.ledger_ceilings(PrivacyOdometer(ledger)))


def rates(ledger: Ledger) -> dict[str, float]:
    return columns(ceilings.rate_ceilings(PrivacyOdometer(ledger)))


def test_the_ceilings_of_sampled_noise_are_those_of_all_its_steps() -> None:
    event = Gaussian(1.0, "example", "add_remove", "local", 0.1, 5)
    sampled = (
        Ledger().with_uploads(0, [(0, event, 0)]).with_uploads(1, [(0, event, 0)]).with_uploads(1, [(1, event, 0)])
    )
    assert of_ledger(sampled) == {CEILING: losses.auc_ceiling([event, event])}
    assert rates(sampled) == {str(m): losses.tpr_ceiling([event, event], fpr) for fpr, m in ceilings.TPRS.items()}


def test_the_ceilings_of_an_unsampled_ledger_are_the_closed_forms() -> None:
    ledger = Ledger().with_uploads(0, [(0, Gaussian(0.5, "example", "replace_one", "local"), 0)])
    assert of_ledger(ledger) == {CEILING: gaussian.gaussian_auc_ceiling(2.0), MU: 2.0}
    assert rates(ledger) == {str(m): gaussian.gaussian_tpr_ceiling(2.0, fpr) for fpr, m in ceilings.TPRS.items()}


def test_events_that_do_not_compose_allow_every_attack() -> None:
    both = Ledger().with_uploads(0, [(0, Gaussian(1.0, "example", "replace_one", "local", 0.1), 0)])
    both = both.with_uploads(1, [(0, Gaussian(1.0, "example", "zero_out", "local", 0.1), 0)])
    assert of_ledger(both) == {CEILING: 1.0}
    assert set(rates(both).values()) == {1.0}


def test_what_is_published_has_the_ceiling_of_outsiders_and_uploads_that_of_the_server() -> None:
    """Under central trust the server sees the updates, and its own noise covers all that comes after."""
    central = Gaussian(2.0, "client", "replace_one", "central")
    ledger = Ledger().with_uploads(0, [(0, NonPrivate("clipped updates"), 0)]).with_published(0, [central])
    metrics = of_ledger(ledger) | rates(ledger)
    assert metrics[CEILING] == 1.0 and metrics[MU] == math.inf
    assert metrics[f"{CEILING}_outsiders"] == gaussian.gaussian_auc_ceiling(0.5)
    for fpr, name in ceilings.TPRS.items():
        assert (metrics[str(name)], metrics[f"{name}_outsiders"]) == (1.0, gaussian.gaussian_tpr_ceiling(0.5, fpr))
    for target in ("global", "pool", "uploads"):
        for number, most in (
            ("auc", gaussian.gaussian_auc_ceiling(0.5)),
            ("tpr_at_1pct_fpr", gaussian.gaussian_tpr_ceiling(0.5, 0.01)),
        ):
            name = f"attack/{target}/loss/{number}_low"
            check({**metrics, name: most})
            if target == "uploads":
                check({**metrics, name: 1.0})
                continue
            with pytest.raises(
                AboveCeiling, match=f"attack loss on target {target} .* ceiling {most:.4g} that the ledger's noise sets"
            ):
                check({**metrics, name: most + 1e-9})


@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_an_attack_that_reaches_its_ceiling_is_above_it_in_a_fortieth_of_sound_trials_at_most(mu: float) -> None:
    rng, tries = torch.Generator().manual_seed(0), 400
    ceiling, above = gaussian.gaussian_auc_ceiling(mu), 0
    for _ in range(tries):  # a smaller score says that it is a member's
        inside, outside = (torch.randn(100, 1, generator=rng, dtype=torch.float64) - shift for shift in (mu, 0.0))
        rows = {"calibration_members": inside, "calibration_nonmembers": outside}
        above += membership.attack_membership(**rows, members=inside, nonmembers=outside).auc_interval[0] > ceiling
    assert above / tries < 0.025 + 3 * (0.025 * 0.975 / tries) ** 0.5


@pytest.mark.parametrize(("fpr", "at"), [(0.01, "1"), (0.001, "0.1")])
def test_a_true_positive_rate_above_its_ceiling_is_named_too(fpr: float, at: str) -> None:
    """Labels that differ by 0.005 may stand for as many more false positives, which helps by a factor at most."""
    name = f"attack/global/pia/tpr_at_{at}pct_fpr_low"
    metrics = {CEILING: 0.7, str(ceilings.TPRS[fpr]): 0.05, name: 0.05}
    check(metrics)
    check({**metrics, name: 0.05 * (fpr + 0.005) / fpr - 1e-9}, unlike=0.005)
    check({**metrics, name.replace("global", "client"): 1.0, name.replace("_low", ""): 1.0})
    check({name: 1.0})
    with pytest.raises(AboveCeiling, match=rf"attack pia on target global .* at {at} % false ones, .* ceiling 0\.05"):
        check({**metrics, name: 0.06})
    with pytest.raises(AboveCeiling, match=r"above the ceiling 0\.05"):
        check({**metrics, name: 0.05 * (fpr + 0.005) / fpr + 1e-9}, unlike=0.005)


GOOD = {
    MU: 1.0,
    CEILING: gaussian.gaussian_auc_ceiling(1.0),  # .760
    "attack/global/pia/auc_low": 0.75,
    "attack/global/pia/auc": 0.9,
    "attack/client/pia/auc_low": 0.99,  # never left its client
    "attack/global/pia/balanced_accuracy_low": 0.99,
}


def test_attacks_below_the_ceiling_pass() -> None:
    check(GOOD)
    check({"attack/global/pia/auc_low": 1.0})
    check({**GOOD, "attack/uploads/distance/auc_low": 0.77}, unlike=0.01)
    check({**GOOD, MU: math.inf, CEILING: 1.0, "attack/global/pia/auc_low": 1.0})


def test_an_attack_above_the_ceiling_is_named_with_its_limit_and_the_ceiling() -> None:
    says = r"attack secmi on target global has an AUC of at least 0\.77, above the ceiling 0\.7602 .* \(mu 1\)"
    with pytest.raises(AboveCeiling, match=says):
        check({**GOOD, "attack/global/secmi/auc_low": 0.77, "attack/global/sima/auc_low": 0.765})
