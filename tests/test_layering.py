"""Rooms stand on floors that their imports make: a room is above all that it imports. Neither rooms nor the files of a
room import in a circle.

The core never imports the papers, and each heavy library has one home.
"""

import ast
import functools
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOMES = {
    "ray": ("raydiff/runtime/", "analysis/bench/"),
    "mlflow": ("raydiff/tracking/",),
    "opacus": ("raydiff/privacy/",),
    "diffusers": ("raydiff/models/", "raydiff/papers/feddistr/latent/"),
    "transformers": ("raydiff/models/", "raydiff/papers/feddistr/latent/"),
    "cleanfid": ("raydiff/evaluation/",),
    "huggingface_hub": ("raydiff/data/hub.py",),
    "skimage": ("raydiff/papers/pfdm/reconstruction.py",),
}
MOST_FLOORS = 14
BELOW = {"formats": {"lookup", "seeding", "tree"}, "storage": {"formats", "lookup", "privacy", "seeding", "tree"}}
"""What of raydiff a room may import, where a floor must not rise by what is put into it."""


@functools.cache
def imports(path: Path) -> list[str]:
    """Dotted names that a file imports, at whatever depth: `from raydiff import tree` gives raydiff.tree."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@functools.cache
def rooms() -> set[str]:
    return {path.stem for path in (ROOT / "raydiff").iterdir()} - {"__init__", "__main__"}


def room_of(name: str) -> str | None:
    """The room that a dotted name lies in; None outside raydiff, and for the package itself, such as its version."""
    top, *below = name.split(".")
    return below[0] if top == "raydiff" and below and below[0] in rooms() else None


def arrows() -> dict[str, set[str]]:
    """Room -> the rooms that it imports, from every import statement below raydiff/. The two doors are left out:
    `raydiff/__init__.py` shows type checkers its table of names, `raydiff/__main__.py` imports commands by name."""
    graph: dict[str, set[str]] = {}
    for path in sorted((ROOT / "raydiff").rglob("*.py")):
        here = path.relative_to(ROOT / "raydiff").parts[0].removesuffix(".py")
        if here in ("__init__", "__main__"):
            continue
        graph.setdefault(here, set()).update(r for r in map(room_of, imports(path)) if r not in (None, here))  # type: ignore[misc]
    return graph


def floors(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms, lowest floor first. Raises CycleError where rooms import in a circle."""
    level: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        level[room] = 1 + max((level[r] for r in graph.get(room, ())), default=-1)
    return [sorted(r for r in level if level[r] == floor) for floor in range(max(level.values()) + 1)]


def file_arrows() -> dict[str, set[str]]:
    """Module -> the modules below raydiff/ that it imports. The two doors are left out as in `arrows`."""
    paths = sorted((ROOT / "raydiff").rglob("*.py"))
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    del modules["raydiff"], modules["raydiff.__main__"]
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imports(path)}
        graph[module] = (names & set(modules)) - {module}
    return graph


def check_files(graph: Mapping[str, set[str]]) -> None:
    """Raises CycleError where files import in a circle, also inside a room."""
    TopologicalSorter(graph).prepare()


def stray(file: str, name: str) -> bool:
    """Whether the file at this path (from the root) may not import this name, whatever the floors are."""
    top, here = name.split(".")[0], file.removesuffix(".py").split("/")
    if top in HOMES and not file.startswith(HOMES[top]):
        return True
    if here[0] == "raydiff" and top in ("jobs", "analysis"):
        return True
    room = room_of(name)
    if room is None or here[0] != "raydiff" or here[1] in ("__init__", "__main__"):
        return False
    if room == "papers":  # Only tables (`lookup.Table`) name them.
        return here[1] != "papers"
    if room == "report":
        return here[1] not in ("report", "papers", "cli", "api")
    if here[1] == "methods" and room == "methods":  # Methods do not import each other, but for DP-FETA's first round.
        module = name.split(".")[2]
        if (here[2], module) == ("dpsgd", "sketch"):
            return False
        return not here[2].startswith("_") and not module.startswith("_") and module != here[2]
    return here[1] in BELOW and room not in {here[1], *BELOW[here[1]]}


def files() -> list[str]:
    """Paths of the product's files from the root."""
    tops = [path for top in ("raydiff", "jobs", "analysis") for path in (ROOT / top).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in tops)


def test_a_file_imports_what_its_room_may() -> None:
    assert [(file, name) for file in files() for name in imports(ROOT / file) if stray(file, name)] == []


def test_rooms_import_in_no_circle() -> None:
    by_floor = floors(arrows())
    assert by_floor[-1] == ["papers"], "the papers are a leaf at the top"
    assert len(by_floor) <= MOST_FLOORS
    assert "formats" in by_floor[0]


def test_files_of_a_room_import_in_no_circle() -> None:
    check_files(file_arrows())


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
        ("raydiff/data/source_registry.py", "huggingface_hub.HfApi"),
        ("raydiff/papers/feddistr/method.py", "transformers.CLIPTextModel"),
        ("raydiff/methods/fedavg.py", "raydiff.methods.dpsgd.DPSGD"),
        ("raydiff/methods/sketch.py", "raydiff.methods.dpsgd.DPSGD"),
        ("raydiff/methods/fedavg.py", "raydiff.papers.pfdm.method.PFDM"),
        ("raydiff/experiment/config.py", "raydiff.papers.pfdm.method"),
        ("raydiff/runtime/launch.py", "raydiff.report.page"),
        ("raydiff/formats/tables.py", "raydiff.privacy.ledger"),
        ("raydiff/storage/checkpoint.py", "raydiff.experiment.config"),
        ("raydiff/experiment/trial.py", "jobs.sweep"),
    ],
)
def test_the_check_can_fail(file: str, name: str) -> None:
    assert stray(file, name)


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        floors({**arrows(), "data": {"papers"}})
    with pytest.raises(CycleError):
        check_files({**file_arrows(), "raydiff.data.records": {"raydiff.data.datasets"}})
