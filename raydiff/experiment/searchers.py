"""Searchers propose the settings of the next trial. Schedulers, which stop trials, are apart (`runtime.schedulers`)."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch

from raydiff import seeding
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.lookup import Door, check_one_of, imported, nearest, resolve
from raydiff.settings import Count, settings

Settings = Mapping[str, Any]
"""Field path -> its value."""
Space = Mapping[Any, tuple[str, Sequence[Any]]]
"""Field path -> (name in DISTRIBUTIONS, its bounds or values)."""
Chosen = str | tuple[str, Mapping[str, Any]]
"""A name, or the name with keyword arguments."""
MOST_CELLS = 100_000  # A space of at most so many combinations is drawn from without replacement.


@settings(frozen=True, kw_only=True)
class Search:
    """How the trials of a sweep are proposed, stopped early, and compared."""

    searcher: Chosen = "grid"
    """What proposes settings: grid, random, optuna or `module:Name`."""
    space: Space = field(default_factory=dict)
    """What it draws from; the grid has axes instead."""
    samples: Count = 16
    """Number of different experiments that it is asked for."""
    scheduler: Chosen | None = None
    """What stops trials early: asha, median or `module:Name`."""
    metric: str | None = None
    """Objective of searcher and scheduler, and of the best trial; None: the evaluation's own."""

    def changed(self, **fields: Any) -> Search:
        """Return the search with those of these fields that are not None."""
        return replace(self, **{name: value for name, value in fields.items() if value is not None})


class Distribution(NamedTuple):
    """One way to draw a field's value."""

    quantile: Callable[..., Any]
    """(u in [0, 1), *bounds or values) -> value."""
    for_optuna: Callable[..., Any]
    """(the module optuna.distributions, *bounds or values) -> Optuna's distribution; of a choice, over its indices."""


DISTRIBUTIONS = {
    "uniform": Distribution(
        lambda u, low, high: low + u * (high - low),
        lambda optuna, low, high: optuna.FloatDistribution(low, high),
    ),
    "loguniform": Distribution(
        lambda u, low, high: low * (high / low) ** u,
        lambda optuna, low, high: optuna.FloatDistribution(low, high, log=True),
    ),
    "randint": Distribution(
        lambda u, low, high: low + int(u * (high - low)),
        lambda optuna, low, high: optuna.IntDistribution(low, high - 1),
    ),
    "choice": Distribution(
        lambda u, *values: values[int(u * len(values))],
        lambda optuna, *values: optuna.CategoricalDistribution(range(len(values))),
    ),
}
"""Their names are those of `ray.tune`, which has the same four."""


@dataclass(frozen=True)
class Proposal:
    """Settings that a searcher has proposed, and what became of them."""

    settings: Settings
    state: Literal["running", "finished", "stopped", "failed"] = "running"
    """`failed` also where the settings are refused."""
    value: float = math.nan
    """The objective's last value on the validation split, of a trial that has finished or was stopped."""


@runtime_checkable
class Searcher(Protocol):
    """Proposes settings: a class that is called with (space, seed=, lower_is_better=, **the user's keywords).

    What it proposes follows from these and from `done` alone, so a sweep that is resumed needs no file of its own.
    """

    adaptive: bool
    """Whether it reads states and values. One that does not is asked for all settings before the first trial."""

    def ask(self, done: Sequence[Proposal]) -> Settings | None:
        """Return the settings of one more trial; None: nothing more before another trial has ended.

        Args:
            done: All proposals so far in their order, with those that repeat an experiment and those refused.
        """


class GridSearch:
    """Every combination of choices, the last field varying fastest."""

    adaptive = False

    def __init__(self, space: Space, **_: Any) -> None:
        combinations = itertools.product(*(values for _, values in space.values()))
        self._cells = [dict(zip(space, values, strict=True)) for values in combinations]

    def ask(self, done: Sequence[Proposal]) -> Settings | None:
        """Return the next cell."""
        return self._cells[len(done)] if len(done) < len(self._cells) else None


class RandomSearch:
    """Independent draws; of a small space of choices, each combination once."""

    adaptive = False

    def __init__(
        self, space: Space, *, seed: int, stream: Sequence[str] = ("search",), lower_is_better: bool = True
    ) -> None:
        self._space = space
        self._seed = seed
        self._stream = stream
        total = math.prod(len(values) if kind == "choice" else MOST_CELLS for kind, values in space.values())
        self._order: list[int] | None = None
        if total <= MOST_CELLS and all(kind == "choice" for kind, _ in space.values()):
            self._order = torch.randperm(total, generator=seeding.generator(seed, *stream)).tolist()

    def ask(self, done: Sequence[Proposal]) -> Settings | None:
        """Return draw number len(done)."""
        if self._order is None:
            rng = seeding.generator(self._seed, *self._stream, len(done))
            draws = torch.rand(len(self._space), generator=rng, dtype=torch.float64)
            return {
                path: DISTRIBUTIONS[kind].quantile(u, *values)
                for u, (path, (kind, values)) in zip(draws.tolist(), self._space.items(), strict=True)
            }
        if len(done) >= len(self._order):
            return None
        number = self._order[len(done)]
        settings = {}
        for path, (_, values) in self._space.items():
            number, index = divmod(number, len(values))
            settings[path] = values[index]
        return settings


