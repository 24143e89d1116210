"""Write labelled samples of a finished run as a data set, or log its sampler as an MLflow model.

    raydiff generate RUN --num 1000                    samples of client 0 in the proportions of its classes
    raydiff generate RUN --num 100 --per-class --client 1 --out DIR
    raydiff generate RUN --source global               of the server's model: they carry the run's epsilon
    raydiff generate RUN --log-model                   mlflow.pyfunc.load_model("runs:/ID/sampler")

DIR is a data set: --data.name ./DIR, or ./DIR/rows.csv for a table. After an interrupt the same command continues.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raydiff.cli.options import RunOptions, parse_options, subset
from raydiff.results import generation
from raydiff.results.generation import GenerationRequest
from raydiff.runtime import sweep_folder
from raydiff.settings import Count
from raydiff.tracking import mlflow_models
from raydiff.tracking.mlflow_store import redact_passwords


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(RunOptions, GenerationRequest):
    source: Literal["client", "global"] = "client"
    """A client's model, or the server's."""
    client: int | None = None
    """Whose model (default: 0; of --log-model: all clients')."""
    out: Path | None = None
    """Folder to write (default: samples-DIGEST-WHOSE)."""
    workers: Count = 1
    """Ray workers; 1: in this process."""
    log_model: bool = False
    """Log the sampler to the run in MLflow; make no samples."""

    def __post_init__(self) -> None:
        if self.source == "global" and self.client is not None:
            raise ValueError("--client has no meaning with --source global: the server's model is nobody's own")
        if self.log_model and (subset(self, GenerationRequest) != GenerationRequest() or self.out):
            raise ValueError("--log-model makes no samples: leave --num, --per-class, --seed, --labels and --out away")


def main(argv: Sequence[str]) -> int:
    """Write samples of the run, or log its sampler."""
    options = parse_options(GenerateOptions, argv, __doc__)
    finished = options.open()
    is_shared = options.source == "global"
    if options.log_model:
        uri = sweep_folder.tracking_store(options.storage)[0]
        run = mlflow_models.find_run(uri, finished.trial.folder)
        client = mlflow_models.open_client(uri)
        name = mlflow_models.log_sampler(client, run, finished, options.client, shared=is_shared)
        load = f'mlflow.pyfunc.load_model("runs:/{run}/{name}")'
        print(f"set MLFLOW_TRACKING_URI={redact_passwords(uri)} and load it: {load}")
        return 0
    client = None if is_shared else options.client or 0
    whose = "global" if is_shared else f"client{client}"
    out = options.out or Path(f"samples-{finished.trial.folder.name[:8]}-{whose}")
    request = subset(options, GenerationRequest)
    code = sweep_folder.code_version()
    write = functools.partial(generation.write_samples, finished, client, out, request, code=code)
    write = functools.partial(write, on_progress=lambda n, rows: print(f"{n:,} of {rows:,} samples", flush=True))
    if options.workers == 1:
        privacy = write()
    else:
        from raydiff.runtime import tasks
        from raydiff.runtime.cluster import join_cluster

        with join_cluster() as nodes:
            privacy = write(spread=tasks.spread_samples(options.workers, nodes))
    print(f"samples: {out} (privacy: {privacy})")
    label = finished.dataset.label_columns[0]
    how = finished.dataset.modality.read_options(out.absolute(), label, options.numbers)
    print(f"use them as a data set with {how}")
    return 0
