"""Messages as the broker stores them, decoded to lazy views.

Decoding checks a record's frame, its CRC and its compression, and keeps offsets into the pulled bytes; everything
else (topic, properties, hosts, the body's bytes) is read when a handler asks for it. Layout: `MessageDecoder.java`.

| at | size | field             |    | at | size | field                     |
|----|------|-------------------|----|----|------|---------------------------|
| 0  | 4    | total size        |    | 40 | 8    | born timestamp (ms)       |
| 4  | 4    | magic (V1, V2)    |    | 48 | 8/20 | born host                 |
| 8  | 4    | body CRC          |    | +0 | 8    | store timestamp (ms)      |
| 12 | 4    | queue id          |    | +8 | 8/20 | store host                |
| 16 | 4    | flag              |    | +0 | 4    | reconsume times           |
| 20 | 8    | queue offset      |    | +4 | 8    | prepared transaction off. |
| 28 | 8    | commit log offset |    | +12| 4    | body length, then body    |
| 36 | 4    | sys flag          |    |    |      | topic, properties         |
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final
from zlib import crc32

from rmqd.errors import ProtocolError
from rmqd.wire.compression import decompress
from rmqd.wire.message_id import format_host, offset_message_id
from rmqd.wire.properties import KEYS, RETRY_TOPIC, TAGS, UNIQ_KEY, parse_properties
from rmqd.wire.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rmqd.wire.topics import RETRY_PREFIX, is_retry_topic, topic_of_retry, unwrap_namespace

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # the topic's length takes two bytes

# total size, magic, CRC, queue offset, sys flag, store timestamp and body length, where both hosts are IPv4
_unpack_ipv4 = Struct(">III8xq8xi16xq20xI").unpack_from
_UNSIGNED = Struct(">I")
_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">H")
# a reply of a few hundred kilobytes may decompress to gigabytes: past this its bodies are decompressed when asked for
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker; ordered as RocketMQ orders queues for allocation."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    def without(self, namespace: str) -> MessageQueue:
        """The queue as handlers know it."""
        if not namespace:
            return self
        return MessageQueue(unwrap_namespace(self.topic, namespace), self.broker_name, self.queue_id)


@dataclass(frozen=True, slots=True)
class CorruptMessage:
    """A record whose frame holds but whose body cannot be trusted; `message` gives what is known of it."""

    message: Message
    reason: str


class MessageBlock:
    """What one reply brought: its bytes, which every message views, and the messages in queue order.

    In a `namespace`, `message_queue` is the queue without it, and so are the topics of messages.
    """

    __slots__ = (
        "corrupt", "cursor", "data", "decompressed", "message_queue", "messages", "namespace", "origin",
        "size_bytes", "unfinished",
    )  # fmt: skip

    def __init__(self, data: bytes, message_queue: MessageQueue, namespace: str = "") -> None:
        self.data = data
        self.namespace = namespace
        self.message_queue = message_queue.without(namespace)
        self.origin: str | None = None  # the topic whose messages a pop retry topic holds, for what it holds
        self.messages: list[Message] = []
        self.corrupt: list[CorruptMessage] = []
        # bodies by where their records start; None for one that is too much to hold, and decompressed when asked for
        self.decompressed: dict[int, bytes | None] | None = None
        self.size_bytes = len(data)  # memory that the block keeps alive: the reply, and what was decompressed from it
        # the consumer's bookkeeping: messages not finished, and an index that all before are finished
        self.unfinished = 0
        self.cursor = 0


class Message:
    """A RocketMQ message. Read-only; fields carry RocketMQ's names, times are milliseconds since 1970."""

    __slots__ = (
        "_body_end",
        "_body_start",
        "_properties",  # parsed when first asked for
        "_reconsume_times",  # set once the group itself repeated the message
        "_start",
        "block",
        "finished",
        "queue_offset",
        "store_timestamp",
    )

    _properties: dict[str, str]
    _reconsume_times: int

    def __init__(
        self, block: MessageBlock, start: int, body_start: int, body_end: int, queue_offset: int, store_timestamp: int
    ) -> None:
        self.block = block
        self._start = start
        self._body_start = body_start
        self._body_end = body_end
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp
        self.finished = False  # the consumer's mark, not for handlers

    def __repr__(self) -> str:
        return f"<Message {self.msg_id} {self.message_queue} offset {self.queue_offset}>"

    def __reduce__(self) -> tuple[object, ...]:
        record = self.block.data[self._start : self._start + self.store_size]
        return _restore, (record, self.message_queue, self.block.namespace)

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it was pulled from: of the retry topic for a retried message."""
        return self.block.message_queue

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        bodies = self.block.decompressed
        if bodies is not None and self._start in bodies:
            body = bodies[self._start]
            return decompress(self.stored_body, self.sys_flag) if body is None else body
        return self.block.data[self._body_start : self._body_end]

    @property
    def properties(self) -> dict[str, str]:
        """System and user properties."""
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
        return topic_of_retry(topic, self.properties.get(RETRY_TOPIC), origin) if is_retry_topic(topic) else topic

    @property
    def record_topic(self) -> str:
        """The topic that the broker stores the message under."""
        start, length = self._topic_span()
        return self.block.data[start : start + length].decode("utf-8", "replace")

    @property
    def keys(self) -> str | None:
        """RocketMQ's one string of keys, separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.properties.get(TAGS)

    @property
    def msg_id(self) -> str:
        """The producer's unique id, or where there is none the offset id."""
        return self.properties.get(UNIQ_KEY) or self.offset_msg_id

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


