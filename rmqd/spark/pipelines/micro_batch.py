"""The micro-batch that a pipeline's sink receives."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from rmqd.errors import RmqdError
from rmqd.spark.source.offsets import Offsets

_MOST_RANGES: Final = 10  # in an error


class BatchFailedError(RmqdError):
    """A sink failed to write a micro-batch. The text names the messages of the batch; the cause is the sink's error."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query."""

    query: str
    """The id of the query, stored in its checkpoint."""
    number: int
    plan: bytes = b""
    """The batch in Spark's offset log: the same if the batch is repeated, different if it was planned again."""

    def messages_since(self, former: bytes) -> str:
        """Describe the messages of the batch. `former` is the plan of the previous batch."""
        ranges = _offsets(former).ranges(_offsets(self.plan))
        named = [f"{queue}, offsets {low} to {high - 1}" for queue, (low, high) in ranges.items()]
        more = f"; and {len(named) - _MOST_RANGES} queues more" if len(named) > _MOST_RANGES else ""
        return f"batch {self.number} has {'; '.join(named[:_MOST_RANGES])}{more}"

    @property
    def plan_id(self) -> str:
        """A hash that differs between plans."""
        return hashlib.sha256(self.plan).hexdigest()[:12]


def _offsets(plan: bytes) -> Offsets:
    """Return the end offsets in Spark's offset log: two lines of Spark, then a line for each source."""
    lines = plan.decode().splitlines()[2:]
    return Offsets.of(json.loads(lines[0])) if lines else Offsets({})
