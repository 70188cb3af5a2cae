"""A micro-batch, as every sink of a pipeline is told of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from rmqd.errors import RmqdError
from rmqd.spark.source.offsets import Offsets

_MOST_RANGES: Final = 10  # in an error


class BatchFailedError(RmqdError):
    """A sink did not take a micro-batch. The text says which messages it has; the cause is the sink's error."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query."""

    query: str
    """The query's id, which its checkpoint keeps."""
    number: int
    plan: bytes = b""
    """What Spark's log of offsets says of it: the same for a batch that is repeated, another for one planned anew."""

    def messages_since(self, former: bytes) -> str:
        """The ranges of queues that it has, behind the plan of the batch before it."""
        ranges = _offsets(former).ranges(_offsets(self.plan))
        named = [f"{queue}, offsets {low} to {high - 1}" for queue, (low, high) in ranges.items()]
        more = f"; and {len(named) - _MOST_RANGES} queues more" if len(named) > _MOST_RANGES else ""
        return f"batch {self.number} has {'; '.join(named[:_MOST_RANGES])}{more}"

    @property
    def plan_id(self) -> str:
        """Tells one plan from another."""
        return hashlib.sha256(self.plan).hexdigest()[:12]


def _offsets(plan: bytes) -> Offsets:
    """The end of a batch, by Spark's log of offsets: a line for each source, behind its own two."""
    lines = plan.decode().splitlines()[2:]
    return Offsets.of(json.loads(lines[0])) if lines else Offsets({})
