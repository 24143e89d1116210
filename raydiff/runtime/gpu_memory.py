"""The error of a process that needs more GPU memory than its share has."""

from __future__ import annotations

import dataclasses

from raydiff.storage.checkpoint import INITIAL


@dataclasses.dataclass(eq=False)
class OutOfMemory(RuntimeError):
    """A process needed more GPU memory than its share has."""

    who: str
    """A client or the server."""
    number: int
    """The round."""
    field: str
    """The field of `Runtime` that set the share."""
    share: float

    def __str__(self) -> str:
        when = "before round 0" if self.number == INITIAL else f"in round {self.number}"
        raise_share = f"raise --runtime.{self.field.replace('_', '-')}, or " if self.share < 1 else ""
        return (
            f"{self.who}, {when}: out of GPU memory with runtime.{self.field} = {self.share:g} of a GPU: "
            f"{raise_share}lower the batch size"
        )
