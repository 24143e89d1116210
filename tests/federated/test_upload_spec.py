"""The form of an upload: what is refused, and that the leaf is named."""

import sys
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from raydiff.federated.upload_spec import TensorSpec, UploadSpec, upload_spec_of

INT = torch.int64
PROMPTS = UploadSpec(
    {
        "x": TensorSpec(("m", 2), torch.float32),
        "label": TensorSpec(("m",), INT, (range(3),), each=2),
        "count": TensorSpec(("m",), INT, (range(1, sys.maxsize),)),
    }
)
"""Any number of vectors, two of each label 0, 1, 2, each with a count."""


def prompts(**other: Tensor) -> Mapping[str, Tensor]:
    labels = torch.tensor([0, 2, 2, 0])
    return {"x": torch.zeros(4, 2), "label": labels, "count": torch.ones(4, dtype=INT), **other}


def test_a_leaf_that_is_unlike_is_named() -> None:
    a = {"x": torch.zeros(3, 5), "y": torch.zeros((), dtype=INT)}
    assert upload_spec_of(a) == UploadSpec({"x": TensorSpec((3, 5), torch.float32), "y": TensorSpec((), INT)})
    assert upload_spec_of(a).mismatch(a) is None and UploadSpec().mismatch({}) is None
    for other in ({**a, "x": a["x"].t()}, {**a, "x": a["x"].half()}, {"x": a["x"]}, {**a, "z": a["y"]}):
        (leaf,) = {k for k in {*a, *other} if k not in a or k not in other or a[k] is not other[k]}
        assert repr(leaf) in str(upload_spec_of(a).mismatch(other))


def test_a_named_size_is_any_but_the_same_everywhere() -> None:
    assert PROMPTS.mismatch(prompts()) is None
    empty = {"x": torch.zeros(0, 2), "label": torch.zeros(0, dtype=INT), "count": torch.zeros(0, dtype=INT)}
    assert PROMPTS.mismatch(empty) is None
    says = PROMPTS.mismatch(prompts(count=torch.ones(3, dtype=INT)))
    assert says == "its leaf 'count' is torch.int64 (3,) in place of torch.int64 (4,)"


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        ("x", torch.zeros(4, 3)),
        ("x", torch.zeros(4)),
        ("label", torch.tensor([0, 3, 3, 0])),
        ("label", torch.tensor([0, -1, -1, 0])),
        ("label", torch.tensor([0, 2, 2, 1])),
        ("label", torch.tensor([2, 2, 2, 2])),
        ("count", torch.tensor([1, 1, 0, 1])),
        ("count", torch.tensor(1)),
    ],
)
def test_what_is_outside_is_refused(leaf: str, value: Tensor) -> None:
    assert repr(leaf) in str(PROMPTS.mismatch(prompts(**{leaf: value})))


def test_each_column_has_its_own_values() -> None:
    form = UploadSpec({"labels": TensorSpec(("n", 2), INT, (range(10), range(2)))})
    assert form.mismatch({"labels": torch.tensor([[9, 1], [0, 0]])}) is None
    assert form.mismatch({"labels": torch.tensor([[1, 9]])}) == "its leaf 'labels' has entries outside 0 .. 9, 0 .. 1"


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2))
def test_a_rejection_tells_nothing_of_the_upload_but_that(value: list[float]) -> None:
    """Whatever is sent, what is said of it is one of the sentences of the form."""
    form = UploadSpec({"a": TensorSpec((2,), torch.float64, (range(-9, 10),))})
    outside = "its leaf 'a' has entries outside -9 .. 9"
    beyond = any(not -9 <= v < 10 for v in value)
    assert form.mismatch({"a": torch.tensor(value, dtype=torch.float64)}) == (outside if beyond else None)
