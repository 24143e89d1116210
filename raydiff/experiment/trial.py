"""One trial from start to end, on any executor: the protocol's rounds, the instruments, and its files.

<sweep>/owners/                     who runs the sweep: see `owner`
<sweep>/secret                      the noise secret (mode 600)
<sweep>/cache/                      client models and feature networks that trials share, by digest
<sweep>/trials/<digest>/            a `Store`, and
    config.json                     the resolved experiment, enough to run it again
    metrics.jsonl                   one line per round, with the guarantee so far
    rejected.jsonl                  one line per round with rejected uploads: by client, why
    artifacts/                      sample grid, ledger as a table
    budget.json                     its record in the budget of its records, if they have one (`spending`)
    lost.txt                        why processes were lost, a line for each (`runtime.device_faults`); if any did
    outcome.json                    finished | stopped | failed | killed, the final numbers, the guarantee; written last
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raydiff.data import datasets
from raydiff.data.partition import publishes_labels
from raydiff.evaluation import suite
from raydiff.evaluation.suite import Instruments
from raydiff.experiment import config, measurements, overrides
from raydiff.experiment.client_records import shares
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of, setup_of
from raydiff.experiment.spending import BudgetGuard, budget_log_of, charge
from raydiff.federated import heartbeat
from raydiff.federated.client import Client, Keys, StateCache
from raydiff.federated.method import Metrics, WithRequirements, WithTables
from raydiff.federated.rounds import ClientExecutor, LocalExecutor, Progress, rounds
from raydiff.formats.json_files import read_outcome, sealed
from raydiff.formats.jsonl import Jsonl
from raydiff.models.ddpm import Precision, compute_with
from raydiff.models.training import Train
from raydiff.privacy.ledger import Guarantee, PrivacyOdometer
from raydiff.storage import artifact_sync, staging
from raydiff.storage.atomic_files import write_text
from raydiff.storage.checkpoint import Store
from raydiff.storage.lease import Lease
from raydiff.storage.staging import StorageCredentials


@dataclass(frozen=True)
class Trial:
    """A resolved experiment and the folder it lives in; small, and safe to send to another process."""

    experiment: Experiment
    sweep: Path
    owner: Lease | None = None
    """The driver that it is run for. None: nobody else can come by, as in a test."""
    credentials: StorageCredentials | None = None
    """Of a bucket, for a process that is to work for it in a folder of its own (`localized`)."""

    @property
    def folder(self) -> Path:
        """Where this trial's files are."""
        return self.sweep / "trials" / self.experiment.digest

    @property
    def store(self) -> Store:
        """What survives of it."""
        guard = BudgetGuard(self.owner, self.folder, budget_log_of(self.folder, self.experiment.data))
        return Store(self.folder, self.sweep / "cache", guard)

    @property
    def keys(self) -> Keys:
        """What its random streams are keyed by."""
        return Keys(self.experiment.seed, noise_secret(self.sweep, self.experiment), self.experiment.digest)

    def outcome(self) -> dict[str, Any] | None:
        """What `outcome.json` says, or None while there is none."""
        return read_outcome(self.folder)


def localized(trial: Trial) -> Trial:
    """The trial as this process works on it: where its storage is a bucket, in a folder of this process alone."""
    if trial.credentials is None:
        return trial
    sweep = staging.localize(trial.credentials, trial.sweep.name, trial.folder.name)
    owner = None if trial.owner is None else replace(trial.owner, sweep=sweep)
    return replace(trial, sweep=sweep, owner=owner, credentials=None)


def cut_short(folder: Path, outcome: str, **more: Any) -> None:
    """End a trial that did not finish: stopped, failed or killed. It keeps the epsilon that it has spent."""
    experiment = config.read(folder / "config.json")
    try:
        server, outsiders = guarantees(PrivacyOdometer(ledger_of(folder)), experiment)
    except ValueError as e:  # a damaged folder, of which nothing can be guaranteed
        about: dict[str, Any] = {"delta": experiment.method.delta, "accountant": experiment.method.accountant}
        about |= {"unit": None, "relation": None, "trust": "local", "clients": 0, "unprotected": (str(e),)}
        server = outsiders = Guarantee(epsilon=math.inf, **about)
    end(folder, outcome, server=asdict(server), outsiders=asdict(outsiders), says=str(server), **more)


