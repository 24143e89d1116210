"""What the membership attacks of a trial are aimed at, and with which records.

| target | what is asked | members |
|---|---|---|
| client | each client's own denoiser | its own records |
| global | the shared denoiser; SPIRE's backbone with embedding 0 | the records of all clients |
| global_uploaded | the same | the records as they were uploaded: its own training set |
| pool | FedDistr's pool: the prompt of the record's label that knows it best | the records of all clients |
| uploads | nothing: the distance to the nearest upload of the same class and client | the client's own records |

A target is there where the method has it: `Deployed.targets` by name, and what is said of uploads where uploads are
records (`Deployed.uploads`). An AUC
near 1 on `global_uploaded` tells the server only which uploads it has; what it can learn from these about the records
themselves is `uploads`, whose ceiling is the ledger's.

Metrics are `attack/<target>/<attack>/<reading>`. Two attacks are made of the others' scores. `combined` is a logistic
regression on all of them, where there are enough calibration rows (`membership.combined`). `best` is `combined`, or the
one attack at the one timestep that the calibration rows rank highest: whichever has the higher AUC on the calibration
rows by cross-validation. Both are read on the other rows like any attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from raydiff import lookup, seeding
from raydiff.data.records import Records
from raydiff.evaluation.attacks import membership
from raydiff.evaluation.attacks import scores as attacks
from raydiff.federated.method import Denoiser, Deployed, Metrics, Target, Uploads
from raydiff.seeding import NoiseStream

Roles = dict[str, Records]
"""The arguments of `membership.attack`, as records."""
Scores = dict[str, dict[str, dict[str, Tensor]]]
"""By target, by attack, by role: (N, S)."""
SHARED = ("global", "global_uploaded", "pool")
"""One model, whose members are those of all clients together."""
OF_SENDERS = (*SHARED, "uploads")
"""Targets in which there is nothing of a client that sent nothing."""
COMBINED, BEST = "combined", "best"
"""The attacks that are made of the others."""
DISTANCE = "distance"
"""The attack on uploads."""


def check(names: Sequence[str]) -> None:
    """Raises ValueError unless each of these is an attack, and none is called like what is made of them."""
    if taken := {COMBINED, BEST, DISTANCE} & lookup.entries("attacks", attacks.ATTACKS, names).keys():
        raise ValueError(f"attacks must not be called {min(taken)}, which is what is made of the others' scores")


def scores(
    deployed: Deployed,
    own: Records,
    *,
    names: Sequence[str],
    members: int,
    calibration: Records,
    test: Records,
    known: Scores | None = None,
) -> Scores:
    """A client's scores by the attacks of these names, of all targets that its method has.

    `members` is how many of its `own` records are used at most, half of them for calibration. Where a target is the
    client's alone its non-members have the client's mix of classes: else the attack would tell classes apart. Those of
    `SHARED` targets are the same for all clients of one server: they are left in `known` for the next one.
    """
    known = {} if known is None else known
    order = torch.randperm(len(own), generator=seeding.generator(0, "attacked members"))[:members]
    halves = {"calibration_members": order[: len(order) // 2], "members": order[len(order) // 2 :]}
    others = {"calibration_nonmembers": calibration, "nonmembers": test}
    inside = {role: own.select(rows) for role, rows in halves.items()}
    alike = inside | {role: in_proportion(records, own.labels[:, 0]) for role, records in others.items()}

    each_attack = lookup.entries("attacks", attacks.ATTACKS, names)

    def asked(target: Target, roles: Roles) -> dict[str, dict[str, Tensor]]:
        if (encode := target.encode) is not None:
            roles = {role: replace(records, images=encode(records.images)) for role, records in roles.items()}
        each = [
            {name: _asked(target, z, attack, roles) for name, attack in each_attack.items()} for z in target.denoisers
        ]
        return _least(each)

    def of_shared(name: str, target: Target, members: Roles, nonmembers: Callable[[], Roles]) -> dict[str, Any]:
        if name not in known:
            known[name] = asked(target, nonmembers())
        return {attack: of | known[name][attack] for attack, of in asked(target, members).items()}

    found = {
        name: of_shared(name, target, inside, lambda: others) if name in SHARED else asked(target, alike)
        for name, target in deployed.targets.items()
    }
    uploads = deployed.uploads
    if uploads is not None and uploads.sent is not None:
        found["uploads"] = {DISTANCE: {k: distances(uploads, records) for k, records in alike.items()}}
        if "global" in deployed.targets:
            sent = {role: uploads.sent.select(rows) for role, rows in halves.items()}
            found["global_uploaded"] = of_shared(
                "global_uploaded",
                deployed.targets["global"],
                sent,
                lambda: {k: uploads.make(v, NoiseStream(b"instruments", (k,))) for k, v in others.items()},
            )
    return found


def _least(each: Sequence[dict[str, dict[str, Tensor]]]) -> dict[str, dict[str, Tensor]]:
    """The smallest of several denoisers' scores, record by record and timestep by timestep."""
    first = each[0]
    return {
        name: {role: torch.stack([of[name][role] for of in each]).amin(0) for role in roles}
        for name, roles in first.items()
    }


