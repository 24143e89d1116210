"""What the sections of a report share: a sweep's tables, the names of its settings, and the number that ranks them."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from raydiff.formats.json_files import read_plan
from raydiff.formats.metric_records import Metric
from raydiff.report import load
from raydiff.report.frontier import rows, scatter
from raydiff.report.load import Row, column, records


@dataclass(frozen=True, eq=False)
class SweepView:
    """A sweep's folder, read once."""

    folder: Path
    runs: pd.DataFrame
    """`load.runs`, by method, what was swept, outcome and seed."""
    metrics: Mapping[str, Metric]
    """`load.metrics`: what the columns of `runs` hold."""
    rounds: pd.DataFrame
    """`load.read_rounds`."""
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
        return rows.settings(self.runs)

    @cached_property
    def named(self) -> pd.DataFrame:
        """`frontier.rows.name_trials`."""
        return rows.name_trials(self.runs, self.fields)

    @property
    def trials(self) -> pd.DataFrame:
        """digest, `named`, seed, outcome."""
        return self.runs[["digest"]].join(self.named).assign(seed=self.seeds, outcome=self.runs["outcome"])

    @property
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
        return self.name_settings([*self.fields.values()])

    def name_settings(self, names: list[str]) -> pd.Series:
        """Each trial's method in words, with these of the swept fields."""
        return pd.Series([setting_name(row, names) for row in records(self.named)], self.runs.index, dtype=object)

    @property
    def method_fields(self) -> list[str]:
        """Short names of what was swept of the method."""
        return [name for path, name in self.fields.items() if path.startswith("method")]

    @property
    def arm_fields(self) -> list[str]:
        """The same without target epsilons."""
        return [name for name in self.method_fields if not rows.is_target_epsilon(name)]

    @cached_property
    def frontier(self) -> pd.DataFrame:
        """`frontier.rows.build_frontier`, with the rows that are Pareto-optimal by the measure marked."""
        table = rows.build_frontier(self.runs, self.named, self.metrics)
        return table.assign(pareto=rows.mark_pareto(table, str(self.measure)) if self.measure else False)

    @cached_property
    def picture(self) -> bytes:
        """The frontier's picture as a PNG; empty where no setting has a finite epsilon and a measure."""
        file = io.BytesIO()
        if self.measure:
            scatter.draw(self.frontier, self.measure, self.arm_fields, file)
        return file.getvalue()

    @property
    def finished(self) -> pd.DataFrame:
        """The finished rows of `runs`."""
        return load.finished(self.runs)

    @cached_property
    def quality(self) -> dict[str, Metric]:
        """`frontier.rows.select_quality`."""
        return rows.select_quality(self.metrics)

    @cached_property
    def measure(self) -> Metric | None:
        """The metric that ranks settings, lower is better; its text is its column in the frontier."""
        measured = [m for m in self.quality.values() if m.rank and self.read(f"eval/{m}").notna().any()]
        return min(measured, key=lambda metric: metric.rank, default=None)

    def read(self, reading: str) -> pd.Series:
        """A final number of the finished trials."""
        return column(self.finished, f"final/{reading}")

    @property
    def best(self) -> tuple[str, str, float]:
        """(digest, column, value) of the finished trial that is best by the sweep's --metric, else by `measure`.

        Raises ValueError where none has it.
        """
        metric, lower = self.about.get("metric") or (f"eval/{self.measure}", True)
        values = self.read(metric).dropna().sort_values(ascending=lower)
        if values.empty:
            raise ValueError(f"no trial of {self.name} has finished with a measure of quality")
        return str(self.runs["digest"][values.index[0]]), f"final/{metric}", float(values.iloc[0])


def open_sweep(folder: Path) -> SweepView:
    """Read a sweep. Raises ValueError, in one sentence, where it has no trial or a file is damaged."""
    plan = read_plan(folder) if (folder / "sweep.json").exists() else {}
    runs = load.runs(folder)
    repeated = [name for name in ("seed", "data.split_seed") if name in runs]
    by = ["method", *rows.settings(runs), "outcome", *repeated]
    runs = runs.sort_values(by, na_position="last", kind="stable", ignore_index=True)
    return SweepView(folder, runs, load.metrics(folder), load.read_rounds(folder), plan)


def setting_name(row: Row, names: list[str]) -> str:
    """`PFDM, schedule linear, epsilon 10` from a row of `trials` and the short names of what was swept."""
    return ", ".join(filter(None, (str(row["method"]), rows.in_words(row, names))))
