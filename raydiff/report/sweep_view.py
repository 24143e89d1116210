"""What the sections of a report share: a sweep's tables, the names of its settings, and the number that ranks them."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from raydiff.formats.json_files import read_plan
from raydiff.formats.metric_records import Metric
from raydiff.formats.tables import short
from raydiff.report import load
from raydiff.report.frontier.rows import cell_fields, frontier, has, settings
from raydiff.report.frontier.scatter import draw
from raydiff.report.load import Row, records


@dataclass(frozen=True, eq=False)
class SweepView:
    """A sweep's folder, read once."""

    folder: Path
    runs: pd.DataFrame
    """`load.runs`."""
    metrics: Mapping[str, Metric]
    """`load.metrics`: what the columns of `runs` hold."""
    rounds: pd.DataFrame
    """`load.rounds`."""
    about: Row
    """sweep.json; empty where there is none."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.folder.resolve().name

    def trial(self, digest: str) -> Path:
        """The folder of one of its trials."""
        return self.folder / "trials" / digest

    @cached_property
    def fields(self) -> dict[str, str]:
        """{path: short name} of what was swept, as in the frontier's table."""
        return settings(self.runs)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """digest, method, what was swept under short names, seed, outcome: the first columns of a table of trials."""
        out = self.runs[["digest", "method"]].copy()
        for path, name in self.fields.items():
            values = self.runs[path].astype(object)
            out[name] = values.mask(values.isna() & has(self.runs, path), "none")
        return out.assign(seed=self.seeds, outcome=self.runs["outcome"])

    @cached_property
    def seeds(self) -> pd.Series:
        """The seed of each trial, or seed/split where the data are split in several ways."""
        seeds = self.runs.get("seed", pd.Series(math.nan, self.runs.index))
        splits = self.runs.get("data.split_seed")
        if splits is None or splits.nunique() < 2:
            return seeds
        return pd.Series([f"{s:g}/{t:g}" for s, t in zip(seeds, splits, strict=True)], self.runs.index, dtype=object)

    @cached_property
    def settings(self) -> pd.Series:
        """Each trial's setting in words: its method, and what was swept of it."""
        names = list(self.fields.values())
        return pd.Series([setting_name(row, names) for row in records(self.trials)], self.runs.index, dtype=object)

    @cached_property
    def order(self) -> list[str]:
        """The settings, by method and then by each swept field: numbers as numbers."""
        by = ["method", *self.fields.values()]
        keys = [tuple((isinstance(r[n], str), r[n] is None, r[n] or 0) for n in by) for r in records(self.trials)]
        return list(dict.fromkeys(name for _, name in sorted(zip(keys, self.settings, strict=True))))

    @cached_property
    def frontier(self) -> pd.DataFrame:
        """`frontier.rows.frontier`."""
        return frontier(self.runs, self.metrics)

    @cached_property
    def picture(self) -> bytes:
        """The frontier's picture as a PNG; empty where no setting has a finite epsilon and a measure."""
        file = io.BytesIO()
        draw(self.frontier, file, cell=cell_fields(self.fields))
        return file.getvalue()

    @property
    def finished(self) -> pd.DataFrame:
        """The finished rows of `runs`."""
        return load.finished(self.runs)

    @cached_property
    def measure(self) -> str | None:
        """The column that ranks settings, lower is better."""
        final = {column: m.rank for column, m in self.metrics.items() if m.rank and m.split == "eval"}
        ranks = {column: rank for column, rank in final.items() if self.finished[column].notna().any()}
        return min(ranks, key=ranks.__getitem__, default=None)

    @property
    def best(self) -> tuple[str, str, float]:
        """(digest, column, value) of the finished trial that is best by the sweep's --metric, else by `measure`.

        Raises ValueError where none has it.
        """
        metric, lower = self.about.get("metric") or (None, True)
        column = f"final/{metric}" if metric else self.measure
        order = self.finished.assign(value=load.column(self.finished, str(column))).dropna(subset="value")
        if order.empty:
            raise ValueError(f"no trial of {self.name} has finished with a measure of quality")
        first = order.sort_values("value", ascending=lower).iloc[0]
        return str(first["digest"]), str(column), float(first["value"])


def open_sweep(folder: Path) -> SweepView:
    """Read a sweep. Raises ValueError, in one sentence, where it has no trial or a file is damaged."""
    path = folder / "sweep.json"
    plan = read_plan(folder) if path.exists() else {}
    return SweepView(folder, load.runs(folder), load.metrics(folder), load.rounds(folder), plan)


def setting_name(row: Row, names: list[str]) -> str:
    """`PFDM, schedule linear, epsilon 10` from a row of `trials` and the short names of what was swept."""
    return ", ".join([str(row["method"]), *(f"{n} {short(row[n])}" for n in names if row[n] is not None)])
