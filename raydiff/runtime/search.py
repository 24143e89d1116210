"""Suggestions of a sweep: what its searcher proposes, as experiments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterator
from pathlib import Path

from raydiff.experiment import config, overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import Proposal, Searcher, Settings, Space
from raydiff.experiment.trial import resolve_on_data
from raydiff.formats.json_files import read_lines, read_outcome, trial_folders
from raydiff.formats.metric_records import columns, read_metrics

BARREN = 20  # So many proposals in a row without a new experiment end a search.


class Suggestions:
    """Asks a searcher for settings until there are `samples` experiments.

    An adaptive searcher learns from the trials' folders, where a resumed sweep finds again what was asked before.

    Args:
        searcher: What proposes settings.
        base: The experiment that they are changes of.
        secret: The sweep's noise secret.
        folder: The sweep's folder.
        space: The searcher's space.
        samples: Number of different experiments to ask for.
        objective: The metric that an adaptive searcher reads.
        planned: Digests of experiments that are run anyway.
    """

    def __init__(
        self,
        searcher: Searcher,
        base: Experiment,
        *,
        secret: bytes,
        folder: Path,
        space: Space,
        samples: int,
        objective: str,
        planned: Container[str] = (),
    ) -> None:
        self.distinct: dict[str, Experiment] = {}  # by digest
        self.refused: list[str] = []  # settings that are no experiment, and why
        self._searcher = searcher
        self._base = base
        self._secret = secret
        self._folder = folder
        self._samples = samples
        self._objective = objective
        self._planned = planned
        self._proposals: list[tuple[Proposal, str]] = []  # with the experiment's digest, or "" for refused settings
        self._barren = 0
        self._idle = False
        if searcher.adaptive:
            self._restore(space)

    @property
    def left(self) -> int:
        """The number of experiments to come, as far as it is known."""
        over = self._idle or self._barren >= BARREN
        return 0 if over else max(0, self._samples - len(self.distinct))

    def more(self) -> Iterator[Experiment | None]:
        """Yield the experiments to come, each when it is wanted; None where the searcher waits for a trial to end.

        Raises ValueError where the searcher fails.
        """
        while len(self.distinct) < self._samples and self._barren < BARREN:
            settings = self._ask()
            self._idle = settings is None
            if settings is None:
                yield None
                continue
            before = len(self.distinct)
            digest = self._add(settings)
            self._barren = 0 if len(self.distinct) > before else self._barren + 1
            if len(self.distinct) > before:
                yield self.distinct[digest]

    def draw(self) -> list[Experiment]:
        """The experiments of a searcher that does not wait. Raises ValueError where every proposal is refused."""
        experiments = [*itertools.takewhile(lambda experiment: experiment is not None, self.more())]
        if self.refused and not self.distinct:
            raise ValueError(self.refused[0])
        return [experiment for experiment in experiments if experiment is not None]

    def summary(self, *, lower_is_better: bool) -> str:
        """Return lines that say what was refused, and the best settings."""
        lines = [f"the search proposed {len(self._proposals)} settings for {len(self.distinct)} experiments"]
        lines += self.refused
        measured = [p for p in self._follow() if p.state == "finished" and not math.isnan(p.value)]
        if measured:
            sign = 1 if lower_is_better else -1
            best = min(measured, key=lambda proposal: sign * proposal.value)
            lines.append(f"its best by {self._objective}: {best.value:.4g}: {format_settings(best.settings)}")
        return "\n".join(lines)

    def _ask(self) -> Settings | None:
        try:
            return self._searcher.ask(self._follow())
        except Exception as e:  # Code from outside may raise anything.
            raise ValueError(f"the searcher failed: {type(e).__name__}: {e}") from e

    def _follow(self) -> list[Proposal]:
        """All proposals, with what their trials have come to."""
        if self._searcher.adaptive:
            self._proposals = [
                (self._read(proposal.settings, digest) if proposal.state == "running" else proposal, digest)
                for proposal, digest in self._proposals
            ]
        return [proposal for proposal, _ in self._proposals]

    def _read(self, settings: Settings, digest: str) -> Proposal:
        folder = self._folder / "trials" / digest
        outcome = (read_outcome(folder) or {"outcome": "running"})["outcome"]
        if outcome not in ("finished", "stopped"):
            return Proposal(settings, "running" if outcome == "running" else "failed")
        value = math.nan
        for line in read_lines(folder / "metrics.jsonl"):
            value = columns(read_metrics(line["metrics"])).get(self._objective, value)
        return Proposal(settings, outcome, value)

    def _add(self, settings: Settings) -> str:
        """Record a proposal. Returns its experiment's digest, "" where it is refused."""
        try:
            experiment = resolve_on_data(overrides.override(self._base, settings), self._secret)
        except ValueError as e:
            self.refused.append(f"{format_settings(settings)}: refused, {e}")
            self._proposals.append((Proposal(settings, "failed"), ""))
            return ""
        if experiment.digest not in self._planned:
            self.distinct.setdefault(experiment.digest, experiment)
        self._proposals.append((Proposal(settings), experiment.digest))
        return experiment.digest

    def _restore(self, space: Space) -> None:
        """Add the proposals of earlier processes: the trials with a folder that are not planned."""
        for folder in trial_folders(self._folder):
            if folder.name in self._planned:
                continue
            flat = overrides.flatten_settings(config.read_config(folder / "config.json"))
            settings = {path: _read_value(flat[path], *space[path]) for path in space if path in flat}
            if settings.keys() == space.keys():
                self._add(settings)


def format_settings(settings: Settings) -> str:
    """Settings in one line, by the last part of each path."""
    return " ".join(f"{path.rpartition('.')[2]}={overrides.format_value(value)}" for path, value in settings.items())


def _read_value(stored: object, kind: str, values: object) -> object:
    """The value as in the space: a class is stored by its name."""
    if kind != "choice":
        return stored
    assert isinstance(values, tuple | list)
    return next((v for v in values if stored == (v.__name__ if isinstance(v, type) else v)), stored)
