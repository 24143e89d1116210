"""The report's HTML: one page without a script, a picture or a style sheet from elsewhere."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Collection, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from raydiff.report.frontier.text import number

NUMBER = re.compile(r"[-+<>≥]?[\d.]+(e[-+]\d+)?( ?[%skMGTB]+)?|inf|-|")
"""Of a cell that is set on the right; what follows in brackets or after ± does not count."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #59636e; --paper: #fff; --line: #d5dae0; --shade: #f4f6f8;
  --mark: #fff1d6; --link: #0b5cad; --bar: #7aa7d9 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --faint: #a0a9b4; --paper: #14171b; --line: #363c44;
  --shade: #1e2329; --mark: #4a3510; --link: #7db7f5; --bar: #3d6c9f } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem clamp(.75rem, 3vw, 2.5rem) 4rem; max-width: 90rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0 }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem }
p, ul { max-width: 75ch; margin: .5rem 0 }
.note { color: var(--faint); font-size: .9em }
a { color: var(--link) }
nav a { display: inline-block; margin: .1rem .9rem .1rem 0 }
.scroll { overflow: auto; width: fit-content; max-width: 100%; max-height: 75vh; margin: .75rem 0;
  border: 1px solid var(--line) }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--link) }
table { border-collapse: separate; border-spacing: 0; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; max-width: 26rem }
thead th { position: sticky; top: 0; background: var(--shade); vertical-align: bottom;
  white-space: nowrap }
tbody tr:last-child td { border-bottom: 0 }
td.n, th.n { text-align: right; white-space: nowrap }
td.w { min-width: 13rem }
tr.mark td { background: var(--mark) }
summary { cursor: pointer; margin: .5rem 0; color: var(--link) }
figure { margin: .75rem 0 }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px }
figcaption { color: var(--faint); font-size: .8rem; line-height: 1.35; margin-top: .25rem }
.wide { overflow-x: auto }
.wide img { min-width: 40rem }
.thumbs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(12rem, 100%), 1fr)); gap: .5rem 1rem }
.thumbs img { width: 100%; max-height: 16rem; object-fit: contain }
.bar { display: inline-block; height: .7em; background: var(--bar) }
"""


def page(title: str, intro: Sequence[str], sections: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The whole document: a heading, what stands under it, a list of the sections, and the sections (title, blocks)."""
    ids = {name: re.sub(r"\W+", "-", name.lower()).strip("-") for name, _ in sections}
    links = " ".join(f'<a href="#{at}">{escape(name)}</a>' for name, at in ids.items())
    parts = [f'<section id="{ids[n]}"><h2>{escape(n)}</h2>\n' + "\n".join(b) + "</section>" for n, b in sections]
    body = "\n".join([f"<h1>{escape(title)}</h1>", *intro, f'<nav aria-label="sections">{links}</nav>', *parts])
    head = f'<meta charset="utf-8">\n<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    head = f"<head>\n{head}<style>{STYLE}</style>\n</head>"
    return f'<!doctype html>\n<html lang="en">\n{head}\n<body>\n{body}\n</body>\n</html>\n'


def paragraph(text: str, *, note: bool = False) -> str:
    """A paragraph of plain text; as a note, it is small."""
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def bullets(lines: Sequence[str], *, note: bool = False) -> str:
    """A list of plain text; nothing where there are no lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul{' class=note' if note else ''}>{items}</ul>" if items else ""


def heading(text: str) -> str:
    """The heading of a part of a section."""
    return f"<h3>{escape(text)}</h3>"


def folded(summary: str, blocks: Sequence[str]) -> str:
    """Blocks that are shown on request."""
    return f"<details><summary>{escape(summary)}</summary>\n" + "\n".join(blocks) + "</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, name: str, marked: Collection[int] = ()) -> str:
    """A table in a box that scrolls by itself. `name` says to a screen reader what it is; marked rows stand out.

    A cell is text, or `Markup`, which is HTML already. Columns of numbers stand on the right.
    """
    sides = [_side([str(row[i]) for row in rows]) for i in range(len(header))]
    top = "".join(f'<th scope="col"{s}>{escape(h)}</th>' for h, s in zip(header, sides, strict=True))
    lines = []
    for i, row in enumerate(rows):
        cells = "".join(f"<td{s}>{_html(cell)}</td>" for cell, s in zip(row, sides, strict=True))
        lines.append(f"<tr{' class=mark' if i in marked else ''}>{cells}</tr>")
    inner = f"<table><thead><tr>{top}</tr></thead>\n<tbody>" + "\n".join(lines) + "</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{inner}</div>'


class Markup(str):
    """HTML that is put into a table as it is."""


def bar(share: float) -> Markup:
    """A horizontal bar, at most six em long."""
    return Markup(f'<span class="bar" style="width:{6 * max(0.0, min(1.0, share)):.2f}em"></span>')


def picture(data: bytes, *, alt: str, caption: str = "", kind: str = "png") -> str:
    """A picture inside the page; a PNG scrolls by itself rather than shrink beyond reading."""
    wide = ' class="wide"' if kind == "png" else ""
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure{wide}><img src="{uri}" alt="{escape(alt)}">{below}</figure>'


def picture_of(path: Path, *, alt: str) -> str:
    """A PNG file inside the page."""
    return picture(path.read_bytes(), alt=alt)


def from_markdown(text: str, *, name: str) -> Iterator[str]:
    """The blocks of what the other analyses print: headings, tables, paragraphs. Empty columns are left out."""
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines[0].startswith("## "):
            yield heading(lines[0][3:])
        elif lines[0].startswith("| "):
            header, _, *rows = ([c.strip() for c in line.strip("|").split("|")] for line in lines)
            kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
            cells = [[_bold(row[i]) for i in kept] for row in rows]
            yield table([header[i] for i in kept], cells, name=name)
        else:
            yield paragraph(" ".join(lines), note=True)


def mean_and_deviation(mean: float, deviation: float | None) -> str:
    """`0.863±0.012`, `0.863` for a single value, `-` for none."""
    known = deviation is not None and not math.isnan(deviation)
    return f"{number(mean)}±{number(deviation)}" if known else number(mean)


def _html(cell: Any) -> str:
    return cell if isinstance(cell, Markup) else escape(str(cell))


def _bold(cell: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(cell)))


def _side(cells: Sequence[str]) -> str:
    """The class of a column: of numbers, or wide."""
    shown = [re.sub("<.*?>", "", cell) for cell in cells]
    if any(shown) and all(map(_is_number, shown)):
        return ' class="n"'
    return ' class="w"' if max(map(len, shown), default=0) > 24 else ""


def _is_number(cell: str) -> bool:
    return NUMBER.fullmatch(re.split(r" ?[±\[(]", cell)[0].replace(",", "")) is not None
