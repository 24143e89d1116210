"""Fit a finished run to an unseen client: it trains what the method personalises on its own records, and sends nothing.

    raydiff personalize RUN                                 the run's own data: records that no client trained on
    raydiff personalize RUN --classes 2,7 --records 40 --epochs 1,2,5,10,20 --lr 1e-3,1e-2
    raydiff personalize RUN --data path/to/folder           another data set, of the same labels and picture size

Each learning rate is one training, measured before it and after each number of epochs, on test records. The table is
printed, written to <sweep>/unseen/ with curves.png and the trained parts, and logged to MLflow: privacy = none.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from raydiff.cli.options import RunOptions, check_option, is_vacant, parse_options
from raydiff.data.unseen_client import Choice, choose_client
from raydiff.evaluation.figures import draw_curves
from raydiff.formats.csv_files import write_csv
from raydiff.formats.tables import aligned
from raydiff.models.training import Diverged
from raydiff.results import personalization
from raydiff.results.personalization import Joining, Row
from raydiff.runtime import sweep_folder
from raydiff.settings import Natural, Positive
from raydiff.tracking import mlflow_models
from raydiff.tracking.mlflow_store import redact_passwords


@dataclass(frozen=True, kw_only=True)
class PersonalizeOptions(RunOptions):
    data: str | None = None
    """The client's data set, as in data.name (default: the run's own)."""
    classes: str | None = None
    """Classes of its records, by name or number: 2,7 (default: all)."""
    records: int | None = None
    """How many it trains on (default: of the run's own data as many as its clients have on average, else all)."""
    epochs: tuple[Natural, ...] = (1, 2, 5, 10, 20)
    """When to measure, beside 0."""
    lr: tuple[Positive, ...] | None = None
    """Constant learning rates, one training each (default: the method's for an unseen client)."""
    seed: int = 0
    """Of its records, training and samples."""
    out: Path | None = None
    """Folder to write (default: one in <sweep>/unseen/)."""
    no_mlflow: bool = False
    """Write files only."""

    def __post_init__(self) -> None:
        check_option(self, "out", self.out is None or is_vacant(self.out), "a folder that is new or empty")


def main(argv: Sequence[str]) -> int:
    """Train the client at each rate, measure, write and log."""
    options = parse_options(PersonalizeOptions, argv, __doc__)
    finished = options.open()
    rates = list(dict.fromkeys(options.lr or [personalization.method_of(finished).joining.learning_rate]))
    epochs = sorted({*options.epochs})
    uri = sweep_folder.tracking_store(options.storage)[0]
    try:
        parent = None if options.no_mlflow else mlflow_models.find_run(uri, finished.trial.folder)
    except ValueError as e:
        raise ValueError(f"{e} (--no-mlflow does without)") from None
    classes = () if options.classes is None else tuple(options.classes.split(","))
    choice = Choice(data=options.data, classes=classes, records=options.records, seed=options.seed)
    experiment = finished.trial.experiment
    dataset = finished.dataset
    usual = max(1, len(dataset.splits["train"]) // experiment.clients)
    client = choose_client(choice, experiment.data, dataset, usual=usual)
    joining = Joining(finished, client, personalization.prepare_distances(finished), options.seed)
    title = (
        f"{type(experiment.method).__name__} {experiment.digest[:8]}, an unseen client: "
        f"{len(client.records)} records of {' '.join(joining.classes)}"
    )
    trained, whole = joining.touched()
    print(f"{title}; {len(client.held_out)} held out")
    print("\n".join([f"from {client.says}", *(f"  {note}" for note in client.notes)]))
    print(f"it trains {trained:,} of {whole:,} parameters ({trained / whole:.3%}); the others stay as the server's")
    key = joining.key(epochs, rates)
    started = time.monotonic()
    out = options.out or finished.trial.sweep / "unseen" / f"{experiment.digest[:8]}-{key[:8]}"
    out.mkdir(parents=True, exist_ok=True)
    rows = list(itertools.chain.from_iterable(_train_and_measure(joining, epochs, rate, out) for rate in rates))
    draw_curves(rows, out / "curves.png", title=title)
    write_csv(out / "curves.csv", pd.DataFrame(rows))
    print(f"files in {out}; {time.monotonic() - started:.0f} s in all")
    if parent is not None:
        files = [out / "curves.png", out / "curves.csv"]
        run = mlflow_models.log_unseen_client(uri, parent, joining, rows, files, key=key, name=title)
        print(f"MLflow run {run}, below {parent} in {redact_passwords(uri)}")
    return 0


def _train_and_measure(joining: Joining, epochs: Sequence[int], rate: float, out: Path) -> list[Row]:
    """Train at one rate; print and return a row for each epoch, and write the trained part."""
    rows = list[Row]()
    try:
        for row, stage in joining.rows(rate, epochs):
            rows.append(row)
            last = stage
    except Diverged as e:
        print(f"{rate:g}: {e}; the model of this learning rate is not written")
    else:
        card = {"measured": {k: v for k, v in row.items() if math.isfinite(v)}, "made_by": sweep_folder.code_version()}
        personalization.save_personal(out, joining, last, rate=rate, more=card)
    cells = [["-" if math.isnan(value) else f"{value:.4g}" for value in row.values()] for row in rows]
    print(*aligned([list(rows[0]), *cells], words=0), sep="\n", flush=True)
    return rows
