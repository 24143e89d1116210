"""What is measured of a trial: what its ledger guarantees, what its clients have in common, what their models are
worth and what they leak. All of it is the experimenter's; nothing of it enters the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from raydiff import seeding
from raydiff.data import datasets, entangled, partition
from raydiff.evaluation import figures, grids, row_audit, suite
from raydiff.evaluation.suite import ClientReport
from raydiff.experiment.client_records import shares
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Metrics, WithNewClients
from raydiff.federated.rounds import ClientExecutor, Progress
from raydiff.lookup import imported
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.privacy import ceilings
from raydiff.privacy.ledger import Guarantee, PrivacyOdometer


def of_ledger(spent: PrivacyOdometer, server: Guarantee, outsiders: Guarantee) -> Metrics:
    """Epsilon as is guaranteed, and the membership AUC that no attack on the uploads can exceed, with its mu where it
    has one."""
    return {
        **ceilings.of_ledger(spent),
        "privacy/epsilon_server": server.epsilon,
        "privacy/epsilon_outsiders": outsiders.epsilon,
        "comm/bytes_up": float(spent.bytes_up),
    }


def at_the_end(spent: PrivacyOdometer, server: Guarantee, outsiders: Guarantee) -> Metrics:
    """`of_ledger`, and the true positive rates that no attack can exceed."""
    return {**of_ledger(spent, server, outsiders), **ceilings.rates(spent)}


def of_data(experiment: Experiment, *, together: bool) -> Metrics:
    """How much the clients that train have in common, and what rows of the models that are deployed may reveal of
    each one's records (pDP), which they made `together` or each its own; newcomers do not count."""
    dataset = datasets.load(experiment.data)
    train, parts = dataset.splits["train"], shares(experiment, dataset)[: experiment.clients]
    found = entangled.measured(partition.counts(train, parts, len(dataset.base_names)))
    model = experiment.method.model
    if experiment.audit is not None and isinstance(model, DiscreteDiffusion):
        tables = [train.select(part) for part in parts]
        found = {**found, **imported(f"{row_audit.AUDIT}:measured")(experiment.audit, tables, model, together=together)}
    return found


def validation(experiment: Experiment, pool: ClientExecutor, progress: Progress) -> Metrics:
    """What the clients' models are worth after a round, on the split for choosing among checkpoints."""
    measured = _measured(experiment, pool)
    reports: list[ClientReport] = list(pool.evaluate(measured, progress.sent, progress.number, "validation"))
    return {k.replace("eval/", "validation/"): v for k, v in suite.summarise(reports).items()}


def of_models(
    experiment: Experiment, pool: ClientExecutor, progress: Progress, known: Metrics, *, artifacts: Path
) -> Metrics:
    """What the clients' models are worth at the end and what attacks learn of them, with pictures in `artifacts`.

    Raises `ceilings.AboveCeiling` where an attack does better than the ledger allows, of which `known` tells.
    """
    assert experiment.evaluation is not None
    measured, split = _measured(experiment, pool), experiment.evaluation.split
    senders = {client for client, size in progress.ledger.bytes_by_client.items() if size}
    found = zip(measured, pool.evaluate(measured, progress.sent, progress.number, split), strict=True)
    reports = [report if c in senders else report.of_outsider() for c, report in found]
    final = suite.summarise(reports)
    ceilings.check_attacks({**known, **final}, unlike=_unlike(experiment, sorted(senders & set(measured))))
    _draw_samples(experiment, reports, measured, artifacts / "samples.png")
    _draw_partition(experiment, artifacts / "partition.png")
    return {**final, **_newcomers(experiment, pool, progress, artifacts)}


def _measured(experiment: Experiment, pool: ClientExecutor) -> Sequence[int]:
    """The clients whose models are measured."""
    assert experiment.evaluation is not None
    return pool.clients[: experiment.evaluation.clients]


def _unlike(experiment: Experiment, clients: Sequence[int]) -> float:
    """Total variation between the labels of the records that are attacked as members and those of the test split."""
    assert experiment.evaluation is not None
    dataset = datasets.load(experiment.data)
    train, parts = dataset.splits["train"], shares(experiment, dataset)
    test = dataset.splits["test"].labels
    owned = [train.labels[parts[c]] for c in clients]
    kinds, which = torch.cat([test, *owned]).unique(dim=0, return_inverse=True)
    first, *others = which.split([len(test), *map(len, owned)])
    members = torch.zeros(len(kinds), dtype=torch.float64)
    for mine in others:
        attacked = min(len(mine), experiment.evaluation.members)
        members += attacked * mine.bincount(minlength=len(kinds)).double() / len(mine)
    nonmembers = first.bincount(minlength=len(kinds)).double() / len(test)
    return float((members / members.sum() - nonmembers).abs().sum() / 2) if clients else 0.0


def _newcomers(experiment: Experiment, pool: ClientExecutor, progress: Progress, artifacts: Path) -> Metrics:
    """What is measured of the clients that join now, and how much of the model they train."""
    assert experiment.evaluation is not None
    method, split = experiment.method, experiment.evaluation.split
    if not (late := experiment.everyone[experiment.clients :]):
        return {}
    reports = [r.of_outsider() for r in pool.evaluate(late, progress.sent, progress.number, split)]
    _draw_samples(experiment, reports, late, artifacts / "newcomers.png")
    found = {f"new/{k.removeprefix('eval/')}": v for k, v in suite.summarise(reports).items()}
    if isinstance(method, WithNewClients):
        parts = method.join(progress.sent, seeding.generator(experiment.seed, "newcomers"))
        personal, fixed = (float(sum(v.numel() for v in part.values())) for part in parts)
        found |= {"new/parameters": personal, "new/parameters_share": personal / (personal + fixed)}
    return found


def _draw_samples(experiment: Experiment, reports: Sequence[ClientReport], clients: Sequence[int], path: Path) -> None:
    """A row of public pictures, then one of each client's samples."""
    if not all(len(r.pictures) for r in reports):  # Classifiers make none.
        return
    rows = {f"client {c}": r.pictures for c, r in zip(clients[: grids.ROWS], reports, strict=False)}
    public = datasets.load(experiment.data).splits["public"]
    if len(public):
        shown = suite.first_of_each(public.labels[:, 0])[: max(map(len, rows.values()))]
        rows = {"real, public": public.images[shown], **rows}
    grids.sample_grid(list(rows.values()), path, privacy=reports[0].privacy, most=len(rows), names=list(rows))


def _draw_partition(experiment: Experiment, path: Path) -> None:
    dataset = datasets.load(experiment.data)
    sizes = partition.counts(dataset.splits["train"], shares(experiment, dataset), len(dataset.base_names))
    figures.draw_counts(sizes, dataset.base_names, path)
