"""A trial's privacy ledger, from its files so far, and as planned for all its rounds."""

import contextlib
import itertools
from pathlib import Path

from raydiff.data import datasets, source_registry
from raydiff.experiment import config
from raydiff.experiment.client_records import client_shares
from raydiff.experiment.config import Experiment
from raydiff.federated.rounds import sample_participants
from raydiff.formats.json_files import read_lines
from raydiff.privacy.ledger import SETUP, Entry, Guarantee, Ledger
from raydiff.privacy.release import Event, NonPrivate
from raydiff.storage.checkpoint import INITIAL, Checkpoint


def ledger_of(folder: Path) -> Ledger:
    """The ledger of a trial so far: its commits, and uploads in a round that never committed."""
    store = Checkpoint(folder)
    sent = store.sent_after(INITIAL)  # before the commits are read: a commit meanwhile removes them
    ledger = store.ledger()
    if not ledger.entries and (folder / "config.json").exists():  # Otherwise the first commit has the setup.
        experiment = config.read_config(folder / "config.json")
        ledger = ledger.with_setup(range(experiment.clients), setup_of(experiment))
    last = ledger.entries[-1].round if ledger.entries else INITIAL
    logged = max((line["step"] for line in read_lines(folder / "metrics.jsonl")), default=INITIAL)
    if logged > (store.last_commit() or (INITIAL,))[0]:
        raise ValueError(f"{folder} has lost commit {logged}: what it has spent is not known")
    for number, uploads in itertools.groupby(sent, key=lambda s: s[0]):
        if number > last:
            ledger = ledger.with_uploads(number, [(client, event, nbytes) for _, client, event, nbytes in uploads])
    return ledger


def setup_of(experiment: Experiment) -> Event | None:
    """The event of what was learned from clients' records before round 0; None: nothing."""
    if experiment.data.fitted_on == "public" or source_registry.is_known(experiment.data.name, experiment.data.labels):
        return None
    learned = datasets.load_dataset(experiment.data).private_fit
    return NonPrivate(learned) if learned else None


def add_caution(guarantee: Guarantee, experiment: Experiment) -> Guarantee:
    """`Guarantee.among` the records of the largest client, or among the clients."""
    if guarantee.unit == "client":
        return guarantee.among(experiment.clients, "clients")
    if guarantee.unit == "example":
        with contextlib.suppress(ValueError, OSError):  # The data may be gone by the time a trial is cut short.
            parts = client_shares(experiment, datasets.load_dataset(experiment.data))[: experiment.clients]
            return guarantee.among(max(map(len, parts)), "records of a client")
    return guarantee


def plan_ledger(experiment: Experiment) -> Ledger:
    """The ledger that a resolved trial will have after its last round, by its method's `upload_event`."""
    method = experiment.method
    clients = range(experiment.clients)
    sizes = [len(part) for part in client_shares(experiment, datasets.load_dataset(experiment.data))]
    setup = setup_of(experiment)
    entries = [Entry(SETUP, client_id, setup, 0) for client_id in clients] if setup is not None else []
    for number in range(method.participating_rounds):
        drawn = sample_participants(clients, experiment.in_a_round, experiment.seed, number)
        entries += [Entry(number, i, method.upload_event(sizes[i], number), 0) for i in drawn]
    return Ledger(tuple(entries))
