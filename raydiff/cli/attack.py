"""Attack a finished run's model: was this record trained on? (LiRA, RMIA, quantile regression)

raydiff attack RUN --out DIR                        16 shadows of client 0's own model
raydiff attack RUN --source global --out DIR        of the model that all clients share
raydiff attack RUN --shadows 64 --workers 8 --out DIR
raydiff attack RUN --shadows 0 --out DIR            what needs none: nothing is trained
raydiff attack RUN --num 1000 --out DIR             of a table: the rows that raydiff generate would write

RUN is named as in raydiff generate. A shadow is trained as the attacked model was, on a random half of the client's own
records and as many others of the same classes (from the calibration and test splits), with --source global the whole
protocol on halves of all clients' records. --workers 1 trains them in this process, more of them as tasks on Ray: on
the cluster that RAY_ADDRESS names, or a local one. Shadows stay in the sweep's cache: a run that was killed continues
by the same command, and more shadows of one seed train the new ones only.

All attacks are read from the same losses. Without shadows: loss (a threshold for all records) and quantile (each
record's own threshold, by a regression on its picture; Bertran et al. 2023). With them: lira-offline (each record
against the shadows without it), lira-online (also against those with it; Carlini et al. 2022), rmia-offline and
rmia-online (what it gained by the model, beside what records gained that nobody trained on; Zarifzadeh et al. 2024).
Timestep and threshold come from calibration records, the readings from others. Printed, and kept in DIR:
readings.json, readings.csv and roc.png. Nothing of this is protected: privacy = none.

A trial on a table is attacked by its rows alone: distance to the closest record and nearest-neighbour distance ratio
(DCR, NNDR), singling out, linkability and inference of each column (Anonymeter, Giomi et al. 2023), membership by
density ratio (DOMIAS, van Breugel et al. 2023); each beside records that nobody trained on, with what it is where
nothing is remembered. None of these numbers is a guarantee.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raydiff.cli import attack_rows
from raydiff.cli.parser import Parser
from raydiff.cli.readings import keep
from raydiff.evaluation.attacks import lira, quantile, rmia
from raydiff.evaluation.attacks.membership import LOW_FPRS, attack, needed
from raydiff.evaluation.figures import draw_roc
from raydiff.formats.tables import aligned
from raydiff.results.finished import Finished, open_finished
from raydiff.results.shadows import ROLES, Attacked, Request, open_attacked
from raydiff.runtime import sweep_folder

SHADOWED = ("shadows", "timesteps", "draws", "workers")
"""Options that are about shadows and losses."""
TPR = "tpr_at_1pct_fpr"
"""Always a column; empty where the non-members are too few."""


def main(argv: Sequence[str]) -> int:
    """Find the run, and attack it: a table's rows, or pictures, for which shadows are trained."""
    options = _options().parse_args(argv)
    if options.source == "global" and options.client is not None:
        raise ValueError("--client has no meaning with --source global: the shared model is nobody's own")
    if options.out.is_dir() and any(options.out.iterdir()):
        raise ValueError(f"{options.out} is not empty: give another --out")
    finished = open_finished(sweep_folder.trial_folder(options.run, options.storage))
    of_table = finished.dataset.mapping is not None
    for name in SHADOWED if of_table else ("num",):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} has no meaning for {'the rows of a table' if of_table else 'pictures'}")
    if of_table:
        client = None if options.source == "global" else options.client or 0
        attack_rows.run(finished, client, options.out, num=options.num, seed=options.seed)
        return 0
    return _with_shadows(options, finished)


def _with_shadows(options: argparse.Namespace, finished: Finished) -> int:
    given = {name: value for name in ("shadows", "draws") if (value := getattr(options, name)) is not None}
    workers = 1 if options.workers is None else options.workers
    if workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    asked = Request(
        trial=finished.trial.folder,
        source=options.source,
        client=options.client or 0,
        timesteps=_whole(options.timesteps),
        seed=options.seed,
        **given,
    )
    attacked = open_attacked(asked, finished)
    started, target = time.monotonic(), attacked.target()  # first, for it refuses what cannot be computed
    print(_about(attacked), flush=True)
    try:
        for i, _ in enumerate(_trained(attacked, workers), start=1):
            passed = time.monotonic() - started
            left = passed / i * (asked.shadows - i)
            print(f"{i} of {asked.shadows} shadows, {passed:.0f} s, {left:.0f} s left", flush=True)
    except KeyboardInterrupt:
        print("interrupted; the same command continues")
        return 130
    _read(attacked, target, options.out)
    print(f"files in {options.out}; {time.monotonic() - started:.0f} s in all; privacy: none")
    return 0


