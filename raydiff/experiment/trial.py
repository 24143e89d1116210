"""One trial from start to end, on any executor: the protocol's rounds, the instruments, and its files.

<sweep>/owners/                     the driver that runs the sweep: see `storage.lease`
<sweep>/secret                      the noise secret (mode 600)
<sweep>/cache/                      client models and feature networks that trials share, by digest
<sweep>/trials/<digest>/            a `Checkpoint`, and
    config.json                     the resolved experiment, enough to run it again
    metrics.jsonl                   one line per round, with the guarantee so far
    rejected.jsonl                  one line per round with rejected uploads: by client, why
    artifacts/                      sample grid, ledger as a table
    budget.json                     the number of its charge to a budget (`spending`)
    lost.txt                        why processes were lost, a line for each (`runtime.device_faults`)
    outcome.json                    finished, stopped, failed or killed; final numbers, guarantee; written last
"""

import contextlib
import math
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raydiff.data import datasets
from raydiff.evaluation import suite
from raydiff.evaluation.suite import Instruments
from raydiff.experiment import config, measurements, overrides
from raydiff.experiment.client_records import client_shares
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import add_caution, ledger_of, setup_of
from raydiff.experiment.spending import BudgetGuard, budget_log_of, charge
from raydiff.federated import heartbeat
from raydiff.federated.client import Client, Keys, StateCache
from raydiff.federated.method import WithRequirements, WithTables
from raydiff.federated.rounds import ClientExecutor, LocalExecutor, Progress, run_rounds
from raydiff.formats import rounding
from raydiff.formats.json_files import dumps, parse_outcome
from raydiff.formats.metric_records import REJECTED, SECONDS, Metric, columns, read_metrics, sum_over_rounds
from raydiff.models.compute import Precision, compute_with
from raydiff.models.training import Train
from raydiff.privacy import ceilings
from raydiff.privacy.ledger import Guarantee, PrivacyOdometer
from raydiff.storage import copies, staging
from raydiff.storage.checkpoint import Checkpoint
from raydiff.storage.json_lines import JsonLines
from raydiff.storage.lease import Lease
from raydiff.storage.staging import StorageCredentials
from raydiff.storage.storage import Storage, storage_at

OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Trial:
    """A resolved experiment and its sweep's folder; small, and safe to send to another process."""

    experiment: Experiment
    sweep: Path
    owner: Lease | None = None
    """The lease of the driver that runs it; None: no other driver can take over, as in a test."""
    credentials: StorageCredentials | None = None
    """Of a bucket, for a process on another machine (`localize`)."""

    @property
    def folder(self) -> Path:
        """The folder of the trial's files."""
        return self.sweep / "trials" / self.experiment.digest

    @property
    def files(self) -> Storage:
        """The storage of the files that people read, below its folder."""
        return storage_at(self.folder)

    @property
    def store(self) -> Checkpoint:
        """The trial's checkpoint."""
        return Checkpoint(
            self.folder,
            self.sweep / "cache",
            BudgetGuard(self.owner, self.folder, budget_log_of(self.folder, self.experiment.data)),
        )

    @property
    def keys(self) -> Keys:
        """The keys of its random streams."""
        return Keys(self.experiment.seed, noise_secret(self.sweep, self.experiment), self.experiment.digest)

    def outcome(self) -> dict[str, Any] | None:
        """The contents of outcome.json; None while there is none."""
        data = self.files.get(OUTCOME)
        return None if data is None else parse_outcome(data, self.files.describe(OUTCOME))


def localize(trial: Trial) -> Trial:
    """The trial in this machine's working folder, if its storage is a bucket."""
    if trial.credentials is None:
        return trial
    sweep = staging.open_working_copy(trial.credentials, trial.sweep.name)
    owner = None if trial.owner is None else replace(trial.owner, sweep=sweep)
    return replace(trial, sweep=sweep, owner=owner, credentials=None)


