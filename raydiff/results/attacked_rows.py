"""Inputs of attacks on a finished trial's synthetic rows: the rows, members, non-members and reference rows.

Non-members come from the calibration and test splits, as many as members and with the same number of each label;
members without a counterpart are left out. The rest of the splits are reference rows, which an attacker may have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff import seeding
from raydiff.data.modality import TableRows
from raydiff.data.records import Records, codes_of, join_records
from raydiff.evaluation.attacks import closest
from raydiff.evaluation.attacks.targets import in_proportion
from raydiff.results import generation as generate
from raydiff.results.finished import Finished

LEAST = 4  # members and non-members that an attack needs: two of each to calibrate, two to evaluate


@dataclass(frozen=True, eq=False)
class AttackedRows:
    """Codes (N, n) int64 of rows; the label is their last column where the model knows of it."""

    made: Tensor  # the synthetic rows
    members: Tensor  # records that the model was trained on
    nonmembers: Tensor  # as many that nobody trained on
    reference: Tensor  # others that nobody trained on
    columns: tuple[str, ...]  # names of the n columns
    spans: tuple[int, ...]  # which of them have numbers (`closest.spans_of`)
    seed: int  # of the sampled members and the synthetic rows


def open_rows(finished: Finished, client: int | None, *, num: int | None, seed: int) -> AttackedRows:
    """Generate rows of a client's own model or, with None, the server's: `num`, or as many as it was trained on.

    Raises ValueError as `Finished.source`, and where too few records were held out.
    """
    experiment = finished.trial.experiment
    modality = finished.dataset.modality
    assert isinstance(modality, TableRows)
    owners = range(experiment.clients) if client is None else [client]
    trained_on = join_records([finished.client(i).data for i in owners])
    splits = finished.dataset.splits
    held_out = _shuffle(join_records([splits["calibration"], splits["test"]]), seeding.generator(seed, "held out"))
    members, nonmembers, reference = _choose_roles(trained_on, held_out, seed)
    request = generate.GenerationRequest(num=len(trained_on) if num is None else num, seed=seed)
    source = finished.source(client)
    plan = generate.plan(source, request)
    parts = [generate.part_of(source, request, plan, part) for part in range(-(-plan.rows // generate.PART))]
    conditional = experiment.method.model.conditional
    columns = modality.mapping.decoded if conditional else modality.mapping.columns

    def codes(images: Tensor, labels: Tensor) -> Tensor:
        return torch.cat([codes_of(images), labels[:, :1]], dim=1) if conditional else codes_of(images)

    return AttackedRows(
        made=torch.cat([codes(images, labels) for labels, images in parts]),
        members=codes(members.images, members.labels),
        nonmembers=codes(nonmembers.images, nonmembers.labels),
        reference=codes(reference.images, reference.labels),
        columns=tuple(column.name for column in columns),
        spans=closest.spans_of(columns),
        seed=seed,
    )


def _choose_roles(trained_on: Records, held: Records, seed: int) -> Sequence[Records]:
    """(members, non-members, reference rows), all of them in the members' mix of labels."""
    mixed = in_proportion(held, trained_on.labels[:, 0])
    nonmembers = in_proportion(mixed, trained_on.labels[:, 0], most=min(len(trained_on), len(mixed) // 2))
    shuffled = _shuffle(trained_on, seeding.generator(seed, "members"))
    members = in_proportion(shuffled, nonmembers.labels[:, 0], most=len(nonmembers))
    reference = mixed.select(~torch.isin(mixed.numbers, nonmembers.numbers))
    if len(nonmembers) < LEAST or len(members) != len(nonmembers) or not len(reference):
        raise ValueError(
            f"rows are attacked beside {LEAST} records at least that nobody trained on, and others for reference: in "
            f"the members' mix of labels the calibration and test splits have {len(mixed)}, raise data.test"
        )
    rng = seeding.generator(seed, "roles")  # `in_proportion` sorts by label
    return _shuffle(members, rng), _shuffle(nonmembers, rng), reference


def _shuffle(records: Records, rng: torch.Generator) -> Records:
    return records.select(torch.randperm(len(records), generator=rng))
