"""Optimisers as functions."""

from typing import Any

import pytest
import torch

from raydiff.models.optimizers import adamw_step, sgd_step


@pytest.mark.parametrize(("step", "more"), [(adamw_step, {}), (sgd_step, {"momentum": 0.9})])
def test_a_transposed_gradient_is_read_in_its_own_order(step: Any, more: dict[str, float]) -> None:
    gradient, after = torch.arange(6.0).view(3, 2).T - 2, []
    for one in (gradient, gradient.contiguous()):
        theta = {"w": torch.zeros(2, 3)}
        step(theta, {"w": one}, {}, rate=0.1, decay=0.0, **more)
        after.append(theta["w"])
    assert not gradient.is_contiguous() and torch.equal(*after)