def end_unfinished(folder: Path, outcome: str, **more: Any) -> None:
    """End a trial that did not finish: stopped, failed or killed. The epsilon is that of its ledger so far."""
    copies.download(folder)
    experiment = config.read_config(folder / "config.json")
    try:
        views = state_guarantees(PrivacyOdometer(ledger_of(folder)), experiment)
    except ValueError as e:  # of a damaged folder
        infinite = Guarantee(
            epsilon=math.inf,
            delta=experiment.method.delta,
            accountant=experiment.method.accountant,
            unit=None,
            relation=None,
            trust="local",
            clients=0,
            unprotected=(str(e),),
        )
        views = infinite, infinite
    end(folder, outcome, **_fields_of(*views), **more)
    copies.download(folder)


def end(folder: Path, outcome: str, **more: Any) -> None:
    """Write a trial's outcome.json: finished, stopped, failed or killed."""
    storage_at(folder).put(OUTCOME, dumps({"outcome": outcome, **more}, indent=1).encode())


def _fields_of(server: Guarantee, outsiders: Guarantee) -> dict[str, Any]:
    return {"server": asdict(server), "outsiders": asdict(outsiders), "text": str(server)}


def resolve_on_data(experiment: Experiment, secret: bytes | None = None) -> Experiment:
    """`resolve_shapes` on the loaded data, with their digest by the sweep's `secret`. Raises ValueError as it does."""
    dataset = datasets.load_dataset(experiment.data)
    resolved = config.resolve_shapes(experiment, dataset)
    parts = client_shares(resolved, dataset)
    if isinstance(resolved.method, WithRequirements):
        for part in sorted(parts[: resolved.clients], key=len):
            resolved.method.check_records(dataset.splits["train"].select(part))
    if resolved.evaluation is not None:
        suite.check_evaluation(resolved.evaluation, dataset, [dataset.splits["train"].select(part) for part in parts])
    return resolved if secret is None else replace(resolved, data_digest=config.keyed(dataset, secret))


def open_trial(experiment: Experiment, sweep: Path, owner: Lease | None = None) -> Trial:
    """Resolve the experiment and `begin`. An experiment that is refused leaves no file."""
    resolved = resolve_on_data(experiment)
    digest = config.keyed(datasets.load_dataset(resolved.data), noise_secret(sweep, experiment))
    trial = Trial(replace(resolved, data_digest=digest), sweep, owner)
    begin(trial)
    return trial


def begin(trial: Trial) -> None:
    """Write config.json. Raises LeaseLost if the driver lost the sweep, ValueError if the data have changed."""
    if trial.experiment.data_digest != config.keyed(datasets.load_dataset(trial.experiment.data), trial.keys.secret):
        raise ValueError(
            f"the data set {trial.experiment.data.name} is not the one that the trial was planned for, or "
            f"{trial.sweep / 'secret'} is damaged"
        )
    if trial.owner is not None:
        trial.owner()
    heartbeat.delete_heartbeats(trial.folder)
    if (trial.outcome() or {}).get("outcome") != "finished":
        trial.files.delete([OUTCOME])
    trial.files.put("config.json", dumps(overrides.to_dict(without_secret(trial.experiment)), indent=1).encode())


def noise_secret(sweep: Path, experiment: Experiment) -> bytes:
    """The sweep's noise secret, stored for its user only, never logged. Raises ValueError as `planned_secret`."""
    keep_secret(sweep, planned_secret(sweep, experiment))
    return planned_secret(sweep, experiment)


def planned_secret(sweep: Path, experiment: Experiment) -> bytes:
    """The stored, the configured or a random noise secret; writes nothing. Raises ValueError if two of them differ."""
    configured = experiment.runtime.noise_secret
    path = sweep / "secret"
    if not path.exists():
        if configured is None and copies.bucket_has_sweep(experiment.runtime.storage, sweep.name):
            raise ValueError(
                f"the noise secret of {sweep.name} is not on this machine, and never in its bucket: set "
                f"{staging.SECRET} to that of the machine where the sweep began"
            )
        return bytes.fromhex(configured) if configured else secrets.token_bytes(32)
    secret = path.read_bytes()
    if len(secret) < 16:
        raise ValueError(f"the noise secret {path} is damaged: start a sweep of another name")
    if configured and secret != bytes.fromhex(configured):
        raise ValueError(f"runtime.noise_secret is not the one that {sweep.name} was started with, which is in {path}")
    return secret