def _options() -> Parser:
    p = Parser("attack", __doc__).of_run()
    p.add_argument(
        "--source", choices=("client", "global"), default="client", help="a client's own model, or the shared"
    )
    p.add_argument("--client", type=int, help="whose model (default: 0)")
    p.add_argument("--shadows", type=int, help=f"how many, an even number, or 0 (default: {Request.shadows})")
    p.add_argument("--timesteps", help="where the loss is taken: 40,200 (default: ten from 1 to 0.4 T)")
    p.add_argument("--draws", type=int, help=f"noise draws in each loss (default: {Request.draws})")
    p.add_argument("--seed", type=int, default=0, help="of halves, shadows, draws and rows (default: %(default)s)")
    p.add_argument("--workers", type=int, help="shadows at a time; 1: in this process (default: 1)")
    p.add_argument("--num", type=int, help="of a table: rows that are made (default: as many as records behind them)")
    p.add_argument("--out", type=Path, required=True, help="folder to write")
    return p


def _whole(text: str | None) -> tuple[int, ...]:
    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--timesteps must be whole numbers such as 40,200, got {text!r}")
    return tuple(int(part) for part in parts)


def _about(attacked: Attacked) -> str:
    experiment, request = attacked.finished.trial.experiment, attacked.request
    members = int((attacked.role < 2).sum())
    whose = f"client {request.client}'s own model" if request.source == "client" else "the shared model"
    trained = f", each of {request.shadows} shadows on {int(attacked.inside[0].sum())}" if request.shadows else ""
    return (
        f"{type(experiment.method).__name__} {experiment.digest[:8]}, {whose}: {members} members, "
        f"{len(attacked.records) - members} non-members; it was trained on {members} records{trained}"
    )


def _trained(attacked: Attacked, workers: int) -> Iterator[int]:
    """Each shadow's number when it is there."""
    if workers == 1 or not attacked.request.shadows:
        for number in range(attacked.request.shadows):
            attacked.losses(number)
            yield number
        return
    from raydiff.runtime import tasks
    from raydiff.runtime.cluster import cluster

    with cluster() as nodes:
        yield from tasks.of_shadows(attacked, workers=workers, nodes=nodes)


def _read(attacked: Attacked, target: Tensor, out: Path) -> None:
    """The readings and the picture."""
    rows, curves = [], {}
    for name, scores in _scores(attacked, target).items():
        by_role = {role: scores[attacked.role == i] for i, role in enumerate(ROLES)}
        row, column = _reading(name, by_role, attacked.timesteps)
        rows.append(row)
        curves[name] = by_role["members"][:, column], by_role["nonmembers"][:, column]
    _print(rows)
    request = {**asdict(attacked.request), "trial": str(attacked.request.trial), "timesteps": attacked.timesteps}
    keep(out, rows, about=_about(attacked), request=request)
    draw_roc(curves, out / "roc.png", title=_about(attacked).replace("; ", "\n"))


def _scores(attacked: Attacked, target: Tensor) -> dict[str, Tensor]:
    """(N, S + 1) by attack."""
    outside = attacked.role == ROLES.index("calibration_nonmembers")
    found = {"loss": lira.with_mean(target), "quantile": quantile.scores(target, attacked.records.images, outside)}
    if not attacked.request.shadows:
        return found
    losses = torch.stack([attacked.losses(i) for i in range(attacked.request.shadows)])
    for end, online in (("offline", False), ("online", True)):
        found[f"lira-{end}"] = lira.scores(target, losses, attacked.inside, online=online)
        found[f"rmia-{end}"] = rmia.scores(target, losses, attacked.inside, outside, online=online)
    return found


def _reading(name: str, scores: dict[str, Tensor], timesteps: Sequence[int]) -> tuple[dict[str, Any], int]:
    """(a line of the table, the column of the scores that the calibration records chose)."""
    found = attack(**scores)
    column = found.timestep_index
    read = {key.removeprefix("/"): value for key, value in found.metrics("").items() if key != "/timestep_index"}
    unknown: dict[str, Any] = dict.fromkeys(f"{TPR}{end}" for end in ("", "_low", "_high"))
    at = timesteps[column] if column < len(timesteps) else "mean"
    return {"attack": name, "timestep": at, **unknown, **read}, column


def _print(rows: Sequence[dict[str, Any]]) -> None:
    header = ("attack", "timestep", "AUC", "balanced accuracy", "TPR at 1 % FPR")
    lines = [header] + [
        (row["attack"], str(row["timestep"]), *(_said(row, r) for r in ("auc", "balanced_accuracy", TPR)))
        for row in rows
    ]
    print(*aligned(lines), sep="\n")


def _said(row: dict[str, Any], rate: str) -> str:
    if row[rate] is None:
        least = f"{needed(LOW_FPRS[0])} needed to calibrate and to evaluate"
        return f"n too small ({row['n_nonmembers']:.0f} non-members, {least})"
    return f"{row[rate]:.3f} [{row[f'{rate}_low']:.3f}, {row[f'{rate}_high']:.3f}]"
