"""FedProx (Li et al. 2020) against FedAvg, and by hand."""

import pytest
from toys import QUADRATIC, run, values

from raydiff.methods.fedprox import FedProx
from raydiff.models.training import Training


def test_two_rounds_of_two_steps_by_hand() -> None:
    """Target 1, rate 1/2, mu 1/2: the gradient is (w - 1) + (w - w^t) / 2, and w^t is each round's own."""
    training = Training(steps=4, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant")
    first, second = run(FedProx(model=QUADRATIC, local=training, rounds=2, mu=0.5), [values(1.0)])
    # from 0: gradient -1 to 0.5, then -0.5 + 0.25 to 0.625; the objectives 1/2 and 1/8 + 1/16
    assert first.server["w"].tolist() == [0.625]
    assert first.metrics["train/loss"] == pytest.approx((0.5 + 0.125 + 0.0625) / 2)
    # from 0.625: gradient -0.375 to 0.8125, then -0.1875 + 0.09375 to 0.859375
    assert second.server["w"].tolist() == [0.859375]


def test_the_term_goes_through_the_momentum_by_hand() -> None:
    """Target 1, rate 1/2, mu 1/2, momentum 1/2, from 0: v = -1 to 1/2; then -1/2 + 1/4 - 1/2 = -3/4 to 7/8."""
    training = Training(steps=2, batch=2, learning_rate=0.5, optimizer="sgd", decay="constant", momentum=0.5)
    (only,) = run(FedProx(model=QUADRATIC, local=training, rounds=1, mu=0.5), [values(1.0)])
    assert only.server["w"].tolist() == [0.875]
