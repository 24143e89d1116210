"""The sampler of a finished run as a self-contained folder, without the run's storage and data.

MLflow loads the folder through `_load_pyfunc` (a pyfunc model with this module as its loader); nothing here imports
MLflow. The folder is a small `Checkpoint`, of the server's state without its private part and of clients' personalised
states (none where the source is "global"), and

    sampler.json     the method, and the keys of the card below: enough to deploy it again
    latent/          the frozen latent diffusion model, where the method has one
    mapping.json     of a table: what the codes of its columns mean
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor

from raydiff import seeding, tree
from raydiff.data.modality import load_modality
from raydiff.data.picture_files import to_bytes
from raydiff.data.records import label_values
from raydiff.experiment import overrides
from raydiff.federated.method import Method
from raydiff.formats.json_files import dumps, read_json
from raydiff.methods import METHODS
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import UNet
from raydiff.storage.atomic_files import write_text
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params

if TYPE_CHECKING:
    import pandas as pd

Sample = Callable[[Tensor, torch.Generator], Tensor]
"""(labels (N, K), rng) -> images (N, C, H, W) on [-1, 1], or codes of rows (N, 1, 1, n)."""
LARGEST = 512 * 2**20  # bytes of a saved sampler's weights, at most
IMPORTED = ("torch", "numpy", "scipy", "pandas", "safetensors")
"""Distributions that a saved sampler imports; a UNet and a latent diffusion model import diffusers as well."""
LATENT = "latent"
CARD = "sampler.json"


@dataclass(frozen=True, kw_only=True)
class Card:
    """Description of a saved sampler."""

    trial: str  # the trial's digest
    seed: int  # the experiment's seed
    round: int  # the round after which the states hold
    clients: tuple[int, ...]  # whose samplers these are; empty: the server's model alone
    labels: Mapping[str, tuple[str, ...]]  # label columns, the class first, with the names of values 0, 1, ...
    shape: tuple[int, int, int]  # (C, H, W); of a table (1, 1, n)
    about: str  # description of the samples
    privacy: str = (
        "none"  # or the guarantee if its samples are published; of clients' models `save_sampler` fills it in
    )
    requires: tuple[str, ...] = ()  # distributions that it imports; filled in by `save_sampler`


def save_sampler(
    folder: Path,
    card: Card,
    method: Method,
    *,
    server: Params,
    states: Mapping[int, Params],
) -> None:
    """Write the folder, with the clients' personalised `states`.

    Raises ValueError for weights larger than `LARGEST`, and for a classifier.
    """
    models = [method.deploy(server, state) for state in states.values()] or [method.deploy(server)]
    if not all(model.samplers for model in models):
        raise ValueError("a classifier makes no pictures")
    latent = method.model.folder if hasattr(method.model, "folder") else None
    size = tree.nbytes(server) + sum(map(tree.nbytes, states.values()))
    size += sum(file.stat().st_size for file in latent.rglob("*") if file.is_file()) if latent is not None else 0
    if size > LARGEST:
        cure = "choose one client" if latent is None else "sample the run itself"
        raise ValueError(
            f"the models of {len(states)} clients take {size / 2**20:.0f} MB, and a saved sampler may take "
            f"{LARGEST / 2**20:.0f} MB: {cure}"
        )
    store = Checkpoint(folder, trial=card.trial)
    store.save_server(card.round, server)
    for client, state in states.items():
        store.save_client(client, card.round, state)
    store.commit(card.round, {})
    if latent is not None:
        shutil.copytree(latent, folder / LATENT)
    diffusers = latent is not None or (isinstance(method.model, DDPM) and isinstance(method.model.network, UNet))
    requires = (*IMPORTED, "diffusers") if diffusers else IMPORTED
    fields = {**vars(card), "requires": requires, "method": overrides.to_dict(method)}
    write_text(folder / CARD, dumps(fields, indent=1))


class Sampler:
    """A saved sampler. `predict` is MLflow's calling convention."""

    def __init__(self, folder: Path) -> None:
        fields = read_json(folder / CARD, needs="method")
        method: Method = overrides.from_dict(fields.pop("method"), Annotated[Method, METHODS])
        if (folder / LATENT).is_dir():
            method = overrides.override(method, {"model.path": str(folder / LATENT)})
        self.method: Method = method
        fields["labels"] = {column: tuple(names) for column, names in fields["labels"].items()}
        lists = {k: tuple(fields[k]) for k in ("clients", "shape", "requires")}
        self.card = Card(**{**fields, **lists})
        self.modality = load_modality(folder)
        self._store = Checkpoint(folder, trial=self.card.trial)
        self._samplers: dict[int | None, Sample] = {}

    def of(self, client: int | None) -> Sample:
        """Return a client's sampler, or with None the server's. Raises ValueError for a missing client."""
        if client not in self._samplers:
            if client not in (None, *self.card.clients):
                clients = ", ".join(map(str, self.card.clients)) or "the server's model alone"
                raise ValueError(f"there is no client {client} in this sampler; it has {clients}")
            server = self._store.load_server(self.card.round)
            state = None if client is None else self._store.load_client(client, before=self.card.round + 1)
            assert state is not None or client is None  # else the card would not name it
            self._samplers[client] = self.method.deploy(server, state).sample
        return self._samplers[client]

    def predict(
        self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None
    ) -> np.ndarray[Any, Any] | pd.DataFrame:
        """Return a picture for each row: (N, H, W, C) uint8, 0..255 for the data's [-1, 1].

        Of a table a row of texts, numbers drawn uniformly within their bins, with the label last. Columns: `label` (and
        the others, where there are several), and `client`, the first one where it is left out. With the parameter
        `seed` the same input gives the same samples; without it they are new ones each time.
        """
        seed = (params or {}).get("seed")
        seed = secrets.randbits(63) if seed is None else int(seed)
        labels = self._labels(model_input)
        clients: Sequence[int | None] = [None] * len(labels)
        if self.card.clients:
            column = model_input.get("client")
            clients = [self.card.clients[0]] * len(labels) if column is None else [int(c) for c in column]
        out = torch.empty(len(labels), *self.card.shape)
        for client in dict.fromkeys(clients):
            rows = torch.tensor([i for i, c in enumerate(clients) if c == client])
            rng = seeding.generator(seed, "predict", "global" if client is None else client)
            out[rows] = self.of(client)(labels[rows], rng)
        if not self.modality.columns:
            return to_bytes(out).numpy()
        return self.modality.decode(out, labels, seeding.generator(seed, "predict", "numbers"))

    def _labels(self, model_input: pd.DataFrame) -> Tensor:
        """(N, K). Raises ValueError for a missing column and an unknown label."""
        columns = list(self.card.labels)
        if missing := [c for c in columns if c not in model_input]:
            raise ValueError(f"the input has no column {missing[0]!r}")
        numbers = model_input[columns].to_numpy().astype(np.int64)
        labels = zip(numbers.T, self.card.labels.items(), strict=True)
        values = [label_values(column, names, name) for column, (name, names) in labels]
        return torch.from_numpy(np.stack(values, axis=1))


def _load_pyfunc(path: str) -> Sampler:
    """MLflow's loader."""
    return Sampler(Path(path))
