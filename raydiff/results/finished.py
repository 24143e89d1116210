"""A finished trial, found by name and opened for sampling."""

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data import datasets
from raydiff.data.datasets import Dataset
from raydiff.data.tables.encode import OTHER
from raydiff.experiment import config
from raydiff.experiment.trial import Trial, compute, make_clients, planned_secret, state_guarantees
from raydiff.federated.client import Client, Keys
from raydiff.federated.method import SCRATCH, SERVER_ONLY
from raydiff.formats.json_files import trial_folders
from raydiff.privacy.ledger import Guarantee, PrivacyOdometer
from raydiff.results import sampler
from raydiff.results.sampler import Card, Sample
from raydiff.storage.staging import SECRET
from raydiff.tree import Params

Draw = Literal["uniform", "public", "as-data"]  # source of the samples' labels (`GenerationRequest.labels`)
DRAWN = {
    "uniform": "every combination of labels alike often, whatever proportions the records have",
    "public": "in the proportions of the public records",
    "as-data": "in the proportions of the records behind the samples: no guarantee covers how many have which",
}
AS_DATA = "labels drawn as the private records have them"


@dataclass(frozen=True, eq=False)
class SampleSource:
    """A sampler of pictures or rows, with what its card must state."""

    client: int | None  # whose model; None: the server's alone
    sample: Sample  # (labels (N, K), rng) -> images (N, C, H, W) on [-1, 1], or codes of rows (N, 1, 1, n)
    labels: Tensor  # (n, K): the label rows that samples are made for, in their proportions
    privacy: str  # "none", or the guarantee for the records behind it when its samples are published
    about: str  # description of the samples
    draw: Draw = "as-data"  # where `labels` come from
    guarantee: Guarantee | None = None  # what `privacy` says; None: "none"


@dataclass(frozen=True, eq=False)
class Finished:
    """A trial that finished, with its data and the server's state as clients see it."""

    trial: Trial
    dataset: Dataset
    round: int
    server: Params
    uploads: Guarantee  # against the server
    published: Guarantee  # against outsiders: what holds for samples of the server's model

    @property
    def label_names(self) -> dict[str, tuple[str, ...]]:
        """The label columns of samples, with the names of their values: the class is `label`, others keep theirs."""
        columns = self.dataset.label_columns
        others = [n if n not in ("label", "image", "client") else f"label_{i}" for i, n in enumerate(columns[1:], 1)]
        return dict(zip(("label", *others), self.dataset.label_names, strict=True))

    @property
    def categories(self) -> str:
        """Where a table's categories come from; empty for pictures."""
        return self.dataset.modality.describe_fit(self.dataset.fitted_columns, self.dataset.private_fit)

    def source(self, client: int | None, draw: Draw | None = None) -> SampleSource:
        """Return the source of a client's personalised model, or with None of the server's.

        Labels are drawn as-data by default, of the server's model uniformly. Raises ValueError for a missing client or
        model, and without public records for public.
        """
        return self._shared(draw or "uniform") if client is None else self._personal(client, draw or "as-data")

    def _personal(self, client_id: int, draw: Draw) -> SampleSource:
        client = self.client(client_id)
        deployed = client.deploy(self.server, self.round)
        labels = client.data.labels if draw == "as-data" else self._labels(draw)
        about = ": ".join(filter(None, (f"samples of client {client_id}", deployed.about)))
        return SampleSource(client_id, deployed.sample, labels, "none", about, draw)

    def _shared(self, draw: Draw) -> SampleSource:
        deployed = self.trial.experiment.method.deploy(self.server)
        guarantee = self.published
        sample = deployed.sample
        everyone = range(self.trial.experiment.clients)
        if draw == "as-data":
            labels = torch.cat([c.data.labels for c in make_clients(self.trial, everyone, keys=self._keys)])
            guarantee = replace(guarantee, epsilon=math.inf, unprotected=(*guarantee.unprotected, AS_DATA))
        else:
            labels = self._labels(draw)
        return SampleSource(None, sample, labels, str(guarantee), deployed.about, draw, guarantee)

    def _labels(self, draw: Draw) -> Tensor:
        """(n, K) label rows that do not depend on any client's records."""
        public = self.dataset.splits["public"].labels
        if draw == "public":
            if not len(public):
                raise ValueError("labels must be uniform or as-data without public records: data.public is 0")
            return public
        if len(self.dataset.label_names) > 1 and len(public):  # most combinations may make no sense
            combinations: Tensor = public.unique(dim=0)
            return combinations
        are_public = self.dataset.modality.labels_are_public and "labels" in self.published.declared
        if are_public:  # an untrained class is not drawn
            trained: Tensor = self.dataset.splits["train"].labels.unique(dim=0)
            return trained
        values = [torch.tensor([v for v, name in enumerate(c) if name != OTHER]) for c in self.dataset.label_names]
        grid = torch.meshgrid(*values, indexing="ij")
        return torch.stack([column.flatten() for column in grid], dim=1)

    def save_sampler(self, folder: Path, client: int | None = None, *, shared: bool = False) -> None:
        """Save the sampler of one client, of all (None), or of the server's model. Raises ValueError as `source`."""
        experiment = self.trial.experiment
        ids: Sequence[int] = range(experiment.clients) if client is None else (client,)
        if shared:
            ids = ()
        clients = {client_id: self.client(client_id) for client_id in ids}
        states = {i: tree.without(SCRATCH, c.personalized(self.server, self.round)) for i, c in clients.items()}
        about = experiment.method.deploy(self.server).about if shared else "samples of the clients' own models"
        card = Card(
            trial=experiment.digest,
            seed=experiment.seed,
            round=self.round,
            clients=tuple(ids),
            labels=self.label_names,
            shape=self.dataset.shape,
            about=f"{about}; {self.categories}" if self.categories else about,
            privacy=str(self.published) if shared else "none",
        )
        sampler.save_sampler(folder, card, experiment.method, server=self.server, states=states)
        self.dataset.modality.save(folder)

    @property
    def secret(self) -> bytes:
        """The sweep's secret, which keys digests of records."""
        return _secret(self.trial)

    @property
    def _keys(self) -> Keys:
        """Keys with the secret for the names of clients' models; nothing is uploaded, so there is no noise."""
        return Keys(self.trial.experiment.seed, self.secret, self.trial.experiment.digest)

    def client(self, client_id: int) -> Client:
        """Return a client as after the last round. Raises ValueError where it, or its model, is missing."""
        experiment = self.trial.experiment
        if not 0 <= client_id < experiment.clients:
            raise ValueError(f"there is no client {client_id}: this trial has clients 0 to {experiment.clients - 1}")
        client = make_clients(self.trial, [client_id], keys=self._keys)[0]
        if not client.is_trained(self.round):
            raise ValueError(
                f"the model of client {client_id} is gone from {self.trial.sweep / 'cache'}: run the trial again with "
                f"raydiff run --config {shlex.quote(str(self.trial.folder / 'config.json'))}"
            )
        return client


