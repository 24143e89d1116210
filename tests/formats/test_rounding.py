"""What is shown of a bound is a bound: an epsilon is rounded up, an audit's lower bound down, wherever it is text."""

import math
import re
from decimal import Decimal

import pytest
from hypothesis import example, given, strategies as st

from raydiff.formats import rounding as bounds
from raydiff.privacy import release
from raydiff.privacy.ledger import Guarantee, Ledger
from raydiff.report.guarantees import shown

ABOUT = {"unit": "example", "relation": "replace_one", "trust": "local", "clients": 1, "delta": 1e-5}


@given(st.floats(0, allow_infinity=False), st.integers(1, 6))
@example(0.1049, 2)
@example(0.1, 2)
@example(0.09999999, 2)
@example(9.7149, 2)
@example(1e300, 2)
@example(5e-324, 2)
def test_up_is_not_below_and_down_not_above(epsilon: float, digits: int) -> None:
    high, low = Decimal(bounds.up(epsilon, digits)), Decimal(bounds.down(epsilon, digits))
    assert float(low) <= epsilon <= float(high)
    step = Decimal(10) ** -digits if epsilon >= 0.1 else Decimal(10) ** (1 - digits + high.adjusted())
    assert high - low <= step


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (0.1049, "0.11", "0.10"),
        (0.1, "0.10", "0.10"),
        (9.71, "9.71", "9.71"),
        (9.7101, "9.72", "9.71"),
        (0.0561, "0.057", "0.056"),
        (0, "0", "0"),
        (math.inf, "inf", "inf"),
    ],
)
def test_as_text(epsilon: float, up: str, down: str) -> None:
    assert (bounds.up(epsilon), bounds.down(epsilon)) == (up, down)


@given(st.floats(1e-12, 1e12))
def test_a_guarantee_and_the_tables_show_no_less_than_epsilon(epsilon: float) -> None:
    says = str(Guarantee(epsilon=epsilon, accountant="exact", **ABOUT))  # type: ignore[arg-type]
    for text in (re.findall(r"^epsilon (\S+) \(", says)[0], shown(epsilon)):
        assert float(text) >= epsilon


@given(st.floats(0.05, 500))
def test_what_a_ledger_says_is_no_less_than_its_epsilon(noise: float) -> None:
    event = release.Gaussian(noise, "example", "replace_one", "local")
    guarantee = Ledger().with_uploads(0, [(0, event, 1)]).guarantee(1e-5, "exact")
    assert float(re.findall(r"^epsilon (\S+) ", str(guarantee))[0]) >= guarantee.epsilon
