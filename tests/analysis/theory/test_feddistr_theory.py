"""FedDistr's theory: the exact loss, Monte-Carlo against closed forms, the bounds by hand, the counter-examples."""

import math

import pytest
import torch
from torch import Tensor

from analysis.theory.feddistr_theory import (
    Base,
    Setting,
    dominant_share,
    fails_from,
    one_shared,
    probability,
    promised,
    theorem1,
    theorem2,
    utility_losses,
)
from raydiff.seeding import generator

pytestmark = pytest.mark.slow


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_is_the_expected_excess_over_the_best_model() -> None:
    base, delta = Base(width=3.0, sigma=0.2), f64(-1.4, 0.3, 0.0, 1.5)
    t = torch.linspace(-1.5, 1.5, 20_001, dtype=torch.float64)
    mass = torch.erf(t / (0.6 * math.sqrt(2))).diff() / (2 * base.mass)  # of a normal of deviation 0.2 * 3
    middle = (t[1:] + t[:-1]) / 2
    wanted = ((middle - delta.unsqueeze(1)).abs() - middle.abs()) @ mass
    torch.testing.assert_close(base.loss(delta), wanted, rtol=1e-5, atol=1e-7)


def test_the_bounds_by_hand() -> None:
    setting, eps = Setting(clients=5, bases=20, records=50, xi=0.01), f64(0.1, 0.5)
    assert setting.fewest == 200
    assert theorem1(200, eps, width=None).tolist() == pytest.approx([1 - 2 * math.exp(-4), 1 - 2 * math.exp(-100)])
    assert float(theorem1(200, eps, width=2.0)[1]) == pytest.approx(1 - 2 * math.exp(-200 * 0.25 / 8))
    assert float(theorem2(setting, eps)[1]) == pytest.approx(1 - 2 * math.exp(-0.6 * 50 * 0.25 / 2))
    assert promised(f64(0.1, 0.96, 0.99), f64(1, 2, 3)) == 2 and promised(f64(0.1), f64(1)) == math.inf


def test_theorem_1_as_printed_fails_in_other_units_and_the_appendix_does_not() -> None:
    setting = Setting(clients=20, records=10)
    losses = utility_losses(setting.counts(generator(0)), Base(), repetitions=1000, rng=generator(1))
    widths = torch.logspace(-1, 3, 41, dtype=torch.float64)
    width = fails_from(losses, setting, widths, theorem=1)
    assert 20 < width < 60 and fails_from(losses, setting, widths[:20], theorem=1) == math.inf
    eps = losses.quantile(torch.linspace(0, 1, 101, dtype=torch.float64)) * width
    high = probability(losses * width, eps)[2]
    assert (high >= theorem1(setting.fewest, eps, width=width)).all()


def test_lemma_3_is_false_for_cosines() -> None:
    xi, share, printed, proved = dominant_share(one_shared(2, 1))
    assert (xi, share) == pytest.approx((0.2, 0.5)) and xi < 1
    assert printed == pytest.approx(1 - math.sqrt(0.2)) and proved == pytest.approx(1 - math.sqrt(0.3))
    assert proved < share < printed
    many = dominant_share(one_shared(5, 4))
    assert many[0] == pytest.approx(1 / 101) and many[1] == pytest.approx(1 / 5) and many[3] < many[1] < many[2]
