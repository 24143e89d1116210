"""Shadow models of a finished trial, trained like its model on random halves of the candidate records.

Candidates are the records of the attacked model's clients (members) and at most as many of the same classes from the
calibration and test splits (non-members). If the model depends on its client's records only, a shadow repeats that
training; else the whole protocol. For a client's own model the other clients keep their records; for the shared model
every client's records are halved, and each non-member is assigned to a client that has its class.

Shadows and their statistics are cached in the sweep by the digest of all inputs. They are trained on clients' records,
so they are not private.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from raydiff import seeding, tree
from raydiff.data.records import Records, join_records
from raydiff.evaluation.attacks import lira, scores
from raydiff.evaluation.attacks.targets import in_proportion
from raydiff.federated.client import Client, Failed, Keys
from raydiff.federated.method import Deployed
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.results.finished import Finished, open_finished
from raydiff.storage.checkpoint import INITIAL
from raydiff.storage.shared_results import result_key
from raydiff.tree import Params

Source = Literal["client", "global"]
ROLES = (
    "calibration_members",
    "members",
    "calibration_nonmembers",
    "nonmembers",
)  # as in `membership.attack_membership`


@dataclass(frozen=True, kw_only=True)
class ShadowRequest:
    """Whose model is attacked, and with what."""

    trial: Path
    """Folder of a finished trial."""
    source: Source = "client"
    """The client's own model, or the one that all share."""
    client: int = 0
    """Whose model; of the shared one: the client that deploys it, which changes nothing."""
    shadows: int = 16
    """How many shadow models: 0, or an even number of at least 4."""
    timesteps: tuple[int, ...] = ()
    """Where the loss is taken; empty: those that PIA tries (`attacks.grid`)."""
    draws: int = 8
    """Noise draws that each loss is the mean of."""
    seed: int = 0
    """Of the halves, the shadows' training and the noise draws."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """A request with its model and records."""

    request: ShadowRequest
    finished: Finished
    deployed: Deployed  # the attacked client's model
    records: Records  # the N records in question, members first
    role: Tensor  # (N,) int64: position in `ROLES`
    owner: Tensor  # (N,) int64: the client that has the record, or in a shadow may have it
    inside: Tensor  # (shadows, N) bool: which records each shadow is trained on

    @property
    def timesteps(self) -> tuple[int, ...]:
        """Where the loss is taken."""
        return self.request.timesteps or tuple(scores.grid(self.deployed.targets[self.request.source].timesteps))

    def target(self) -> Tensor:
        """The attacked model's statistics, (N, S)."""
        return self._statistics(self.deployed)

    def losses(self, index: int) -> Tensor:
        """Return shadow `index`'s statistics, (N, S), training it if needed. Raises ValueError where that fails."""
        results = self.finished.trial.store.results
        key = self._key(index)
        parts = (key, self.timesteps, self.request.draws, self.request.seed, tree.digest(self.records.leaves))
        name = result_key("shadow-log-losses", self.finished.secret, parts)
        return results.cached(name, lambda: {"losses": self._losses(index, key)})["losses"]

    def _losses(self, index: int, key: str) -> Tensor:
        trained = self.finished.trial.store.results.cached(key, lambda: self._train(index))
        server = self.finished.server if self.alone else tree.under("server", trained)
        selected = self._records_in(index, self.request.client)
        rng = seeding.generator(self._seed(index), "deploy")
        method = self.finished.trial.experiment.method
        state = method.personalize(server, tree.under("state", trained), selected, rng)
        return self._statistics(method.deploy(server, state))

    def _statistics(self, deployed: Deployed) -> Tensor:
        target = deployed.targets[self.request.source]
        return lira.statistics(
            target.denoisers[0],
            self.records,
            alphas_bar=target.alphas_bar,
            timesteps=self.timesteps,
            draws=self.request.draws,
            rng=seeding.generator(self.request.seed, "statistics"),
        )

    @cached_property
    def alone(self) -> bool:
        """Whether the attacked model depends on its client's records only, and no round changes it."""
        experiment = self.finished.trial.experiment
        store = self.finished.trial.store
        kept = store.load_client(self.request.client, before=experiment.method.rounds)
        return self.request.source == "client" and experiment.method.init_key is not None and kept is None

    def _train(self, index: int) -> Params:
        """The input of `personalize`: state/ of the client and, unless `alone`, server/ of the server."""
        experiment = self.finished.trial.experiment
        one = self.request.client
        # not the trial's keys, whose noise must not be drawn twice
        keys = Keys(self._seed(index), b"shadow", f"shadow {index}")
        public = self.finished.dataset.splits["public"]
        ids = [one] if self.alone else list(range(experiment.clients))
        clients = [Client(i, experiment.method, self._records_in(index, i), keys=keys, public=public) for i in ids]
        server = Params()
        last = INITIAL
        protocol = run_rounds(
            experiment.method,
            LocalExecutor(clients),
            keys=keys,
            participants=experiment.in_a_round,
            min_clients=experiment.min_clients,
            public=public,
        )
        try:
            if not self.alone:
                for progress in protocol:
                    server = progress.sent
                    last = progress.number
            state = clients[ids.index(one)].state(last)
        except (Failed, ValueError) as e:
            raise ValueError(f"shadow {index} could not be trained: {e}") from None
        return {**tree.prefixed("server", server), **tree.prefixed("state", state)}

    def _records_in(self, index: int, client: int) -> Records:
        """A client's records in a shadow: its half of the candidates, else its own."""
        if self.request.source == "client" and client != self.request.client:
            return self.finished.client(client).data
        return self.records.select(self.inside[index] & (self.owner == client))

    def _seed(self, index: int) -> int:
        rng = seeding.generator(self.request.seed, "shadow", index)
        return int(torch.randint(2**62, (), generator=rng))

    def _key(self, index: int) -> str:
        """The shadow's name in the cache, from all its inputs."""
        experiment = self.finished.trial.experiment
        selected = self.inside[index]
        records = {"owner": self.owner, **self.records.leaves}
        public = self.finished.dataset.splits["public"]
        digests = [tree.digest({k: v[selected] for k, v in records.items()}), tree.digest(public.leaves)]
        method = experiment.method.init_key if self.alone else experiment.digest
        parts = (method, self.request.source, self.request.client, self._seed(index), *digests)
        return result_key("shadow", self.finished.secret, (*parts, torch.get_num_threads()))