class Optuna:
    """Any of Optuna's samplers, on a study in memory that follows `done`."""

    adaptive = True

    def __init__(
        self, space: Space, *, seed: int, lower_is_better: bool, sampler: type | None = None, **keywords: Any
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sampler: Any = sampler or optuna.samplers.TPESampler
        self._seed = seed
        self._keywords = keywords
        self._space = space
        self._distributions = {
            path: DISTRIBUTIONS[kind].for_optuna(optuna.distributions, *values)
            for path, (kind, values) in space.items()
        }
        self._study = optuna.create_study(direction="minimize" if lower_is_better else "maximize")

    def ask(self, done: Sequence[Proposal]) -> Settings | None:
        """Return what the sampler suggests, or None where it says that it has seen the whole space."""
        # Samplers keep their state in the study. The same seed would suggest the same points again.
        seed = {"seed": self._seed + len(done)} if "seed" in inspect.signature(self._sampler).parameters else {}
        self._study.sampler = self._sampler(**{**seed, **self._keywords})
        try:
            self._follow(done)
        except RuntimeError:  # Samplers of finite spaces stop the study, which ask and tell refuse: optuna#5141.
            return None
        params = self._study.ask(self._distributions).params
        return {
            path: values[params[path]] if kind == "choice" else params[path]
            for path, (kind, values) in self._space.items()
        }

    def _follow(self, done: Sequence[Proposal]) -> None:
        """Add what an earlier process asked, and tell the values that have come since.

        What is refused or has failed stays open: TPE counts open trials as bad, and learns nothing from failed ones.
        """
        for number, proposal in enumerate(done):
            if number == len(self._study.get_trials(deepcopy=False)):
                self._study.enqueue_trial(self._params(proposal.settings))
                self._study.ask(self._distributions)
            told = self._study.get_trials(deepcopy=False)[number].state.is_finished()
            if not (told or math.isnan(proposal.value)):
                self._study.tell(number, proposal.value)

    def _params(self, settings: Settings) -> dict[str, Any]:
        return {
            path: [*values].index(settings[path]) if kind == "choice" else settings[path]
            for path, (kind, values) in self._space.items()
        }


def _check_class(cls: Any) -> None:
    methods = {"ask", "suggest", "sample_relative"}  # a Searcher's, Tune's, Optuna's
    if not (isinstance(cls, type) and methods.intersection(dir(cls))):
        raise ValueError(f"{cls!r} is no searcher: it must be a class with the method ask(done)")


SEARCHERS: Door[Any] = Door(
    "searcher", {"grid": GridSearch, "random": RandomSearch, "optuna": Optuna}, check=_check_class
)
"""Classes: a `Searcher`, or from outside one of Optuna's samplers or of Tune's searchers."""


def named(chosen: Chosen) -> tuple[str, dict[str, Any]]:
    """(name, keyword arguments)."""
    name, keywords = (chosen, {}) if isinstance(chosen, str) else chosen
    return name, dict(keywords)


def is_adaptive(chosen: Chosen) -> bool:
    """Whether the searcher of this name learns from results, as Optuna's and Tune's do. Raises ValueError."""
    return bool(getattr(resolve("search", SEARCHERS, named(chosen)[0]), "adaptive", True))


def build_searcher(chosen: Chosen, space: Space, *, seed: int, lower_is_better: bool) -> Searcher:
    """Return the searcher of this name. Raises ValueError where there is none or it refuses its arguments."""
    name, keywords = named(chosen)
    cls = resolve("search", SEARCHERS, name)
    arguments: dict[str, Any] = {"seed": seed, "lower_is_better": lower_is_better, **keywords}
    if hasattr(cls, "sample_relative"):
        cls, arguments = Optuna, {"sampler": cls, **arguments}
    elif hasattr(cls, "suggest"):
        cls, arguments = imported("raydiff.runtime.tune_searcher:TuneSearcher"), {"searcher": cls, **arguments}
    try:
        searcher: Searcher = cls(space, **arguments)
    except Exception as e:  # Code from outside may raise anything.
        raise ValueError(f"the search {name} refuses its arguments: {e}") from None
    return searcher


def propose_all(searcher: Searcher) -> Iterator[Settings]:
    """Every proposal of a searcher that is not adaptive."""
    done: list[Proposal] = []
    while (settings := searcher.ask(done)) is not None:
        yield settings
        done.append(Proposal(settings))


def parse_space(base: Experiment, texts: Mapping[str, str]) -> Space:
    """{"a.b": ("loguniform", (1e-4, 1e-2))} from {"a.b": "loguniform:1e-4,1e-2"}.

    Raises ValueError for a text that is no distribution of a field's values.
    """
    space = {}
    for path, text in texts.items():
        kind, _, values = text.partition(":")
        if kind not in DISTRIBUTIONS or not values:
            raise ValueError(
                f"a sampled field looks like method.clip=loguniform:1,10 ({', '.join(DISTRIBUTIONS)}), got "
                f"'{path}={text}'"
            )
        space[path] = (kind, overrides.parse_each(base, path, values.split(",")))
    return space


def check_space(base: Experiment, space: Space) -> None:
    """Raises ValueError naming the field that does not exist, or whose distribution or values do not fit it."""
    for path, (kind, values) in space.items():
        check_one_of(f"the distribution of {path}", kind, DISTRIBUTIONS)
        if not overrides.has_path(base, path):
            raise ValueError(f"unknown field --{path}{nearest(path, overrides.flatten_settings(base))}")
        if kind == "choice":
            continue
        are_two_numbers = len(values) == 2 and all(type(value) in (int, float) for value in values)
        if not are_two_numbers or not values[0] < values[1] or (kind == "loguniform" and values[0] <= 0):
            raise ValueError(
                f"the range of {path} must be two numbers that go upwards, for loguniform from a positive number, "
                f"got {values}"
            )
        try:
            overrides.parse_field(base, path, "1" if kind == "randint" else "0.5")
        except ValueError:
            raise ValueError(f"{path} takes no values of {kind}: use randint for integers, else choice") from None
