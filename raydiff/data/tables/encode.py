"""Encoding of a table's columns as small integers, and back: bins of numbers, groups of texts. s rows, n columns.

Unless bins and groups are declared they depend on the rows that they were fitted on, which no mechanism covers. Fitted
on public rows they have a category for what only others have.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping as Dictionary, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from raydiff.data.tables import kinds
from raydiff.data.tables.kinds import Kind, canonical, number_text, value
from raydiff.formats.json_files import dumps

if TYPE_CHECKING:
    import pandas as pd

MISSING = "(missing)"  # name of the category of missing values
OTHER = "(other)"  # name of the category of rare values and of values that no public row has
UNUSED = "(none)"  # name of codes that the column does not use, which only noised rows have


@dataclass(frozen=True)
class Column:
    """The categories of one column, of texts or, between `edges`, of numbers.

    Numbers are cut into < e_1, e_1 to < e_2, .., >= e_m. Dates are seconds since 1970-01-01 UTC, durations seconds.
    `limits` are the smallest and largest number of the rows that `edges` was fitted on (None: no edges, or declared
    ones), `step` one of which all are multiples, such as 1, 0.01 or, of dates, 86400 (None: unknown)."""

    name: str
    categories: tuple[str, ...]  # names of the codes 0, 1, ...
    edges: tuple[float, ...] | None = None
    values: Dictionary[str, int] = field(default_factory=dict)  # code of each text; others go to OTHER, if there is one
    kind: Kind = "text"
    limits: tuple[float, float] | None = None
    step: float | None = None

    def code(self, text: str | None) -> int:
        """Code of one canonical text (None: missing), or -1 if it has no category.

        Among bins, what is no finite number is missing.
        """
        rest = self.values.get(OTHER, -1)
        if text is not None and self.edges is None:
            return self.values.get(text, rest)
        if text is not None and math.isfinite(x := value(text)):
            return bisect.bisect_right(self.edges or (), x)
        return self.categories.index(MISSING) if MISSING in self.categories else rest

    def codes(self, values: pd.Series) -> NDArray[np.int64]:
        """(s,) int64 codes of texts. Raises ValueError on values that have no category."""
        texts = values.astype(object).where(values.notna(), None).tolist()
        codes = {text: self.code(text) for text in dict.fromkeys(texts)}
        if unknown := [MISSING if text is None else text for text, code in codes.items() if code < 0]:
            raise ValueError(f"column {self.name!r} has the value {unknown[0]!r}, which is in none of its categories")
        return np.array([codes[text] for text in texts], dtype=np.int64)

    def names(self, codes: NDArray[np.int64]) -> NDArray[np.object_]:
        """The category (a bin's interval as text) of each code (s,); None: missing."""
        names = [*(None if c == MISSING else c for c in self.categories), UNUSED]
        return np.array(names, dtype=object)[np.minimum(codes, len(self.categories))]


@dataclass(frozen=True)
class Mapping:
    """The encoding of a table."""

    columns: tuple[Column, ...]  # the n columns, without the label
    label: Column | None = None  # the label

    @property
    def decoded(self) -> tuple[Column, ...]:
        """The columns of a decoded table: the label is the last."""
        return self.columns if self.label is None else (*self.columns, self.label)

    def encode(self, frame: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """(codes (s, n), labels (s,) or None) of texts in these columns. Raises ValueError as `Column.codes` does."""
        codes = np.stack([column.codes(frame[column.name]) for column in self.columns], axis=1)
        return codes, None if self.label is None else self.label.codes(frame[self.label.name])

    def decode(self, codes: NDArray[np.int64], labels: NDArray[np.int64] | None = None) -> pd.DataFrame:
        """Rows as text from codes (s, n) and labels (s,): of a bin its interval."""
        import pandas as pd  # slow to import

        rows = {column.name: column.names(codes[:, i]) for i, column in enumerate(self.columns)}
        if self.label is not None and labels is not None:
            rows[self.label.name] = self.label.names(labels)
        return pd.DataFrame(rows)

    def save(self, path: Path) -> None:
        """Write the mapping as JSON."""
        path.write_text(dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> Mapping:
        """Inverse of `save`. Raises ValueError on other files."""
        try:
            return TypeAdapter(Mapping).validate_json(path.read_bytes())
        except (OSError, ValueError) as e:
            raise ValueError(f"{path} holds no mapping of a table ({type(e).__name__})") from e


def bins_of(values: pd.Series, *, kind: Kind, bins: int, edges: Sequence[float] | None, public: bool = False) -> Column:
    """A column of numbers, cut at these edges, or so that its parts are as equal as can be; at most `bins` categories.

    `public`: these are public values, and others may be missing. Raises ValueError as `numbers` does."""
    x = numbers(values.dropna(), kind)
    missing = (MISSING,) if public or values.isna().any() else ()
    if edges is not None:
        return Column(str(values.name), (*_intervals(edges, kind), *missing), tuple(map(float, edges)), kind=kind)
    cuts = _quantiles(x, bins - len(missing))
    return Column(
        str(values.name),
        (*_intervals(cuts, kind), *missing),
        tuple(cuts),
        kind=kind,
        limits=(float(x.min()), float(x.max())),
        step=kinds.step(x, kind),
    )


def fit_groups(
    values: pd.Series, *, kind: Kind, bins: int, groups: Dictionary[str, Sequence[str]] | None, public: bool = False
) -> Column:
    """A column of few values: in these groups, or one category for each value, the rarest merged; at most `bins`.

    `public`: these are public values, and OTHER is always a category."""
    name = str(values.name)
    missing = [MISSING] if values.isna().any() else []
    if groups is not None:
        codes = {canonical(text, kind): i for i, group in enumerate(groups.values()) for text in group}
        return Column(name, (*groups, *missing), values=codes, kind=kind)
    counts = values.value_counts()
    names = sorted(counts.index, key=lambda text: (-counts[text], text))  # Ties go by name, not by row.
    room = bins - len(missing) - public
    other = list[str]()
    if public or len(names) > room:
        names = [text for text in names if text != OTHER][: room if public else room - 1]
        other = [OTHER]
    names = [*_natural(names), *other]
    return Column(
        name,
        (*(kinds.format_text(text, kind) for text in names), *missing),
        values={text: i for i, text in enumerate(names)},
        kind=kind,
    )


def numbers(values: pd.Series, kind: Kind = "number") -> NDArray[np.float64]:
    """(s,) float64 of canonical texts. Raises ValueError unless all are finite numbers."""
    x = np.array([value(text) for text in values], dtype=np.float64)
    if not np.isfinite(x).all():
        name = values.name
        bad = values[~np.isfinite(x)].iloc[0]
        raise ValueError(
            f"column {name!r} must hold {kinds.MEANING[kind]}, got {bad!r}: set --data.types {name}=text, or of a "
            f"CSV file add {bad!r} to --data.csv.missing"
        )
    return x


def _quantiles(x: NDArray[np.float64], bins: int) -> list[float]:
    """At most bins - 1 values of x, above its minimum, that cut it into parts as equal as ties allow."""
    rest = np.sort(x)
    edges = list[float]()
    for parts in range(bins, 1, -1):
        if len(above := rest[rest > rest[:1]]):
            edges.append(float(max(rest[len(rest) // parts], above[0])))
            rest = rest[rest >= edges[-1]]
    return edges


def _intervals(edges: Sequence[float], kind: Kind) -> list[str]:
    if not len(edges):
        return [f"any {kind}"]
    texts = [kinds.format_text(number_text(e), kind) for e in edges]
    return [f"< {texts[0]}", *(f"{a} to < {b}" for a, b in itertools.pairwise(texts)), f">= {texts[-1]}"]


def _natural(texts: Sequence[str]) -> list[str]:
    """In order of value where all are numbers, else by name."""
    x = {text: value(text) for text in texts}
    return sorted(texts, key=lambda text: (text,) if any(map(math.isnan, x.values())) else (x[text], text))
