"""Does a method leak more than its ledger says? Canaries through its own upload: a lower bound beside the upper one.

    raydiff canary digits                          PFDM's upload of records, by pairs of opposite canaries
    raydiff canary digits --halve                  the same with half the noise, which must be flagged
    raydiff canary frontier --method dpsgd --epsilon 2        DP-SGD, one run for each seed
    raydiff canary digits --method fedavg --method.averaging.privacy clientprivacy
    raydiff canary RUN                             what a run was set up to do; named as for generate.py
    raydiff canary digits --bits                   do the bytes of its uploads rule a record out? (none may)

For each seed: the bound (95 % one-sided unless --confidence says otherwise), and whether it lies above the ledger's mu,
of DP-SGD above its epsilon. Sound noise is flagged in 5 % of the seeds at most. A bound that is not flagged proves
nothing beyond itself: it grows with --canaries, and `most` is the largest that so many could show. Exit code 1: flagged
in more than a tenth of the seeds without --halve.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import torch

from raydiff.cli import arguments, canary_methods
from raydiff.cli.parser import Parser
from raydiff.data import datasets
from raydiff.experiment import config, trial
from raydiff.experiment import overrides as settings
from raydiff.experiment import presets as names
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Round
from raydiff.formats.rounding import down, up
from raydiff.lookup import nearest
from raydiff.methods.dpsgd import DPSGD
from raydiff.privacy import accountants, bits, canaries, one_run
from raydiff.privacy import tradeoff as losses
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian
from raydiff.runtime import sweep_folder
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Tensors

CANARIES_OF_ONE_RUN = 16_000
SHARE = 10  # one in so many seeds may be flagged by chance


class Found(NamedTuple):
    """The audit of one seed: lower bound and what to print of it, and the most that so many canaries could show."""

    flagged: bool
    epsilon: float
    says: str
    most: str
    enough: bool  # Would the most be flagged?


def main(argv: Sequence[str]) -> int:
    """Audit, and print a line per seed."""
    options, rest = _options().parse_known_args(argv)
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}")
    experiment = _experiment(options.what, rest, options.storage)
    began, found = time.perf_counter(), list[Found]()
    print(f"{options.what}: {type(experiment.method).__name__}{', with half its noise' if options.halve else ''}")
    if options.bits:
        return _last_bits(experiment, options)
    audit = _one_run if isinstance(experiment.method, DPSGD) else _releases
    for one in audit(experiment, options):
        print(f"seed {len(found)}: {one.says}{'  FLAGGED' if one.flagged else ''}", flush=True)
        found.append(one)
    print(f"median epsilon >= {down(statistics.median(f.epsilon for f in found), 3)}; most: {one.most}")
    if not one.enough:
        print("so few canaries cannot flag this release, whatever is wrong with it: raise --canaries")
    flagged = sum(f.flagged for f in found)
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


def _releases(experiment: Experiment, options: argparse.Namespace) -> Iterator[Found]:
    """Opposite canaries, each in a release of its own."""
    method, public = experiment.method, datasets.load(experiment.data).splits["public"]
    subject = canary_methods.subject(method, public)
    events = [e.event for e in subject.ledger.entries if e.client <= 0]  # The canary's client, and what is published.
    mu, delta = accountants.renyi_mu(events), method.delta
    print(f"{_says(subject.ledger, experiment)}; mu {up(mu, 3)}")
    for seed in range(options.seeds):
        found = canaries.audit(
            subject.send,
            clip=subject.clip,
            shape=subject.shape,
            count=options.canaries or subject.count,
            rng=generator(seed, "canaries"),
            factor=_factor(options),
            confidence=options.confidence,
        )
        low, (fnr, fpr) = found.epsilon_low(delta), found.rates
        says = f"mu >= {down(found.mu_low, 3)}, epsilon >= {down(low, 3)} (FPR {fpr:.3f}, FNR {fnr:.3f})"
        most = f"mu {down(found.most.mu_low, 3)}, epsilon {down(found.most.epsilon_low(delta), 3)}"
        flagged, enough = (f.flags(events, losses.tpr_ceiling) for f in (found, found.most))
        yield Found(flagged, low, says, most, enough)


def _one_run(experiment: Experiment, options: argparse.Namespace) -> Iterator[Found]:
    """One run a seed."""
    method, m = cast(DPSGD, experiment.method), options.canaries or CANARIES_OF_ONE_RUN
    groups, guesses = one_run.Pulls(m).groups, options.guesses or max(2, m // 10 // 2 * 2)
    for seed in range(options.seeds):
        rng = generator(seed, "canaries")
        coins = one_run.coins(m, rng)
        scores, ledger = canary_methods.one_run(method, coins, rng, canaries.stream(rng, _factor(options)))
        events = [entry.event for entry in ledger.entries]
        if not seed:
            print(f"{_says(ledger, experiment)}; a client whose records are {m} canaries")
        pulled = method.max_grad_norm * sum(e.steps for e in events if isinstance(e, Gaussian)) / m
        found = one_run.guess(
            scores,
            coins,
            guesses=guesses,
            delta=method.delta,
            rng=rng,
            confidence=options.confidence,
            groups=groups,
            middle=0.0 if method.relation == "replace_one" else pulled / 2,
        )
        low = found.epsilon_of_noise(events)
        about = f"{found.right} of {found.guesses} guesses right"
        most = f"epsilon {down(found.most.epsilon_of_noise(events), 3)}, all guesses right"
        says = f"epsilon >= {down(low, 3)} ({about})"
        yield Found(found.flags(events), low, says, most, found.most.flags(events))


def _last_bits(experiment: Experiment, options: argparse.Namespace) -> int:
    """Uploads of one of two clients that differ in a record: do their bytes, or their distance, tell which it was?"""
    method, splits = experiment.method, datasets.load(experiment.data).splits
    if hasattr(method, "local"):  # A step a round: noise does not depend on how long was trained.
        method = settings.override(experiment, {"method.local.steps": method.rounds, "method.local.batch": 8}).method
    n = min(32, len(splits["train"]) - 1)
    client, other = (splits["train"].select(torch.tensor([first, *range(1, n)])) for first in (0, n))
    other = replace(other, labels=client.labels)  # These are sent in clear.
    event = method.upload_event(len(client), 0)
    if not isinstance(event, Gaussian):
        raise ValueError(f"{type(method).__name__} adds no Gaussian noise to what clients send here: there are no bits")
    server, count, flagged = method.init_server(splits["public"], generator(0)), options.canaries or 100, 0
    states = [method.init_client({}, data, splits["public"], Round(0, generator(1))) for data in (client, other)]

    def upload(which: bool, noise: NoiseStream) -> Tensors:
        rnd = Round(0, generator(2), noise)
        return method.local_update(server, states[which], (client, other)[which], rnd).release.value

    mu = accountants.renyi_mu([replace(event, sampling_rate=1.0)])
    for seed in range(options.seeds):
        found = bits.audit(bits.of_uploads(upload, count), count=count, rng=generator(seed, "canaries"))
        flagged += found.flags(mu)
        says = f"the bytes name the record of {found.named} of {count} uploads, and a wrong one of {found.misnamed}"
        print(f"seed {seed}: {says}{'  FLAGGED' if found.flags(mu) else ''}", flush=True)
    return 1 if flagged * SHARE > options.seeds else 0


def _says(ledger: Ledger, experiment: Experiment) -> str:
    return f"ledger: {ledger.guarantee(experiment.method.delta, experiment.method.accountant)}"


def _factor(options: argparse.Namespace) -> float:
    return 0.5 if options.halve else 1.0


def _options() -> Parser:
    p = Parser("canary", __doc__).with_storage()
    p.add_argument("what", metavar="PRESET|RUN", help="a preset with overrides of its fields, or a run")
    counts = "default 4,000; 16,000 for PFDM and DP-SGD, 1,000 for aggregate trust"
    p.add_argument("--canaries", type=int, help=f"releases in all, or canaries of one run ({counts})")
    p.add_argument("--guesses", type=int, help="coins guessed in one run of DP-SGD (default: a tenth of the canaries)")
    p.add_argument("--seeds", type=int, default=20, help="audits (default 20)")
    p.add_argument("--confidence", type=float, default=0.95, help="of each bound, one-sided (default 0.95)")
    p.add_argument("--bits", action="store_true", help="look at the last bits of uploads instead")
    p.add_argument("--halve", action="store_true", help="halve the noise on purpose")
    return p
