"""Canaries among FedDistr's noised prompts."""

import math

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.evaluation.canary_subjects import Subject
from raydiff.federated.method import SCRATCH, Round
from raydiff.papers.feddistr.method import FedDistr
from raydiff.privacy.ledger import Ledger
from raydiff.seeding import NoiseStream, generator


def feddistr_subject(method: FedDistr, public: Records | None) -> Subject | None:
    """The way of a client's prompts through its one upload; None where there is no noise."""
    if method.epsilon in (None, math.inf) or method.clip is None:
        return None
    start = method.model.load().start.cpu()

    def one(canary: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        m = len(canary)
        vectors = {"v": start + canary, "label": torch.zeros(m, dtype=torch.int64), "count": torch.ones(m)}
        state = tree.prefixed(SCRATCH, {**vectors, "loss": torch.zeros(())})
        nobody = Records(torch.zeros(0, 1, 1, 1), torch.zeros(0, 1, dtype=torch.int64), torch.arange(0))
        release = method.local_update({}, state, nobody, Round(0, generator(0), noise)).release
        return release.value["x"], Ledger().with_uploads(0, [(0, release.event, release.nbytes)])

    return Subject(one=one, clip=method.clip, shape=(method.clusters, len(start)))