def _asked(target: Target, denoiser: Denoiser, attack: attacks.Attack, roles: Roles) -> dict[str, Tensor]:
    return {
        role: attacks.scores(
            attack,
            denoiser,
            records,
            alphas_bar=target.alphas_bar,
            timesteps=attacks.grid(target.timesteps),
            rng=seeding.generator(0, "attack noise"),  # Members and non-members get the same noise, in every trial.
        )
        for role, records in roles.items()
    }


def distances(uploads: Uploads, records: Records) -> Tensor:
    """What an honest-but-curious server can do with a candidate record: ||x~_i - E[upload of the candidate]||, the
    smallest over the client's uploads x~_i of the candidate's class, (N, 1) float64.

    For PFDM E is sqrt(abar_t0) CLIP(x), so this is sqrt(abar_t0) times the distance of CLIP(x) to x~ / sqrt(abar_t0).
    Infinite for a class of which the client uploaded nothing.
    """
    assert uploads.sent is not None
    expected, sent = uploads.make(records, None), uploads.sent
    out = torch.full((len(records), 1), torch.inf, dtype=torch.float64)
    for c in records.labels[:, 0].unique():
        rows, alike = records.labels[:, 0] == c, sent.images[sent.labels[:, 0] == c]
        if len(alike):
            apart = torch.cdist(expected.images[rows].double().flatten(1), alike.double().flatten(1))
            out[rows] = apart.min(dim=1, keepdim=True).values
    return out


def summary(clients: Sequence[Scores]) -> Metrics:
    """`attack/<target>/<attack>/<reading>`: members of `SHARED` targets pooled, readings of the others averaged over
    the clients. An attack or a reading that is missing for one client, for it has too few records, is missing."""
    out: Metrics = {}
    for target in dict.fromkeys(target for found in clients for target in found):
        found = [of[target] for of in clients if target in of]
        if target in SHARED:
            found = [{name: _pooled([of[name] for of in found]) for name in found[0]}]
        known = [_with_combined(of) for of in found]
        for name in (name for name in known[0] if all(name in of for of in known)):
            out |= _mean([membership.attack(**of[name]).metrics(f"attack/{target}/{name}") for of in known])
    return out


def _with_combined(of: Mapping[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """All attacks' columns side by side, as one attack, are `best`: the calibration rows choose among them all. Unless
    their combination is better."""
    roles = next(iter(of.values()))
    every = {role: torch.cat([found[role] for found in of.values()], dim=1) for role in roles}
    if (combined := membership.combined(**every)) is None:
        return {**of, BEST: every}
    inside, outside = membership.ROLES[:2]
    helps = membership.combining_helps(every[inside], every[outside], (combined[inside], combined[outside]))
    return {**of, COMBINED: combined, BEST: combined if helps else every}


def _mean(each: Sequence[Metrics]) -> Metrics:
    shared = [k for k in each[0] if all(k in metrics for metrics in each)]
    return {k: sum(metrics[k] for metrics in each) / len(each) for k in shared}


def _pooled(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Members of all clients together; the non-members are the same rows for all."""
    members = ("calibration_members", "members")
    return {role: torch.cat([s[role] for s in each]) if role in members else rows for role, rows in each[0].items()}


def in_proportion(records: Records, classes: Tensor, *, most: int | None = None) -> Records:
    """As many of `records` as there are in the class mix of `classes` (n,); a class that they do not have is left out.

    At least one of each class that they have; or, of at most `most` in all, each class's share rounded down.
    """
    there = {int(c): torch.nonzero(records.labels[:, 0] == c)[:, 0] for c in classes.unique()}
    wanted = {c: int((classes == c).sum()) for c, rows in there.items() if len(rows)}
    if not wanted:
        return records.select(torch.arange(0))
    share = min(len(there[c]) / n for c, n in wanted.items())
    if most is not None:
        share = min(share, most / sum(wanted.values()))
    counts = {c: max(1, round(share * n)) if most is None else int(share * n) for c, n in wanted.items()}
    return records.select(torch.cat([there[c][:count] for c, count in counts.items()]))
