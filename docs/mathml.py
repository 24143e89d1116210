"""Hook of mkdocs.yml: formulas as MathML, which browsers show by themselves. GitHub shows the same `$...$`."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_page_content(content: str, **_: Any) -> str:
    """Replace each formula, as pymdownx.arithmatex leaves it, by MathML."""
    return FORMULA.sub(lambda m: convert(html.unescape(m[2]), display="block" if m[1] == "div" else "inline"), content)
