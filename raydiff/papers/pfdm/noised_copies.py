"""PFDM's upload: a copy of each record, clipped and taken to a depth of the forward process; what it costs."""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records
from raydiff.papers.pfdm.depth import release_event
from raydiff.privacy.release import Event, NonPrivate, Release, disclose, gaussian_records
from raydiff.seeding import NoiseStream

UNPROTECTED_TEXT = "images sent as they are"


@dataclass(frozen=True)
class NoisedCopies:
    """sqrt(abar) CLIP(x, C) + sqrt(1 - abar) z of each record x, with its labels."""

    clip: float
    """C. A public number."""
    abar: float | None
    """Of the depth; None: records are sent as they are (CollaFuse, the non-private limit)."""

    @property
    def std(self) -> float:
        """Standard deviation of the noise."""
        return 0.0 if self.abar is None else math.sqrt(1 - self.abar)

    @property
    def reach(self) -> float:
        """The copies' range: the data's plus 4 standard deviations of the noise."""
        return math.sqrt(1 - self.std**2) + 4 * self.std

    @property
    def event(self) -> Event:
        """What a client reveals by its copies."""
        if self.abar is None:
            return NonPrivate(UNPROTECTED_TEXT)
        return replace(release_event(self.clip, self.abar), declared=("labels",))

    def release(self, data: Records, center: Tensor | None, noise: NoiseStream | None) -> Release:
        """A client's copies, clipped around `center` (C, H, W) where there is one. Raises ValueError without noise."""
        images = data.images
        public = {"labels": data.labels}
        if self.abar is None:
            return disclose({"x": images, **public}, UNPROTECTED_TEXT)
        if noise is None:
            raise ValueError("PFDM's upload needs the round's noise stream")
        noising = {"clip": self.clip, "scale": math.sqrt(self.abar), "std": self.std}
        return gaussian_records(images, **noising, noise=noise, records=range(len(data)), public=public, center=center)

    def make(self, center: Tensor | None, records: Records, noise: NoiseStream | None) -> Records:
        """The copies as records; without noise their expectation, sqrt(abar) CLIP(x, C)."""
        if noise is None and self.abar is not None:
            expected = tree.clip_records(records.images, self.clip, center)
            return replace(records, images=math.sqrt(self.abar) * expected)
        return replace(records, images=self.release(records, center, noise).value["x"])
