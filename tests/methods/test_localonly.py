"""Local training: nothing leaves a client."""

from __future__ import annotations

from toys import records, run

from raydiff.methods.localonly import LocalOnly
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.privacy.release import Nothing


def test_nothing_is_sent() -> None:
    model = DDPM(network=MLP(width=8, depth=1), timesteps=4)
    (only,) = run(LocalOnly(model=model, local=Training(steps=2, batch=4)), [records(0), records(1)])
    assert [(e.client, e.event, e.bytes) for e in only.ledger.entries] == [(0, Nothing(), 0), (1, Nothing(), 0)]
    assert only.ledger.epsilon(1e-5, "exact") == 0 and only.server == {}