def keep_secret(sweep: Path, secret: bytes) -> None:
    """Write a sweep's secret, unless there is one."""
    if not (sweep / "secret").exists():
        with contextlib.suppress(FileExistsError):  # Another process was first: its secret counts.
            staging.write_secret(sweep / "secret", secret, if_absent=True)


def make_clients(trial: Trial, ids: Sequence[int], *, keys: Keys | None = None) -> list[Client]:
    """The clients of these numbers, each with its records. `keys` replaces the trial's keys."""
    experiment = trial.experiment
    dataset = datasets.load_dataset(trial.experiment.data)
    train = dataset.splits["train"].without_base()
    parts = client_shares(experiment, dataset)
    common: dict[str, Any] = {
        "keys": keys or trial.keys,
        "public": dataset.splits["public"],
        "store": trial.store,
        "state_cache": StateCache(),
        "vectorize": experiment.numerics.vectorize,
        "instruments": experiment.evaluation is not None,
        "strict": bool(experiment.runtime.budget or budget_log_of(trial.folder, experiment.data).begun),
    }
    return [Client(i, experiment.method, train.select(parts[i]), unseen=i >= experiment.clients, **common) for i in ids]


def make_instruments(trial: Trial) -> Instruments | None:
    """The feature network (trained once per sweep) and splits of no client; None if nothing is evaluated."""
    evaluation = trial.experiment.evaluation
    data = trial.experiment.data
    return (
        None
        if evaluation is None
        else suite.prepare_instruments(datasets.load_dataset(data), evaluation, trial.store.results.cached)
    )


def compute(experiment: Experiment) -> None:
    """Set this process's threads and precision to the trial's."""
    compute_with(experiment.numerics.threads, precision_of(experiment))


def precision_of(experiment: Experiment) -> Precision:
    """The precision of its model, by default float32."""
    precision: Precision = getattr(experiment.method.model, "precision", "float32")
    return precision


def local_executor(trial: Trial) -> LocalExecutor:
    """All clients of the trial in this process."""
    compute(trial.experiment)  # before the feature network is trained
    instruments = make_instruments(trial)
    return LocalExecutor(make_clients(trial, trial.experiment.everyone), instruments.of_client if instruments else None)


def run_trial(trial: Trial, pool: ClientExecutor, *, train: Train | None = None) -> Iterator[dict[str, Any]]:
    """Run or continue the trial: one result per round, then one that is `finished` with the final numbers.

    `rejected` in a round's result: client -> why its upload was not aggregated. A finished trial yields its recorded
    numbers.
    """
    compute(trial.experiment)
    recorded = trial.outcome()
    if recorded and recorded["outcome"] == "finished":
        yield {"round": trial.experiment.method.rounds, "finished": True, **columns(read_metrics(recorded["final"]))}
        return
    experiment = trial.experiment
    log = JsonLines(trial.files, "metrics.jsonl")
    charge(experiment, trial.folder)  # before anything is trained or sent
    rejected = JsonLines(trial.files, "rejected.jsonl")
    progress = None
    resumed = False
    odometer = PrivacyOdometer()
    clock = time.perf_counter()
    for progress in run_rounds(
        experiment.method,
        pool,
        keys=trial.keys,
        participants=experiment.in_a_round,
        min_clients=experiment.min_clients,
        public=datasets.load_dataset(experiment.data).splits["public"],
        setup=setup_of(experiment),
        store=trial.store,
        train=train,
        instruments=experiment.evaluation is not None,
    ):
        resumed = resumed or progress.resumed
        odometer.follow(progress.ledger)
        server, outsiders = state_guarantees(odometer, experiment)
        measured = _measure_round(experiment, pool, progress)
        now = time.perf_counter()
        spent = measurements.of_ledger(odometer, server, outsiders)
        metrics = [*spent, *measured, SECONDS.with_value(now - clock)]
        clock = now
        why = {f"client {client}": reason for client, reason in progress.rejected.items()}
        if why:
            rejected.log(progress.number, why)
        written = [metric.to_json() for metric in metrics]
        log.log(progress.number, {"metrics": written, "server": asdict(server), "outsiders": asdict(outsiders)})
        yield {"round": progress.number, "finished": False, **columns(metrics), "rejected": why}
    assert progress is not None  # a method has at least one round
    if resumed:  # A client of no remaining round has not read its state since.
        for client in pool.clients:
            trial.store.load_client(client, before=experiment.method.rounds)
    final = _finish(trial, pool, progress, odometer, log=log, clock=clock)
    yield {"round": experiment.method.rounds, "finished": True, **columns(final)}


