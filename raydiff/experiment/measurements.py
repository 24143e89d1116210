"""The experimenter's measurements of a trial, none of which enters the protocol.

They are the ledger's guarantee, overlap of the clients' data, quality of their models, and what attacks learn of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from raydiff import seeding
from raydiff.data import datasets, entangled, partition, picture_files
from raydiff.evaluation import figures, suite
from raydiff.evaluation.evaluation_settings import AUDIT, Evaluation
from raydiff.evaluation.suite import ClientReport
from raydiff.experiment.client_records import client_shares
from raydiff.experiment.config import Experiment
from raydiff.federated.method import WithNewClients
from raydiff.federated.rounds import ClientExecutor, Progress
from raydiff.formats.metric_records import BYTES_UP, EPSILON_OUTSIDERS, EPSILON_SERVER, Metric
from raydiff.lookup import imported
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.privacy import ceilings
from raydiff.privacy.ledger import Guarantee, PrivacyOdometer


def of_round(progress: Progress) -> list[Metric]:
    """What the method has measured in a round: the server's and clients' means, then each client's."""
    metrics = [Metric(name=k, value=v, shown=k.replace("/", "_")) for k, v in progress.metrics.items()]
    for client, own in progress.client_metrics.items():
        metrics += [Metric(name=name, value=value, part=("client", client)) for name, value in own.items()]
    return metrics


def of_ledger(odometer: PrivacyOdometer, server: Guarantee, outsiders: Guarantee) -> list[Metric]:
    """The guaranteed epsilon, the largest membership AUC of any attack on the uploads, and its mu if it has one."""
    return [
        *ceilings.ledger_ceilings(odometer),
        EPSILON_SERVER.with_value(server.epsilon),
        EPSILON_OUTSIDERS.with_value(outsiders.epsilon),
        BYTES_UP.with_value(odometer.bytes_up),
    ]


def of_data(experiment: Experiment, *, together: bool) -> list[Metric]:
    """Overlap of the training clients' data, and what rows of their models (one if `together`) reveal of them (pDP)."""
    dataset = datasets.load_dataset(experiment.data)
    train = dataset.splits["train"]
    parts = client_shares(experiment, dataset)[: experiment.clients]
    overlap = entangled.measure_entanglement(partition.counts(train, parts, len(dataset.base_names)))
    model = experiment.method.model
    if experiment.audit is None or not isinstance(model, DiscreteDiffusion):
        return overlap
    tables = [train.select(part) for part in parts]
    return [*overlap, *imported(f"{AUDIT}:measure_bounds")(experiment.audit, tables, model, together=together)]


def validation(experiment: Experiment, pool: ClientExecutor, progress: Progress) -> list[Metric]:
    """Quality of the clients' models after a round, on the validation split."""
    assert experiment.evaluation is not None
    reports = list(
        pool.evaluate(pool.clients[: experiment.evaluation.clients], progress.sent, progress.number, "validation")
    )
    return [replace(metric, split="validation") for metric in suite.summarise(reports)]


def of_models(
    experiment: Experiment,
    pool: ClientExecutor,
    progress: Progress,
    of_ledger: Sequence[Metric],
    *,
    artifacts: Path,
    outsiders: Guarantee,
) -> list[Metric]:
    """Quality of the clients' models at the end and what attacks learn of them.

    Pictures in `artifacts` name the guarantee against `outsiders` where it holds for them. Raises
    `ceilings.AboveCeiling` where an attack exceeds a ceiling in `of_ledger`.
    """
    assert experiment.evaluation is not None
    measured = pool.clients[: experiment.evaluation.clients]
    senders = {client for client, size in progress.ledger.bytes_by_client.items() if size}
    evaluated = zip(
        measured, pool.evaluate(measured, progress.sent, progress.number, experiment.evaluation.split), strict=True
    )
    reports = [report if c in senders else report.of_outsider() for c, report in evaluated]
    final = suite.summarise(reports)
    ceilings.check_attacks(
        [*of_ledger, *final], unlike=_label_distance(experiment, experiment.evaluation, sorted(senders & set(measured)))
    )
    _draw_samples(experiment, reports, measured, artifacts / "samples.png", outsiders)
    dataset = datasets.load_dataset(experiment.data)
    sizes = partition.counts(dataset.splits["train"], client_shares(experiment, dataset), len(dataset.base_names))
    figures.draw_counts(sizes, dataset.base_names, artifacts / "partition.png")
    return final + _measure_unseen(experiment, pool, progress, artifacts, outsiders)


def _label_distance(experiment: Experiment, evaluation: Evaluation, clients: Sequence[int]) -> float:
    """Total variation between the labels of the records that are attacked as members and those of the test split."""
    dataset = datasets.load_dataset(experiment.data)
    train = dataset.splits["train"]
    parts = client_shares(experiment, dataset)
    labels = [dataset.splits["test"].labels, *(train.labels[parts[c]] for c in clients)]
    classes, codes = torch.cat(labels).unique(dim=0, return_inverse=True)
    split = codes.split([*map(len, labels)])
    nonmembers, *mixes = (part.bincount(minlength=len(classes)).double() / len(part) for part in split)
    members = torch.zeros(len(classes), dtype=torch.float64)
    for part, mix in zip(split[1:], mixes, strict=True):
        members += min(len(part), evaluation.members) * mix
    return float((members / members.sum() - nonmembers).abs().sum() / 2) if clients else 0.0


def _measure_unseen(
    experiment: Experiment, pool: ClientExecutor, progress: Progress, artifacts: Path, outsiders: Guarantee
) -> list[Metric]:
    """Quality of the unseen clients' models, and how much of the model they train."""
    assert experiment.evaluation is not None
    method = experiment.method
    if not (late := experiment.everyone[experiment.clients :]):
        return []
    reports = [
        r.of_outsider() for r in pool.evaluate(late, progress.sent, progress.number, experiment.evaluation.split)
    ]
    _draw_samples(experiment, reports, late, artifacts / "unseen.png", outsiders)
    metrics = [
        replace(metric, split="unseen", shown="distance_unseen" if metric.shown == "distance_all" else "")
        for metric in suite.summarise(reports)
    ]
    if isinstance(method, WithNewClients):
        parts = method.join(progress.sent, seeding.generator(experiment.seed, "newcomers"))
        personal, fixed = (float(sum(v.numel() for v in part.values())) for part in parts)
        metrics += [
            Metric(name="parameters", split="unseen", value=personal),
            Metric(name="parameters_share", split="unseen", value=personal / (personal + fixed)),
        ]
    return metrics


def _draw_samples(
    experiment: Experiment,
    reports: Sequence[ClientReport],
    clients: Sequence[int],
    path: Path,
    outsiders: Guarantee,
) -> None:
    """A row of public pictures, then one of each client's samples.

    A row shows the classes that its client has, which only a guarantee that declares labels public allows.
    """
    if not all(len(r.pictures) for r in reports):  # Classifiers make none.
        return
    rows = {f"client {c}": r.pictures for c, r in zip(clients[: picture_files.ROWS], reports, strict=False)}
    public = datasets.load_dataset(experiment.data).splits["public"]
    if len(public):
        shown = suite.first_of_each(public.labels[:, 0])[: max(map(len, rows.values()))]
        rows = {"real, public": public.images[shown], **rows}
    covered = all(r.of_server for r in reports) and "labels" in outsiders.declared
    picture_files.sample_grid(
        list(rows.values()), path, privacy=str(outsiders) if covered else "none", most=len(rows), names=list(rows)
    )