def end(folder: Path, outcome: str, **more: Any) -> None:
    """Write a trial's outcome.json: finished, stopped, failed or killed."""
    write_text(folder / "outcome.json", sealed({"outcome": outcome, **more}, indent=1), durable=True)
    artifact_sync.put(folder)


def resolve(experiment: Experiment, secret: bytes | None = None) -> Experiment:
    """Load the data and fill in what only they can tell. Raises ValueError on anything that does not fit together.

    `secret` is the sweep's; without it the digest of the data stays empty, and so the trial's is no sweep's.
    """
    dataset = datasets.load(experiment.data)
    resolved = config.resolve(experiment, dataset)
    parts = shares(resolved, dataset)
    if isinstance(resolved.method, WithRequirements):
        for part in sorted(parts[: resolved.clients], key=len):
            resolved.method.check_records(dataset.splits["train"].select(part))
    if resolved.evaluation is not None:
        suite.check(resolved.evaluation, dataset, [dataset.splits["train"].select(part) for part in parts])
    return resolved if secret is None else _named(resolved, secret)


def _named(resolved: Experiment, secret: bytes) -> Experiment:
    """With the digest of its data, which is part of the trial's name."""
    return replace(resolved, data_digest=config.keyed(datasets.load(resolved.data), secret))


def open_trial(experiment: Experiment, sweep: Path, owner: Lease | None = None) -> Trial:
    """Resolve the experiment and `begin`."""
    resolved = resolve(experiment)  # first: what is refused has left nothing
    trial = Trial(_named(resolved, noise_secret(sweep, experiment)), sweep, owner)
    begin(trial)
    return trial


def begin(trial: Trial) -> None:
    """Write the trial's config.json. Raises LeaseLost if its driver has lost the sweep, and ValueError where
    the data are others here than where its experiment was resolved."""
    if not config.is_of(trial.experiment, datasets.load(trial.experiment.data), trial.keys.secret):
        raise ValueError(
            f"the data set {trial.experiment.data.name} is not the one here that the trial was planned for, or "
            f"{trial.sweep / 'secret'} is damaged"
        )
    if trial.owner is not None:
        trial.owner()
    heartbeat.forget(trial.folder)
    if artifact_sync.get(trial.folder) and (trial.outcome() or {}).get("outcome") != "finished":
        (trial.folder / "outcome.json").unlink(missing_ok=True)  # It is about to have another one.
    write_text(trial.folder / "config.json", sealed(overrides.to_dict(without_secret(trial.experiment)), indent=1))
    artifact_sync.put(trial.folder)


def noise_secret(sweep: Path, experiment: Experiment) -> bytes:
    """The sweep's noise secret: configured or random, stored once beside the sweep, for its user only, never logged.

    Raises ValueError as `planned_secret` does.
    """
    keep_secret(sweep, planned_secret(sweep, experiment))
    return planned_secret(sweep, experiment)


def planned_secret(sweep: Path, experiment: Experiment) -> bytes:
    """The noise secret that the sweep has, or is to have: the configured one, or a new one. Nothing is written.

    Raises ValueError when the file is damaged, or when another secret is configured than the stored one.
    """
    configured, path, storage = experiment.runtime.noise_secret, sweep / "secret", experiment.runtime.storage
    if not path.exists():
        if configured is None and artifact_sync.exists(storage, sweep.name):
            raise ValueError(
                f"the noise secret of {sweep.name} is not on this machine, and never in its bucket: set "
                f"{staging.SECRET} to what it was begun with, or to the hex digits of the file secret in its folder "
                "on the machine where it was begun"
            )
        return bytes.fromhex(configured) if configured else secrets.token_bytes(32)
    secret = path.read_bytes()
    if len(secret) < 16:
        raise ValueError(f"the noise secret {path} is damaged: start a sweep of another name")
    if configured and secret != bytes.fromhex(configured):
        raise ValueError(f"runtime.noise_secret is not the one that {sweep.name} was started with, which is in {path}")
    return secret


