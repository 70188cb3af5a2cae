"""The lag of a streaming query, from Spark's progress. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmqd.errors import RmqdError
from rmqd.spark.source.offsets import Offsets
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The number of unread messages of a query, for each queue. A queue whose broker did not answer is missing."""

    queues: Mapping[MessageQueue, int]

    @property
    def total(self) -> int:
        """The lag of all queues."""
        return sum(self.queues.values())


def lag_of(progress: Mapping[str, Any] | None) -> QueryLag | None:
    """Return the lag at the time of a progress; None without a progress, or if it lacks the ends of the queues."""
    found: dict[MessageQueue, int] = {}
    is_known = False
    for source in progress["sources"] if progress is not None else ():
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        if end is not None and latest is not None:
            is_known = True
            found |= {queue: max(0, at - end.positions.get(queue, 0)) for queue, at in latest.positions.items()}
    return QueryLag(found) if is_known else None


def _offsets(value: object) -> Offsets | None:
    """Parse the offsets of an rmqd source: JSON, or a dictionary, which some Spark versions write in Python syntax."""
    try:
        return Offsets.of(value if isinstance(value, dict) else json.loads(str(value).replace("'", '"')))
    except (RmqdError, ValueError, AttributeError):  # the offsets of another source
        return None
