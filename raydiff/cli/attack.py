"""Attack a finished run's model: was this record trained on? (LiRA, RMIA, quantile regression)

    raydiff attack RUN --out DIR                        16 shadows of client 0's own model
    raydiff attack RUN --source global --out DIR        of the model that all clients share
    raydiff attack RUN --shadows 0 --out DIR            only attacks that need none: nothing is trained
    raydiff attack RUN --num 1000 --out DIR             of a table: the rows that raydiff generate would write

A shadow is trained as the attacked model was, on a random half of its records and as many others. Shadows stay in the
sweep's cache: after an interrupt the same command continues. A table is attacked by its rows (DCR, NNDR, Anonymeter,
DOMIAS). DIR gets readings.json, readings.csv and roc.png. No reading is a guarantee: privacy = none.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from raydiff import seeding
from raydiff.cli.options import RunOptions, check_option, is_vacant, parse_options, subset
from raydiff.evaluation.attacks import anonymeter, closest, domias, lira, quantile, rmia
from raydiff.evaluation.attacks.membership import LOW_FPRS, attack_membership, needed
from raydiff.evaluation.figures import draw_roc
from raydiff.formats.csv_files import write_csv
from raydiff.formats.intervals import format_interval
from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import columns
from raydiff.formats.tables import aligned
from raydiff.results.attacked_rows import AttackedRows, open_rows
from raydiff.results.finished import Finished
from raydiff.results.shadows import ROLES, Attacked, ShadowRequest, open_attacked
from raydiff.runtime import sweep_folder
from raydiff.settings import Count
from raydiff.storage.atomic_files import write_text

TPR = "tpr_at_1pct_fpr"
"""Always a column; empty where the non-members are too few."""
CAVEAT = """None of these numbers is a guarantee. Where one is as if nothing were remembered (0 for a risk), this attack
on these rows found nothing in the mean over records; DCR and NNDR are known to miss what membership attacks find."""


@dataclass(frozen=True, kw_only=True)
class AttackOptions(RunOptions, ShadowRequest):
    trial: Path = field(init=False, default=Path())
    out: Path
    """Folder to write."""
    workers: Count = 1
    """Shadows at the same time, as tasks on Ray; 1: in this process."""
    num: int | None = None
    """Of a table: number of rows (default: as many as there are records behind them)."""

    def __post_init__(self) -> None:
        if self.source == "global" and self.client:
            raise ValueError("--client has no meaning with --source global: the shared model is nobody's own")
        check_option(self, "out", is_vacant(self.out), "a folder that is new or empty")


def main(argv: Sequence[str]) -> int:
    """Attack the rows of a table, or a model of pictures by its losses."""
    options = parse_options(AttackOptions, argv, __doc__)
    finished = options.open()
    modality = finished.dataset.modality
    attack_it, unused = next((ATTACKED[name] for name in modality.attacks if name in ATTACKED), (None, ()))
    if attack_it is None:
        raise ValueError(f"there is no attack on {modality.name}")
    for f in fields(options):
        if f.name in unused and getattr(options, f.name) != f.default:
            raise ValueError(f"--{f.name} has no meaning for {modality.name}")
    started = time.monotonic()
    attack_it(finished, options)
    print(f"files in {options.out}; {time.monotonic() - started:.0f} s in all; privacy: none")
    return 0


def _write(out: Path, readings: Sequence[Mapping[str, Any]], **about: Any) -> None:
    """Write readings.json, with `about` in it, and readings.csv; at least one reading."""
    out.mkdir(parents=True, exist_ok=True)
    content = {**about, "privacy": "none", "made_by": sweep_folder.code_version(), "readings": readings}
    write_text(out / "readings.json", dumps(content, indent=1))
    write_csv(out / "readings.csv", pd.DataFrame(readings))


def _with_interval(row: Mapping[str, Any], name: str, prefix: str) -> str:
    """`0.613 [0.588, 0.640]`, from a row's number and the ends of its interval."""
    return format_interval(row[name], row[f"{prefix}low"], row[f"{prefix}high"], ".3f")


def _too_few(nonmembers: int) -> str:
    """Why there is no rate at 1 % FPR."""
    return f"n too small ({nonmembers} non-members, {needed(LOW_FPRS[0])} needed to calibrate and as many to evaluate)"


