"""A control for methods that have public records: these themselves, of the label that is asked for; no client sends
anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raydiff.data.records import Records, label_rows
from raydiff.federated.method import LocalResult, Mean, Metrics, Round
from raydiff.federated.upload_spec import UploadSpec
from raydiff.methods.evolution import PICTURES, POOL, Evolution
from raydiff.privacy.release import Event, Nothing, nothing
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class PublicOnly(Evolution):
    """Candidates that nobody votes for: public pictures of each label, drawn with replacement."""

    rounds: int = 1
    """One, in which nothing happens."""

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """For each row of labels as many public pictures of it as there are candidates."""
        assert public is not None
        rows = label_rows(public.labels, self.model.labels)
        own = [(rows == k).nonzero()[:, 0] for k in range(self.model.rows)]
        picked = [of[torch.randint(len(of), (self.candidates,), generator=rng)] for of in own]
        return {PICTURES: public.images[torch.stack(picked)], POOL: public.images[:1].clone()}

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Nothing is sent."""
        return LocalResult(state, nothing())

    def upload_event(self, records: int, round_number: int) -> Event:
        """Nothing is spent."""
        return Nothing()

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        """Nothing is expected."""
        return UploadSpec()

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """Nothing changes."""
        return server, {}, []
