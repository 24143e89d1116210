"""LocalOnly as the control that measures what public records give without any client."""

import pytest
import torch
from toys import records

from raydiff import tree
from raydiff.federated.method import Round
from raydiff.methods.localonly import LocalOnly
from raydiff.models.classifier import Classifier
from raydiff.models.training import Training
from raydiff.privacy.release import Nothing
from raydiff.seeding import generator


def test_the_control_sees_the_public_records_alone_and_sends_nothing() -> None:
    control = LocalOnly(model=Classifier(), local=Training(steps=3, batch=4), public_only=True)
    plain, public = LocalOnly(model=control.model, local=control.local), records(7)

    def trained(method: LocalOnly, client: int) -> str:
        return tree.digest(method.init_client({}, records(client), public, Round(0, generator(1))))

    assert trained(control, 0) == trained(control, 1) != trained(plain, 0) != trained(plain, 1)
    alone = plain.init_client({}, public, None, Round(0, generator(1)))
    assert tree.digest(alone) == trained(control, 0)
    assert control.init_key != plain.init_key  # else a sweep would take one's model for the other's
    assert control.upload_event(12, 0) == Nothing()


def test_the_control_needs_public_records() -> None:
    control, data = LocalOnly(model=Classifier(), public_only=True), records(0)
    for none in (None, data.select(torch.arange(0))):
        with pytest.raises(ValueError, match=r"^public_only must be false where .*: data\.public is 0$"):
            control.init_client({}, data, none, Round(0, generator(1)))
