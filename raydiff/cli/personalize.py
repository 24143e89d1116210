"""A new client joins a finished run: it fits what the method personalises on its own records, alone, and sends nothing.

    raydiff personalize RUN                                 the run's own data: records that no client trained on
    raydiff personalize RUN --classes 2,7 --records 40 --epochs 1,2,5,10,20 --lr 1e-3,1e-2
    raydiff personalize RUN --data path/to/folder           another data set, of the same labels and picture size
    raydiff personalize RUN --forgetting                    and what the old clients would lose by it

Each learning rate is one training, measured before it and after each number of epochs, on test records. The table is
printed, kept in <sweep>/newcomers/ with curves.png and the trained parts, and logged to MLflow: privacy = none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from raydiff.cli.options import RunOptions, parse
from raydiff.data.unseen_client import Choice, newcomer
from raydiff.evaluation.figures import draw_curves
from raydiff.formats.tables import aligned
from raydiff.models.training import Diverged
from raydiff.results import personalization
from raydiff.results.personalization import Joining, Row
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models
from raydiff.tracking.mlflow_store import redacted


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    data: str | None = None
    """The new client's data set, as in data.name (default: the run's own)."""
    classes: str | None = None
    """Classes of its records, by name or number: 2,7 (default: all)."""
    records: int | None = None
    """How many it trains on (default: of the run's own data as many as its clients have on average, else all)."""
    epochs: tuple[int, ...] = (1, 2, 5, 10, 20)
    """When to measure, beside 0."""
    lr: tuple[float, ...] | None = None
    """Constant learning rates, one training each (default: the method's for a new client)."""
    seed: int = 0
    """Of its records, training and samples."""
    forgetting: bool = False
    """Measure each old client with the new client's model as the shared one."""
    out: Path | None = None
    """Folder to write (default: one in <sweep>/newcomers/)."""
    no_mlflow: bool = False
    """Write files only."""

    def __post_init__(self) -> None:
        if not self.epochs or min(self.epochs) < 0:
            raise ValueError(f"--epochs must be numbers >= 0, got {self.epochs}")
        if not all(0 < rate < math.inf for rate in self.lr or ()):
            raise ValueError(f"--lr must be positive numbers, got {self.lr}")
        if self.out is not None and self.out.is_dir() and any(self.out.iterdir()):
            raise ValueError(f"{self.out} is not empty: give another --out")


def main(argv: Sequence[str]) -> int:
    """Train the new client at each rate, measure, write and log."""
    options = parse(Options, argv, __doc__)
    finished = options.open()
    rates = list(dict.fromkeys(options.lr or [personalization.method_of(finished).joining.learning_rate]))
    epochs, uri = sorted({*options.epochs}), sweep_folder.tracking_store(options.storage)[0]
    try:
        parent = None if options.no_mlflow else mlflow_models.find_run(uri, finished.trial.folder)
    except ValueError as e:
        raise ValueError(f"{e} (--no-mlflow does without)") from None
    classes = () if options.classes is None else tuple(options.classes.split(","))
    choice = Choice(data=options.data, classes=classes, records=options.records, seed=options.seed)
    experiment, dataset = finished.trial.experiment, finished.dataset
    usual = max(1, len(dataset.splits["train"]) // experiment.clients)
    client = newcomer(choice, experiment.data, dataset, usual=usual)
    joining = Joining(finished, client, personalization.prepare(finished), options.seed)
    title = f"{type(experiment.method).__name__} {experiment.digest[:8]}, a new client: {len(client.records)} records"
    title += f" of {' '.join(joining.classes)}"
    touched, whole = joining.touched()
    print(f"{title}; {len(client.held_out)} held out")
    print("\n".join([f"from {client.says}", *(f"  {note}" for note in client.notes)]))
    print(f"it trains {touched:,} of {whole:,} parameters ({touched / whole:.3%}); the others stay as the server's")
    key, started = joining.key(epochs, rates), time.monotonic()
    out = options.out or finished.trial.sweep / "newcomers" / f"{experiment.digest[:8]}-{key[:8]}"
    out.mkdir(parents=True, exist_ok=True)
    rows, lost = _measure(joining, epochs, rates, out, forgetting=options.forgetting)
    tables = {"curves.csv": rows} | ({"forgetting.csv": lost} if lost else {})
    draw_curves(rows, out / "curves.png", title=title)
    for name, table in tables.items():
        pd.DataFrame(table).to_csv(out / name, index=False)
    print(f"files in {out}; {time.monotonic() - started:.0f} s in all")
    if parent is not None:
        files = [out / name for name in ("curves.png", *tables)]
        run = mlflow_models.log_newcomer(uri, parent, joining, [*rows, *lost], files, key=key, name=title)
        print(f"MLflow run {run}, below {parent} in {redacted(uri)}")
    return 0


def _measure(
    joining: Joining, epochs: Sequence[int], rates: Sequence[float], out: Path, *, forgetting: bool
) -> tuple[list[Row], list[Row]]:
    """(a row for each rate and epoch, and with `forgetting` one for each rate and old client)."""
    before = joining.old_clients(joining.finished.server) if forgetting else {}
    rows, lost = list[Row](), list[Row]()
    for rate in rates:
        measured = list[Row]()
        try:
            for row, stage in joining.rows(rate, epochs):
                measured.append(row)
                last = stage
        except Diverged as e:
            print(f"{rate:g}: {e}; nothing of this learning rate is kept")
        else:
            finite = {k: v for k, v in measured[-1].items() if math.isfinite(v)}
            card = {"measured": finite, "made_by": sweep_folder.version()}
            personalization.save(out, joining, last, rate=rate, more=card)
            lost += [{"learning_rate": rate, **row} for row in joining.forgetting(last.state, before)]
        rows += measured
        _print(measured)
    if lost:
        print("forgetting: the old clients, were the new client's model after its last epoch the shared one")
        _print(lost)
    return rows, lost


def _print(rows: Sequence[Row]) -> None:
    cells = [["-" if math.isnan(value) else f"{value:.4g}" for value in row.values()] for row in rows]
    print(*aligned([list(rows[0]), *cells], words=0), sep="\n", flush=True)
