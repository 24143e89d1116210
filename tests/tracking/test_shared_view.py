"""MLflow's shared view: the JSON that its page reads, and that a sweep writes it."""

import json
import math

from raydiff.tracking import shared_view

SWEPT = {"PFDM": ["clients", "method.epsilon"], "FedAvg": ["clients"]}


def test_the_view_has_the_columns_and_charts_of_what_was_swept_and_measured() -> None:
    measured = {"distance_all": 1.0, "distance_minority": 2.0, "epsilon": 9.7, "bytes_sent": 3.0, "label_accuracy": 1.0}
    trials = [measured, {**measured, "epsilon": math.inf}, {**measured, "attack_auc_global": 0.5}]
    view = json.loads(shared_view.build_view("parent", "id", SWEPT, trials))
    metrics = ["distance_all", "distance_minority", "epsilon", "attack_auc_global", "bytes_sent"]
    params = ["method", "clients", "method.epsilon"]
    columns = [*(f"metrics.`{name}`" for name in metrics), *(f"params.`{name}`" for name in params)]
    assert view["selectedColumns"] == columns and view["columnOrder"][2:] == columns
    assert view["runsExpanded"] == {"parent": True} and view["searchFilter"] == "tags.`raydiff.id` = 'id'"
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`distance_minority`", True)
    *scatter, parallel = view["compareRunCharts"]
    axes = [(chart["type"], chart["xaxis"]["key"], chart["yaxis"]["key"]) for chart in scatter]
    assert axes == [("SCATTER", "epsilon", "distance_all"), ("SCATTER", "epsilon", "distance_minority")]
    assert (parallel["type"], parallel["selectedParams"]) == ("PARALLEL", params)
    # Those that every run has: MLflow draws no other run.
    assert parallel["selectedMetrics"] == ["bytes_sent", "distance_minority", "distance_all"]
    sections = [section["uuid"] for section in view["compareRunSections"]]
    assert sections == ["0", "1", "2"] and {chart["metricSectionId"] for chart in view["compareRunCharts"]} == {
        "0",
        "1",
    }


def test_a_view_of_accuracies_has_the_best_first_and_one_without_quality_is_a_view() -> None:
    view = json.loads(shared_view.build_view("parent", "id", {"FedDistr": ["seed"]}, [{"accuracy": 0.5}]))
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`accuracy`", False)
    assert view["selectedColumns"] == ["metrics.`accuracy`", "params.`seed`"]
    costs = json.loads(shared_view.build_view("parent", "id", {}, [{"epsilon": 1.0, "seconds": 2.0}]))
    assert costs["selectedColumns"] == ["metrics.`epsilon`", "metrics.`seconds`"]
