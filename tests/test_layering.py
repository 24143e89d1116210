"""Imports point one way, and each heavy library has one home. The table is the architecture."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = (
    ("tree", "seeding", "settings", "tracking", "hub", "seals"),
    ("diffusion", "privacy", "data"),
    ("method",),
    ("averaging", "alignment"),
    ("methods", "store", "evaluation"),
    ("client", "config", "owner"),
    ("federation", "shares"),
    ("measurements",),
    ("trial", "sampler"),
    ("finished",),
    ("generation", "runs", "personalization", "shadows"),
    ("runtime",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HOMES = {
    "ray": "raydiff/runtime/",
    "mlflow": ("raydiff/tracking.py", "raydiff/runs.py"),
    "opacus": "raydiff/privacy/",
    "diffusers": "raydiff/diffusion/",
    "transformers": "raydiff/diffusion/",
    "cleanfid": "raydiff/evaluation/",
    "huggingface_hub": "raydiff/hub.py",
    "skimage": "raydiff/evaluation/reconstruction.py",
}
TORCHLESS = ("raydiff.tracking", "raydiff.seals")  # all of raydiff that analysis/ may import


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
    if here[0] == "analysis":
        return top == "torch" or (top == "raydiff" and not name.startswith(TORCHLESS))
    if here[0] != "raydiff" or top not in ("raydiff", "jobs", "analysis"):
        return False
    if top != "raydiff":
        return True
    if not below:
        return False
    if below[0] == here[1]:  # inside one package; methods are strangers to each other
        return here[1] == "methods" and here[2] != "__init__" and below[1:2] != [here[2]]
    return LEVEL[below[0]] >= LEVEL[here[1]]


def files() -> list[str]:
    found = itertools.chain.from_iterable((ROOT / top).rglob("*.py") for top in ("raydiff", "jobs", "analysis"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


@pytest.mark.parametrize("file", files())
def test_imports_point_one_way(file: str) -> None:
    assert [name for name in imports(ROOT / file) if forbidden(file, name)] == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("raydiff/federation.py", "ray"),
        ("jobs/sweep.py", "ray.tune"),
        ("raydiff/trial.py", "mlflow.entities.Metric"),
        ("raydiff/sampler.py", "mlflow.pyfunc"),
        ("raydiff/methods/fedavg.py", "opacus"),
        ("raydiff/methods/fedavg.py", "diffusers.UNet2DModel"),
        ("raydiff/trial.py", "cleanfid.fid"),
        ("raydiff/data/hub.py", "huggingface_hub.HfApi"),
        ("raydiff/methods/feddistr.py", "transformers.CLIPTextModel"),
        ("raydiff/methods/fedavg.py", "raydiff.methods.pfdm.PFDM"),
        ("raydiff/methods/fedavg.py", "raydiff.methods.PFDM"),
        ("raydiff/methods/fedavg.py", "raydiff.client.Client"),
        ("raydiff/tree.py", "raydiff.method"),
        ("raydiff/diffusion/local.py", "raydiff.privacy.release"),
        ("raydiff/store.py", "raydiff.config"),
        ("raydiff/trial.py", "raydiff.runtime.sweep"),
        ("raydiff/trial.py", "jobs.presets"),
        ("analysis/frontier.py", "torch"),
        ("analysis/frontier.py", "ray"),
        ("analysis/frontier.py", "raydiff.trial"),
    ],
)
def test_the_check_can_fail(file: str, name: str) -> None:
    assert forbidden(file, name)
