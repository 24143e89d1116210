"""A control: PFDM whose global denoiser trains at the clients' noise levels."""

from __future__ import annotations

from dataclasses import dataclass

from raydiff.models.ddpm import DDPM
from raydiff.papers.pfdm.method import PFDM


@dataclass(frozen=True, kw_only=True)
class SameLevels(PFDM):
    """PFDM, but for the levels of the global denoiser."""

    @property
    def global_model(self) -> DDPM:
        return self.model
