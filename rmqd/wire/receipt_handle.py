"""The texts in ext fields of POP: handles of popped messages, and the offsets and delivery counts in pop responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Self

from rmqd.errors import ProtocolError
from rmqd.wire.fields import parse_integer
from rmqd.wire.topics import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2

ORDER_REVIVE_QUEUE: Final = 999  # revive queue id in the handles of orderly pops, which have no revive queue
ANY_QUEUE_ID: Final = -1
MAX_POP_MESSAGES: Final = 32  # brokers reject a pop for more messages
_HANDLE_PARTS: Final = 8
_MESSAGE_KEY: Final = "qo"


class RetryFlag(IntEnum):
    """The kind of topic that stores a popped message: the subscribed topic, or one form of the pop retry topic."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2

    @classmethod
    def of(cls, topic: str) -> RetryFlag:
        """Return the flag for a message that `topic` stores."""
        if not topic.startswith(RETRY_PREFIX):
            return cls.NORMAL
        return cls.RETRY_V2 if "+" in topic else cls.RETRY_V1

    @classmethod
    def parse(cls, text: str) -> RetryFlag:
        """Parse a flag. Raises ProtocolError unless `text` is 0, 1 or 2."""
        if text not in ("0", "1", "2"):
            raise ProtocolError(f"the retry flag of a popped message must be 0, 1 or 2, not {text!r:.20}")
        return cls(int(text))

    def real_topic(self, group: str, topic: str) -> str:
        """Return the topic that stores a message with this flag, popped by a group that subscribes to `topic`."""
        if self is RetryFlag.RETRY_V1:
            return pop_retry_topic(group, topic)
        return pop_retry_topic_v2(group, topic) if self is RetryFlag.RETRY_V2 else topic


class PopHandle(NamedTuple):
    """The handle to acknowledge a popped message (property POP_CK, field extraInfo).

    It is valid until the message is popped or hidden again. `start_offset` is the queue's first offset in the pop.
    Times are milliseconds; `pop_time` is by the broker's clock.
    """

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry: RetryFlag
    broker_name: str
    queue_id: int
    queue_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the wire text of a handle. Raises ProtocolError."""
        parts = text.split(" ")
        if len(parts) != _HANDLE_PARTS or not parts[5]:
            raise ProtocolError(f"the handle of a popped message must have {_HANDLE_PARTS} parts; it is {text!r:.120}")
        start, popped, invisible, revive, queue, offset = (
            parse_integer(parts[index], "a part of the handle of a popped message") for index in (0, 1, 2, 3, 6, 7)
        )
        return cls(start, popped, invisible, revive, RetryFlag.parse(parts[4]), parts[5], queue, offset)

    def __str__(self) -> str:
        """Return the wire text of the handle, as brokers write it."""
        return " ".join(map(str, self))

    @property
    def is_orderly(self) -> bool:
        """Whether an orderly pop returned the message."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE


class PoppedQueue(NamedTuple):
    """A queue that a pop took messages from: its id, and the kind of its topic."""

    retry: RetryFlag
    queue_id: int


class OrderCounts(NamedTuple):
    """How often orderly messages were delivered before: by queue, and by (queue, offset) for single messages."""

    queues: Mapping[PoppedQueue, int]
    messages: Mapping[tuple[PoppedQueue, int], int]

    def earlier_deliveries(self, queue: PoppedQueue, offset: int) -> int:
        """Return how often the message at `offset` was delivered before. Its own count wins over the queue's count."""
        return self.messages.get((queue, offset), self.queues.get(queue, 0))


def format_start_offsets(offsets: Mapping[PoppedQueue, int]) -> str:
    """Return the text of the ext field startOffsetInfo: the first popped offset of each queue."""
    return _join((queue, str(offset)) for queue, offset in offsets.items())


def parse_start_offsets(text: str | None) -> dict[PoppedQueue, int]:
    """Parse the ext field startOffsetInfo; None means no queues. Raises ProtocolError."""
    offsets: dict[PoppedQueue, int] = {}
    for part in text.split(";") if text else ():
        words = part.split(" ")
        if len(words) != 3:
            raise ProtocolError(f"each part of startOffsetInfo must have three words, not {part!r:.120}")
        queue = PoppedQueue(RetryFlag.parse(words[0]), parse_integer(words[1], "a popped queue's number"))
        if queue in offsets:
            raise ProtocolError(f"startOffsetInfo names a queue twice: {text!r:.120}")
        offsets[queue] = parse_integer(words[2], "startOffsetInfo")
    return offsets


def format_message_offsets(offsets: Mapping[PoppedQueue, Sequence[int]]) -> str:
    """Return the text of the ext field msgOffsetInfo: the offsets of each queue's popped messages, ascending."""
    return _join((queue, ",".join(map(str, values))) for queue, values in offsets.items())


def format_order_counts(counts: OrderCounts) -> str:
    """Return the text of the ext field orderCountInfo: earlier deliveries of single messages, then of queues."""
    parts = [
        f"{int(queue.retry)} {_MESSAGE_KEY}{queue.queue_id}%{offset} {count}"
        for (queue, offset), count in counts.messages.items()
    ]
    parts += [f"{int(queue.retry)} {queue.queue_id} {count}" for queue, count in counts.queues.items()]
    return ";".join(parts)


def _join(values: Iterable[tuple[PoppedQueue, str]]) -> str:
    return ";".join(f"{int(queue.retry)} {queue.queue_id} {value}" for queue, value in values)
