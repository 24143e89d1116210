"""Settings of data sets, tables and partitions that are refused. The message is one line and names the field."""

import math
from typing import Any

import pytest

from raydiff.data.datasets import Data
from raydiff.data.partition import Dirichlet, Entangled, MajorityMinority, UnseenClients
from raydiff.data.tables.read import RawTable
from raydiff.data.unseen_client import Choice
from raydiff.evaluation.evaluation_settings import RowAudit

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    *((Data, {field: 0}, field) for field in ("size", "train", "bins")),
    *((Data, {field: -1}, field) for field in ("public", "validation", "calibration", "test")),
    *((Data, {field: ""}, f"data.{field}") for field in ("name", "public_from")),
    (Data, {"public_from": "mnist", "public": 0}, "public"),
    (Data, {"public_from": "mnist", "name": "adult"}, "data.public_from"),
    (Data, {"labels": ("a", "b", "a")}, "data.labels"),
    (Data, {"fitted_on": "some"}, "fitted_on"),
    (Data, {"superclasses": "pair"}, "data.superclasses"),
    (Data, {"superclasses": "zebra"}, "parity, pairs, cifar100, cifar100-10x2"),
    (RawTable, {"preset": "adlt"}, "preset"),
    (RawTable, {"bins": 1}, "bins"),
    (RawTable, {"columns": ("a", "a")}, "columns"),
    (Dirichlet, {"alpha": 0.0}, "alpha"),
    (Dirichlet, {"alpha": math.nan}, "alpha"),
    (MajorityMinority, {"ratio": 0.0}, "ratio"),
    (MajorityMinority, {"minority": 0}, "minority"),
    (Entangled, {"xi": 1.0}, "xi"),
    (Entangled, {"xi": math.nan}, "xi"),
    (UnseenClients, {"classes": 3, "records": 2}, "record of each class"),
    (Choice, {"records": 0}, "records"),
    (RowAudit, {"remove": 1.0}, "remove"),
    (RowAudit, {"epsilon": 0.0}, "epsilon"),
    (RowAudit, {"samples": 0}, "samples"),
    (RowAudit, {"condition": "both"}, "condition"),
]


@pytest.mark.parametrize(("cls", "fields", "named"), REFUSED, ids=lambda v: getattr(v, "__name__", None))
def test_a_bad_setting_is_refused_by_name(cls: Any, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*\b{named}\b[^\n]*$"):
        cls(**fields)
