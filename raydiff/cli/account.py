"""What a mechanism has spent that ran elsewhere: the epsilon of all its steps and rounds together.

    raydiff account --sigma 1.1 --q 0.01 --steps 1000               # DP-SGD; with --rounds 10, ten times that
    raydiff account --history '[[1.1, 0.01, 500], [0.9, 0.02, 200]]'    # accountant.history of Opacus
    raydiff account --flower-epsilon 10 --clipping-norm 1 --sensitivity 1 --rounds 50    # LocalDpMod of Flower
    raydiff account spent.toml                                      # the same names with _ for -, as TOML

sigma is the noise's standard deviation over the norm to which one unit's part is clipped; q below 1 is Poisson
sampling, and neither shuffled batches nor a fixed number of clients. It does not count for
clients under local trust, for the server sees who sends. LocalDpMod has noise of standard deviation sensitivity *
sqrt(2 ln(1.25 / delta)) / epsilon in every round, as if there were one, while updates are clipped to the clipping norm:
what is spent is computed from these two, and not from the epsilon that was given.

Each relation has a line: its epsilon by the tightest accountant that has a theorem; mu of Gaussian DP where there is
one; and what no attack on what was released exceeds: AUC, and true positive rate at 1 % false positives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import operator
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from raydiff.cli.parser import Parser
from raydiff.formats.rounding import up
from raydiff.lookup import check_one_of
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Entry, Exposed, Guarantee, Ledger
from raydiff.privacy.release import Gaussian, Relation, Unit

FPR = 0.01
SAMPLED = """holds for Poisson batches whose noised sum is divided by a fixed number; averaging over the batch drawn \
is another mechanism (arXiv 2605.15648), of which nothing is stated"""
SEEN = """sampling is not counted, for the server sees which clients send: a client that sent in k of the steps has \
spent what --q 1 states of k steps"""
RELATIONS: tuple[Relation, ...] = ("zero_out", "add_remove", "replace_one")
_Step = tuple[float, float, int]
"""(noise over clip norm, sampling rate, how often), as Opacus notes it."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A mechanism that ran elsewhere: one of `sigma`, `history` and `flower_epsilon` says what it was."""

    sigma: float | None = None
    """Noise multiplier: standard deviation of the noise on a sum, over the norm to which one unit's part is clipped."""
    q: float = 1.0
    """With `sigma`: the probability at which a step draws a unit, each by itself (Poisson sampling)."""
    steps: int = 1
    """With `sigma`: noised sums in a round."""
    rounds: int = 1
    """How often all of it happened."""
    history: tuple[_Step, ...] = ()
    """(noise multiplier, sample rate, steps) of each kind of step, as Opacus's accountants have it."""
    flower_epsilon: float | None = None
    """The `epsilon` of Flower's LocalDpMod."""
    flower_delta: float | None = None
    """The `delta` of Flower's LocalDpMod; default: `delta`."""
    clipping_norm: float | None = None
    """The `clipping_norm` of Flower's LocalDpMod: the norm of a client's whole update, at most."""
    sensitivity: float | None = None
    """The `sensitivity` of Flower's LocalDpMod: the noise's scale."""
    unit: Unit | None = None
    """Whose part was clipped; default: example, and client with Flower's LocalDpMod."""
    trust: Literal["local", "central"] | None = None
    """local: the noise holds against the server, too; default: central, and local with Flower's LocalDpMod."""
    delta: float = 1e-5
    """At which epsilon is stated."""

    def __post_init__(self) -> None:
        given = [n for n in ("sigma", "history", "flower_epsilon") if getattr(self, n) not in (None, ())]
        if len(given) != 1:
            raise ValueError(f"give one of sigma, history, flower_epsilon; got {' and '.join(given) or 'none'}")
        own = {"sigma": ("q", "steps"), "flower_epsilon": ("flower_delta", "clipping_norm", "sensitivity")}
        defaults = {f.name: f.default for f in fields(self)}
        for what, names in own.items():
            for name in names:
                if what not in given and getattr(self, name) != defaults[name]:
                    raise ValueError(f"{name} goes with {what} alone, and {given[0]} was given")
        for name, allowed in (("unit", get_args(Unit)), ("trust", ("local", "central"))):
            if getattr(self, name) is not None:
                check_one_of(name, getattr(self, name), allowed)
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")
        if self.flower_epsilon is not None:
            self._check_flower()
        for noise, rate, steps in self.each_round:
            if not (noise >= 0 and math.isfinite(noise)):
                raise ValueError(f"sigma must be a number >= 0, got {noise}")
            if not 0 < rate <= 1:
                raise ValueError(f"q must be in (0, 1], got {rate}")
            if steps < 1:
                raise ValueError(f"steps must be at least 1, got {steps}")

    def _check_flower(self) -> None:
        for name in ("clipping_norm", "sensitivity"):
            if getattr(self, name) is None:
                raise ValueError(f"flower_epsilon needs {name}, as LocalDpMod was given it")
        for name in ("flower_epsilon", "clipping_norm", "sensitivity"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be a number > 0, got {getattr(self, name)}")
        if self.flower_delta is not None and not 0 < self.flower_delta < 1:
            raise ValueError(f"flower_delta must be in (0, 1), got {self.flower_delta}")
        if self.unit == "example" or self.trust == "central":
            raise ValueError("LocalDpMod covers a client's whole update, under local trust: leave out unit and trust")

    @property
    def each_round(self) -> tuple[_Step, ...]:
        """What one round is."""
        if self.sigma is not None:
            return ((self.sigma, self.q, self.steps),)
        if self.flower_epsilon is None:
            return self.history
        assert self.sensitivity is not None and self.clipping_norm is not None  # `_check_flower`
        calibrated = math.sqrt(2 * math.log(1.25 / (self.flower_delta or self.delta))) / self.flower_epsilon
        return ((self.sensitivity * calibrated / self.clipping_norm, 1.0, 1),)

    def events(self, relation: Relation) -> list[Gaussian]:
        """All that was released. Raises Unsupported for a relation that this is no mechanism of.

        A part of norm C at most moves the sum by C where it counts or not, and by 2 C where another takes its place.
        """
        flower = self.flower_epsilon is not None
        unit, trust = self.unit or ("client" if flower else "example"), self.trust or ("local" if flower else "central")
        if (relation, unit, trust) == ("add_remove", "client", "local"):
            raise accountants.Unsupported("the server sees which clients send, so none is added or removed unseen")
        moved = 2.0 if relation == "replace_one" else 1.0
        return [
            Gaussian(noise / moved, unit, relation, trust, rate, steps * self.rounds)
            for noise, rate, steps in self.each_round
        ]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What holds under one relation."""

    relation: Relation
    """What neighbours differ in."""
    refused: str = ""
    """Why nothing is stated under it; then there is nothing else."""
    guarantee: Guarantee | None = None
    """By the tightest accountant that has a theorem."""
    mu: float | None = None
    """Of Gaussian DP; None where noise is sampled."""
    auc: float = 1.0
    """The AUC that no attack exceeds."""
    tpr: float = 1.0
    """The true positive rate that no attack exceeds at a false positive rate of `FPR`."""

    def __str__(self) -> str:
        name = self.relation.replace("_", "-")
        if self.guarantee is None:
            return f"{name}: nothing is stated: {self.refused}"
        mu = "" if self.mu is None else f"mu {up(self.mu, 3)}; "
        above = f"no attack above AUC {up(self.auc, 4)}, nor TPR {up(self.tpr, 4)}"
        return f"{name}: {self.guarantee}; {mu}{above} at FPR {FPR}"


def found(spent: Elsewhere, relation: Relation) -> Found:
    """What a mechanism has spent under this relation."""
    try:
        events = spent.events(relation)
    except accountants.Unsupported as e:
        return Found(relation=relation, refused=str(e))
    seen = Exposed(Ledger(tuple(Entry(0, 0, e, 0) for e in events)))
    try:
        best = accountants.tightest(lambda name: seen.guarantee(spent.delta, name))
        auc = seen.auc_ceiling()
    except accountants.Unsupported as e:
        return Found(relation=relation, refused=str(e))
    mu = None
    with contextlib.suppress(accountants.Unsupported):  # sampled noise
        mu = seen.mu()
    return Found(relation=relation, guarantee=best, mu=mu, auc=auc, tpr=seen.tpr_ceiling(FPR))


def main(argv: Sequence[str]) -> int:
    """Print what was spent. Raises ValueError for bad input."""
    given = vars(_parser().parse_args(argv))
    as_json, path = given.pop("json"), given.pop("file")
    spent = Elsewhere(**({} if path is None else _read(path)) | given)
    results = [found(spent, relation) for relation in RELATIONS]
    counted = any(accountants.hidden_rate(event) < 1 for event in spent.events("zero_out"))
    note = SAMPLED if counted else SEEN if any(rate < 1 for _, rate, _ in spent.each_round) else ""
    if as_json:
        print(json.dumps({"mechanism": asdict(spent), "note": note, "found": [asdict(r) for r in results]}, indent=1))
        return 0
    for noise, rate, steps in spent.each_round:
        sampled = f", Poisson sampling {rate:g}" if rate < 1 else ""
        print(f"noise {noise:.4g} x the clip norm{sampled}, {steps * spent.rounds} times")
    print(*results, *filter(None, [note]), sep="\n")
    return 0


def _read(path: Path) -> dict[str, Any]:
    """A file's settings, read as the command line's are."""
    try:
        tree = tomllib.loads(path.read_text())
        words = [f"--{key.replace('_', '-')}={json.dumps(v) if key == 'history' else v}" for key, v in tree.items()]
        return {k: v for k, v in vars(_parser().parse_args(words)).items() if k not in ("json", "file")}
    except OSError as e:
        raise ValueError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None


def _history(text: str) -> tuple[_Step, ...]:
    try:
        rows = tuple((float(noise), float(rate), operator.index(steps)) for noise, rate, steps in json.loads(text))
    except (ValueError, TypeError):
        rows = ()
    if not rows:
        raise argparse.ArgumentTypeError(f"must be a list like [[1.1, 0.01, 1000]], got {text}")
    return rows


def _parser() -> Parser:
    parser = Parser("account", __doc__)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="settings as TOML; options come after it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    types: dict[str, Any] = {"steps": int, "rounds": int, "unit": str, "trust": str, "history": _history}
    helps = {
        "sigma": "noise multiplier of DP-SGD, of DP-FedAvg",
        "q": "probability at which a step draws a unit (default: 1)",
        "steps": "noised sums in a round (default: 1)",
        "rounds": "how often all of it happened (default: 1)",
        "history": "[[noise multiplier, sample rate, steps], ...] of Opacus, unless steps average over the batch drawn",
        "flower_epsilon": "epsilon of Flower's LocalDpMod",
        "flower_delta": "its delta (default: --delta)",
        "clipping_norm": "its clipping_norm",
        "sensitivity": "its sensitivity",
        "unit": "example or client (default: example, with Flower's LocalDpMod client)",
        "trust": "local or central (default: central, with Flower's LocalDpMod local)",
        "delta": "at which epsilon is stated (default: 1e-5)",
    }
    for name, text in helps.items():
        of = types.get(name, float)
        parser.add_argument(f"--{name.replace('_', '-')}", type=of, default=argparse.SUPPRESS, help=text)
    return parser