# --- a model of pictures ---


def _attack_model(finished: Finished, options: AttackOptions) -> None:
    attacked = open_attacked(subset(options, ShadowRequest, trial=finished.trial.folder), finished)
    # First, since it refuses what cannot be computed.
    started = time.monotonic()
    target = attacked.target()
    print(_title(attacked), flush=True)
    for i, _ in enumerate(_trained(attacked, options.workers), start=1):
        print(f"{i} of {options.shadows} shadows, {time.monotonic() - started:.0f} s", flush=True)
    _report(attacked, target, options.out)


def _title(attacked: Attacked) -> str:
    experiment = attacked.finished.trial.experiment
    request = attacked.request
    members = int((attacked.role < 2).sum())
    model = f"client {request.client}'s own model" if request.source == "client" else "the shared model"
    trained = f", each of {request.shadows} shadows on {int(attacked.inside[0].sum())}" if request.shadows else ""
    return (
        f"{type(experiment.method).__name__} {experiment.digest[:8]}, {model}: {members} members, "
        f"{len(attacked.records) - members} non-members; it was trained on {members} records{trained}"
    )


def _trained(attacked: Attacked, workers: int) -> Iterator[int]:
    """The number of each shadow once it is trained."""
    if workers == 1 or not attacked.request.shadows:
        for number in range(attacked.request.shadows):
            attacked.losses(number)
            yield number
        return
    from raydiff.runtime import tasks
    from raydiff.runtime.cluster import join_cluster

    with join_cluster() as nodes:
        yield from tasks.train_shadows(attacked, workers=workers, nodes=nodes)


def _report(attacked: Attacked, target: Tensor, out: Path) -> None:
    """Print the readings; write them and the ROC curves."""
    rows = []
    curves = {}
    for name, scores in _scores(attacked, target).items():
        by_role = {role: scores[attacked.role == i] for i, role in enumerate(ROLES)}
        row, column = reading(name, by_role, attacked.timesteps)
        rows.append(row)
        curves[name] = by_role["members"][:, column], by_role["nonmembers"][:, column]
    lines = [("attack", "timestep", "AUC", "balanced accuracy", "TPR at 1 % FPR")]
    for row in rows:
        rates = (_rate(row, rate) for rate in ("auc", "balanced_accuracy", TPR))
        lines.append((row["attack"], str(row["timestep"]), *rates))
    print(*aligned(lines), sep="\n")
    request = {**asdict(attacked.request), "trial": str(attacked.request.trial), "timesteps": attacked.timesteps}
    _write(out, rows, about=_title(attacked), request=request)
    draw_roc(curves, out / "roc.png", title=_title(attacked).replace("; ", "\n"))


def _scores(attacked: Attacked, target: Tensor) -> dict[str, Tensor]:
    """(N, S + 1) by attack."""
    outside = attacked.role == ROLES.index("calibration_nonmembers")
    scores = {
        "loss": lira.with_mean(target),
        "quantile": quantile.quantile_scores(target, attacked.records.images, outside),
    }
    if not attacked.request.shadows:
        return scores
    losses = torch.stack([attacked.losses(i) for i in range(attacked.request.shadows)])
    for end, online in (("offline", False), ("online", True)):
        scores[f"lira-{end}"] = lira.lira_scores(target, losses, attacked.inside, online=online)
        scores[f"rmia-{end}"] = rmia.rmia_scores(target, losses, attacked.inside, outside, online=online)
    return scores


def reading(name: str, scores: dict[str, Tensor], timesteps: Sequence[int]) -> tuple[dict[str, Any], int]:
    """(a row of readings.csv, the column of the scores (n, S + 1) that the calibration records chose)."""
    result = attack_membership(**scores)
    column = result.timestep_index
    rates = columns(metric for metric in result.metrics() if metric.name != "timestep_index")
    empty: dict[str, Any] = dict.fromkeys(f"{TPR}{end}" for end in ("", "_low", "_high"))
    return {"attack": name, "timestep": [*timesteps, "mean"][column], **empty, **rates}, column


