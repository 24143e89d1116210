"""Draw the packages of raydiff by the layers of tests/test_layering.py, and who imports whom.

python docs/architecture.py     writes docs/img/architecture.svg; exit code 1 if packages import in a cycle
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
ENTRY = "__main__"
"""Left out: the entry point imports commands by name, which no import statement shows."""
ASIDE = "report"
"""A package beside the others: it reads a sweep's files and imports only what writes them."""


def layers() -> list[list[str]]:
    """Return LAYERS of tests/test_layering.py, lowest first, without packages that do not exist."""
    tree = ast.parse((ROOT / "tests" / "test_layering.py").read_text())
    table = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "LAYERS")
    existing = {path.stem for path in (ROOT / "raydiff").iterdir()} - {ENTRY}
    return [[package for package in layer if package in existing] for layer in ast.literal_eval(table)]


def imports() -> set[tuple[str, str]]:
    """Return (importer, imported) over packages, from every import statement below raydiff/."""
    arrows = set()
    packages = {package for layer in layers() for package in layer}
    for path in (ROOT / "raydiff").rglob("*.py"):
        importer = path.relative_to(ROOT / "raydiff").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                top, *below = name.split(".")
                if (
                    top == "raydiff"
                    and below
                    and below[0] in packages
                    and importer in packages
                    and below[0] != importer
                ):
                    arrows.add((importer, below[0]))
    return arrows


def cycle(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the packages of an import cycle, the first one again at the end, or an empty list."""
    graph: dict[str, set[str]] = {}
    for importer, imported in arrows:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def described(arrows: Iterable[tuple[str, str]]) -> str:
    """Return the picture's description, by which a test recognises an outdated picture."""
    return "; ".join(f"{importer} imports {imported}" for importer, imported in sorted(arrows))


def shown(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows without transitive ones; no path leads through ASIDE."""
    below: dict[str, set[str]] = {}
    for importer, imported in arrows:
        below.setdefault(importer, set()).add(imported)

    def reach(package: str) -> set[str]:
        return set().union(*({n} | reach(n) for n in below.get(package, ()))) if package != ASIDE else set()

    return {(a, b) for a in rooms for b in rooms[a] if not any(b in reach(other) for other in rooms[a] - {b})}


def draw(arrows: set[tuple[str, str]]) -> Figure:
    """Draw layers from the bottom up, and the arrows of `shown`."""
    place: dict[str, tuple[float, float]] = {}
    figure = Figure(figsize=(9, 7.2), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(-0.6, len(layers()) - 0.4))
    axes.axis("off")
    for height, layer in enumerate(layers()):
        axes.axhspan(height - 0.42, height + 0.42, color="#f2f5f7" if height % 2 else "#e6ecf0", zorder=0)
        for i, package in enumerate(r for r in layer if r != ASIDE):
            place[package] = (4 + 2.7 * (i - (len(layer) - (ASIDE in layer) - 1) / 2), height)
        if ASIDE in layer:
            place[ASIDE] = (9.0, height)
    for package, (x, y) in place.items():
        box = FancyBboxPatch(
            (x - 0.72, y - 0.2), 1.44, 0.4, boxstyle="round,pad=0.05", fc="white", ec="#37474f", zorder=3
        )
        axes.add_patch(box)
        axes.text(x, y, package, ha="center", va="center", fontsize=12, zorder=4)
    for importer, imported in sorted(shown(arrows)):
        axes.add_patch(_arrow(importer, imported, place))
    return figure


def _box(axes: matplotlib.axes.Axes, x: float, y: float, name: str, question: str) -> None:
    box = FancyBboxPatch((x - 1.25, y - 0.24), 2.5, 0.48, boxstyle="round,pad=0.04", fc="white", ec="#37474f", zorder=3)
    axes.add_patch(box)
    axes.text(
        x, y + 0.09, name, ha="center", va="center", fontsize=11 if len(name) < 20 else 8.5, fontweight="bold", zorder=4
    )
    axes.text(x, y - 0.13, question, ha="center", va="center", fontsize=7.5, color="#37474f", zorder=4)


def main() -> int:
    """Check for cycles, then write the picture."""
    arrows = imports()
    if packages := cycle(arrows):
        print(f"error: packages import in a cycle: {' > '.join(packages)}; break one of these imports", file=sys.stderr)
        return 1
    matplotlib.rcParams["svg.hashsalt"] = "raydiff"  # the same bytes for the same picture
    draw(arrows).savefig(PICTURE, metadata={"Date": None, "Description": described(shown(arrows))})
    print(f"{PICTURE.relative_to(ROOT)}: {sum(map(len, layers()))} packages, {len(arrows)} imports, no cycle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
