"""MLflow's shared view of a sweep: its trials as a table with the columns that matter, and charts above all others.

A shared view is a tag of an experiment, which MLflow 3.17's page reads where its address names the key. Its form is
MLflow's own and not documented: the view is a convenience, and no sweep depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from raydiff.formats.metric_names import COMPARED, QUALITY, mlflow_name

TAG = "mlflow.sharedViewState."
KIND = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow guesses, or asks
SECTIONS = ("Privacy against quality", "Model metrics")  # our charts, and MLflow's name for those that it generates
USUAL = (
    "distance_all",
    "distance_minority",
    "epsilon",
    "attack_auc_global",
    "attack_auc_client",
    "bytes_sent",
    "seconds",
)
"""Columns until a trial has finished."""
RUN_NAME = "attributes.`Run Name`"
STATE = {
    "orderByAsc": True,
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
    "columnWidths": {RUN_NAME: 330},  # pixels: a name says what was swept
    "runsPinned": [],
    "runsHidden": [],
    "runsHiddenMode": "SHOW_ALL",
    "runsVisibilityMap": {},
    "viewMaximized": False,
    "runListHidden": False,
    "isAccordionReordered": True,  # keeps our charts first
    "groupBy": None,
    "groupsExpanded": {},
    "autoRefreshEnabled": True,
    "hideEmptyCharts": True,
}


def address(experiment: str, key: str) -> str:
    """The page of an experiment's runs, opened on the view of this key, as the end of an address."""
    # Without workflowType MLflow 3 opens on traces of language models.
    return f"/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={key}"


def state(parent: str, sweep: str, swept: Mapping[str, Sequence[str]], trials: Sequence[Mapping[str, Any]] = ()) -> str:
    """The view of the runs with the tag raydiff.id `sweep`, below the run `parent`, as the tag's JSON. `swept`:
    `study.varying_fields`; `trials`: the final numbers of each trial by plain names."""
    params = [*map(mlflow_name, dict.fromkeys(path for paths in swept.values() for path in paths))]
    params = ["method", *params] if len(swept) > 1 else params
    metrics = [name for name in COMPARED if any(name in trial for trial in trials)] if trials else [*USUAL]
    of_all = [name for name in metrics if all(name in trial for trial in trials)]
    quality = [name for name in QUALITY if name in metrics] or metrics
    columns = [*(f"params.`{p}`" for p in params), *(f"metrics.`{m}`" for m in metrics)]
    charts = [_scatter(name) for name in quality if "epsilon" in metrics]
    # A run that lacks one of them has no line; the last one colours the lines.
    charts.append({"type": "PARALLEL", "selectedParams": params, "selectedMetrics": of_all[::-1], "showAllRuns": True})
    more = {"runsCountToCompare": 100, "metricSectionId": "0", "deleted": False, "isGenerated": False}
    section = {"display": True, "isReordered": True, "deleted": False, "columns": 2}
    view = STATE | {
        "orderByKey": f"metrics.`{'distance_minority' if 'distance_minority' in quality else quality[0]}`",
        "searchFilter": f"tags.`raydiff.id` = '{sweep}'",
        "selectedColumns": columns,
        "columnOrder": ["1", RUN_NAME, *columns],
        "runsExpanded": {parent: True},
        "compareRunSections": [{"uuid": str(i), "name": name, **section} for i, name in enumerate(SECTIONS)],
        "compareRunCharts": [{"uuid": f"chart-{i}", **more, **chart} for i, chart in enumerate(charts)],
    }
    return json.dumps(view)


def _scatter(name: str) -> dict[str, Any]:
    x, y = ({"key": key, "type": "METRIC"} for key in ("epsilon", name))
    return {"type": "SCATTER", "xaxis": x, "yaxis": y}
