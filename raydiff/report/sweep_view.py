"""What the sections of a report share: a sweep's tables, the names of its settings, and the number that ranks them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from raydiff.formats.json_files import read_json, read_lines
from raydiff.formats.tables import short
from raydiff.report import load
from raydiff.report.frontier.rows import EVAL, has, ranked_by, settings
from raydiff.report.load import Row, records

DEFAULT_PRESET = "digits"
"""What `raydiff sweep` runs where its command names no preset."""


@dataclass(frozen=True, eq=False)
class SweepView:
    """A sweep's folder, or several to be compared, read once."""

    folders: tuple[Path, ...]
    runs: pd.DataFrame
    """`load.runs`."""
    rounds: pd.DataFrame
    """`load.rounds`."""
    about: Row
    """sweep.json; empty where there is none. Of several sweeps `made`, what made each."""

    @property
    def name(self) -> str:
        """What its page is called."""
        return ", ".join(map(called, self.folders))

    def trial(self, digest: str) -> Path:
        """The folder of one of its trials."""
        return next(path for folder in self.folders if (path := folder / "trials" / digest).is_dir())

    @property
    def preset(self) -> str | None:
        """The preset that the sweep's command named, or reproduce-PAPER-SCALE; None where no command was recorded, or
        one that is neither `raydiff sweep` nor `jobs/sweep.py`."""
        words = self.words
        if words is None:
            return None
        if words[:1] == ["reproduce"]:
            given = dict(itertools.pairwise(words)) | dict(w.split("=", 1) for w in words if "=" in w)
            return f"reproduce-{given.get('--paper')}-{given.get('--scale', 'cpu')}"
        return words[0] if words and not words[0].startswith("-") else DEFAULT_PRESET

    @property
    def words(self) -> list[str] | None:
        """The command's words after `raydiff sweep`; None where none was recorded, or another command."""
        program, *words = self.about.get("command") or [""]
        if Path(program).name == "sweep.py":
            return list(words)
        return words[1:] if words[:1] == ["sweep"] else None

    @property
    def origin(self) -> str:
        """Where the numbers come from, as markdown: the command without names of this machine, version and code (the
        commit, where it was recorded), how many trials finished, the time of all together, and the day."""
        words = [
            w
            for w in _without(("--name", "--runtime.storage", "--runtime.noise-secret"), self.words or [])
            if w != "--resume"
        ]
        code = hashlib.sha256(json.dumps(self.about.get("code", {}), sort_keys=True).encode()).hexdigest()[:8]
        git = self.about.get("git") or ""
        changed = " and uncommitted changes" if git.endswith("-dirty") else ""
        code = f"commit {git[:12]}{changed}" if git else f"code {code}"
        command = f"`{' '.join(['raydiff sweep', *words])}`" if self.words is not None else "Not by `raydiff sweep`"
        minutes = load.column(self.finished, "final/time/seconds").sum() / 60
        trials = map(self.trial, map(str, self.runs["digest"]))
        times = [line["time"] for trial in trials for line in read_lines(trial / "metrics.jsonl")[-1:]]
        day = time.strftime("%Y-%m-%d", time.gmtime(max(times))) if times else "an unknown day"
        return (
            f"{command}: {len(self.finished)} of {len(self.runs)} trials finished, {minutes:.0f} minutes in all, on "
            f"{day}, by raydiff {self.about.get('version', '(unknown)')}, {code}."
        )

    @cached_property
    def fields(self) -> dict[str, str]:
        """{path: short name} of what was swept, as in the frontier's table."""
        return settings(self.runs)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """digest, method, what was swept under short names, seed, outcome: the first columns of a table of trials."""
        out = self.runs[["digest", "method"]].copy()
        for path, name in self.fields.items():
            of = self.runs[path].astype(object)
            out[name] = of.mask(of.isna() & has(self.runs, path), "none")
        out["seed"] = self.seeds
        return out.assign(outcome=self.runs["outcome"])

    @cached_property
    def seeds(self) -> pd.Series:
        """What the trials of a setting differ in: the seed, or seed/split where the data are split in several ways."""
        seeds = self.runs.get("seed", pd.Series(math.nan, self.runs.index))
        splits = self.runs.get("data.split_seed")
        if splits is None or splits.nunique() < 2:
            return seeds
        return pd.Series([f"{s:g}/{t:g}" for s, t in zip(seeds, splits, strict=True)], self.runs.index, dtype=object)

    @cached_property
    def settings(self) -> pd.Series:
        """Each trial's setting in words: its method, and what was swept of it."""
        names = list(self.fields.values())
        return pd.Series([setting(row, names) for row in records(self.trials)], self.runs.index, dtype=object)

    @cached_property
    def order(self) -> list[str]:
        """The settings, by method and then by each swept field: numbers as numbers."""
        by = ["method", *self.fields.values()]
        keys = [tuple((isinstance(r[n], str), r[n] is None, r[n] or 0) for n in by) for r in records(self.trials)]
        return list(dict.fromkeys(words for _, words in sorted(zip(keys, self.settings, strict=True))))

    @property
    def finished(self) -> pd.DataFrame:
        """The rows of `runs` that finished."""
        return load.finished(self.runs)

    @cached_property
    def measure(self) -> str | None:
        """The column that ranks settings, lower is better."""
        found = ranked_by(self.finished.rename(columns=lambda name: str(name).removeprefix(EVAL)))
        return found and EVAL + found


