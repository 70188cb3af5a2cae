"""A micro-batch, as every sink of a pipeline is told of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query."""

    query: str
    """The query's id, which its checkpoint keeps."""
    number: int
    plan: bytes = b""
    """What Spark's log of offsets says of it: the same for a batch that is repeated, another for one planned anew."""

    @property
    def plan_id(self) -> str:
        """Tells one plan from another."""
        return hashlib.sha256(self.plan).hexdigest()[:12]
