"""The start and end bounds of a read, and the offsets that a query stores in Spark's checkpoint. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue

BoundKind = Literal["earliest", "latest", "committed", "offsets", "timestamp", "timestamps"]

LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
MIN_TIMESTAMP_MS: Final = 946_684_800_000  # the year 2000: RocketMQ is younger
_BEGINNING_MS: Final = 1_000_000  # times up to this one, such as 0, mean the first message


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """The start or end of a read.

    `by_queue` has offsets, LATEST_OFFSET or EARLIEST_OFFSET for the kind `offsets`, and times in ms for `timestamps`.
    """

    kind: BoundKind
    timestamp_ms: int = 0
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)


def parse_offsets_bound(text: str, words: tuple[BoundKind, ...]) -> OffsetBound:
    """Parse one of `words`, or JSON with an offset for each queue. Raises RmqdError with the expected values."""
    stripped = text.strip()
    for word in words:
        if stripped.lower() == word:
            return OffsetBound(word)
    accepted = f"expected {', '.join(words)}, or JSON such as " + '{"orders": {"broker-a": {"0": 120, "1": -2}}}'
    by_queue = _by_queue(stripped, accepted)
    low = [f"{queue}: {offset}" for queue, offset in by_queue.items() if offset < EARLIEST_OFFSET]
    if low:
        raise RmqdError(f"{low[0]} is not a valid offset; {accepted}, where -2 is the earliest and -1 the latest")
    return OffsetBound("offsets", by_queue=by_queue)


def parse_timestamps_bound(text: str) -> OffsetBound:
    """Parse JSON with a time for each queue, in milliseconds since 1970. Raises RmqdError with the expected form."""
    form = '{"orders": {"broker-a": {"0": 1700000000000}}}'
    by_queue = _by_queue(text.strip(), f"expected JSON such as {form}")
    return OffsetBound("timestamps", by_queue={queue: check_timestamp_ms(at) for queue, at in by_queue.items()})


def check_timestamp_ms(number: int) -> int:
    """Return the time. Raises ValueError if it is before the year 2000, usually because it is in seconds."""
    if _BEGINNING_MS < number < MIN_TIMESTAMP_MS:
        raise ValueError(
            f"{number} is before the year 2000; expected milliseconds since 1970, which are seconds times 1000, or "
            "startingOffsets=earliest to read everything"
        )
    return number


def _by_queue(text: str, accepted: str) -> dict[MessageQueue, int]:
    try:
        by_queue = parse_offsets_tree(json.loads(text), "the JSON")
    except (ValueError, RmqdError):
        raise RmqdError(f"{text!r:.80}: {accepted}") from None
    if not by_queue:
        raise RmqdError(f"{text!r:.80} contains no queue; {accepted}")
    return by_queue


OFFSETS_VERSION: Final = 1

_FIELD_BY_KEY: Final = {  # fields of SourceOffsets by JSON key, in the order of the JSON text
    "gone": "missing_since_ms",
    "marked_ms": "mark_store_times_ms",
    "marks": "mark_offsets",
    "new": "new_queue_starts",
}

ByQueue = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The exclusive end offsets (`ends`) of one batch of a query. Each field is a mapping by queue.

    `new_queue_starts` are the start offsets of queues that are new in the batch, `missing_since_ms` the times when
    queues were first missing. `mark_offsets` are offsets of some read messages, and `mark_store_times_ms` their store
    times: a recreated topic has other messages at these offsets. Times are in milliseconds since 1970.
    """

    ends: ByQueue = field(default_factory=dict)
    new_queue_starts: ByQueue = field(default_factory=dict)
    missing_since_ms: ByQueue = field(default_factory=dict)
    mark_offsets: ByQueue = field(default_factory=dict)
    mark_store_times_ms: ByQueue = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON tree for `from_json`. Equal offsets give equal text, because Spark compares offsets as text."""
        value: dict[str, Any] = {
            key: offsets_tree(found) for key, name in _FIELD_BY_KEY.items() if (found := getattr(self, name))
        }
        value["q"] = offsets_tree(self.ends)
        value["v"] = OFFSETS_VERSION
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SourceOffsets:
        """Parse the output of `to_json`. Raises RmqdError for any other input."""
        if value.get("v") != OFFSETS_VERSION:
            raise RmqdError(
                f"the checkpoint has offsets of version {value.get('v')!r}; expected version {OFFSETS_VERSION}: "
                f"{json.dumps(value):.200}"
            )
        return cls(
            parse_offsets_tree(value.get("q"), "q"),
            **{name: parse_offsets_tree(value.get(key, {}), key) for key, name in _FIELD_BY_KEY.items()},
        )

    def ranges(self, end: SourceOffsets) -> dict[MessageQueue, tuple[int, int]]:
        """Return the start and exclusive end of each non-empty range from these offsets to `end`."""
        found = {}
        for queue in sorted(end.ends):
            high = end.ends[queue]
            low = end.new_queue_starts.get(queue, self.ends.get(queue, high))
            if low < high:
                found[queue] = low, high
        return found


def parse_reported_offsets(value: object) -> SourceOffsets | None:
    """Return the offsets that Spark reports or logs for rmqd's source; None for another source, or before a batch.

    `value` is the JSON tree, or its text, which some versions of Spark write in Python's syntax. The keys `q` and `v`
    identify rmqd's source. `q` is not enough, because a Kafka source has this key if a Kafka topic has this name.
    """
    tree = value
    for text in (str(value), str(value).replace("'", '"')):
        if not isinstance(tree, dict):
            with suppress(ValueError):
                tree = json.loads(text)
    return SourceOffsets.from_json(tree) if isinstance(tree, dict) and {"q", "v"} <= tree.keys() else None


def offsets_tree(by_queue: ByQueue) -> dict[str, dict[str, dict[str, int]]]:
    """Return the offsets as nested dicts by topic, broker and queue id, with sorted keys."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(by_queue):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = by_queue[queue]
    return {
        topic: {broker: dict(sorted(queues.items())) for broker, queues in brokers.items()}
        for topic, brokers in tree.items()
    }


def parse_offsets_tree(tree: object, what: str) -> dict[MessageQueue, int]:
    """Return the offsets in the output of `offsets_tree`, or in a user's JSON. Raises RmqdError for another shape."""
    found: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in tree.items():  # type: ignore[attr-defined]  # other types raise AttributeError
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    found[MessageQueue(topic, broker, int(queue_id))] = _integer(offset)
    except (AttributeError, TypeError, ValueError) as error:
        raise RmqdError(f'{what} must look like {{"topic": {{"broker": {{"0": 120}}}}}}; it has {error}') from error
    return found


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} instead of an offset")
    return value