def keep_secret(sweep: Path, secret: bytes) -> None:
    """Write a sweep's secret, unless another process was first: then its secret counts."""
    with contextlib.suppress(FileExistsError):
        if not (sweep / "secret").exists():
            staging.write_secret(sweep / "secret", secret, if_absent=True)


def make_clients(trial: Trial, ids: Sequence[int], *, keys: Keys | None = None) -> list[Client]:
    """The clients of these numbers, with their own records. `keys`: other ones than the trial's own."""
    dataset = datasets.load(trial.experiment.data)
    train, public, parts = dataset.splits["train"], dataset.splits["public"], shares(trial.experiment, dataset)
    method, regular = trial.experiment.method, trial.experiment.clients
    shared: dict[str, Any] = {"keys": keys or trial.keys, "public": public, "store": trial.store}
    shared["state_cache"] = StateCache()
    shared["vectorize"] = trial.experiment.numerics.vectorize
    shared["instruments"] = trial.experiment.evaluation is not None
    budgeted = trial.experiment.runtime.budget or budget_log_of(trial.folder, trial.experiment.data).begun
    shared["strict"] = bool(budgeted)
    train = train.without_base()
    return [Client(i, method, train.select(parts[i]), newcomer=i >= regular, **shared) for i in ids]


def make_instruments(trial: Trial) -> Instruments | None:
    """The feature network (trained once per sweep) and the splits that no client holds; None under
    `--protocol-only`."""
    if trial.experiment.evaluation is None:
        return None
    return suite.prepare(datasets.load(trial.experiment.data), trial.experiment.evaluation, trial.store.results.cached)


def compute(experiment: Experiment) -> None:
    """This process computes for this trial from now on: with its threads, in its precision."""
    compute_with(experiment.numerics.threads, precision_of(experiment))


def precision_of(experiment: Experiment) -> Precision:
    """Of its model: float32 where that has no choice."""
    found: Precision = getattr(experiment.method.model, "precision", "float32")
    return found


def local_executor(trial: Trial) -> LocalExecutor:
    """All clients of the trial in this process."""
    compute(trial.experiment)  # before the feature network is trained
    instruments = make_instruments(trial)
    clients = make_clients(trial, trial.experiment.everyone)
    return LocalExecutor(clients, instruments.of_client if instruments else None)


def run(trial: Trial, pool: ClientExecutor, *, train: Train | None = None) -> Iterator[dict[str, Any]]:
    """Run or continue the trial: one result per round, then one that is `finished` and has the final numbers.

    `rejected` in a round's result says whose uploads were not aggregated, and why. `train` is as in `rounds`.

    A finished trial gives its recorded numbers again and does nothing.
    """
    compute(trial.experiment)
    recorded = trial.outcome()
    if recorded and recorded["outcome"] == "finished":
        yield {"round": trial.experiment.method.rounds, "finished": True, **recorded["final"]}
        return
    charge(trial.experiment, trial.folder)  # before anything is trained, and far before anything is sent
    method, setup = trial.experiment.method, trial.experiment.evaluation
    log, rejected = Jsonl(trial.folder / "metrics.jsonl"), Jsonl(trial.folder / "rejected.jsonl")
    progress, resumed, spent, clock = None, False, PrivacyOdometer(), time.perf_counter()
    public = datasets.load(trial.experiment.data).splits["public"]
    for progress in rounds(
        method,
        pool,
        keys=trial.keys,
        participation=trial.experiment.participation,
        participants=trial.experiment.participants,
        min_clients=trial.experiment.min_clients,
        public=public,
        setup=setup_of(trial.experiment),
        store=trial.store,
        train=train,
        instruments=setup is not None,
    ):
        resumed = resumed or progress.resumed
        spent.follow(progress.ledger)
        server, outsiders = guarantees(spent, trial.experiment)
        metrics = {**progress.metrics, **measurements.of_ledger(spent, server, outsiders)}
        if setup and setup.every and (progress.number + 1) % setup.every == 0:
            metrics.update(measurements.validation(trial.experiment, pool, progress))
        metrics["time/seconds"], clock = time.perf_counter() - clock, time.perf_counter()
        why = {f"client {client}": reason for client, reason in progress.rejected.items()}
        if why:
            rejected.log(progress.number, why)
        log.log(progress.number, {**metrics, "server": asdict(server), "outsiders": asdict(outsiders)})
        artifact_sync.put(trial.folder)
        yield {"round": progress.number, "finished": False, "rejected": why, **metrics}
    assert progress is not None  # a method has at least one round
    if resumed:  # Who takes part in no round that is left has not looked at its state since.
        _check_states(trial, pool.clients)
    final = _finish(trial, pool, progress, spent, log=log, clock=clock)
    yield {"round": method.rounds, "finished": True, **final}


