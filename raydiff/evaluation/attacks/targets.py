"""Targets of a trial's membership attacks, and their records.

| target | queried model | members |
|---|---|---|
| client | each client's own denoiser | its own records |
| global | the shared denoiser; SPIRE's backbone with embedding 0 | the records of all clients |
| global_uploaded | the same | the records as they were uploaded: its own training set |
| pool | FedDistr's pool: the prompt of the record's label with the lowest score | the records of all clients |
| uploads | none: the distance to the nearest upload of the same class and client | the client's own records |

The method defines its targets (`Deployed.targets`, `Deployed.uploads` where uploads are records). An AUC near 1 on
`global_uploaded` tells the server only which uploads it has; what these tell about the records is `uploads`.

Two attacks are derived: `combined`, a logistic regression on all
scores, and `best`, which is `combined` or the best attack and timestep by cross-validation on the calibration rows.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raydiff import lookup, seeding
from raydiff.data.records import Records
from raydiff.evaluation.attacks import membership, scores as attacks
from raydiff.federated.method import Deployed, Target, Uploads
from raydiff.formats.metric_records import Metric, mean_metrics
from raydiff.models.ddpm import Denoiser
from raydiff.seeding import NoiseStream

Roles = dict[str, Records]  # the arguments of `membership.attack_membership`, as records
Roled = dict[str, dict[str, Tensor]]  # scores (N, S) by attack, by role
Scores = dict[str, Roled]  # by target
SHARED = ("global", "global_uploaded", "pool")  # one model, trained on all clients' records
OF_SENDERS = (*SHARED, "uploads")  # targets without records of a client that sent nothing
DISTANCE = "distance"  # the attack on uploads
PLAIN_NAMES = {
    (target, membership.BEST, "auc", "value"): f"attack_auc_{name}"
    for target, name in {"global": "global", "pool": "global", "client": "client", "uploads": "uploads"}.items()
}
"""(target, attack, name, role) -> plain name of the metric."""


def check_attack_names(names: Sequence[str]) -> None:
    """Raise ValueError for names that are no attack, or are those of derived ones."""
    if (
        taken := {membership.COMBINED, membership.BEST, DISTANCE}
        & lookup.entries("attacks", attacks.ATTACKS, names).keys()
    ):
        raise ValueError(f"attacks must not be called {min(taken)}, the name of a derived attack")


def score_deployed(
    deployed: Deployed,
    client_records: Records,
    *,
    names: Sequence[str],
    members: int,
    calibration: Records,
    test: Records,
    cache: Scores | None = None,
) -> Scores:
    """Return a client's scores by these attacks, for all targets of its method.

    They are of at most `members` of its records, half for calibration. `calibration` and `test` are non-members, for a
    target of one client sampled to its mix of classes; `cache` has their scores on `SHARED` targets, which are equal
    for all clients of one server.
    """
    cache = {} if cache is None else cache
    chosen = lookup.entries("attacks", attacks.ATTACKS, names)
    order = torch.randperm(len(client_records), generator=seeding.generator(0, "attacked members"))[:members]
    halves = {"calibration_members": order[: len(order) // 2], "members": order[len(order) // 2 :]}
    others = {"calibration_nonmembers": calibration, "nonmembers": test}
    inside = {role: client_records.select(rows) for role, rows in halves.items()}
    matched = inside | {role: in_proportion(records, client_records.labels[:, 0]) for role, records in others.items()}

    def of_shared(name: str, target: Target, members: Roles, nonmembers: Callable[[], Roles]) -> Roled:
        if name not in cache:
            cache[name] = _score_roles(target, nonmembers(), chosen)
        return {attack: roles | cache[name][attack] for attack, roles in _score_roles(target, members, chosen).items()}

    out = {
        name: of_shared(name, target, inside, lambda: others)
        if name in SHARED
        else _score_roles(target, matched, chosen)
        for name, target in deployed.targets.items()
    }
    uploads = deployed.uploads
    if uploads is not None and uploads.sent is not None:
        out["uploads"] = {DISTANCE: {k: upload_distances(uploads, records) for k, records in matched.items()}}
        if (shared := deployed.targets.get("global")) is not None:
            sent = {role: uploads.sent.select(rows) for role, rows in halves.items()}
            out["global_uploaded"] = of_shared(
                "global_uploaded",
                shared,
                sent,
                lambda: {k: uploads.make(records, NoiseStream(b"instruments", (k,))) for k, records in others.items()},
            )
    return out


def _score_roles(target: Target, roles: Roles, chosen: Mapping[str, attacks.Attack]) -> Roled:
    """Scores by attack and role: of several denoisers the lowest."""
    if (encode := target.encode) is not None:
        roles = {role: replace(records, images=encode(records.images)) for role, records in roles.items()}
    timesteps = attacks.grid(target.timesteps)

    def by_one(attack: attacks.Attack, z: Denoiser, records: Records) -> Tensor:
        # the same noise for all roles and trials
        return attacks.score_records(
            attack,
            z,
            records,
            alphas_bar=target.alphas_bar,
            timesteps=timesteps,
            rng=seeding.generator(0, "attack noise"),
        )

    def least(attack: attacks.Attack, records: Records) -> Tensor:
        return torch.stack([by_one(attack, z, records) for z in target.denoisers]).amin(0)

    return {name: {role: least(attack, r) for role, r in roles.items()} for name, attack in chosen.items()}


def upload_distances(uploads: Uploads, records: Records) -> Tensor:
    """Return min_i ||x~_i - E[upload of the candidate]|| over the client's uploads of its class, (N, 1) float64.

    For PFDM E is sqrt(abar_t0) CLIP(x). Infinite for a class of which the client uploaded nothing.
    """
    assert uploads.sent is not None
    expected = uploads.make(records, None)
    sent = uploads.sent
    out = torch.full((len(records), 1), torch.inf, dtype=torch.float64)
    for c in records.labels[:, 0].unique():
        rows = records.labels[:, 0] == c
        of_class = sent.images[sent.labels[:, 0] == c]
        if len(of_class):
            apart = torch.cdist(expected.images[rows].double().flatten(1), of_class.double().flatten(1))
            out[rows] = apart.min(dim=1, keepdim=True).values
    return out


def summary(clients: Sequence[Scores]) -> list[Metric]:
    """Return the metrics of all attacks: members of `SHARED` targets pooled, others averaged over clients.

    An attack or a metric that one client has too few records for is left out.
    """
    metrics: list[Metric] = []
    for target in dict.fromkeys(itertools.chain.from_iterable(clients)):
        each = [client[target] for client in clients if target in client]
        if target in SHARED:
            each = [{name: _pool_clients([of[name] for of in each]) for name in each[0]}]
        every = [{k: torch.cat([roles[k] for roles in of.values()], dim=1) for k in membership.ROLES} for of in each]
        each = [{**of, **membership.derived(columns)} for of, columns in zip(each, every, strict=True)]
        for name in (name for name in each[0] if all(name in of for of in each)):
            of_clients = [membership.attack_membership(**of[name]).metrics(target=target, attack=name) for of in each]
            metrics += mean_metrics(of_clients, complete=True)
    return [replace(m, shown=PLAIN_NAMES.get((m.target, m.attack, m.name, m.role), "")) for m in metrics]


def _pool_clients(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Members of all clients together; the non-members are the same rows for all."""
    return {k: rows if k.endswith("nonmembers") else torch.cat([s[k] for s in each]) for k, rows in each[0].items()}


def in_proportion(records: Records, classes: Tensor, *, most: int | None = None) -> Records:
    """Return as many `records` as possible in the class mix of `classes` (n,), without classes that they lack.

    At least one of each class; or, with at most `most` in all, each class's fraction rounded down.
    """
    rows = {int(c): torch.nonzero(records.labels[:, 0] == c)[:, 0] for c in classes.unique()}
    wanted = {c: int((classes == c).sum()) for c, of_class in rows.items() if len(of_class)}
    if not wanted:
        return records.select(torch.arange(0))
    factor = min(len(rows[c]) / n for c, n in wanted.items())
    if most is not None:
        factor = min(factor, most / sum(wanted.values()))
    counts = {c: max(1, round(factor * n)) if most is None else int(factor * n) for c, n in wanted.items()}
    return records.select(torch.cat([rows[c][:count] for c, count in counts.items()]))
