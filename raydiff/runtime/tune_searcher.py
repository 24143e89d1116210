"""`TuneSearcher`: Ray Tune's own searchers as a `Searcher`."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Sequence
from typing import Any

from ray import tune
from ray.tune.search import Searcher as Suggester

from raydiff.experiment.searchers import Proposal, Settings, Space

VALUE = "value"  # the objective's name in the results that the searcher is told


class TuneSearcher:
    """Any searcher of Tune's. On a resumed sweep it learns from earlier trials if it has `add_evaluated_point`."""

    adaptive = True

    def __init__(self, space: Space, *, seed: int, lower_is_better: bool, searcher: type[Suggester], **keywords: Any):
        domains = {
            path: tune.choice([*values]) if kind == "choice" else getattr(tune, kind)(*values)
            for path, (kind, values) in space.items()
        }
        seeds = {"seed": seed} if "seed" in inspect.signature(searcher).parameters else {}
        self._searcher = searcher(**{**seeds, **keywords})
        if not self._searcher.set_search_properties(VALUE, "min" if lower_is_better else "max", domains):
            raise ValueError("it takes no search space: give neither space nor metric")
        self._asked = set[int]()
        self._told = set[int]()

    def ask(self, done: Sequence[Proposal]) -> Settings | None:
        """Return what the searcher suggests, or None where it has finished or waits for results."""
        for number, proposal in enumerate(done):
            if proposal.state != "running" and number not in self._told:
                self._told.add(number)
                self._tell(number, proposal)
        settings: dict[str, Any] | str | None = self._searcher.suggest(str(len(done)))
        if settings is None or isinstance(settings, str):  # Suggester.FINISHED
            return None
        self._asked.add(len(done))
        return settings

    def _tell(self, number: int, proposal: Proposal) -> None:
        failed = math.isnan(proposal.value)
        if number in self._asked:
            self._searcher.on_trial_complete(str(number), None if failed else {VALUE: proposal.value}, error=failed)
        elif not failed:
            with contextlib.suppress(NotImplementedError):
                self._searcher.add_evaluated_point(dict(proposal.settings), proposal.value)
