"""Black-box membership attack on synthetic rows of a table.

Wei et al. (TMLR 2024, arXiv 2310.15524), section 4.2.2, after LOGAN (Hayes et al. 2017, arXiv 1705.07663).

The attacker has the model's rows with their labels, and all records that may have been trained on, of which it knows
only how many were. A classifier trained on the synthetic rows is surest of records that they resemble.

Deviations: scikit-learn's rate is constant with Adam, for which the paper's "adaptive" does nothing; equal confidences,
which equal records have, are ordered at random.

Shapes: m members, o others, n columns, k categories at most.
"""

import torch
from torch import Tensor

from raydiff.data.records import codes_of
from raydiff.evaluation.attacks import targets
from raydiff.evaluation.attacks.membership import wilson
from raydiff.evaluation.quality.table_fidelity import classifier_of, one_hot
from raydiff.evaluation.sample_metrics import Drawn
from raydiff.formats.metric_records import FRACTION, Metric

SEEDS = 2**31  # scikit-learn's seeds are below 2^32
ACCURACY = Metric(name="blackbox/accuracy", bounds=FRACTION)
RANDOM = Metric(name="blackbox/random", bounds=FRACTION)

Rows = tuple[Tensor, Tensor]
"""Codes (N, n) int64 and labels (N,) int64."""


def attack_rows(synthetic: Rows, *, members: Rows, nonmembers: Rows, rng: torch.Generator) -> list[Metric]:
    """Train on synthetic rows, then call the m records members whose true label the classifier is surest of.

    ACCURACY is the precision of these calls, which equals their recall, with Wilson's 95 % interval (1927) for these
    rows and this classifier: it takes the calls as independent, which is cautious, for guesses without replacement vary
    less. RANDOM is that of guessing. Raises ValueError on rows with one label only, from which none is trained.
    """
    if len(synthetic[1].unique()) < 2:
        raise ValueError("synthetic rows must have at least two labels: a classifier is trained to tell them apart")
    m = len(members[0])
    o = len(nonmembers[0])
    records = torch.cat([members[0], nonmembers[0]]), torch.cat([members[1], nonmembers[1]])
    sure = confidence(synthetic, records, rng)
    order = torch.randperm(m + o, generator=rng)
    called = order[sure[order].argsort(descending=True, stable=True)[:m]]
    hits = int((called < m).sum())
    low, high = wilson(hits, m)
    return [
        ACCURACY.with_value(hits / m, shown="attack_accuracy"),
        ACCURACY.with_value(low, role="low"),
        ACCURACY.with_value(high, role="high"),
        RANDOM.with_value(m / (m + o)),
        Metric(name="blackbox/n_members", role="count", value=float(m)),
        Metric(name="blackbox/n_nonmembers", role="count", value=float(o)),
    ]


def of_rows(drawn: Drawn) -> list[Metric]:
    """Attack a client's final rows: members are its records, the others test records in its mix of labels."""
    if not len(drawn.images) or drawn.split != "test" or drawn.config.attacks is None:
        return []
    others = targets.in_proportion(drawn.reference, drawn.client_records.labels[:, 0])
    members, nonmembers = ((codes_of(r.images), r.labels[:, 0]) for r in (drawn.client_records, others))
    synthetic = codes_of(drawn.images), drawn.labels[:, 0]
    return attack_rows(synthetic, members=members, nonmembers=nonmembers, rng=drawn.rng)


def confidence(synthetic: Rows, records: Rows, rng: torch.Generator) -> Tensor:
    """Probability of each record's true label, (N,) float64, by a classifier trained on synthetic rows.

    0 for a label without synthetic rows. Equal records have equal ones, to the bit.
    """
    k = int(max(synthetic[0].max(), records[0].max())) + 1
    seed = int(torch.randint(SEEDS, (), generator=rng))
    network = classifier_of(
        *synthetic, k, seed=seed, hidden_layer_sizes=(256, 256, 256), learning_rate_init=0.01, max_iter=1000, tol=1e-6
    )
    different, which = records[0].unique(dim=0, return_inverse=True)
    probabilities = torch.from_numpy(network.predict_proba(one_hot(different, k))).double()[which]
    column = torch.from_numpy(network.classes_) == records[1][:, None]  # (N, classes)
    return (probabilities * column).sum(1)
