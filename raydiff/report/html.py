"""The report's HTML: one page that loads nothing from elsewhere, readable without its script, which sorts and filters.

`html` has the macros of templates/page.html as functions that return `Markup`: `html.paragraph("...", note=True)`.
Their arguments are escaped, unless they are `Markup` already.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from raydiff.formats.tables import Table

NUMBER = re.compile(r"[-+<>≥]?[\d.]+(e[-+]\d+)?( ?[%skMGTB]+)?|inf|-|")
"""A cell that is aligned right, without what follows in brackets or after ±."""


def sheet(table: Table, name: str, *, most: float = math.inf, marked: Sequence[int] = ()) -> Iterator[str]:
    """A table as blocks: title, columns that are not empty (folded beyond `most` rows), note."""
    if table.title:
        yield html.heading(table.title)
    kept, count = [i for i in range(len(table.header)) if any(row[i] for row in table.rows)], len(table.rows)
    header, rows = [table.header[i] for i in kept], [[row[i] for i in kept] for row in table.rows]
    grid = html.table(header, rows, name=name, marked=marked)
    yield grid if count <= most else html.folded(f"{count} rows", [grid])
    if table.note:
        yield html.paragraph(table.note, note=True)


def _sides(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> list[str]:
    """The CSS class of each column: numbers, or wide."""
    return [_side([re.sub("<.*?>", "", str(row[i])) for row in rows]) for i in range(len(header))]


def _side(cells: Sequence[str]) -> str:
    first = (re.split(r" ?[±\[(]", cell)[0].replace(",", "") for cell in cells)
    if any(cells) and all(map(NUMBER.fullmatch, first)):
        return Markup(' class="n"')
    return Markup(' class="w"') if max(map(len, cells), default=0) > 24 else ""


_PAGES = Environment(loader=PackageLoader("raydiff.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
_PAGES.filters |= {
    "code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
    "sides": _sides,
    "anchor": lambda title: re.sub(r"\W+", "-", title.lower()).strip("-"),
    "base64": lambda data: base64.b64encode(data).decode(),
}
html: Any = _PAGES.get_template("page.html").module
