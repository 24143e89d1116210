"""PFDM by other noise levels of its global denoiser, from which those of PFDM were chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from raydiff.models.ddpm import DDPM
from raydiff.papers.pfdm.method import PFDM


@dataclass(frozen=True, kw_only=True)
class ServerLevels(PFDM):
    """PFDM, but for these levels."""

    mean: float | None = None
    """Of ln(sigma); None: uniform timesteps."""

    @property
    def global_model(self) -> DDPM:
        """With these levels."""
        changes = {"levels": "uniform"} if self.mean is None else {"lognormal_mean": self.mean}
        return replace(self.model, **changes)  # type: ignore[arg-type]
