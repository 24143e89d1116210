"""Keep the numbers of README and docs equal to those in the files that commands wrote.

    python docs/figures.py        write each page's embedded output anew, from docs/data

Embedded output stands between `<!-- data/budget.txt -->` and `<!-- end -->`: the file's lines, as the command wrote
them. Every other number with a decimal point on a page must be, rounded, in a file of docs/data (or of the published
numbers in analysis/) that the page names or links to; `tests/test_docs.py` checks it.
"""

from __future__ import annotations

import csv
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT_PAGES = [DOCS.parent / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
PAGES = [*ROOT_PAGES, *sorted(set(DOCS.rglob("*.md")) - set((DOCS / "data").rglob("*")))]
TABLE = re.compile(r"(<!-- (data/[\w./-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMED = re.compile(r"(?<![\w-])(?:data/[\w/-]+\.(?:md|csv|jsonl?|txt)|analysis/\w+\.tsv)")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.]*\d)")
DECIMAL = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?:e[+-]?\d+)?(?![\w.])")
NOT_TYPED = re.compile(
    r"```.*?```|^ {4}.*?$|\$[^$\n]+\$|`[^`]*`|\]\([^)]*\)|<!-- .*? -->"
    r"|(?:arXiv|[Ss]ection|Theorem|Python|torch|Ray) [\d.]+",
    re.DOTALL | re.M,
)


def written(page: Path) -> str:
    """The page's text with its tables as the files have them; what was printed (.txt) is a block of code."""

    def filled(found: re.Match[str]) -> str:
        lines = (DOCS / found[2]).read_text().rstrip() + "\n"
        block = "\n" + textwrap.indent(lines, "    ") + "\n" if found[2].endswith(".txt") else lines
        return found[1] + block + found[3]

    return TABLE.sub(filled, page.read_text())


def sources(page: Path) -> list[Path]:
    """The files of docs/data that the page names, and the tables of published numbers."""
    named = dict.fromkeys(NAMED.findall(page.read_text()))
    return [(DOCS if name.startswith("data/") else DOCS.parent) / name for name in named]


def typed(page: Path) -> str:
    """What people wrote of the page: without its files' tables, code, addresses."""
    return NOT_TYPED.sub(" ", TABLE.sub(" ", page.read_text()))


def numbers(file: Path) -> Iterator[float]:
    """All numbers in a file."""
    if file.suffix == ".csv":
        with file.open(newline="") as lines:
            cells = [number for row in csv.reader(lines) for cell in row for number in (cell, *DECIMAL.findall(cell))]
    elif file.suffix == ".json":
        cells = re.findall(r"-?\d[\w.+-]*", json.dumps(json.loads(file.read_text())))
    else:
        cells = re.findall(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", file.read_text())
    for cell in cells:
        try:
            yield abs(float(cell.replace(",", "")))
        except ValueError:
            continue


def unfounded(page: Path) -> list[str]:
    """Numbers that people wrote in the page and that are in none of its files."""
    known = [value / unit for file in sources(page) for value in numbers(file) for unit in (1, 1e3)]  # MB as GB
    return [text for text in NUMBER.findall(typed(page)) if not _in(text.replace(",", ""), known)]


def _in(text: str, known: list[float]) -> bool:
    half = 0.5 * 10.0 ** -len(text.partition(".")[2]) * (1 + 1e-9)
    return any(abs(float(text) - value) <= half for value in known)


if __name__ == "__main__":
    for page in PAGES:
        if (text := written(page)) != page.read_text():
            page.write_text(text)
            print(page.relative_to(DOCS.parent))
