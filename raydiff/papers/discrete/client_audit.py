"""The per-instance audit (pDP) in an experiment on tables.

Bounds on what the released rows reveal of each record, and training without the most exposed ones.

Every client is the curator of its own table and removes records by its own audit. The final bounds are about

- a client's rows from its own model, if it has sent nothing: `pdp/own/`, each table audited by itself;
- rows from a model of all tables, if clients have sent updates: `pdp/union/`, the tables as one. It bounds what third
  parties learn from rows only; what the server learns from updates is in the ledger.

A model that is conditional on the label is audited label by label. None of it is a guarantee (`bound.CAVEATS`), and
measurements after removal are conditional on the removed records.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), section 4.2.1 and Figure 6: an unconditional model, and all records
removed in one pass (`method.model.conditional false`, `audit.batch 1`).
Deviation: as many rows are generated as there are records left, with their labels; the paper keeps the original counts.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raydiff.data.records import Records, codes_of, join_records, label_rows
from raydiff.evaluation.evaluation_settings import RowAudit
from raydiff.formats.metric_records import Metric
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.papers.discrete.bound import ReleasedRows, audit_rows
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel
from raydiff.papers.discrete.summary import removal_order, summarize


def bound_records(config: RowAudit, records: Records, model: DiscreteDiffusion) -> Floats:
    """delta of each record, (N,). Raises ValueError for fewer than two."""
    kernel = Kernel(alpha=model.schedule.alpha(model.steps).tolist(), categories=model.k)
    release = ReleasedRows(
        kernel=kernel, epsilon=config.epsilon, samples=config.samples, step=model.release, condition=config.condition
    )
    labels = label_rows(records.labels[:, : len(model.labels)], model.labels).numpy()
    result = audit_rows(codes_of(records.images).numpy(), release, labels=labels)
    return result.of_records(result.delta)


def select_records(config: RowAudit, records: Records, model: DiscreteDiffusion) -> Tensor:
    """Positions of the records that are trained on, ascending. Raises ValueError where fewer than two are left."""

    def of_part(rest: Ints) -> Floats:
        return bound_records(config, records.select(torch.from_numpy(rest)), model)

    out = removal_order(of_part, len(records), round(config.remove * len(records)), batch=config.batch)
    return torch.from_numpy(np.delete(np.arange(len(records)), out))


def measure_bounds(
    config: RowAudit, tables: Sequence[Records], model: DiscreteDiffusion, *, together: bool
) -> list[Metric]:
    """A summary of the bounds of all clients' records: `pdp/union/` where the tables are one, else `pdp/own/`.

    `mean` is over the finite bounds, `vacuous_share` the fraction of records with a bound of 1 or more.
    """
    if together:
        tables = [join_records(tables)]
    summary = summarize(np.concatenate([bound_records(config, table, model) for table in tables]))
    scope = f"pdp/{'union' if together else 'own'}"
    return [
        Metric(name=f"{scope}/largest", value=summary.largest),
        Metric(name=f"{scope}/mean", value=summary.mean),
        Metric(name=f"{scope}/vacuous_share", value=summary.vacuous / summary.records),
        Metric(name=f"{scope}/records", value=float(summary.records)),
    ]