def open_attacked(request: ShadowRequest, finished: Finished | None = None) -> Attacked:
    """Gather the model and records of a request. Raises ValueError without such a model, and for too few records."""
    finished = finished or open_finished(request.trial)
    deployed = finished.client(request.client).deploy(finished.server, finished.round)
    if request.source not in deployed.targets:
        method = type(finished.trial.experiment.method).__name__
        available = " or ".join(source for source in get_args(Source) if source in deployed.targets)
        has = f"; it has {available}" if available else ""
        raise ValueError(f"{method} ends with no {request.source} denoiser of pictures to attack{has}")
    owners = [request.client] if request.source == "client" else range(finished.trial.experiment.clients)
    held = [finished.client(i).data for i in owners]
    members = join_records(held)
    # non-members are in the class mix of the members
    splits = finished.dataset.splits
    classes = members.labels[:, 0]
    calibration = in_proportion(splits["calibration"], classes, most=len(members) // 2)
    test = in_proportion(splits["test"], classes, most=len(members) - len(calibration))
    others = join_records([calibration, test])
    records = join_records([members, others])
    member_owner = torch.cat([torch.full((len(r),), i) for i, r in zip(owners, held, strict=True)])
    order = torch.randperm(len(members), generator=seeding.generator(request.seed, "calibration members"))
    role = torch.tensor([1] * len(members) + [2] * len(calibration) + [3] * len(test))
    role[order[: len(members) // 2]] = 0
    if few := [name for i, name in enumerate(ROLES) if int((role == i).sum()) < 2]:
        raise ValueError(f"an attack needs at least 2 records of each role, and there are fewer {few[0]}")
    owner = torch.cat(
        [member_owner, _deal_owners(others, members, member_owner, seeding.generator(request.seed, "owners"))]
    )
    inside = lira.draw_memberships(len(records), request.shadows, seeding.generator(request.seed, "halves"))
    return Attacked(request, finished, deployed, records, role, owner, inside)


def _deal_owners(others: Records, members: Records, owner: Tensor, rng: torch.Generator) -> Tensor:
    """For each non-member the owner of a random member of its class."""
    dealt = torch.empty(len(others), dtype=torch.int64)
    for c in others.labels[:, 0].unique():
        selected = others.labels[:, 0] == c
        owners = owner[members.labels[:, 0] == c]
        dealt[selected] = owners[torch.randint(len(owners), (int(selected.sum()),), generator=rng)]
    return dealt