def _check_states(trial: Trial, clients: Sequence[int]) -> None:
    """Raises ValueError if a client's state is damaged or missing. Not for a bucket: it would download them all."""
    if not trial.store.storage.remote:
        for client in clients:
            trial.store.load_client(client, before=trial.experiment.method.rounds)


def _finish(
    trial: Trial, pool: ClientExecutor, progress: Progress, spent: PrivacyOdometer, *, log: Jsonl, clock: float
) -> Metrics:
    experiment, ledger = trial.experiment, progress.ledger
    (trial.folder / "artifacts").mkdir(exist_ok=True)
    server, outsiders = guarantees(spent, experiment)
    final = measurements.at_the_end(spent, server, outsiders)
    if experiment.evaluation is not None:
        final |= measurements.of_data(experiment, together=spent.bytes_up > 0)
        final |= measurements.of_models(experiment, pool, progress, final, artifacts=trial.folder / "artifacts")
    if rejected := log.total("clients/rejected"):
        final["clients/rejected"] = rejected
    final["time/seconds"] = log.total("time/seconds") + time.perf_counter() - clock
    table = ledger.table(experiment.method.delta)
    columns = list(table[0]) if table else []
    tables = {"ledger": (columns, [[str(row[c]) for c in columns] for row in table])}
    if isinstance(experiment.method, WithTables) and experiment.evaluation is not None:
        tables |= experiment.method.tables(progress.server)
    for name, (columns, rows) in tables.items():
        write_text(trial.folder / "artifacts" / f"{name}.json", sealed({"columns": columns, "data": rows}))
    if trial.owner is not None:
        trial.owner()
    end(trial.folder, "finished", final=final, server=asdict(server), outsiders=asdict(outsiders), says=str(server))
    return final


def guarantees(spent: PrivacyOdometer, experiment: Experiment) -> tuple[Guarantee, Guarantee]:
    """(against the server, against outsiders): all that is said of a trial's epsilon. Where the partition publishes
    labels, what covers a record does not cover its labels."""
    delta, accountant = experiment.method.delta, experiment.method.accountant
    server, outsiders = (view.guarantee(delta, accountant) for view in (spent.server, spent.outsiders))
    if not publishes_labels(experiment.partition) and experiment.newcomers is None:
        return server, outsiders
    return _with_labels(server), _with_labels(outsiders)


def _with_labels(guarantee: Guarantee) -> Guarantee:
    declared = guarantee.declared if guarantee.unit != "example" else (*guarantee.declared, "labels")
    return replace(guarantee, declared=tuple(dict.fromkeys(declared)))


def without_secret(experiment: Experiment) -> Experiment:
    """The experiment as it may be written down."""
    hidden: Experiment = overrides.override(experiment, {"runtime.noise_secret": None})
    return hidden
