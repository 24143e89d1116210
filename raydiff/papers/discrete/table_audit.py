"""The per-instance audit (pDP) as part of an experiment on tables: what a model's rows may reveal of each record, and
what changes when the most exposed ones are left out before anything is trained.

Every client is the curator of its own table: it leaves out by its own audit. Who is bounded against whom in the end:

- a client that has sent nothing releases rows of its own model: `pdp/own/`, each table audited by itself;
- where clients have sent updates, rows come from a model of all tables: `pdp/union/`, the tables as one. It speaks of
  third parties who see rows alone, not of the server, which has seen the updates: those are in the ledger.

A model that is conditional on the label is audited label by label: each record within the rows of its label.

None of it is a guarantee (`pdp.CAVEATS`), and what is measured after leaving records out is conditional on which.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), section 4.2.1 and Figure 6.
Deviation: as many rows are generated as there are records left, with their labels; the paper keeps the original counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raydiff.data.records import Records, joined
from raydiff.evaluation.row_audit import RowAudit
from raydiff.federated.method import Metrics
from raydiff.models.d3pm import DiscreteDiffusion, codes_of
from raydiff.papers.discrete.bound import ReleasedRows, audit
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel
from raydiff.papers.discrete.summary import most_exposed, summarize


def bounds(config: RowAudit, records: Records, model: DiscreteDiffusion) -> Floats:
    """delta of each record, (N,). Raises ValueError for fewer than two."""
    kernel = Kernel(alpha=model.schedule.alpha(model.steps).tolist(), categories=model.k)
    release = ReleasedRows(
        kernel=kernel, epsilon=config.epsilon, samples=config.samples, step=model.release, condition=config.condition
    )
    found = audit(codes_of(records.images).numpy(), release, labels=groups(records, model))
    return found.of_records(found.delta)


def kept(config: RowAudit, records: Records, model: DiscreteDiffusion) -> Tensor:
    """Positions of the records that are trained on, ascending. Raises ValueError where fewer than two are left."""
    out = round(config.remove * len(records))
    if out == 0:
        return torch.arange(len(records))
    if len(records) - out < 2:
        raise ValueError(f"audit.remove {config.remove:g} leaves {len(records) - out} of {len(records)} records")
    order = most_exposed(bounds(config, records, model))
    return torch.from_numpy(np.sort(order[out:]))


def groups(records: Records, model: DiscreteDiffusion) -> Ints:
    """(N,) which records the model knows from each other: those with equal labels, as far as it is conditional on
    them. All are one group where it is conditional on nothing."""
    _, found = np.unique(records.labels[:, : len(model.labels)].numpy(), axis=0, return_inverse=True)
    return np.asarray(found.reshape(-1), dtype=np.int64)


def measured(config: RowAudit, tables: Sequence[Records], model: DiscreteDiffusion, *, together: bool) -> Metrics:
    """The bounds of all clients' records in a few numbers: `pdp/union/` where the tables are one, else `pdp/own/`.

    `largest` is that of the most exposed record, `mean` is over the finite bounds, `vacuous_share` that of the records
    with a bound of 1 or more, which says nothing; `groups` is the most labels that a table was audited by, 1 for an
    unconditional model (results without it were made before conditional models were audited by label).
    """
    if together:
        tables = [joined(tables)]
    found = summarize(np.concatenate([bounds(config, table, model) for table in tables]))
    scope = f"pdp/{'union' if together else 'own'}"
    return {
        f"{scope}/largest": found.largest,
        f"{scope}/mean": found.mean,
        f"{scope}/vacuous_share": found.vacuous / found.records,
        f"{scope}/records": float(found.records),
        f"{scope}/groups": float(max(int(groups(table, model).max()) + 1 for table in tables)),
    }
