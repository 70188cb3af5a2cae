"""Messages as lazy views of the bytes that a broker sent; `rmqd.wire.messages.decode` makes them and has the layout."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message_id import format_host, offset_message_id
from rmqd.wire.messages.properties import KEYS, RETRY_TOPIC, TAGS, UNIQ_KEY, parse_properties
from rmqd.wire.messages.sys_flag import BORN_HOST_V6, CLOSED, INNER_BATCH, STORE_HOST_V6
from rmqd.wire.topics import RETRY_PREFIX, is_retry_topic, topic_of_retry, unwrap_namespace

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # the topic's length takes two bytes

_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">H")


@dataclass(frozen=True, slots=True)
class CorruptMessage:
    """A record that cannot be trusted; `message` gives what is known of it."""

    message: Message
    reason: str
    takes_rest: bool = False  # where it ends is not known either: it has all that is left of the reply


class MessageBlock:
    """What one reply brought: its bytes, which every message views, and the messages in queue order.

    In a `namespace`, `message_queue` is the queue without it, and so are the topics of messages.
    """

    __slots__ = (
        "broken", "corrupt", "cursor", "cut_at", "data", "decompressed", "is_closed", "message_queue", "messages",
        "namespace", "origin", "runs", "size_bytes", "unfinished",
    )  # fmt: skip

    def __init__(self, data: bytes, message_queue: MessageQueue, namespace: str = "") -> None:
        self.data = data
        self.namespace = namespace
        self.message_queue = message_queue.without(namespace)
        self.origin: str | None = None  # the topic whose messages a pop retry topic holds, for what it holds
        self.messages: list[Message] = []
        self.corrupt: list[CorruptMessage] = []
        self.broken: str | None = None  # why the first record that cannot be decoded cannot
        self.runs = 0  # of queue offsets without a gap, over all records that can be decoded
        self.is_closed = False  # some messages are compressed, or batches, and not opened yet
        self.cut_at: int | None = None  # the offset of the first message that was left out, as there was no room
        self.decompressed: dict[int, bytes] | None = None  # bodies by where their records start
        self.size_bytes = len(data)  # memory that the block keeps alive: the reply, and what was decompressed from it
        # the consumer's bookkeeping: messages not finished, and an index that all before are finished
        self.unfinished = 0
        self.cursor = 0

    def of(self, left: list[Message]) -> MessageBlock:
        """Messages that were left out when this block was opened, in a block of their own that can be opened."""
        block = MessageBlock(self.data, self.message_queue)
        block.namespace = self.namespace  # the queue is without it already
        block.messages, block.is_closed, block.unfinished = left, True, len(left)
        for message in left:
            message.block = block
        return block


class Message:
    """A RocketMQ message. Read-only; fields carry RocketMQ's names, times are milliseconds since 1970."""

    __slots__ = (
        "_body_end",
        "_body_start",
        "_handed_properties",  # copied when a handler first asks for them
        "_properties",  # parsed when first asked for
        "_reconsume_times",  # set once the group itself repeated the message
        "_start",
        "block",
        "finished",
        "queue_offset",
        "store_timestamp",
    )

    _body_end: int
    _body_start: int
    _handed_properties: dict[str, str]
    _properties: dict[str, str]
    _reconsume_times: int
    _start: int
    block: MessageBlock
    finished: bool
    queue_offset: int
    store_timestamp: int

    def placed(
        self, block: MessageBlock, start: int, body_start: int, body_end: int, queue_offset: int, store_timestamp: int
    ) -> Self:
        """Have a new message lie at this place of the block's bytes, and return it.

        There is no `__init__` that does it: decoding makes millions of messages, and sets these fields by itself. That
        spares it a call for each message, which takes as long as all of the fields.
        """
        self.block = block
        self._start = start
        self._body_start = body_start
        self._body_end = body_end
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp
        self.finished = False  # the consumer's mark, not for handlers
        return self

    def __repr__(self) -> str:
        return f"<Message {self.msg_id} {self.message_queue} offset {self.queue_offset}>"

    def __reduce__(self) -> tuple[object, ...]:
        start, block, record = self._start, self.block, self.record
        places = (self._body_start - start, self._body_end - start, self.queue_offset, self.store_timestamp)
        opened = None if block.decompressed is None or start not in block.decompressed else self.body
        names = (block.namespace, block.origin)
        return _restore, (record, block.message_queue, names, opened, places, self.reconsume_times)

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it was pulled from: of the retry topic for a retried message."""
        return self.block.message_queue

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        bodies = self.block.decompressed
        if bodies is not None and self._start in bodies:
            return bodies[self._start]
        return self.block.data[self._body_start : self._body_end]

    @property
    def properties(self) -> dict[str, str]:
        """System and user properties, in a copy for handlers: nobody else sees what they write into it."""
        try:
            properties: dict[str, str] = self._handed_properties
        except AttributeError:
            properties = self._handed_properties = self.stored_properties.copy()
        return properties

    @property
    def stored_properties(self) -> dict[str, str]:
        """The same as the broker has them. Not to be changed, and not for handlers."""
        try:
            properties: dict[str, str] = self._properties
        except AttributeError:  # the slot is filled by the first who asks: most handlers need only the body
            start, end = self._properties_span()
            properties = self._properties = parse_properties(self.block.data[start:end].decode("utf-8", "replace"))
        return properties

    @property
    def topic(self) -> str:
        """The topic; of a retried message the one that it was first sent to."""
        namespace, topic = self.block.namespace, self.record_topic
        is_plain = not namespace and not topic.startswith(RETRY_PREFIX)
        return topic if is_plain else unwrap_namespace(self.origin_topic, namespace)

    @property
    def origin_topic(self) -> str:
        """The same as brokers know it: with the namespace, where the group is in one."""
        topic, origin = self.record_topic, self.block.origin
        if not is_retry_topic(topic):
            return topic
        return topic_of_retry(topic, self.stored_properties.get(RETRY_TOPIC), origin)

    @property
    def record_topic(self) -> str:
        """The topic that the broker stores the message under."""
        start, length = self._topic_span()
        return self.block.data[start : start + length].decode("utf-8", "replace")

    @property
    def keys(self) -> str | None:
        """RocketMQ's one string of keys, separated by spaces."""
        return self.stored_properties.get(KEYS)

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.stored_properties.get(TAGS)

    @property
    def msg_id(self) -> str:
        """The producer's unique id, or where there is none the offset id."""
        return self.stored_properties.get(UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id made of the storing broker's address and the commit log offset."""
        start, size = self._store_host_span()
        return offset_message_id(self.block.data[start : start + size], self.commit_log_offset)

    @property
    def queue_id(self) -> int:
        """The queue that it was pulled from."""
        return self.block.message_queue.queue_id

    @property
    def stored_queue_id(self) -> int:
        """The queue that the record itself names: of a pop, whose reply holds several."""
        return self._int(12)

    @property
    def broker_name(self) -> str:
        """The broker that it was pulled from."""
        return self.block.message_queue.broker_name

    @property
    def store_size(self) -> int:
        """Bytes that the record takes in the commit log."""
        return self._int(0)

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body, its top bit cleared."""
        return self._int(8)

    @property
    def flag(self) -> int:
        """The producer's flag."""
        return self._int(16)

    @property
    def commit_log_offset(self) -> int:
        """Where the broker stores the message; what a send-back names."""
        return self._long(28)

    @property
    def sys_flag(self) -> int:
        """RocketMQ's system flags, as stored."""
        return self._int(36)

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, in milliseconds since 1970."""
        return self._long(40)

    @property
    def born_host(self) -> str:
        """The producer's address, `ip:port`."""
        start = self._start + 48
        return format_host(self.block.data[start : start + (20 if self.sys_flag & BORN_HOST_V6 else 8)])

    @property
    def store_host(self) -> str:
        """The storing broker's address, `ip:port`."""
        start, size = self._store_host_span()
        return format_host(self.block.data[start : start + size])

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before: sent back, or repeated in place by an orderly group."""
        try:
            times: int = self._reconsume_times
        except AttributeError:
            times = _INT.unpack_from(self.block.data, self._body_start - 16)[0]
        return times

    def count_attempt(self) -> None:
        """It is delivered again without leaving this process."""
        self._reconsume_times = self.reconsume_times + 1

    @property
    def prepared_transaction_offset(self) -> int:
        """Offset of the half message of a transaction."""
        offset: int = _LONG.unpack_from(self.block.data, self._body_start - 12)[0]
        return offset

    @property
    def stored_body(self) -> bytes:
        """The body as stored, compressed where the producer compressed it."""
        return self.block.data[self._body_start : self._body_end]

    @property
    def record(self) -> bytes:
        """The message as the broker stores it; of a member of a batch, as if it was stored alone."""
        return self.block.data[self._start : self._start + self.store_size]

    @property
    def stored_size(self) -> int:
        """Bytes of the body as stored."""
        return self._body_end - self._body_start

    @property
    def is_closed(self) -> bool:
        """Whether the stored body is not what a handler is to see: it is compressed, or a batch."""
        return bool(self.sys_flag & CLOSED)

    @property
    def is_member(self) -> bool:
        """Whether it is one message of a batch that the broker stores, and knows, as one record only."""
        return bool(self.sys_flag & INNER_BATCH)

    def is_before(self, other: Message) -> bool:
        """Whether its record comes first in the same reply."""
        return self._start < other._start

    def open_as(self, body: bytes) -> None:
        """Have the body be this one in place of the stored bytes."""
        if self.block.decompressed is None:
            self.block.decompressed = {}
        self.block.decompressed[self._start] = body

    def record_parts(self) -> tuple[bytes, bytes]:
        """What the record has before the body, and the topic's name with its size in front."""
        start, length = self._topic_span()
        data = self.block.data
        return data[self._start : self._body_start], data[self._body_end : start + length]

    def has_tag(self, tags: frozenset[bytes]) -> bool:
        """Whether TAGS is one of `tags`; reads the stored bytes, so that properties need not be parsed."""
        start, end = self._properties_span()
        data = self.block.data
        if data.startswith(_TAGS_HEAD, start, end):
            at = start + len(_TAGS_HEAD)
        else:
            at = data.find(_TAGS_INNER, start, end) + len(_TAGS_INNER)
            if at < len(_TAGS_INNER):
                return False
        stop = data.find(b"\x02", at, end)
        return data[at : end if stop < 0 else stop] in tags

    def _int(self, at: int) -> int:
        value: int = _INT.unpack_from(self.block.data, self._start + at)[0]
        return value

    def _long(self, at: int) -> int:
        value: int = _LONG.unpack_from(self.block.data, self._start + at)[0]
        return value

    def _store_host_span(self) -> tuple[int, int]:
        size = 20 if self.sys_flag & STORE_HOST_V6 else 8
        return self._body_start - 16 - size, size

    def _topic_span(self) -> tuple[int, int]:
        data, at = self.block.data, self._body_end
        if data[self._start + 7] == MAGIC_V2 & 0xFF:
            return at + 2, _SHORT.unpack_from(data, at)[0]
        return at + 1, data[at]

    def _properties_span(self) -> tuple[int, int]:
        start, length = self._topic_span()
        at = start + length
        return at + 2, at + 2 + _SHORT.unpack_from(self.block.data, at)[0]


_TAGS_HEAD: Final = TAGS.encode() + b"\x01"
_TAGS_INNER: Final = b"\x02" + _TAGS_HEAD


def _restore(
    record: bytes,
    message_queue: MessageQueue,
    names: tuple[str, str | None],
    opened: bytes | None,
    places: tuple[int, int, int, int],
    reconsume_times: int,
) -> Message:
    """What `__reduce__` took apart: the message alone in a block of its own."""
    block = MessageBlock(record, message_queue)
    block.namespace, block.origin = names  # the queue was given without the namespace
    if opened is not None:
        block.decompressed = {0: opened}
    message = Message().placed(block, 0, *places)
    message._reconsume_times = reconsume_times  # the record does not count what was repeated in place
    return message
