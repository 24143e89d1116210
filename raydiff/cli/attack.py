"""Attack a finished run's model: was this record trained on? (LiRA, RMIA, quantile regression)

    raydiff attack RUN --out DIR                        16 shadows of client 0's own model
    raydiff attack RUN --source global --out DIR        of the model that all clients share
    raydiff attack RUN --shadows 64 --workers 8 --out DIR
    raydiff attack RUN --shadows 0 --out DIR            only attacks that need none: nothing is trained
    raydiff attack RUN --num 1000 --out DIR             of a table: the rows that raydiff generate would write

A shadow is trained as the attacked model was, on a random half of its records and as many others. Shadows stay in the
sweep's cache: after an interrupt the same command continues. A table is attacked by its rows (DCR, NNDR, Anonymeter,
DOMIAS). DIR gets readings.json, readings.csv and roc.png. No reading is a guarantee: privacy = none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raydiff.cli import attack_rows
from raydiff.cli.options import RunOptions, parse
from raydiff.evaluation.attacks import lira, quantile, rmia
from raydiff.evaluation.attacks.membership import LOW_FPRS, attack, needed
from raydiff.evaluation.figures import draw_roc
from raydiff.formats.tables import aligned
from raydiff.results.shadows import ROLES, Attacked, Request, open_attacked

TPR = "tpr_at_1pct_fpr"
"""Always a column; empty where the non-members are too few."""


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions, Request):
    trial: Path = field(init=False, default=Path())
    out: Path
    """Folder to write."""
    workers: int = 1
    """Shadows at the same time, as tasks on Ray; 1: in this process."""
    num: int | None = None
    """Of a table: rows that are made (default: as many as there are records behind them)."""

    def __post_init__(self) -> None:
        if self.source == "global" and self.client:
            raise ValueError("--client has no meaning with --source global: the shared model is nobody's own")
        if self.workers < 1:
            raise ValueError(f"--workers must be at least 1, got {self.workers}")
        if self.out.is_dir() and any(self.out.iterdir()):
            raise ValueError(f"{self.out} is not empty: give another --out")


def main(argv: Sequence[str]) -> int:
    """Attack the rows of a table, or a model of pictures by its losses."""
    options = parse(Options, argv, __doc__)
    finished = options.open()
    is_table = finished.dataset.mapping is not None
    for f in fields(options):
        unused = f.name in (("shadows", "timesteps", "draws", "workers") if is_table else ("num",))
        if unused and getattr(options, f.name) != f.default:
            raise ValueError(f"--{f.name} has no meaning for {'the rows of a table' if is_table else 'pictures'}")
    if is_table:
        client = None if options.source == "global" else options.client
        attack_rows.run(finished, client, options.out, num=options.num, seed=options.seed)
        return 0
    given = {f.name: getattr(options, f.name) for f in fields(Request) if f.name != "trial"}
    attacked = open_attacked(Request(trial=finished.trial.folder, **given), finished)
    started, target = time.monotonic(), attacked.target()  # First, since it refuses what cannot be computed.
    print(_title(attacked), flush=True)
    for i, _ in enumerate(_trained(attacked, options.workers), start=1):
        passed = time.monotonic() - started
        left = passed / i * (options.shadows - i)
        print(f"{i} of {options.shadows} shadows, {passed:.0f} s, {left:.0f} s left", flush=True)
    _report(attacked, target, options.out)
    print(f"files in {options.out}; {time.monotonic() - started:.0f} s in all; privacy: none")
    return 0


def _title(attacked: Attacked) -> str:
    experiment, request = attacked.finished.trial.experiment, attacked.request
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
    from raydiff.runtime.cluster import cluster

    with cluster() as nodes:
        yield from tasks.of_shadows(attacked, workers=workers, nodes=nodes)


def _report(attacked: Attacked, target: Tensor, out: Path) -> None:
    """Print the readings; write them and the ROC curves."""
    rows, curves = [], {}
    for name, scores in _scores(attacked, target).items():
        by_role = {role: scores[attacked.role == i] for i, role in enumerate(ROLES)}
        row, column = _reading(name, by_role, attacked.timesteps)
        rows.append(row)
        curves[name] = by_role["members"][:, column], by_role["nonmembers"][:, column]
    lines = [("attack", "timestep", "AUC", "balanced accuracy", "TPR at 1 % FPR")]
    for row in rows:
        rates = (_with_interval(row, rate) for rate in ("auc", "balanced_accuracy", TPR))
        lines.append((row["attack"], str(row["timestep"]), *rates))
    print(*aligned(lines), sep="\n")
    request = {**asdict(attacked.request), "trial": str(attacked.request.trial), "timesteps": attacked.timesteps}
    attack_rows.keep(out, rows, about=_title(attacked), request=request)
    draw_roc(curves, out / "roc.png", title=_title(attacked).replace("; ", "\n"))


def _scores(attacked: Attacked, target: Tensor) -> dict[str, Tensor]:
    """(N, S + 1) by attack."""
    outside = attacked.role == ROLES.index("calibration_nonmembers")
    scores = {"loss": lira.with_mean(target), "quantile": quantile.scores(target, attacked.records.images, outside)}
    if not attacked.request.shadows:
        return scores
    losses = torch.stack([attacked.losses(i) for i in range(attacked.request.shadows)])
    for end, online in (("offline", False), ("online", True)):
        scores[f"lira-{end}"] = lira.scores(target, losses, attacked.inside, online=online)
        scores[f"rmia-{end}"] = rmia.scores(target, losses, attacked.inside, outside, online=online)
    return scores


def _reading(name: str, scores: dict[str, Tensor], timesteps: Sequence[int]) -> tuple[dict[str, Any], int]:
    """(a line of the table, the column of the scores that the calibration records chose)."""
    result = attack(**scores)
    column = result.timestep_index
    rates = {key.removeprefix("/"): value for key, value in result.metrics("").items() if key != "/timestep_index"}
    empty: dict[str, Any] = dict.fromkeys(f"{TPR}{end}" for end in ("", "_low", "_high"))
    return {"attack": name, "timestep": [*timesteps, "mean"][column], **empty, **rates}, column


def _with_interval(row: dict[str, Any], rate: str) -> str:
    if row[rate] is None:
        least = f"{needed(LOW_FPRS[0])} needed to calibrate and to evaluate"
        return f"n too small ({row['n_nonmembers']:.0f} non-members, {least})"
    return attack_rows.with_interval(row[rate], (row[f"{rate}_low"], row[f"{rate}_high"]))
