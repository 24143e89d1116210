"""Use what a finished run made: labelled samples as a data set, or its sampler as an MLflow model.

raydiff generate RUN --num 1000                    samples of client 0 in the proportions of its classes
raydiff generate RUN --num 100 --per-class --client 1 --out DIR
raydiff generate RUN --num 100000 --workers 8      the same files, made by Ray workers
raydiff generate RUN --source global               of the server's model alone: they carry the run's epsilon
raydiff generate RUN --source global --labels public    with labels as the public records have them, not uniform
raydiff generate RUN --log-model                   mlflow.pyfunc.load_model("runs:/ID/sampler")

RUN is an MLflow run, a trial's digest (its first digits will do), SWEEP/DIGEST, a trial's folder, or a sweep that has
but one trial. A run that was killed continues by the same command. The folder is a data set: --data.name ./DIR. A trial
on a table makes one file, --data.name ./DIR/rows.csv, of the names of groups and of intervals.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from raydiff.cli.parser import Parser
from raydiff.data.tables import rows_file
from raydiff.results import generation as generate
from raydiff.results.finished import Draw, Finished, open_finished
from raydiff.results.generation import Request
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models
from raydiff.tracking.mlflow_store import redacted


def main(argv: Sequence[str]) -> int:
    """Find the run, make what is asked for."""
    options = _options().parse_args(argv)
    asked = {k: v for k in ("num", "per_class", "seed", "labels") if (v := getattr(options, k)) is not None}
    request, shared = Request(**asked), options.source == "global"
    if shared and options.client is not None:
        raise ValueError("--client has no meaning with --source global: the server's model is nobody's own")
    if options.log_model and (asked or options.out):
        raise ValueError("--log-model makes no samples: leave --num, --per-class, --seed, --labels and --out away")
    folder = sweep_folder.trial_folder(options.run, options.storage)
    finished = open_finished(folder)
    if options.log_model:
        return _log_model(finished, options.client, shared, sweep_folder.tracking_store(options.storage)[0])
    if options.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {options.workers}")
    client = None if shared else options.client or 0
    whose = "global" if shared else f"client{client}"
    out = options.out or Path(f"samples-{folder.name[:8]}-{whose}")
    return _generate(finished, client, out, request, options.workers)


def _options() -> Parser:
    p = Parser("generate", __doc__).of_run()
    p.add_argument("--num", type=int, help="samples in all, or of each class (default: 1000)")
    p.add_argument("--per-class", action="store_true", default=None, help="--num samples of each class of --labels")
    p.add_argument("--client", type=int, help="whose model (default: 0; of --log-model: all clients')")
    p.add_argument("--source", choices=("client", "global"), default="client", help="a client's model, or the server's")
    p.add_argument(
        "--labels",
        choices=get_args(Draw),
        help="what labels are drawn from: all alike often, the public records, or the private ones, without a "
        "guarantee (default: uniform of the server's model, as-data of a client's, which has none)",
    )
    p.add_argument("--seed", type=int, help="of the samples (default: 0)")
    p.add_argument("--out", type=Path, help="folder to write (default: samples-DIGEST-clientN, here)")
    p.add_argument("--workers", type=int, default=1, help="Ray workers that make them (default: 1, without Ray)")
    p.add_argument("--log-model", action="store_true", help="log the sampler to the run in MLflow, make no samples")
    return p


def _generate(finished: Finished, client: int | None, out: Path, request: Request, workers: int) -> int:
    write = functools.partial(
        generate.write, finished, client, out, request, code=sweep_folder.version(), say=_progress()
    )
    try:
        privacy = write() if workers == 1 else _on_ray(write, workers)
    except KeyboardInterrupt:
        print("interrupted; the same command continues")
        return 130
    print(f"samples: {out} (privacy: {privacy})\nuse them as a data set with {_as_data(finished, out.absolute())}")
    return 0


def _on_ray(write: Callable[..., str], workers: int) -> str:
    from raydiff.runtime import tasks
    from raydiff.runtime.cluster import cluster

    with cluster() as nodes:
        return write(spread=tasks.of_samples(workers, nodes))


def _as_data(finished: Finished, out: Path) -> str:
    """The options of jobs that read them."""
    if (mapping := finished.dataset.mapping) is None:
        return f"--data.name {out}"
    bins = max(len(column.categories) for column in mapping.columns)
    file, (label,) = out / rows_file.FILE, map(shlex.quote, finished.dataset.label_columns)
    return (
        f"--data.name {file} --data.labels {label} --data.bins {bins + 1}\n"  # and one for what no public row has
        f"audit them with raydiff audit {file} --label {label} --bins {bins} --out DIR"
    )


def _progress() -> Callable[[int, int], None]:
    """Prints how far it is, and how long it will take at the pace so far."""
    started, first = time.monotonic(), -1

    def say(done: int, rows: int) -> None:
        nonlocal first
        if first < 0:
            first = done
        pace = (time.monotonic() - started) / max(1, done - first)
        left = f", {pace * (rows - done):.0f} s left" if first < done < rows else ""
        print(f"{done:,} of {rows:,} samples{left}", flush=True)

    return say


def _log_model(finished: Finished, client: int | None, shared: bool, uri: str) -> int:
    run = mlflow_models.find_run(uri, finished.trial.folder)
    name = mlflow_models.log_sampler(mlflow_models.open_client(uri), run, finished, client, shared=shared)
    print(f'set MLFLOW_TRACKING_URI={redacted(uri)} and load it: mlflow.pyfunc.load_model("runs:/{run}/{name}")')
    return 0
