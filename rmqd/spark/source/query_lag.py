"""The lag of a streaming query, from Spark's progress. Pure."""

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
    """How many messages of each queue a query has not read. A queue whose broker did not answer is missing."""

    queues: Mapping[MessageQueue, int]

    @property
    def total(self) -> int:
        """Of all queues."""
        return sum(self.queues.values())


def lag_of(progress: Mapping[str, Any] | None) -> QueryLag | None:
    """The lag when a progress was made; None if there is no progress yet, or it does not know where the queues end."""
    found: dict[MessageQueue, int] = {}
    is_known = False
    for source in progress["sources"] if progress is not None else ():
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        if end is not None and latest is not None:
            is_known = True
            found |= {queue: max(0, at - end.positions.get(queue, 0)) for queue, at in latest.positions.items()}
    return QueryLag(found) if is_known else None


def _offsets(value: object) -> Offsets | None:
    """The offsets of a source of rmqd: JSON, or a dictionary, which some versions of Spark write as Python does."""
    try:
        return Offsets.of(value if isinstance(value, dict) else json.loads(str(value).replace("'", '"')))
    except (RmqdError, ValueError, AttributeError):  # another source's
        return None
