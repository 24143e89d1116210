"""The rooms of raydiff/ on the floors that their imports make (tests/test_layering.py), and who imports whom.

python docs/architecture.py     writes docs/img/architecture.svg; exit code 1 where rooms or files import in a circle
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "img" / "architecture.svg"
sys.path.insert(0, str(ROOT / "tests"))
from test_layering import arrows, check_files, file_arrows, floors  # noqa: E402

QUESTION = {
    "papers": "which paper? pfdm, spire, feddistr, discrete",
    "cli": "how do I ask?",
    "api": "the same from Python",
    "report": "what did the sweep show?",
    "runtime": "where does it run? the only home of Ray",
    "tracking": "what does MLflow show?",
    "results": "what can I do with a finished trial?",
    "experiment": "what is one trial, one sweep?",
    "methods": "which baseline?",
    "evaluation": "how good, and what leaks?",
    "federated": "what is a round?",
    "models": "what is trained?",
    "storage": "what survives?",
    "data": "whose records?",
    "privacy": "what left, at what cost?",
    "formats": "how is it written down?",
}
SMALL = ("lookup", "process", "seeding", "settings", "tree")
"""Single files on the ground floor, drawn as one box without arrows: nearly all rooms import them."""


def shown(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """(importer, imported), without the arrows that a longer way says too, and without those to `SMALL`."""
    rooms = {room: {r for r in others if r not in SMALL} for room, others in graph.items() if room not in SMALL}

    def reach(room: str) -> set[str]:
        return set().union(*({other} | reach(other) for other in rooms[room]))

    return {(a, b) for a in rooms for b in rooms[a] if not any(b in reach(other) for other in rooms[a] - {b})}


def described(drawn: Iterable[tuple[str, str]]) -> str:
    """The arrows as the picture's description: a test sees by it whether the picture is of today's imports."""
    return "; ".join(f"{importer} imports {imported}" for importer, imported in sorted(drawn))


def draw(graph: Mapping[str, set[str]]) -> Figure:
    """Floors from below upwards, each room with its question, and the arrows of `shown`."""
    levels = [[room for room in floor if room not in SMALL] for floor in floors(graph)]
    figure = Figure(figsize=(9.5, 9), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(-0.6, len(levels) - 0.4))
    axes.axis("off")
    place = {}
    for height, floor in enumerate(levels):
        axes.axhspan(height - 0.44, height + 0.44, color="#f2f5f7" if height % 2 else "#e6ecf0", zorder=0)
        for i, room in enumerate(floor):
            place[room] = (5 + 4.4 * (i - (len(floor) - 1) / 2), height)
    for room, (x, y) in place.items():
        _box(axes, x, y, room, QUESTION.get(room, ""))
    _box(axes, 8.4, 0, " ".join(SMALL), "used by nearly all: no arrows")
    for importer, imported in sorted(shown(graph)):
        (x, y), (to_x, to_y) = place[importer], place[imported]
        axes.add_patch(
            FancyArrowPatch(
                (x, y - 0.3),
                (to_x, to_y + 0.3),
                arrowstyle="-|>",
                mutation_scale=11,
                color="#546e7a",
                connectionstyle="arc3,rad=0" if y - to_y == 1 or x != to_x else "arc3,rad=-0.6",
                zorder=2,
            )
        )
    return figure


def _box(axes: matplotlib.axes.Axes, x: float, y: float, name: str, question: str) -> None:
    box = FancyBboxPatch((x - 1.25, y - 0.24), 2.5, 0.48, boxstyle="round,pad=0.04", fc="white", ec="#37474f", zorder=3)
    axes.add_patch(box)
    axes.text(
        x, y + 0.09, name, ha="center", va="center", fontsize=11 if len(name) < 20 else 8.5, fontweight="bold", zorder=4
    )
    axes.text(x, y - 0.13, question, ha="center", va="center", fontsize=7.5, color="#37474f", zorder=4)


def main() -> int:
    """Draw it."""
    graph = arrows()
    try:
        check_files(file_arrows())
        figure = draw(graph)
    except CycleError as e:
        print(f"error: these import in a circle: {' > '.join(e.args[1])}", file=sys.stderr)
        return 1
    matplotlib.rcParams["svg.hashsalt"] = "raydiff"  # the same bytes for the same picture
    figure.savefig(PICTURE, metadata={"Date": None, "Description": described(shown(graph))})
    print(
        f"{PICTURE.relative_to(ROOT)}: {len(graph)} rooms on {len(floors(graph))} floors, no circle, also inside rooms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
