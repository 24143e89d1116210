"""A report read back by an HTML parser: sections, tables, pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br"}


@dataclass
class Table:
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)

    def column(self, name: str) -> list[str]:
        return [row[self.header.index(name)] for row in self.rows]

    def row(self, **cells: str) -> dict[str, str]:
        """The one row with these cells."""
        named = [dict(zip(self.header, row, strict=True)) for row in self.rows]
        values = [row for row in named if cells.items() <= row.items()]
        assert len(values) == 1, f"{len(values)} rows have {cells}: {named}"
        return values[0]


@dataclass
class Part:
    text: str = ""
    tables: list[Table] = field(default_factory=list)
    pictures: list[dict[str, str]] = field(default_factory=list)
    folded_pictures: int = 0
    folded: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """Sections by title; every tag with its attributes. Fails on tags that do not close in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.sections: dict[str, Part] = {}
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self._part, self._cell, self._title = Part(), "", ""
        self.feed(path.read_text())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        self.tags.append((tag, values))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._part = Part()
        elif tag == "h2":
            self._title = ""
        elif tag == "table":
            self._part.tables.append(Table())
        elif tag == "tr" and "tbody" in self._open:
            table = self._part.tables[-1]
            table.marked += [len(table.rows)] if values.get("class") == "mark" else []
            table.rows.append([])
        elif tag in ("td", "th"):
            self._cell = ""
        elif tag == "img":
            self._part.pictures.append(values)
            self._part.folded_pictures += "details" in self._open
        elif tag == "summary":
            self._part.folded.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "th":
            self._part.tables[-1].header.append(self._cell)
        elif tag == "td":
            self._part.tables[-1].rows[-1].append(self._cell)
        elif tag == "h2":
            self.sections[self._title] = self._part
        elif tag in ("p", "li", "h3"):
            self._part.text += "\n"

    def handle_data(self, data: str) -> None:
        if "h2" in self._open:
            self._title += data
        elif {"td", "th"} & set(self._open):
            self._cell += data
        elif "summary" in self._open:
            self._part.folded[-1] += data
        elif {"p", "li", "h3", "figcaption"} & set(self._open):
            self._part.text += data
