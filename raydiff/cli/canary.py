"""Does a method leak more than its ledger says? Canaries through its own upload: a lower bound beside the upper one.

    raydiff canary digits                          PFDM's upload of records, by pairs of opposite canaries
    raydiff canary digits --halve                  the same with half the noise, which must be flagged
    raydiff canary frontier --method dpsgd --epsilon 2        DP-SGD, one run for each seed
    raydiff canary RUN                             the settings of a run; named as for raydiff generate

A seed is flagged where its lower bound is above the ledger's; with sound noise that happens in at most 5 % of seeds. A
bound that is not flagged proves no more than itself; `most` is the largest that so many canaries could show. Exit code
1: flagged in more than a tenth of the seeds without --halve.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from raydiff.cli.options import Fields, StorageOptions, parse_command, positional
from raydiff.data import datasets
from raydiff.evaluation import canary_subjects
from raydiff.experiment import config, overrides, presets, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import add_caution
from raydiff.formats.rounding import down, up
from raydiff.lookup import nearest
from raydiff.methods.dpsgd import DPSGD
from raydiff.privacy import accountants, canaries, one_run, tradeoff
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian
from raydiff.runtime import sweep_folder
from raydiff.seeding import generator
from raydiff.settings import Count

CANARIES_OF_ONE_RUN = 16_000
HALVED = {False: 1.0, True: 0.5}  # --halve -> factor of the noise
FLAGGED_BY_CHANCE = 0.1
"""Fraction of the seeds that may be flagged."""


@dataclass(frozen=True, kw_only=True)
class CanaryOptions(StorageOptions):
    what: str = positional()
    """A preset, whose fields further options override, or a run."""
    canaries: int | None = None
    """Releases in all, or canaries of one run (default: 4,000; PFDM and DP-SGD 16,000; aggregate trust 1,000)."""
    seeds: Count = 20
    """Audits."""
    halve: bool = False
    """Halve the noise on purpose."""


class Finding(NamedTuple):
    """The audit of one seed."""

    flagged: bool
    epsilon: float
    """Lower bound."""
    text: str
    most: str
    """The largest bound that so many canaries could show."""
    can_flag: bool
    """Whether that bound would be flagged."""


def main(argv: Sequence[str]) -> int:
    """Audit, and print a line per seed."""
    options, fields = parse_command(CanaryOptions, argv, __doc__, Experiment())
    experiment = _experiment(options, fields)
    began = time.perf_counter()
    findings = list[Finding]()
    print(f"{options.what}: {type(experiment.method).__name__}{', with half its noise' if options.halve else ''}")
    for finding in (_one_run if isinstance(experiment.method, DPSGD) else _releases)(experiment, options):
        print(f"seed {len(findings)}: {finding.text}{'  FLAGGED' if finding.flagged else ''}", flush=True)
        findings.append(finding)
    print(f"median epsilon >= {down(statistics.median(f.epsilon for f in findings), 3)}; most: {findings[-1].most}")
    if not findings[-1].can_flag:
        print("so few canaries cannot flag this release, whatever is wrong with it: raise --canaries")
    flagged = sum(f.flagged for f in findings)
    print(f"flagged: {flagged} of {options.seeds} seeds ({time.perf_counter() - began:.0f} s)")
    return 1 if not options.halve and flagged > FLAGGED_BY_CHANCE * options.seeds else 0


def _experiment(options: CanaryOptions, fields: Fields) -> Experiment:
    name = options.what
    if name in presets.PRESETS:
        start: Experiment = presets.PRESETS[name]().experiment
    else:
        try:
            start = config.read_config(sweep_folder.trial_named(name, options.storage) / "config.json")
        except ValueError as e:
            raise ValueError(f"{name!r} is no preset{nearest(name, presets.PRESETS)}, and no run: {e}") from None
    return trial.resolve_on_data(overrides.override(start, overrides.parse_fields(start, fields)))


def _releases(experiment: Experiment, options: CanaryOptions) -> Iterator[Finding]:
    """Opposite canaries, one in each release."""
    method = experiment.method
    public = datasets.load_dataset(experiment.data).splits["public"]
    subject = canary_subjects.build_subject(method, public)
    events = [e.event for e in subject.ledger.entries if e.client <= 0]  # The canary's client, and what is published.
    print(f"{_guarantee(subject.ledger, experiment)}; mu {up(accountants.renyi_mu(events), 3)}")
    for seed in range(options.seeds):
        audit = canaries.audit_canaries(
            subject.send,
            clip=subject.clip,
            shape=subject.shape,
            count=options.canaries or subject.count,
            rng=generator(seed, "canaries"),
            factor=HALVED[options.halve],
        )
        low, (fnr, fpr) = audit.epsilon_low(method.delta), audit.rates
        text = f"mu >= {down(audit.mu_low, 3)}, epsilon >= {down(low, 3)} (FPR {fpr:.3f}, FNR {fnr:.3f})"
        most = f"mu {down(audit.most.mu_low, 3)}, epsilon {down(audit.most.epsilon_low(method.delta), 3)}"
        flagged, can_flag = (a.flags(events, tradeoff.tpr_ceiling) for a in (audit, audit.most))
        yield Finding(flagged, low, text, most, can_flag)


def _one_run(experiment: Experiment, options: CanaryOptions) -> Iterator[Finding]:
    """DP-SGD: a run for each seed, of a client whose records are canaries."""
    method = cast(DPSGD, experiment.method)
    m = options.canaries or CANARIES_OF_ONE_RUN
    for seed in range(options.seeds):
        rng = generator(seed, "canaries")
        coins = one_run.coins(m, rng)
        scores, ledger = canary_subjects.one_run(method, coins, rng, canaries.stream(rng, HALVED[options.halve]))
        events = [entry.event for entry in ledger.entries]
        if not seed:
            print(f"{_guarantee(ledger, experiment)}; a client whose records are {m} canaries")
        pulled = method.max_grad_norm * sum(e.steps for e in events if isinstance(e, Gaussian)) / m
        audit = one_run.guess(
            scores,
            coins,
            guesses=max(2, m // 10 // 2 * 2),
            delta=method.delta,
            rng=rng,
            groups=one_run.Pulls(m).groups,
            middle=0.0 if method.relation == "replace_one" else pulled / 2,
        )
        low = audit.epsilon_of_noise(events)
        text = f"epsilon >= {down(low, 3)} ({audit.right} of {audit.guesses} guesses right)"
        most = f"epsilon {down(audit.most.epsilon_of_noise(events), 3)}, all guesses right"
        yield Finding(audit.flags(events), low, text, most, audit.most.flags(events))


def _guarantee(ledger: Ledger, experiment: Experiment) -> str:
    guarantee = ledger.guarantee(experiment.method.delta, experiment.method.accountant)
    return f"ledger: {add_caution(guarantee, experiment)}"