@dataclass(frozen=True)
class Section:
    """One part of the report."""

    blocks: Sequence[str]
    """HTML, in order; none: there is nothing to say, and the page leaves the section out."""
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """File name without its ending -> what is also written as CSV and parquet."""


def open_sweep(folder: Path) -> SweepView:
    """Read a sweep. Raises ValueError, in one sentence, where it has no trial or a file is damaged."""
    path = folder / "sweep.json"
    about = read_json(path) if path.exists() else {}
    return SweepView((folder,), load.runs(folder), load.rounds(folder), about)


def together(sweeps: Sequence[SweepView]) -> SweepView:
    """Several sweeps as one, in which the sweep is a field of a trial like any other. Raises ValueError where two have
    one name, or a trial is in two: it can be compared with nothing."""
    if len(sweeps) == 1:
        return sweeps[0]
    folders = tuple(folder for sweep in sweeps for folder in sweep.folders)
    if len({*map(called, folders)}) < len(folders):
        raise ValueError(f"sweeps that are compared need names of their own, got {', '.join(map(called, folders))}")
    runs = [sweep.runs.assign(sweep=sweep.name) for sweep in sweeps]
    joined = pd.concat(runs, ignore_index=True).apply(load.of_one_type)
    if len(twice := joined["digest"][joined["digest"].duplicated()]):
        raise ValueError(f"trial {twice.iloc[0]} is in more than one of {', '.join(map(called, folders))}")
    about = {"made": [f"{sweep.name}. {made_by(sweep)}" for sweep in sweeps]}
    return SweepView(folders, joined, pd.concat([sweep.rounds for sweep in sweeps], ignore_index=True), about)


def made_by(sweep: SweepView) -> str:
    """The command that made a sweep, in a sentence."""
    if not (command := sweep.about.get("command")):
        return "Which command made it was not recorded: there is no sweep.json."
    preset = f"Preset {sweep.preset}, by" if sweep.preset else "By"
    return f"{preset}: {'python ' * command[0].endswith('.py')}{' '.join(command)}"


def called(folder: Path) -> str:
    """A sweep's name."""
    return folder.resolve().name


def _without(options: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    """The words but for these options and their values."""
    rest = iter(words)
    for word in rest:
        name, given, _ = word.partition("=")
        if name not in options:
            yield word
        elif not given:
            next(rest, None)


def setting(row: Row, names: list[str]) -> str:
    """`PFDM, schedule linear, epsilon 10` from a row of `trials` and the short names of what was swept."""
    return ", ".join([str(row["method"]), *(f"{n} {short(row[n])}" for n in names if row[n] is not None)])


def spoken(path: str) -> str:
    """A column of `runs` as people know it: without final/ and eval/."""
    return path.removeprefix("final/").removeprefix("eval/")
