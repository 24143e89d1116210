"""MLflow's shared view of a sweep: its trials as a table with the columns that matter, and charts above all others.

A shared view is a tag of an experiment, which MLflow 3.17's page reads where its address names the key. Its form is
MLflow's own and not documented: the view is a convenience, and no sweep depends on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from raydiff.formats.metric_names import COMPARED, QUALITY, mlflow_name

TAG = "mlflow.sharedViewState."
KIND = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow guesses, or asks
SECTIONS = {"Privacy against quality": 2, "What was swept": 1, "Model metrics": 3}
"""Section of charts -> charts side by side. The last one is MLflow's, of charts that it generates."""
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
    of_all = [name for name in metrics if all(math.isfinite(trial.get(name, math.nan)) for trial in trials)]
    quality = [name for name in QUALITY if name in metrics] or metrics
    numbers = [f"metrics.`{name}`" for name in metrics]
    columns = [*numbers, *(f"params.`{name}`" for name in params)]
    charts = [_scatter(name) for name in quality if "epsilon" in metrics]
    # A run that lacks one of them has no line; the last one colours the lines.
    axes = {"selectedParams": params, "selectedMetrics": of_all[::-1], "showAllRuns": True}
    charts.append({"type": "PARALLEL", "metricSectionId": "1", **axes})
    more = {"runsCountToCompare": 100, "metricSectionId": "0", "deleted": False, "isGenerated": False}
    section = {"display": True, "isReordered": True, "deleted": False, "cardHeight": 280}
    sections = [{"uuid": str(i), "name": k, "columns": n, **section} for i, (k, n) in enumerate(SECTIONS.items())]
    view = STATE | {
        "orderByKey": f"metrics.`{'distance_minority' if 'distance_minority' in quality else quality[0]}`",
        "searchFilter": f"tags.`raydiff.id` = '{sweep}'",
        "selectedColumns": columns,
        "columnOrder": ["1", RUN_NAME, *columns],
        "columnWidths": {RUN_NAME: 300, **dict.fromkeys(numbers, 92)},  # pixels
        "runsExpanded": {parent: True},
        "compareRunSections": sections,
        "compareRunCharts": [{"uuid": f"chart-{i}", **more, **chart} for i, chart in enumerate(charts)],
    }
    return json.dumps(view)


def _scatter(name: str) -> dict[str, Any]:
    x, y = ({"key": key, "type": "METRIC"} for key in ("epsilon", name))
    return {"type": "SCATTER", "xaxis": x, "yaxis": y}