def _measure_round(experiment: Experiment, pool: ClientExecutor, progress: Progress) -> list[Metric]:
    """Quality on the validation split, where it is this round's turn, and the method's own metrics."""
    every = experiment.evaluation.every if experiment.evaluation else None
    due = every and (progress.number + 1) % every == 0
    return [*(measurements.validation(experiment, pool, progress) if due else []), *measurements.of_round(progress)]


def _finish(
    trial: Trial, pool: ClientExecutor, progress: Progress, odometer: PrivacyOdometer, *, log: JsonLines, clock: float
) -> list[Metric]:
    experiment = trial.experiment
    views = state_guarantees(odometer, experiment)
    final = measurements.of_ledger(odometer, *views) + ceilings.rate_ceilings(odometer)
    if experiment.evaluation is not None:
        final += measurements.of_data(experiment, together=odometer.bytes_up > 0)
        with tempfile.TemporaryDirectory(prefix="raydiff-artifacts-") as artifacts:
            final += measurements.of_models(
                experiment, pool, progress, final, artifacts=Path(artifacts), outsiders=views[1]
            )
            for path in Path(artifacts).iterdir():
                trial.files.put(f"artifacts/{path.name}", path.read_bytes())
    if rejected := sum_over_rounds(log.lines, REJECTED):
        final.append(REJECTED.with_value(rejected))
    final.append(SECONDS.with_value(sum_over_rounds(log.lines, SECONDS) + time.perf_counter() - clock))
    ledger = progress.ledger.table(experiment.method.delta)
    tables = {"ledger": ([*ledger[0]] if ledger else [], [[*map(str, row.values())] for row in ledger])}
    if isinstance(experiment.method, WithTables) and experiment.evaluation is not None:
        tables |= experiment.method.tables(progress.server)
    for name, (header, rows) in tables.items():
        trial.files.put(f"artifacts/{name}.json", dumps({"columns": header, "data": rows}).encode())
    if trial.owner is not None:
        trial.owner()
    columns(final)  # refuses a metric that is measured twice
    end(
        trial.folder,
        "finished",
        final=[metric.to_json() for metric in final],
        **_fields_of(*views),
        released=_released(trial, progress, views[1]),
    )
    return final


def _released(trial: Trial, progress: Progress, outsiders: Guarantee) -> str:
    """What is guaranteed for samples and models that are published, which is not what bounds the uploads."""
    of_client = "of a client's own model, no guarantee"
    try:
        trial.experiment.method.deploy(progress.sent)
    except ValueError:  # The server has no model.
        return f"released samples: {of_client}"
    return f"released samples: of the server's model, epsilon {rounding.up(outsiders.epsilon)}; {of_client}"


def state_guarantees(odometer: PrivacyOdometer, experiment: Experiment) -> tuple[Guarantee, Guarantee]:
    """A trial's guarantee against server and outsiders; per example without the labels that the partition publishes."""
    published = experiment.partition.publishes_labels or experiment.unseen is not None
    both = []
    for view in (odometer.server, odometer.outsiders):
        guarantee = add_caution(view.guarantee(experiment.method.delta, experiment.method.accountant), experiment)
        labels = ("labels",) if published and guarantee.unit == "example" else ()
        both.append(replace(guarantee, declared=tuple(dict.fromkeys((*guarantee.declared, *labels)))))
    return both[0], both[1]


def without_secret(experiment: Experiment) -> Experiment:
    """The experiment without its noise secret, as it is written to files."""
    return replace(experiment, runtime=replace(experiment.runtime, noise_secret=None))
