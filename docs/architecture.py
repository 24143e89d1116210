"""The house as a picture: rooms on their floors, by the table of tests/test_layering.py, and who imports whom.

python docs/architecture.py     writes docs/img/architecture.svg; exit code 1 where rooms import in a circle
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "img" / "architecture.svg"
DOOR = "__main__"
"""The door imports commands by name, which no import statement shows: it is left out."""
ASIDE = "report"
"""A room beside the others: it reads a sweep's files, and knows of the house no more than how they are written."""


def floors() -> list[list[str]]:
    """LAYERS of tests/test_layering.py, lowest first, those that are there."""
    tree = ast.parse((ROOT / "tests" / "test_layering.py").read_text())
    table = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "LAYERS")
    there = {path.stem for path in (ROOT / "raydiff").iterdir()} - {DOOR}
    return [[room for room in floor if room in there] for floor in ast.literal_eval(table)]


def imports() -> set[tuple[str, str]]:
    """(importer, imported) over rooms, from every import statement below raydiff/."""
    found = set()
    rooms = {room for floor in floors() for room in floor}
    for path in (ROOT / "raydiff").rglob("*.py"):
        here = path.relative_to(ROOT / "raydiff").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                top, *below = name.split(".")
                if top == "raydiff" and below and below[0] in rooms and here in rooms and below[0] != here:
                    found.add((here, below[0]))
    return found


def circle(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """The rooms of a circle, the first one again at the end; empty where there is none."""
    graph: dict[str, set[str]] = {}
    for importer, imported in arrows:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def described(arrows: Iterable[tuple[str, str]]) -> str:
    """The arrows as the picture's description: a test sees by it whether the picture is of today's imports."""
    return "; ".join(f"{importer} imports {imported}" for importer, imported in sorted(arrows))


def shown(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without those that a longer way says too, which would be lines over lines; none leads through the room aside."""
    below: dict[str, set[str]] = {}
    for importer, imported in arrows:
        below.setdefault(importer, set()).add(imported)

    def reach(room: str) -> set[str]:
        return set().union(*({n} | reach(n) for n in below.get(room, ()))) if room != ASIDE else set()

    return {(a, b) for a, b in arrows if not any(b in reach(n) for n in below[a] - {b})}


def draw(arrows: set[tuple[str, str]]) -> Figure:
    """Floors from below upwards, and the arrows of `shown`."""
    place: dict[str, tuple[float, float]] = {}
    figure = Figure(figsize=(9, 7.2), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(-0.6, len(floors()) - 0.4))
    axes.axis("off")
    for height, floor in enumerate(floors()):
        axes.axhspan(height - 0.42, height + 0.42, color="#f2f5f7" if height % 2 else "#e6ecf0", zorder=0)
        for i, room in enumerate(r for r in floor if r != ASIDE):
            place[room] = (4 + 2.7 * (i - (len(floor) - (ASIDE in floor) - 1) / 2), height)
        if ASIDE in floor:
            place[ASIDE] = (9.0, height)
    for room, (x, y) in place.items():
        box = FancyBboxPatch(
            (x - 0.72, y - 0.2), 1.44, 0.4, boxstyle="round,pad=0.05", fc="white", ec="#37474f", zorder=3
        )
        axes.add_patch(box)
        axes.text(x, y, room, ha="center", va="center", fontsize=12, zorder=4)
    for importer, imported in sorted(shown(arrows)):
        axes.add_patch(_arrow(importer, imported, place))
    return figure


def _arrow(importer: str, imported: str, place: Mapping[str, tuple[float, float]]) -> FancyArrowPatch:
    (x, y), (to_x, to_y) = place[importer], place[imported]
    start, end, way = (x, y - 0.25), (to_x, to_y + 0.25), "arc3,rad=0"
    if importer == ASIDE:
        start, end, way = (x - 0.3, y + 0.25), (to_x + 0.78, to_y), "angle,angleA=90,angleB=0,rad=8"
    elif imported == ASIDE:
        start, end, way = (x + 0.78, y), (to_x + 0.3, to_y + 0.25), "angle,angleA=0,angleB=90,rad=8"
    return FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=11, color="#546e7a", connectionstyle=way, zorder=2
    )


def main() -> int:
    """Draw it."""
    arrows = imports()
    if found := circle(arrows):
        print(f"error: rooms import in a circle: {' > '.join(found)}", file=sys.stderr)
        return 1
    matplotlib.rcParams["svg.hashsalt"] = "raydiff"  # the same bytes for the same picture
    draw(arrows).savefig(PICTURE, metadata={"Date": None, "Description": described(shown(arrows))})
    print(f"{PICTURE.relative_to(ROOT)}: {sum(map(len, floors()))} rooms, {len(arrows)} arrows, no circle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