def open_finished(folder: Path) -> Finished:
    """Open the trial in this folder. Raises ValueError unless it finished and is complete."""
    if not (folder / "config.json").exists():
        raise ValueError(f"there is no trial in {folder}")
    experiment = config.read_config(folder / "config.json")
    if experiment.digest != folder.name:
        why = f"here its digest is {experiment.digest}"
        raise ValueError(f"{folder} was made by another version of raydiff, or is a copy of another trial: {why}")
    trial = Trial(experiment, folder.parents[1])
    if (outcome := trial.outcome()) is None:
        raise ValueError(f"{folder} has not finished: continue it with the command that began it and --resume")
    if outcome["outcome"] != "finished":
        why = f" ({outcome['reason']})" if outcome.get("reason") else ""
        raise ValueError(f"{folder} did not finish, it was {outcome['outcome']}{why}: there is nothing to sample")
    compute(experiment)  # threads are part of the name of a client's model
    dataset = datasets.load_dataset(experiment.data)
    if experiment.data_digest != config.keyed(dataset, _secret(trial)):
        raise ValueError(
            f"the data set {experiment.data.name} is no longer the one that {folder} was trained on, or "
            f"{trial.sweep / 'secret'} is damaged"
        )
    odometer = PrivacyOdometer(trial.store.ledger())
    last = trial.store.last_commit()
    if last is None:
        raise ValueError(f"the commits are gone from {folder}")
    server = tree.without(SERVER_ONLY, trial.store.load_server(last[0]))
    return Finished(trial, dataset, last[0], server, *state_guarantees(odometer, trial.experiment))


def _secret(trial: Trial) -> bytes:
    path = trial.sweep / "secret"
    if not path.exists():
        raise ValueError(
            f"{path} is gone, which keys the data's digest and the names of clients' models: put it back, or, for a "
            f"sweep in a bucket, set {SECRET} to it"
        )
    return planned_secret(trial.sweep, trial.experiment)


# --- finding it ---


def find(name: str, sweeps: Path) -> Path:
    """Return the folder of a sweep or trial by its path, a sweep's name, SWEEP/DIGEST, or a (shortened) digest.

    Raises ValueError where there is none, or more than one.
    """
    for path in (Path(name).expanduser(), *([] if ".." in Path(name).parts else [sweeps / name])):
        if is_sweep(path) or (path / "config.json").exists():
            return path.absolute()
    sweep, _, digest = name.rpartition("/")
    if not re.fullmatch("[0-9a-f]{4,16}", digest):
        raise ValueError(
            f"there is no run or sweep {name} in {sweeps}: give a name that raydiff ls lists, an MLflow run, a "
            "digest, SWEEP/DIGEST or a folder"
        )
    places = [sweeps / sweep] if sweep else sorted(sweeps.glob("*"))
    folders = itertools.chain.from_iterable(map(trial_folders, places))
    matches = [folder for folder in folders if folder.name.startswith(digest)]
    return _one(name, matches, "give more digits, or SWEEP/DIGEST")


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep, and not of a trial."""
    return (folder / "trials").is_dir() or (folder / "sweep.json").exists()


def single_trial(folder: Path) -> Path:
    """Return a trial's folder, or that of a sweep's only trial. Raises ValueError for a sweep of several or none."""
    return _one(folder.name, trial_folders(folder), "say which, as SWEEP/DIGEST") if is_sweep(folder) else folder


def _one(run: str, matches: list[Path], advice: str) -> Path:
    if not matches:
        raise ValueError(f"there is no trial {run}")
    if len(matches) > 1:
        names = [f"{p.parents[1].name}/{p.name}" for p in sorted(matches)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise ValueError(f"{run} may be {', '.join(names[:3])}{more}: {advice}")
    return matches[0].absolute()
