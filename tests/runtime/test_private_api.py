"""Private or unpromised API of Ray, MLflow and torch that raydiff uses, with the version in which each was seen.

A release that renames one breaks here first. What is not in USED may not be used: `test_nothing_else_is_used` looks.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RAYDIFF = Path(__file__).resolve().parents[2] / "raydiff"
LIBRARIES = ("ray", "mlflow", "torch", "optuna", "numpy", "pandas", "scipy", "matplotlib", "safetensors")
USED = {
    # (file, name as written there): (seen in, where it is)
    ("runtime/cluster.py", "ray._private.state.state.get_draining_nodes"): (
        "ray 2.60.0",
        "ray._private.state:GlobalState.get_draining_nodes",
    ),
    ("runtime/cluster.py", "ray._private.state.state._global_state_accessor.get_worker_table"): (
        "ray 2.60.0",
        "ray._raylet:GlobalStateAccessor.get_worker_table",
    ),
    ("runtime/cluster.py", "_temp_dir"): ("ray 2.60.0", "ray:init"),  # read from **kwargs
    ("models/ddpm.py", "torch._dynamo.config.recompile_limit"): (
        "torch 2.14.1",
        "torch._dynamo.config:recompile_limit",
    ),
    ("models/training.py", "torch._foreach_lerp_"): ("torch 2.14.1", "torch:_foreach_lerp_"),
}


def resolve(path: str) -> Any:
    """What is there, by "module:attributes"."""
    module, _, attributes = path.partition(":")
    value = importlib.import_module(module)
    for name in attributes.split("."):
        value = getattr(value, name)
    return value


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def uses(tree: ast.AST) -> Iterator[str]:
    """Private names of the libraries that are imported, read or passed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            yield from (name for one in node.names if private(name := f"{node.module}.{one.name}"))
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] in LIBRARIES and private(one.name))
        elif isinstance(node, ast.Attribute) and dotted(node).split(".")[0] in LIBRARIES and private(dotted(node)):
            yield dotted(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.split(".")[0] in LIBRARIES and " " not in node.value and private(node.value):
                yield node.value
        elif isinstance(node, ast.Call):
            yield from (one.arg for one in node.keywords if one.arg and private(one.arg))


@pytest.mark.parametrize("where", USED.values(), ids=[name for _, name in USED])
def test_it_is_still_there(where: tuple[str, str]) -> None:
    assert resolve(where[1]) is not None


def test_nothing_else_is_used() -> None:
    seen = {
        (str(path.relative_to(RAYDIFF)), name)
        for path in RAYDIFF.rglob("*.py")
        for name in uses(ast.parse(path.read_text()))
    }
    whole = {(file, name) for file, name in seen if not any(o != name and o.startswith(name) for _, o in seen)}
    assert whole == USED.keys()


def test_ray_init_takes_a_folder() -> None:
    """`_temp_dir` is in no signature."""
    assert "_temp_dir" in inspect.getsource(resolve("ray:init"))


def test_torch_modules_keep_their_tensors_where_models_functional_swaps_them() -> None:
    import torch

    assert list(torch.nn.Linear(1, 1)._parameters) == ["weight", "bias"]
    assert list(torch.nn.BatchNorm1d(1)._buffers)[:1] == ["running_mean"]


def test_tunes_environment_variables_and_searchers_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page of Ray's names RAY_AIR_NEW_OUTPUT (2.60.0); the others are on Tune's page of environment variables."""
    from ray.tune.experimental.output import get_air_verbosity
    from ray.tune.search import Searcher

    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    assert get_air_verbosity(0) is None and isinstance(Searcher.FINISHED, str)
    tune = Path(inspect.getfile(importlib.import_module("ray.tune"))).parent
    read = "".join(path.read_text() for path in tune.rglob("*.py"))
    from raydiff.runtime import tuner

    for name in tuner.TUNE_SETTINGS:
        assert f'"{name}"' in read, name


def test_mlflow_reads_the_tags_that_its_pages_show() -> None:
    """Seen in MLflow 3.17.2: its documentation names no tag for tables."""
    tags = importlib.import_module("mlflow.utils.mlflow_tags")
    assert (tags.MLFLOW_LOGGED_ARTIFACTS, tags.MLFLOW_RUN_NOTE) == ("mlflow.loggedArtifacts", "mlflow.note.content")
    assert (tags.MLFLOW_PARENT_RUN_ID, tags.MLFLOW_SOURCE_NAME) == ("mlflow.parentRunId", "mlflow.source.name")


@pytest.mark.ray
def test_what_ray_says_of_nodes(workers: list[Any]) -> None:
    """The fields, and the node's label (Ray 2.60.0)."""
    import ray

    (node,) = ray.nodes()
    assert node["Alive"] and {"NodeID", "Resources", "NodeManagerAddress"} <= node.keys()
    assert node["Labels"]["ray.io/node-id"] == node["NodeID"]
    assert resolve("ray._private.state:state").get_draining_nodes() == {}
