"""HTML of the report: text, tables and pictures in one page that loads nothing from elsewhere and has no script."""

import base64
import re
from collections.abc import Iterable
from html import escape

import pandas as pd

from raydiff.formats.tables import number

OPEN = 40  # rows of a table that is shown unfolded
STYLE = """
:root { color-scheme: light dark }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid #8886 }
p, ul { max-width: 75ch; margin: .5rem 0 }
figcaption { font-size: .85em; opacity: .75 }
.scroll { overflow: auto; width: fit-content; max-width: 100%; max-height: 75vh; border: 1px solid #8886 }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; overflow-wrap: normal; max-width: 26rem;
  border-bottom: 1px solid #8883 }
thead th { position: sticky; top: 0; background: Canvas; white-space: nowrap }
figure { margin: .75rem 0; overflow-x: auto }
img { display: block; max-width: 100%; min-width: 36rem; background: #fff }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); gap: .5rem 1rem }
.samples img { min-width: 0; max-height: 22rem; background: none }
@media print { .scroll { overflow: visible; max-height: none } body { font-size: 11px } }
"""


def paragraph(text: str) -> str:
    """A paragraph; `words` between backquotes are code."""
    return f"<p>{_code(text)}</p>"


def bullets(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{_code(line)}</li>' for line in lines)}</ul>"


def _code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def render_table(rows: pd.DataFrame) -> str:
    """A table in a box that scrolls by itself, folded if it is long; columns without any value are left out."""
    used = rows[[name for name in rows if (rows[name].notna() & (rows[name] != "")).any()]]
    text = used.to_html(index=False, border=0, na_rep="", float_format=number)
    box = f'<div class="scroll" tabindex="0">{text}</div>'
    return box if len(rows) <= OPEN else f"<details><summary>{len(rows)} rows</summary>{box}</details>"


def embed_picture(data: bytes, *, alt: str, caption: str = "") -> str:
    """A PNG inside the page."""
    return (
        f'<figure><img src="data:image/png;base64,{base64.b64encode(data).decode()}" '
        f'alt="{escape(alt)}"><figcaption>{escape(caption)}</figcaption></figure>'
    )


def page(title: str, sections: Iterable[tuple[str, str]], footer: str) -> str:
    """The document, from (title, HTML) of its sections."""
    body = "\n".join(f"<section><h2>{escape(name)}</h2>\n{text}</section>" for name, text in sections)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style>'
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n<footer>{footer}</footer></body></html>\n"
    )