def _rate(row: dict[str, Any], rate: str) -> str:
    if row[rate] is None:
        return _too_few(int(row["n_nonmembers"]))
    return _with_interval(row, rate, f"{rate}_")


# --- the rows of a table ---


READING = ("attack", "reading", "value", "low", "high", "nothing")
"""Columns of readings.csv: low and high of the 95 % interval; nothing: the value where nothing is remembered, None for
a success rate, which depends on the table."""


def _attack_rows(finished: Finished, options: AttackOptions) -> None:
    client = None if options.source == "global" else options.client
    rows = open_rows(finished, client, num=options.num, seed=options.seed)
    model = "the server's model" if client is None else f"client {client}'s own model"
    experiment = finished.trial.experiment
    about = (
        f"{type(experiment.method).__name__} {experiment.digest[:8]}, {model} on {Path(finished.dataset.name).name}: "
        f"{len(rows.made):,} rows made, of {len(rows.columns)} columns; {len(rows.members):,} members, "
        f"{len(rows.nonmembers):,} non-members, {len(rows.reference):,} reference rows"
    )
    print(f"{about}\n", flush=True)
    readings = [dict(zip(READING, reading, strict=True)) for reading in _readings(rows)]
    lines = [("attack", "reading", "value", "remembering nothing")]
    for r in readings:
        nothing = "" if r["nothing"] is None else f"{r['nothing']:g}"
        lines.append((r["attack"], r["reading"], _with_interval(r, "value", ""), nothing))
    print(*aligned(lines), sep="\n")
    if len(rows.nonmembers) // 2 < needed(LOW_FPRS[0]):
        print(f"TPR at 1 % FPR: {_too_few(len(rows.nonmembers))}")
    print(f"\n{CAVEAT}")
    _write(options.out, readings, about=about, caveat=CAVEAT, seed=options.seed)


def _readings(rows: AttackedRows) -> Iterator[tuple[Any, ...]]:
    """The values of `READING`."""
    records = {"members": rows.members, "nonmembers": rows.nonmembers}
    near = closest.measure_closeness(
        rows.made, **records, spans=rows.spans, rng=seeding.generator(rows.seed, "closest")
    )
    yield ("DCR", "share nearer to a member", near.dcr, *near.dcr_interval, 0.5)
    yield ("NNDR", "share with a smaller ratio to members", near.nndr, *near.nndr_interval, 0.5)
    half = len(rows.members) // 2  # They are in random order.
    inside, outside = (
        domias.domias_scores(x, made=rows.made, reference=rows.reference, spans=rows.spans) for x in records.values()
    )
    membership = attack_membership(
        calibration_members=inside[:half],
        calibration_nonmembers=outside[:half],
        members=inside[half:],
        nonmembers=outside[half:],
    )
    yield ("DOMIAS", "AUC", membership.auc, *membership.auc_interval, 0.5)
    accuracy = membership.balanced_accuracy
    interval = membership.balanced_accuracy_interval
    yield ("DOMIAS", "balanced accuracy", accuracy, *interval, 0.5)
    for rate in membership.low_fpr:
        yield ("DOMIAS", f"TPR at {100 * rate.fpr:g} % FPR", rate.tpr, *rate.interval, rate.fpr)
    rng = seeding.generator(rows.seed, "anonymeter")
    risks = {"singling out": anonymeter.singling_out(rows.made, **records, rng=rng)}
    if len(rows.columns) > 1:
        risks["linkability"] = anonymeter.linkability(rows.made, **records, spans=rows.spans, rng=rng)
        for i, column in enumerate(rows.columns):
            name = f"inference of {column}"
            risks[name] = anonymeter.inference(rows.made, i, **records, spans=rows.spans, rng=rng)
    for name, risk in risks.items():
        if risk is not None:
            yield (name, "risk", risk.risk, *risk.risk_interval, 0.0)
            yield from ((name, k, getattr(risk, k), *ends, None) for k, ends in risk.intervals.items())


ATTACKED: Mapping[str, tuple[Callable[[Finished, AttackOptions], None], tuple[str, ...]]] = {
    "denoisers": (_attack_model, ("num",)),
    "rows": (_attack_rows, ("shadows", "timesteps", "draws", "workers")),
}
"""What a modality lets be attacked -> (the attack, options without a meaning for it)."""
