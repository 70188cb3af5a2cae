"""A query's place in all its queues, as Spark keeps it in the checkpoint. Pure: imports neither pyspark nor pyarrow.

The JSON is `{"v": 1, "q": {topic: {broker: {queue id: offset}}}, "new": {...}, ...}`. An offset is the first one that
was not read. `new` has the queues that this batch is the first to read (for a query's first batch: all), with the
offsets at which it starts there: a batch that is repeated from the checkpoint then reads just what it read the first
time. Spark compares the text, so that the order of keys is part of the value: it is sorted at every level.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue

VERSION: Final = 1

_MORE: Final = ("gone", "marked_ms", "marks", "new")  # in the order of the text

ByQueue = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Offsets:
    """`positions` by queue, exclusive; `new` is where queues that were not there before start.

    `gone` has the times (milliseconds since 1970) at which queues were first seen to be there no more. `marks` are
    offsets of messages that were read, and `marked_ms` the times when these were stored: a topic that is created again
    has other messages there.
    """

    positions: ByQueue = field(default_factory=dict)
    new: ByQueue = field(default_factory=dict)
    gone: ByQueue = field(default_factory=dict)
    marks: ByQueue = field(default_factory=dict)
    marked_ms: ByQueue = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `of` reads; equal offsets give equal text."""
        value: dict[str, Any] = {name: nested(found) for name in _MORE if (found := getattr(self, name))}
        value["q"] = nested(self.positions)
        value["v"] = VERSION
        return value

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Offsets:
        """Read what `to_json` wrote. Raises RmqdError for anything else."""
        if value.get("v") != VERSION:
            raise RmqdError(
                f"the checkpoint's offsets are of version {value.get('v')!r}, and this rmqd reads version {VERSION}: "
                f"{json.dumps(value):.200}"
            )
        return cls(flat(value.get("q"), "q"), **{name: flat(value.get(name, {}), name) for name in _MORE})

    def ranges(self, end: Offsets) -> dict[MessageQueue, tuple[int, int]]:
        """What lies between these and later offsets, by queue, in the queues' order; without the empty ones."""
        found = {}
        for queue in sorted(end.positions):
            high = end.positions[queue]
            low = end.new.get(queue, self.positions.get(queue, high))
            if low < high:
                found[queue] = low, high
        return found


def nested(by_queue: ByQueue) -> dict[str, dict[str, dict[str, int]]]:
    """Offsets by topic, broker and queue id, keys in order."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(by_queue):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = by_queue[queue]
    return {
        topic: {broker: dict(sorted(queues.items())) for broker, queues in brokers.items()}
        for topic, brokers in tree.items()
    }


def flat(tree: object, what: str) -> dict[MessageQueue, int]:
    """The reverse of `nested`, for what people write too. Raises RmqdError with the shape that is accepted."""
    found: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in tree.items():  # type: ignore[attr-defined]  # whatever it is: see below
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    found[MessageQueue(topic, broker, int(queue_id))] = _integer(offset)
    except (AttributeError, TypeError, ValueError) as error:
        raise RmqdError(f'{what} must look like {{"topic": {{"broker": {{"0": 120}}}}}}; it has {error}') from error
    return found


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} where an offset should be")
    return value
