"""Modalities: what one record is, pictures or rows of a table.

A data set's modality is chosen once, where its source is read. Callers use its functions and never ask which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from raydiff.data.records import Records, half_counts
from raydiff.data.tables.encode import Mapping


class Modality(Protocol):
    """What one record is."""

    @property
    def name(self) -> str:
        """The word for messages: pictures, rows."""

    @property
    def measures(self) -> tuple[str, ...]:
        """Metrics (`evaluation.metrics.METRICS`) of such samples, in the order in which they are measured."""

    @property
    def attacks(self) -> tuple[str, ...]:
        """What can be attacked or audited: denoisers, rows."""

    @property
    def is_shown(self) -> bool:
        """Whether samples are drawn in a sample grid."""

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """Label rows (n, K) of the samples that are measured, of a client with its `own` records."""


@dataclass(frozen=True)
class Pictures:
    """Pictures (C, H, W) on [-1, 1]."""

    name: str = "pictures"
    measures: tuple[str, ...] = ("accuracy", "frechet", "kernel", "coverage", "labels", "memorization", "downstream")
    attacks: tuple[str, ...] = ("denoisers",)
    is_shown: bool = True

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """As many of each class as one half of the reference has: distances compare equal counts."""
        classes, counts = reference.labels[:, 0], sorted(half_counts(reference.labels[:, 0]).items())
        return torch.cat([reference.labels[classes == c][:count] for c, count in counts])


@dataclass(frozen=True)
class TableRows:
    """Rows of a table, as codes (1, 1, n) of which `mapping` is the meaning."""

    mapping: Mapping
    name: str = "rows"
    measures: tuple[str, ...] = ("accuracy", "table", "blackbox")
    attacks: tuple[str, ...] = ("rows", "audit")
    is_shown: bool = False

    def labels_to_sample(self, own: Records, reference: Records) -> Tensor:
        """Those of the client's own rows."""
        return own.labels


PICTURES = Pictures()
