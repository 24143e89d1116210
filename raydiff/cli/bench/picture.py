"""The benchmarks as a picture and a table.

    raydiff bench scale > scale.jsonl; raydiff bench sweep > sweep.jsonl
    raydiff bench-picture scale.jsonl sweep.jsonl [--out bench.png]

Takes what `raydiff bench` prints, of any of its measurements: seconds per round and memory over clients, seconds per
round over the size of the model, where a sweep's time goes, lock-step against one after the other, and the cost over
the floor.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from raydiff.report import markdown

Row = dict[str, Any]
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "0.6"


def read(files: Sequence[Path]) -> dict[str, list[Row]]:
    """What a line is about -> its lines. Raises ValueError for a file that `raydiff bench` has not printed."""
    found: dict[str, list[Row]] = {}
    for file in files:
        for text in file.read_text().splitlines():
            try:
                line = json.loads(text)
                found.setdefault(line["what"], []).append(line)
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"{file} is not what raydiff bench prints: {text[:60]!r}") from None
    if not set(found) & set(PANELS):
        raise ValueError(f"nothing to draw: no line is about {', '.join(PANELS)}")
    return found


def plot(found: dict[str, list[Row]], path: Path) -> None:
    """A panel for each kind of line that is there."""
    from matplotlib.figure import Figure

    names = [name for name in PANELS if name in found]
    figure = Figure(figsize=(4.2 * len(names), 3.6), dpi=160, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        PANELS[name](axes, found[name])
        axes.tick_params(labelsize=8)
    figure.savefig(path, metadata={"Software": None})


def tables(found: dict[str, list[Row]]) -> Iterator[str]:
    """A table for each kind of line that is there, and what it was measured on."""
    for machine in {json.dumps(m): m for m in found.get("machine", [])}.values():
        yield f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB; torch {machine['torch']}"
    for name, rows in found.items():
        if name != "machine":
            columns = [k for k, v in rows[0].items() if k != "what" and not isinstance(v, (dict, list))]
            yield ""
            yield from markdown.grid([name, *columns], (["", *(_said(row[c]) for c in columns)] for row in rows))


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _scale(axes: Any, rows: Sequence[Row]) -> None:
    for vectorize, marker in ((False, "o-"), (True, "s")):
        some = [r for r in rows if r["vectorize"] is vectorize]
        name = "in lock-step" if vectorize else "one after the other"
        axes.plot([r["clients"] for r in some], [r["seconds_per_round"] for r in some], marker, color=BLUE, label=name)
    axes.set(xscale="log", yscale="log", xlabel="clients, on two workers", ylabel="seconds per round")
    beside = axes.twinx()
    plain = [r for r in rows if not r["vectorize"]]
    beside.plot([r["clients"] for r in plain], [r["total_mb"] / 1024 for r in plain], "^:", color=ORANGE)
    beside.set_ylim(0, 1.6 * max(r["total_mb"] for r in plain) / 1024)  # below the legend
    beside.set_ylabel("GB of driver and workers (triangles)", color=ORANGE, fontsize=8)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def _size(axes: Any, rows: Sequence[Row]) -> None:
    megabytes = [4 * r["parameters"] / 2**20 for r in rows]
    axes.plot(megabytes, [r["seconds_per_round"] for r in rows], "o-", color=BLUE)
    axes.set(
        xscale="log", yscale="log", xlabel="MB of weights", ylabel=f"seconds per round, {rows[0]['clients']} clients"
    )
    axes.set_title("no training: weights moved and kept", fontsize=9)


def _sweep(axes: Any, rows: Sequence[Row]) -> None:
    low = [0.0] * len(rows)
    for part, colour in (("working", GREEN), ("outside", ORANGE), ("waiting", GREY)):
        share = [100 * r[part] / r["slots_s"] for r in rows]
        axes.bar([str(r["trials"]) for r in rows], share, bottom=low, color=colour, label=part)
        low = [a + b for a, b in zip(low, share, strict=True)]
    axes.set(xlabel="trials", ylabel="% of the slots' time", ylim=(0, 125))
    axes.legend(fontsize=8, frameon=False, loc="upper center", ncols=3)


def _cohort(axes: Any, rows: Sequence[Row]) -> None:
    names = [f"{r['network']}, {r['parameters'] // 1000}k\n{r['clients']} x batch {r['batch']}" for r in rows]
    axes.barh(names, [r["together_over_alone"] for r in rows], color=BLUE)
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    axes.set_xlabel("CPU time in lock-step over one after the other")


def _overhead(axes: Any, rows: Sequence[Row]) -> None:
    names = [f"{r['clients']} x {r['steps']} steps\n{r['parameters'] // 1000}k" for r in rows]
    for i, (key, colour) in enumerate((("local_over_floor", BLUE), ("ray_over_two_processes", ORANGE))):
        at = [n + 0.4 * (i - 0.5) for n in range(len(rows))]
        axes.barh(at, [r[key] for r in rows], height=0.36, color=colour, label=key.replace("_", " "))
    axes.set_yticks(range(len(rows)), names)
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    axes.set_xlabel("seconds per round, ratio")
    axes.legend(fontsize=7, frameon=False)


PANELS: dict[str, Callable[[Any, Sequence[Row]], None]] = {
    "scale": _scale,
    "size": _size,
    "sweep": _sweep,
    "cohort": _cohort,
    "overhead": _overhead,
}
"""What a line is about -> how it is drawn."""


def main(argv: Sequence[str]) -> int:
    """Draw, and print the tables."""
    p = argparse.ArgumentParser(
        prog="raydiff bench-picture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("files", nargs="+", type=Path, metavar="FILE")
    p.add_argument("--out", type=Path, default=Path("bench.png"))
    options = p.parse_args(argv)
    found = read(options.files)
    print("\n".join(tables(found)))
    plot(found, options.out)
    print(f"\nplot: {options.out}")
    return 0
