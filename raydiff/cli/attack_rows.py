"""`raydiff attack` on the rows of a table: the readings, printed and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from raydiff import seeding
from raydiff.evaluation.attacks import anonymeter, closest, domias
from raydiff.evaluation.attacks.anonymeter import Risk
from raydiff.evaluation.attacks.membership import LOW_FPRS, Interval, attack, needed
from raydiff.formats.tables import aligned
from raydiff.results.attacked_rows import AttackedRows, open_rows
from raydiff.results.finished import Finished
from raydiff.runtime import sweep_folder
from raydiff.storage.atomic_files import write_text

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
    """The value where nothing is remembered; None: a success rate, which depends on the table."""


def run(finished: Finished, client: int | None, out: Path, *, num: int | None, seed: int) -> None:
    """Attack the rows of a client's model or, with None, the server's; print the readings and keep them in `out`."""
    rows = open_rows(finished, client, num=num, seed=seed)
    model = "the server's model" if client is None else f"client {client}'s own model"
    experiment = finished.trial.experiment
    about = (
        f"{type(experiment.method).__name__} {experiment.digest[:8]}, {model} on {Path(finished.dataset.name).name}: "
        f"{len(rows.made):,} rows made, of {len(rows.columns)} columns; {len(rows.members):,} members, "
        f"{len(rows.nonmembers):,} non-members, {len(rows.reference):,} reference rows"
    )
    print(f"{about}\n", flush=True)
    distances, risks = list(_distances(rows)), dict(_risks(rows))
    lines = [["attack", "reading", "value", "remembering nothing"]]
    lines += [[r.attack, r.reading, with_interval(r.value, (r.low, r.high)), f"{r.nothing:g}"] for r in distances]
    print(*aligned(lines), _too_few(rows), sep="\n")
    lines = [["attack", *RISK_COLUMNS, "risk"]]
    for name, risk in risks.items():
        rates = (with_interval(getattr(risk, rate), risk.intervals[rate]) for rate in RISK_COLUMNS)
        lines.append([name, *rates, with_interval(risk.risk, risk.risk_interval)])
    print(*aligned(lines), f"\n{CAVEAT}", sep="\n")
    readings = [reading._asdict() for reading in (*distances, *_readings(risks))]
    keep(out, readings, about=about, caveat=CAVEAT, seed=seed)
    print(f"files in {out}; privacy: none")


def keep(out: Path, readings: Sequence[Mapping[str, Any]], **about: Any) -> None:
    """Write readings.json, with `about` in it, and readings.csv; at least one reading."""
    out.mkdir(parents=True, exist_ok=True)
    whole = {**about, "privacy": "none", "made_by": sweep_folder.version(), "readings": readings}
    write_text(out / "readings.json", json.dumps(whole, indent=1))
    pd.DataFrame(readings).to_csv(out / "readings.csv", index=False)


def with_interval(value: float, interval: Interval) -> str:
    """`0.613 [0.588, 0.640]`."""
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _distances(rows: AttackedRows) -> Iterator[Reading]:
    """DCR, NNDR and DOMIAS."""
    records, rng = {"members": rows.members, "nonmembers": rows.nonmembers}, seeding.generator(rows.seed, "closest")
    near = closest.attack(rows.made, **records, spans=rows.spans, rng=rng)
    yield Reading("DCR", "share nearer to a member", near.dcr, *near.dcr_interval, 0.5)
    yield Reading("NNDR", "share with a smaller ratio to members", near.nndr, *near.nndr_interval, 0.5)
    half = len(rows.members) // 2  # They are in random order.
    inside, outside = (
        domias.scores(x, made=rows.made, reference=rows.reference, spans=rows.spans) for x in records.values()
    )
    result = attack(
        calibration_members=inside[:half],
        calibration_nonmembers=outside[:half],
        members=inside[half:],
        nonmembers=outside[half:],
    )
    yield Reading("DOMIAS", "AUC", result.auc, *result.auc_interval, 0.5)
    yield Reading("DOMIAS", "balanced accuracy", result.balanced_accuracy, *result.balanced_accuracy_interval, 0.5)
    for rate in result.low_fpr:
        yield Reading("DOMIAS", f"TPR at {100 * rate.fpr:g} % FPR", rate.tpr, *rate.interval, rate.fpr)


def _risks(rows: AttackedRows) -> Iterator[tuple[str, Risk]]:
    """Singling out, linkability, and inference of each column."""
    records = {"members": rows.members, "nonmembers": rows.nonmembers}
    rng = seeding.generator(rows.seed, "anonymeter")
    singled_out = anonymeter.singling_out(rows.made, **records, rng=rng)
    if singled_out is not None:
        yield "singling out", singled_out
    if len(rows.columns) < 2:
        return
    yield "linkability", anonymeter.linkability(rows.made, **records, spans=rows.spans, rng=rng)
    for i, column in enumerate(rows.columns):
        yield f"inference of {column}", anonymeter.inference(rows.made, i, **records, spans=rows.spans, rng=rng)


def _readings(risks: Mapping[str, Risk]) -> Iterator[Reading]:
    for name, risk in risks.items():
        yield Reading(name, "risk", risk.risk, *risk.risk_interval, 0.0)
        for rate, interval in risk.intervals.items():
            yield Reading(name, rate, getattr(risk, rate), *interval, None)


def _too_few(rows: AttackedRows) -> str:
    """Why the rate at 1 % is missing, or an empty line."""
    least, count = needed(LOW_FPRS[0]), len(rows.nonmembers)
    if count // 2 >= least:
        return ""
    return f"TPR at 1 % FPR: n too small ({count} non-members, {least} needed to calibrate and as many to evaluate)\n"
