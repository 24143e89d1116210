"""Everything that computes on the accelerator, on one that is none (`fake_gpu`): no tensors of unlike devices meet, the bits
are those of the CPU, and little travels to the device in a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu, gpu
from test_contract import KEYS, experiment, method, records, run, summary  # noqa: F401

from raydiff import tree
from raydiff.federated.method import Method
from raydiff.methods import Sketch
from raydiff.models.ddpm import device

__all__ = ["experiment", "gpu", "method"]


def test_the_fake_is_strict(gpu: FakeGpu) -> None:
    here, there = torch.ones(3), torch.ones(3).to(device())
    assert there.device.type == (there + 1)[:2].t().device.type == torch.zeros_like(there).device.type == "cuda"
    assert here.device.type == there.cpu().device.type == "cpu" and (there + torch.tensor(1.0)).device.type == "cuda"
    wrong: list[Callable[[], Any]] = [
        lambda: here + there,
        lambda: torch.cat([here, there]),
        lambda: there.numpy(),
        lambda: here[there.long() - 1],
        lambda: torch.randn(3, device=there.device, generator=torch.Generator()),
        lambda: torch.nn.Linear(3, 1)(there),
    ]
    for call in wrong:
        with pytest.raises((RuntimeError, TypeError)):
            call()
    leaf = here.clone().requires_grad_()
    (leaf.to(there.device) * there).sum().backward()
    assert leaf.grad is not None and leaf.grad.device.type == "cpu" and gpu.counts["up"] > 0


def test_a_method_has_the_bits_of_the_cpu(method: Method, gpu: FakeGpu) -> None:  # noqa: F811
    found = summary(method, run(method)[-1])
    assert gpu.counts["ops"] > 0 or isinstance(method, Sketch)  # which trains nothing
    print(type(method).__name__, gpu.counts)
