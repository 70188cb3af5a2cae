"""Start and end of a read, from its options. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rmqd.errors import RmqdError
from rmqd.spark.source.offsets import flat
from rmqd.wire.message_queue import MessageQueue

Kind = Literal["earliest", "latest", "committed", "offsets", "timestamp", "timestamps"]

LATEST: Final = -1
EARLIEST: Final = -2
OLDEST_MS: Final = 946_684_800_000  # the year 2000: RocketMQ is younger
_BEGINNING_MS: Final = 1_000_000  # numbers below, such as 0, mean the beginning


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read. `by_queue` has offsets (or LATEST, EARLIEST) or times, for the kinds that name queues."""

    kind: Kind
    timestamp_ms: int = 0
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)


def offsets_bound(text: str, words: tuple[Kind, ...]) -> Bound:
    """Read one of `words`, or offsets by queue in JSON. Raises RmqdError with the expected values."""
    stripped = text.strip()
    for word in words:
        if stripped.lower() == word:
            return Bound(word)
    accepted = f"expected {', '.join(words)}, or JSON such as " + '{"orders": {"broker-a": {"0": 120, "1": -2}}}'
    by_queue = _by_queue(stripped, accepted)
    low = [f"{queue}: {offset}" for queue, offset in by_queue.items() if offset < EARLIEST]
    if low:
        raise RmqdError(f"{low[0]} is not a valid offset; {accepted}, where -2 is the earliest and -1 the latest")
    return Bound("offsets", by_queue=by_queue)


def timestamps_bound(text: str) -> Bound:
    """Read times by queue (milliseconds since 1970) in JSON. Raises RmqdError with the expected form."""
    form = '{"orders": {"broker-a": {"0": 1700000000000}}}'
    by_queue = _by_queue(text.strip(), f"expected JSON such as {form}")
    return Bound("timestamps", by_queue={queue: milliseconds_since_1970(at) for queue, at in by_queue.items()})


def milliseconds_since_1970(number: int) -> int:
    """Check a time. Raises ValueError if it is before RocketMQ existed, usually because it is in seconds."""
    if _BEGINNING_MS < number < OLDEST_MS:
        raise ValueError(
            f"{number} is before the year 2000; expected milliseconds since 1970, which are seconds times 1000, or "
            "startingOffsets=earliest to read everything"
        )
    return number


def _by_queue(text: str, accepted: str) -> dict[MessageQueue, int]:
    try:
        tree = json.loads(text)
    except ValueError:
        raise RmqdError(f"{text!r:.80}: {accepted}") from None
    try:
        by_queue = flat(tree, "the JSON")
    except RmqdError:
        raise RmqdError(f"{text!r:.80}: {accepted}") from None
    if not by_queue:
        raise RmqdError(f"{text!r:.80} names no queue: {accepted}")
    return by_queue
