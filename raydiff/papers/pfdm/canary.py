"""Canaries among PFDM's noised records."""

import math

import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.evaluation.canary_subjects import Subject
from raydiff.federated.method import Round
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy.ledger import Ledger
from raydiff.seeding import NoiseStream, generator


def pfdm_subject(method: PFDM, public: Records | None) -> Subject | None:
    """The way of canaries through one upload; None where there is no noise."""
    if method.epsilon is None or method.start == "noise":
        return None
    server = method.init_server(public, generator(0))
    shape = method.model.shape
    origin = server.get("center", torch.zeros(shape))
    scale = math.sqrt(float(method.model.abar[method.depth]))

    def every(canaries: Tensor, noise: NoiseStream) -> tuple[Tensor, Ledger]:
        n = len(canaries)
        data = Records(canaries.view(n, *shape) + origin, torch.zeros(n, 1, dtype=torch.int64), torch.arange(n))
        release = method.local_update(server, {}, data, Round(0, generator(0), noise)).release
        seen = release.value["x"] - scale * origin
        return seen.view(n, 1, -1), Ledger().with_uploads(0, [(0, release.event, release.nbytes)])

    return Subject(one=every, clip=method.clip, shape=(1, math.prod(shape)), count=16_000, together=True)
