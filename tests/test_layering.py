"""Imports point one way, and each heavy library has one home. The table is the architecture."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (
    ("tree", "seeding", "lookup", "process", "report"),
    ("data", "privacy"),
    ("models",),
    ("federated",),
    ("methods", "evaluation", "theory"),
    ("experiment",),
    ("results",),
    ("runtime",),
    ("api", "cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HOMES = {
    "ray": ("raydiff/runtime/", "raydiff/cli/plain_fedavg.py"),  # what raydiff on Ray is compared with
    "mlflow": (
        "raydiff/experiment/mlflow_store.py",
        "raydiff/experiment/machine.py",
        "raydiff/results/mlflow_models.py",
    ),
    "opacus": "raydiff/privacy/",
    "diffusers": "raydiff/models/",
    "transformers": "raydiff/models/",
    "cleanfid": "raydiff/evaluation/",
    "huggingface_hub": "raydiff/data/hub.py",
    "skimage": "raydiff/evaluation/attacks/reconstruction.py",
}
TORCHLESS = ("raydiff.report", "raydiff.lookup", "raydiff.process")


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, at whatever depth: `from raydiff import tree` gives raydiff.tree."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden(file: str, name: str) -> bool:
    """Whether the file at this path (from the root) may not import this name."""
    (top, *below), here = name.split("."), file.removesuffix(".py").split("/")
    if top in HOMES and not file.startswith(HOMES[top]):
        return True
    if here[:2] == ["raydiff", "report"]:
        return top == "torch" or (top == "raydiff" and not name.startswith(TORCHLESS))
    if here[0] != "raydiff" or top not in ("raydiff", "jobs", "analysis"):
        return False
    if top != "raydiff":
        return True
    if not below or below == ["__version__"]:
        return False
    if below[0] == here[1]:  # inside one package; methods are strangers to each other
        return (
            here[1] == "methods"
            and not here[2].startswith("_")
            and not below[1].startswith("_")
            and below[1:2] != [here[2]]
        )
    return LEVEL[below[0]] >= LEVEL[here[1]]


def files() -> list[str]:
    found = itertools.chain.from_iterable((ROOT / top).rglob("*.py") for top in ("raydiff", "jobs", "analysis"))
    names = (str(path.relative_to(ROOT)) for path in found)
    return sorted(
        name for name in names if name != "raydiff/__init__.py"
    )  # the door: it imports when asked, see test_api


@pytest.mark.parametrize("file", files())
def test_imports_point_one_way(file: str) -> None:
    assert [name for name in imports(ROOT / file) if forbidden(file, name)] == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("raydiff/federated/rounds.py", "ray"),
        ("jobs/sweep.py", "ray.tune"),
        ("raydiff/experiment/trial.py", "mlflow.entities.Metric"),
        ("raydiff/results/sampler.py", "mlflow.pyfunc"),
        ("raydiff/methods/fedavg.py", "opacus"),
        ("raydiff/methods/fedavg.py", "diffusers.UNet2DModel"),
        ("raydiff/experiment/trial.py", "cleanfid.fid"),
        ("raydiff/data/sources.py", "huggingface_hub.HfApi"),
        ("raydiff/methods/feddistr.py", "transformers.CLIPTextModel"),
        ("raydiff/methods/fedavg.py", "raydiff.methods.pfdm.PFDM"),
        ("raydiff/methods/fedavg.py", "raydiff.methods.PFDM"),
        ("raydiff/methods/fedavg.py", "raydiff.experiment.trial.Trial"),
        ("raydiff/tree.py", "raydiff.federated.method"),
        ("raydiff/privacy/release.py", "raydiff.models.training"),
        ("raydiff/federated/checkpoint.py", "raydiff.experiment.config"),
        ("raydiff/experiment/trial.py", "raydiff.runtime.tuner"),
        ("raydiff/experiment/trial.py", "jobs.sweep"),
        ("raydiff/report/load.py", "torch"),
        ("raydiff/report/load.py", "ray"),
        ("raydiff/report/load.py", "raydiff.experiment.trial"),
        ("raydiff/api.py", "raydiff.cli.sweep"),
    ],
)
def test_the_check_can_fail(file: str, name: str) -> None:
    assert forbidden(file, name)
