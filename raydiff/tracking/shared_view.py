"""MLflow's shared view of a sweep: its trials in a table with the columns that matter, and charts above all others.

A shared view is a tag of an experiment, which the page of MLflow 3.17 reads where its address names the key. Its form
is MLflow's own and not documented: the view is a convenience, and no sweep depends on it.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from raydiff.experiment.study import Varying
from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import COMPARED, QUALITY
from raydiff.tracking.mlflow_store import mlflow_name

TAG = "mlflow.sharedViewState."
SECTIONS = {"Privacy against quality": 2, "What was swept": 1, "Model metrics": 3}
"""Section of charts -> charts side by side. The last one is MLflow's, of charts that it generates."""
RUN_NAME = "attributes.`Run Name`"


def view_address(experiment: str, key: str) -> str:
    """The page of an experiment's runs, opened on the view of this key, as the end of an address."""
    # Without workflowType MLflow 3 opens on traces of language models.
    return f"/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={key}"


def build_view(parent: str, sweep: str, swept: Varying, trials: Sequence[Mapping[str, Any]]) -> str:
    """Return MLflow's view of a sweep's runs as JSON.

    It shows the runs with the tag raydiff.id `sweep` below the run `parent`: a column for each field in `swept`,
    and for the numbers, by plain names, that the finished `trials` have.
    """
    paths = dict.fromkeys(itertools.chain(*swept.values()))
    params = [mlflow_name(path) for path in paths]
    if len(swept) > 1:
        params.insert(0, "method")
    metrics = [name for name in COMPARED if not trials or any(name in trial for trial in trials)]
    of_all = [name for name in metrics if all(math.isfinite(trial.get(name, math.nan)) for trial in trials)]
    quality = [name for name in QUALITY if name in metrics] or metrics
    numbers = [f"metrics.`{name}`" for name in metrics]
    columns = [*numbers, *(f"params.`{name}`" for name in params)]
    axes = [[{"key": key, "type": "METRIC"} for key in ("epsilon", name)] for name in quality if "epsilon" in metrics]
    charts = [dict[str, Any](type="SCATTER", metricSectionId="0", xaxis=x, yaxis=y) for x, y in axes]
    # A run without one of these numbers has no line, and the last one colours the lines.
    lines = {"selectedParams": params, "selectedMetrics": of_all[::-1], "showAllRuns": True}
    charts.append({"type": "PARALLEL", "metricSectionId": "1", **lines})
    more = {"runsCountToCompare": 100, "deleted": False, "isGenerated": False}
    section = {"display": True, "isReordered": True, "deleted": False, "cardHeight": 280}
    view = {
        "orderByKey": f"metrics.`{'distance_minority' if 'distance_minority' in quality else quality[0]}`",
        "orderByAsc": quality[0] != "accuracy",
        "searchFilter": f"tags.`raydiff.id` = '{sweep}'",
        "selectedColumns": columns,
        "columnOrder": ["1", RUN_NAME, *columns],
        "columnWidths": {RUN_NAME: 300, **dict.fromkeys(numbers, 92)},  # pixels
        "runsExpanded": {parent: True},
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # keeps our charts first
        "compareRunSections": [
            {"uuid": str(i), "name": s, "columns": SECTIONS[s], **section} for i, s in enumerate(SECTIONS)
        ],
        "compareRunCharts": [{"uuid": f"chart-{i}", **more, **chart} for i, chart in enumerate(charts)],
    }
    return dumps(view)
