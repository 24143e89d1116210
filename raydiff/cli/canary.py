"""Does a method leak more than its ledger says? Canaries through its own upload: a lower bound beside the upper one.

    raydiff canary digits                          PFDM's upload of records, by pairs of opposite canaries
    raydiff canary digits --halve                  the same with half the noise, which must be flagged
    raydiff canary frontier --method dpsgd --epsilon 2        DP-SGD, one run for each seed (slow: minutes)
    raydiff canary digits --method fedavg --method.averaging.privacy clientprivacy
    raydiff canary RUN                             what a run was set up to do; named as for generate.py

For each seed: the bound (95 % one-sided unless --confidence says otherwise), and whether it lies above the ledger's mu,
of DP-SGD above its epsilon. Sound noise is flagged in 5 % of the seeds at most. A bound that is not flagged proves
nothing beyond itself: it grows with --canaries, and `most` is the largest that so many could show. Exit code 1: flagged
in more than a tenth of the seeds without --halve.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from raydiff.cli import arguments, canary_methods
from raydiff.cli.parser import Parser
from raydiff.data import datasets
from raydiff.experiment import config, trial
from raydiff.experiment import overrides as settings
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import names
from raydiff.lookup import nearest
from raydiff.methods import DPSGD
from raydiff.privacy import canaries, one_run
from raydiff.privacy.ledger import Ledger
from raydiff.report.bounds import down, up
from raydiff.runtime import sweep_folder
from raydiff.seeding import generator

CANARIES, CANARIES_OF_ONE_RUN = 4000, 1000
SHARE = 10  # one in so many seeds may be flagged by chance


def main(argv: Sequence[str]) -> int:
    """Audit, and print a line per seed."""
    options, rest = _options().parse_known_args(argv)
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    experiment = _experiment(options.what, rest, options.storage)
    audit = _one_run if isinstance(experiment.method, DPSGD) else _gaussian
    began = time.perf_counter()
    print(f"{options.what}: {type(experiment.method).__name__}{', with half its noise' if options.halve else ''}")
    flagged = audit(experiment, options)
    print(f"flagged: {flagged} of {options.seeds} seeds ({time.perf_counter() - began:.0f} s)")
    return 1 if not options.halve and flagged * SHARE > options.seeds else 0


def _experiment(name: str, overrides: Sequence[str], storage: Path) -> Experiment:
    if name in names.PRESETS:
        start: Experiment = names.PRESETS[name]().experiment
    else:
        try:
            start = config.read(sweep_folder.trial_folder(name, storage) / "config.json")
        except ValueError as e:
            raise ValueError(f"{name!r} is no preset{nearest(name, names.PRESETS)}, and no run: {e}") from None
    return trial.resolve(settings.override(start, settings.parse_overrides(start, arguments.shorthand(overrides))))


def _gaussian(experiment: Experiment, options: argparse.Namespace) -> int:
    """Opposite canaries; how many seeds were flagged."""
    method, public = experiment.method, datasets.load(experiment.data).splits["public"]
    subject = canary_methods.subject(method, public)
    ledger, delta = subject.ledger, method.delta
    mu, flagged, lows = ledger.mu(0), [], []
    print(f"{_says(ledger, experiment)}; mu {up(mu, 3)}")
    for seed in range(options.seeds):
        found = canaries.audit(
            subject.send,
            clip=subject.clip,
            shape=subject.shape,
            count=options.canaries or CANARIES,
            rng=generator(seed, "canaries"),
            factor=_factor(options),
            confidence=options.confidence,
        )
        flagged.append(found.flags(mu))
        wrong = f"FPR {found.fpr:.3f}, FNR {found.fnr:.3f}"
        lows.append(found.epsilon_low(delta))
        bounds = f"mu >= {down(found.mu_low, 3)}, epsilon >= {down(lows[-1], 3)}"
        print(f"seed {seed}: {bounds} ({wrong}){_mark(flagged)}", flush=True)
    median = statistics.median(lows)
    most = f"mu {down(found.mu_most, 3)}, epsilon {down(found.epsilon_most(delta), 3)}"
    print(f"median epsilon >= {down(median, 3)}; most: {most}")
    _warn(found.mu_most > mu)
    return sum(flagged)


def _one_run(experiment: Experiment, options: argparse.Namespace) -> int:
    """One run a seed; how many were flagged."""
    method, m = experiment.method, options.canaries or CANARIES_OF_ONE_RUN
    assert isinstance(method, DPSGD)
    canary_methods.check_noise(method)
    lows, flagged = [], []
    for seed in range(options.seeds):
        rng = generator(seed, "canaries")
        coins = one_run.coins(m, rng)
        scores, ledger = canary_methods.one_run(method, coins, rng, canaries.stream(rng, _factor(options)))
        events = [entry.event for entry in ledger.entries]
        if not seed:
            print(f"{_says(ledger, experiment)}; a client whose records are {m} canaries")
        guesses = options.guesses or max(2, m // 5 // 2 * 2)
        wanted = {"guesses": guesses, "delta": method.delta, "confidence": options.confidence}
        found = one_run.guess(scores, coins, rng=rng, **wanted)
        flagged.append(found.flags(events))
        lows.append(found.epsilon_of_noise(events))
        about = f"of any mechanism {down(found.epsilon_low, 3)}; {found.right} of {found.guesses} guesses right"
        print(f"seed {seed}: epsilon >= {down(lows[-1], 3)} ({about}){_mark(flagged)}", flush=True)
    most = found.most.epsilon_of_noise(events)
    print(f"median epsilon >= {down(statistics.median(lows), 3)}; most: epsilon {down(most, 3)}, all guesses right")
    _warn(found.most.flags(events))
    return sum(flagged)


def _says(ledger: Ledger, experiment: Experiment) -> str:
    return f"ledger: {ledger.guarantee(experiment.method.delta, experiment.method.accountant)}"


def _factor(options: argparse.Namespace) -> float:
    return 0.5 if options.halve else 1.0


def _mark(flagged: Sequence[bool]) -> str:
    return "  FLAGGED" if flagged[-1] else ""


def _warn(enough: bool) -> None:
    if not enough:
        print("so few canaries cannot flag this release, whatever is wrong with it: raise --canaries")


def _options() -> Parser:
    p = Parser("canary", __doc__).with_storage()
    p.add_argument("what", metavar="PRESET|RUN", help="a preset with overrides of its fields, or a run")
    counts = f"default {CANARIES}; {CANARIES_OF_ONE_RUN} for DP-SGD"
    p.add_argument("--canaries", type=int, help=f"releases in all, or canaries of one run ({counts})")
    p.add_argument("--guesses", type=int, help="coins guessed in one run of DP-SGD (default: a fifth of the canaries)")
    p.add_argument("--seeds", type=int, default=20, help="audits (default 20)")
    p.add_argument("--confidence", type=float, default=0.95, help="of each bound, one-sided (default 0.95)")
    p.add_argument("--halve", action="store_true", help="halve the noise on purpose")
    return p
