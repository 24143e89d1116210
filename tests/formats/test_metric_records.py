"""Metrics as records: their columns, their files, and which ones are shown."""

import json
import math
from typing import Any

import pytest

from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import (
    COMPARED,
    DETAILED,
    Metric,
    columns,
    mean_metrics,
    read_metrics,
    select_shown,
)


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("eval/fd_cnn/minor", {"name": "fd_cnn", "split": "eval", "group": "minor"}),
        ("ddim/fd_cnn/minor_floor", {"name": "fd_cnn", "sampler": "ddim", "group": "minor", "role": "floor"}),
        ("eval/class/7/vendi", {"name": "vendi", "split": "eval", "part": ("class", 7)}),
        ("client/0/train/loss", {"name": "train/loss", "part": ("client", 0)}),
        ("attack/client/best/auc_low", {"name": "auc", "target": "client", "attack": "best", "role": "low"}),
        ("eval/label_accuracy/real", {"name": "label_accuracy", "split": "eval", "group": "real", "role": "real"}),
        ("eval/recall/all_real", {"name": "recall", "split": "eval", "group": "all", "role": "real"}),
        ("eval/blackbox/n_members", {"name": "blackbox/n_members", "split": "eval", "role": "count"}),
        ("eval/percent_real", {"name": "percent_real", "split": "eval"}),
    ],
)
@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf])
def test_a_metric_names_its_column_and_is_read_back_from_a_file(
    column: str, fields: dict[str, Any], value: float
) -> None:
    metric = Metric(value=value, unit="s", lower_is_better=True, bounds=(0.0, math.inf), shown="x", **fields)
    (read,) = read_metrics([json.loads(dumps(metric.to_json()))])
    assert read == metric and str(read) == column


def test_a_number_that_was_not_measured_is_null() -> None:
    written = dumps([Metric(name="spread").to_json()])
    assert written == '[{"name": "spread", "value": null}]'
    assert math.isnan(read_metrics(json.loads(written))[0].value)


@pytest.mark.parametrize("written", [{"value": 1.0}, {"name": "a", "colour": 1}, {"name": "a", "value": "many"}])
def test_what_is_no_metric_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no metric"):
        read_metrics([written])


def test_a_metric_that_is_measured_twice_is_refused() -> None:
    floor = Metric(name="fd", role="floor", value=1.0)
    assert columns([floor, Metric(name="fd", value=2.0)]) == {"fd_floor": 1.0, "fd": 2.0}
    for other in (floor.with_value(2.0), Metric(name="fd_floor", value=3.0)):
        with pytest.raises(ValueError, match="fd_floor was measured twice"):
            columns([floor, other])


def test_a_mean_is_over_the_parts_that_have_the_metric() -> None:
    a, b = Metric(name="a", lower_is_better=True), Metric(name="b", role="low")
    parts = [[a.with_value(1.0), b.with_value(4.0)], [a.with_value(2.0)]]
    assert mean_metrics(parts) == [a.with_value(1.5), b.with_value(4.0)]
    assert mean_metrics(parts, complete=True) == [a.with_value(1.5)]


def test_at_most_twelve_are_shown_quality_first_and_raydiffs_details_last() -> None:
    named = [Metric(name=name, shown=name, value=1.0) for name in (*DETAILED, *COMPARED)]
    others = [Metric(name=f"own_{i}", shown=f"own_{i}", value=2.0) for i in range(3)]
    assert [*select_shown([*others, *named])] == [*COMPARED, "own_0", "own_1"]
    few = [*others, named[0], named[-1], Metric(name="hidden", value=0.0), named[-1].with_value(3.0)]
    assert select_shown(few) == {COMPARED[-1]: 1.0, **{m.name: 2.0 for m in others}, DETAILED[0]: 1.0}
