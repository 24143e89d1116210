"""Write docs/tutorial.ipynb from docs/tutorial.md: its text and its Python as cells, run for their outputs.

python docs/notebook.py [FILE]        a minute; the cells run in an empty folder
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("tutorial.md")
NOTEBOOK = PAGE.with_suffix(".ipynb")
CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n(?: {4}[^\n]*\n)+)?", re.M | re.S)
"""A block of Python, and what the page says that it prints."""
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}

Cell = dict[str, Any]


def cells(page: str) -> list[Cell]:
    """The notebook's cells, not yet run, of a page in Markdown."""
    parts = CODE.split(page.partition("\n---\n")[2])  # Text and code in turn, below the front matter.
    kinds = [("markdown" if i % 2 == 0 else "code", part.strip()) for i, part in enumerate(parts)]
    return [_cell(kind, source, number) for number, (kind, source) in enumerate(kinds) if source]


def _cell(kind: str, source: str, number: int) -> Cell:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"id": f"cell-{number}", "cell_type": kind, "metadata": {}, "source": source.splitlines(True), **more}


def run(cells: list[Cell]) -> None:
    """Execute the code in order, in the working directory, and put what it prints and draws into the cells."""
    from matplotlib import pyplot

    names: dict[str, Any] = {}
    for count, cell in enumerate((c for c in cells if c["cell_type"] == "code"), start=1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec("".join(cell["source"]), names)
        text = printed.getvalue().replace(f"{Path.cwd()}/", "")
        cell["execution_count"] = count
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}] * bool(text)
        for number in pyplot.get_fignums():
            pyplot.figure(number).savefig(picture := io.BytesIO(), format="png", dpi=80, bbox_inches="tight")
            data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
            cell["outputs"].append({"output_type": "display_data", "metadata": {}, "data": data})
        pyplot.close("all")


def notebook(cells: list[Cell]) -> str:
    """The file's content, in nbformat 4.5."""
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": KERNEL, "cells": cells}, indent=1) + "\n"


def main() -> None:
    """Run the page's cells and write the notebook."""
    os.environ["MPLBACKEND"] = "Agg"
    content, target = cells(PAGE.read_text()), Path(*sys.argv[1:2] or [NOTEBOOK]).absolute()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run(content)
    target.write_text(notebook(content))


if __name__ == "__main__":
    main()
