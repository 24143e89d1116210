"""A new client joins a finished run: it fits what the method personalises on its own records, alone, and sends nothing.

raydiff personalize RUN                                 the run's own data: records that no client trained on
raydiff personalize RUN --classes 2,7 --records 40 --epochs 1,2,5,10,20 --lr 1e-3,1e-2
raydiff personalize RUN --data path/to/folder           another data set, of the same labels and picture size
raydiff personalize RUN --forgetting                    and what the old clients would lose by it

RUN is named as in raydiff generate. The method must have a shared model that a new client can make its own: all of it
(FedAvg and its kin), an embedding (SPIRE), the middle (shared representation).

For each learning rate there is one training at that constant rate, measured before it and after each number of epochs
(an epoch: as many steps as batches cover the records once): the kernel distance between samples and held-out records
of the client's classes, and the Frechet distance where there are enough of them, by the run's own feature network.
Printed as a table; kept in <sweep>/newcomers/ as curves.csv, curves.png and, for each rate, the personal part after the
last epoch (personal-RATE.safetensors, with its card); logged to MLflow as a run below the run's own.
raydiff.results.personalization.reopen deploys the personal part again.

The records: of the run's own data first those rows that no split took (where data.train leaves some), then the
validation split; held out are the test split's records of the same classes. Of another data set its own test rows are
held out, else half of its rows. Nothing of this is protected: privacy = none.

What is measured is measured on test records: a rate or a number of epochs chosen by it is chosen on these.

--forgetting: after the last epoch, each old client's distance were the new client's model the shared one: before, after
and the change. Where a part alone is personalised the shared part is as it was, and the change is 0.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Sequence
from pathlib import Path

from raydiff.cli.parser import Parser
from raydiff.data.unseen_client import Choice, newcomer
from raydiff.evaluation.figures import draw_curves
from raydiff.models.training import Diverged
from raydiff.results import personalization as personalize
from raydiff.results.finished import Finished, open_finished
from raydiff.results.personalization import Joining, Row
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models
from raydiff.tracking.mlflow_store import redacted


def main(argv: Sequence[str]) -> int:
    """Find the run, join it, measure, keep."""
    options = _options().parse_args(argv)
    epochs = sorted({_whole(e) for e in options.epochs.split(",")})
    rates = list(dict.fromkeys(_rate(r) for r in options.lr.split(","))) if options.lr is not None else []
    classes = tuple(options.classes.split(",")) if options.classes is not None else ()
    choice = Choice(data=options.data, classes=classes, records=options.records, seed=options.seed)
    finished = open_finished(sweep_folder.trial_folder(options.run, options.storage))
    rates = rates or [personalize.method_of(finished).joining.learning_rate]
    uri = sweep_folder.tracking_store(options.storage)[0]
    parent = None if options.no_mlflow else _parent(uri, finished)
    joining = _join(finished, choice, batch=options.batch)
    out = _folder(options.out, joining, joining.key(epochs, rates))
    started = time.monotonic()
    try:
        rows, lost = _measure(joining, epochs, rates, out, forgetting=options.forgetting)
    except KeyboardInterrupt:
        print("interrupted; the same command starts again")
        return 130
    files = _write(out, rows, lost, title=_about(joining))
    print(f"files in {out}; {time.monotonic() - started:.0f} s in all")
    if parent is not None:
        about = {"key": joining.key(epochs, rates), "name": _about(joining)}
        run = mlflow_models.log_newcomer(uri, parent, joining, [*rows, *lost], files, **about)
        print(f"MLflow run {run}, below {parent} in {redacted(uri)}")
    return 0


def _options() -> Parser:
    p = Parser("personalize", __doc__).of_run()
    p.add_argument("--data", help="the new client's data set, as in data.name (default: the run's own)")
    p.add_argument("--classes", help="of its records, by name or number: 2,7 (default: all)")
    p.add_argument(
        "--records",
        type=int,
        help="how many it trains on (default: of the run's own data as many as its clients have on average, of other "
        "data all that are not held out)",
    )
    p.add_argument("--epochs", default="1,2,5,10,20", help="when to measure (default: %(default)s), beside 0")
    p.add_argument("--lr", help="constant learning rates, one training each (default: the method's for a new client)")
    p.add_argument("--batch", type=int, help="records per step (default: the method's for a new client)")
    p.add_argument("--seed", type=int, default=0, help="of its records, training and samples (default: %(default)s)")
    p.add_argument("--forgetting", action="store_true", help="what the old clients would lose by its model")
    p.add_argument("--out", type=Path, help="folder to write (default: one in <sweep>/newcomers/)")
    p.add_argument("--no-mlflow", action="store_true", help="write files only")
    return p


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"--epochs must be whole numbers such as 1,2,5, got {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"--lr must be positive numbers such as 1e-3,1e-2, got {text!r}")
    return rate


def _parent(uri: str, finished: Finished) -> str:
    try:
        return mlflow_models.find_run(uri, finished.trial.folder)
    except ValueError as e:
        raise ValueError(f"{e} (--no-mlflow does without)") from None


def _join(finished: Finished, choice: Choice, *, batch: int | None) -> Joining:
    experiment, dataset = finished.trial.experiment, finished.dataset
    usual = max(1, len(dataset.splits["train"]) // experiment.clients)
    client = newcomer(choice, experiment.data, dataset, usual=usual)
    joining = Joining(finished, client, personalize.prepare(finished), choice.seed, batch)
    touched, whole = joining.touched()
    print(f"{_about(joining)}; {len(client.held_out)} held out")
    print("\n".join([f"from {client.says}", *(f"  {note}" for note in client.notes)]))
    print(f"it trains {touched:,} of {whole:,} parameters ({touched / whole:.3%}); the others stay as the server's")
    return joining


def _about(joining: Joining) -> str:
    experiment, records = joining.finished.trial.experiment, len(joining.client.records)
    who = f"{type(experiment.method).__name__} {experiment.digest[:8]}"
    return f"{who}, a new client: {records} records of {' '.join(joining.classes)}"


def _folder(out: Path | None, joining: Joining, key: str) -> Path:
    """The folder, made. The same request has the same one, unless `out` is given."""
    trial = joining.finished.trial
    if out is not None and out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: give another --out")
    folder = out or trial.sweep / "newcomers" / f"{trial.experiment.digest[:8]}-{key[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _measure(
    joining: Joining, epochs: Sequence[int], rates: Sequence[float], out: Path, *, forgetting: bool
) -> tuple[list[Row], list[Row]]:
    """A row for each rate and epoch, printed as they come, and with `forgetting` one for each rate and old client."""
    before = joining.old_clients(joining.finished.server) if forgetting else {}
    rows: list[Row] = []
    lost: list[Row] = []
    for rate in rates:
        try:
            for row, stage in joining.rows(rate, epochs):
                rows.append(row)
                _print_row(row, header=len(rows) == 1)
                last = stage
        except Diverged as e:
            print(f"{rate:g}: {e}; nothing of this learning rate is kept")
            continue
        measured = {k: v for k, v in rows[-1].items() if math.isfinite(v)}
        more = {"measured": measured, "made_by": sweep_folder.version()}
        personalize.save(out, joining, last, rate=rate, more=more)
        lost += [{"learning_rate": rate, **row} for row in joining.forgetting(last.state, before)]
    if lost:
        print("forgetting: the old clients, were the new client's model after its last epoch the shared one")
    for i, row in enumerate(lost):
        _print_row(row, header=i == 0)
    return rows, lost


def _print_row(row: Row, *, header: bool) -> None:
    widths = {name: max(len(name), 8) for name in row}
    if header:
        print("  ".join(name.rjust(width) for name, width in widths.items()))
    texts = {name: "-" if math.isnan(value) else f"{value:.4g}" for name, value in row.items()}
    print("  ".join(text.rjust(widths[name]) for name, text in texts.items()), flush=True)


def _write(out: Path, rows: Sequence[Row], lost: Sequence[Row], *, title: str) -> list[Path]:
    """The tables and the picture."""
    draw_curves(rows, out / "curves.png", title=title)
    for name, table in (("curves.csv", rows), ("forgetting.csv", lost)):
        if table:
            with (out / name).open("w", newline="") as f:
                writer = csv.DictWriter(f, list(table[0]))
                writer.writeheader()
                writer.writerows({k: "" if math.isnan(v) else v for k, v in row.items()} for row in table)
    return [out / "curves.png", out / "curves.csv", *([out / "forgetting.csv"] if lost else [])]
