"""`raydiff attack` on the rows of a table: what is read, printed and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from raydiff import seeding
from raydiff.cli.readings import keep
from raydiff.evaluation.attacks import anonymeter, closest, domias
from raydiff.evaluation.attacks.anonymeter import Risk
from raydiff.evaluation.attacks.membership import LOW_FPRS, Interval, attack, needed
from raydiff.formats.tables import aligned
from raydiff.results.attacked_rows import AttackedRows, open_rows
from raydiff.results.finished import Finished

CAVEAT = """None of these numbers is a guarantee. Where one is as if nothing were remembered (0 for a risk), this attack
on these rows found nothing in the mean over records; DCR and NNDR are known to miss what membership attacks find."""
RISK_COLUMNS = ("members", "nonmembers", "guesses")


class Reading(NamedTuple):
    """A line of readings.csv."""

    attack: str
    reading: str
    value: float
    low: float
    """Of the 95 % interval."""
    high: float
    nothing: float | None
    """What it is where nothing is remembered; None: a rate of success, which depends on the table."""


def run(finished: Finished, client: int | None, out: Path, *, num: int | None, seed: int) -> None:
    """Attack the rows of a client's model or, with None, the server's; print the readings and keep them in `out`."""
    rows = open_rows(finished, client, num=num, seed=seed)
    whose = "the server's model" if client is None else f"client {client}'s own model"
    experiment = finished.trial.experiment
    about = (
        f"{type(experiment.method).__name__} {experiment.digest[:8]}, {whose} on {Path(finished.dataset.name).name}: "
        f"{len(rows.made):,} rows made, of {len(rows.columns)} columns; {len(rows.members):,} members, "
        f"{len(rows.nonmembers):,} non-members, {len(rows.reference):,} reference rows"
    )
    print(f"{about}\n", flush=True)
    shares, risks = list(_shares(rows)), dict(_risks(rows))
    print(
        *aligned([("attack", "reading", "value", "remembering nothing"), *map(_cells, shares)]),
        _too_few(rows),
        sep="\n",
    )
    print(*aligned([("attack", *RISK_COLUMNS, "risk"), *(_risk_cells(*found) for found in risks.items())]), sep="\n")
    print(f"\n{CAVEAT}")
    each = [reading._asdict() for reading in (*shares, *_readings(risks))]
    keep(out, each, about=about, caveat=CAVEAT, seed=seed)
    print(f"files in {out}; privacy: none")


def _shares(rows: AttackedRows) -> Iterator[Reading]:
    """DCR, NNDR and DOMIAS."""
    known, rng = {"members": rows.members, "nonmembers": rows.nonmembers}, seeding.generator(rows.seed, "closest")
    near = closest.attack(rows.made, **known, spans=rows.spans, rng=rng)
    yield Reading("DCR", "share nearer to a member", near.dcr, *near.dcr_interval, 0.5)
    yield Reading("NNDR", "share with a smaller ratio to members", near.nndr, *near.nndr_interval, 0.5)
    half = len(rows.members) // 2  # They are in random order.
    inside, outside = (
        domias.scores(records, made=rows.made, reference=rows.reference, spans=rows.spans)
        for records in (rows.members, rows.nonmembers)
    )
    found = attack(
        calibration_members=inside[:half],
        calibration_nonmembers=outside[:half],
        members=inside[half:],
        nonmembers=outside[half:],
    )
    yield Reading("DOMIAS", "AUC", found.auc, *found.auc_interval, 0.5)
    accuracy = found.balanced_accuracy, *found.balanced_accuracy_interval
    yield Reading("DOMIAS", "balanced accuracy", *accuracy, 0.5)
    for rate in found.low_fpr:
        yield Reading("DOMIAS", f"TPR at {100 * rate.fpr:g} % FPR", rate.tpr, *rate.interval, rate.fpr)


def _risks(rows: AttackedRows) -> Iterator[tuple[str, Risk]]:
    """Singling out, linkability, and inference of each column."""
    known = {"members": rows.members, "nonmembers": rows.nonmembers}
    rng = seeding.generator(rows.seed, "anonymeter")
    alone = anonymeter.singling_out(rows.made, **known, rng=rng)
    if alone is not None:
        yield "singling out", alone
    if len(rows.columns) < 2:
        return
    yield "linkability", anonymeter.linkability(rows.made, **known, spans=rows.spans, rng=rng)
    for i, column in enumerate(rows.columns):
        yield f"inference of {column}", anonymeter.inference(rows.made, i, **known, spans=rows.spans, rng=rng)


def _readings(risks: Mapping[str, Risk]) -> Iterator[Reading]:
    for name, found in risks.items():
        yield Reading(name, "risk", found.risk, *found.risk_interval, 0.0)
        for rate, interval in found.intervals.items():
            yield Reading(name, rate, getattr(found, rate), *interval, None)


def _cells(reading: Reading) -> tuple[str, ...]:
    return reading.attack, reading.reading, _said(reading.value, reading[3:5]), f"{reading.nothing:g}"


def _risk_cells(name: str, found: Risk) -> tuple[str, ...]:
    rates = (_said(getattr(found, rate), found.intervals[rate]) for rate in RISK_COLUMNS)
    return name, *rates, _said(found.risk, found.risk_interval)


def _said(value: float, interval: Interval) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _too_few(rows: AttackedRows) -> str:
    """What a missing rate is missing for; otherwise an empty line."""
    least, there = needed(LOW_FPRS[0]), len(rows.nonmembers)
    if there // 2 >= least:
        return ""
    return f"TPR at 1 % FPR: n too small ({there} non-members, {least} needed to calibrate and as many to evaluate)\n"