_NO_QUEUE: Final = MessageQueue("", "", -1)
_TAGS_HEAD: Final = TAGS.encode() + b"\x01"
_TAGS_INNER: Final = b"\x02" + _TAGS_HEAD


def decode_messages(data: bytes, message_queue: MessageQueue, start: int = 0, namespace: str = "") -> MessageBlock:
    """Decode the records that fill `data` from `start` on, all of `message_queue`.

    Raises ProtocolError where the records' framing is broken; a record that is framed well but fails its CRC or its
    decompression is set aside in `MessageBlock.corrupt`.
    """
    block = MessageBlock(data, message_queue, namespace)
    add, view, size = block.messages.append, memoryview(data), len(data)
    try:
        while start < size:
            total, magic, crc, queue_offset, sys_flag, store_timestamp, body_size = _unpack_ipv4(data, start)
            body_start = start + 88
            if sys_flag & _HOSTS_V6:
                body_start, store_timestamp, body_size = _long_hosts(data, start, sys_flag)
            body_end = body_start + body_size
            properties = body_end + 1 + data[body_end]
            if magic != MAGIC_V1:
                properties = _properties_v2(data, body_end, magic)
            end = properties + 2 + (data[properties] << 8 | data[properties + 1])
            if end - start != total:
                raise ProtocolError(f"a message announces {total} bytes; its parts take {end - start}")
            message = Message(block, start, body_start, body_end, queue_offset, store_timestamp)
            if (crc32(view[body_start:body_end]) ^ crc) & 0x7FFFFFFF:
                block.corrupt.append(CorruptMessage(message, "the CRC of its body does not match"))
            elif sys_flag & COMPRESSED and (reason := _decompress(block, message, sys_flag)):
                block.corrupt.append(CorruptMessage(message, reason))
            else:
                add(message)
            start = end
    except (IndexError, StructError) as error:
        raise ProtocolError(f"a message is cut short: {size - start} bytes are left for it") from error
    if start != size:
        raise ProtocolError(f"the last message goes {start - size} bytes past the reply's end")
    block.unfinished = len(block.messages)
    return block


def stored_properties(record: bytes) -> dict[str, str]:
    """The properties of one record, which is not checked: for a broker's filter over what the broker itself stored."""
    sys_flag, _, body_size = _unpack_ipv4(record)[-3:]
    body_start = 88
    if sys_flag & _HOSTS_V6:
        body_start, _, body_size = _long_hosts(record, 0, sys_flag)
    block = MessageBlock(record, _NO_QUEUE)
    return Message(block, 0, body_start, body_start + body_size, 0, 0).properties


def _decompress(block: MessageBlock, message: Message, sys_flag: int) -> str | None:
    """Decompress at once, so that a body that cannot be is found before a handler has the message."""
    try:
        body = decompress(message.stored_body, sys_flag)
    except ProtocolError as error:
        return str(error)
    if block.decompressed is None:
        block.decompressed = {}
    hold = not block.decompressed or block.size_bytes + len(body) <= MAX_HELD_BYTES
    block.decompressed[message._start] = body if hold else None
    block.size_bytes += len(body) if hold else 0
    return None


def _long_hosts(data: bytes, start: int, sys_flag: int) -> tuple[int, int, int]:
    """(where the body starts, store timestamp, body size) of a record with an IPv6 host."""
    born = 20 if sys_flag & BORN_HOST_V6 else 8
    body_start = start + 72 + born + (20 if sys_flag & STORE_HOST_V6 else 8)
    store_timestamp = _LONG.unpack_from(data, start + 48 + born)[0]
    return body_start, store_timestamp, _UNSIGNED.unpack_from(data, body_start - 4)[0]


def _properties_v2(data: bytes, body_end: int, magic: int) -> int:
    """Where the properties of a record with a two byte topic length are."""
    if magic != MAGIC_V2:
        raise ProtocolError(f"a message starts with the magic 0x{magic:08X}, which is none that RocketMQ writes")
    length: int = _SHORT.unpack_from(data, body_end)[0]
    return body_end + 2 + length


def _restore(record: bytes, message_queue: MessageQueue, namespace: str) -> Message:
    return decode_messages(record, message_queue, namespace=namespace).messages[0]
