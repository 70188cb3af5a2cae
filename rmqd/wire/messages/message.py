"""Messages as handlers see them, and the block that keeps the bytes of all messages of one reply.

`rmqd.wire.messages.decode` makes both. A message copies nothing out of the reply before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from struct import Struct
from typing import Self

from rmqd.wire.identity import Identity
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.once import Once, once_in_group, running_group
from rmqd.wire.messages.properties import (
    KEYS,
    LITE_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    SET_BY_ROCKETMQ,
    TAGS,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    parse_properties,
)
from rmqd.wire.messages.record import Record
from rmqd.wire.topics import RETRY_PREFIX, is_retry_topic, topic_of_retry, unwrap_namespace

_INT = Struct(">i")

consume_start: ContextVar[Callable[[Message], int | None]] = ContextVar("consume_start", default=lambda _: None)
"""Tells when the call began that has a message (Unix milliseconds). It is set where handlers are called: a message that
is never asked costs nothing, because nothing is written into it."""


@dataclass(frozen=True, slots=True)
class CorruptMessage:
    """A record that cannot be trusted; `message` gives what is known of it."""

    message: Message
    reason: str
    takes_rest: bool = False  # its end is not known either, so it takes all that is left of the reply


class MessageBlock:
    """The bytes of one reply, which all its messages read, and these messages in queue order.

    In a `namespace`, `message_queue` is the queue without it, and so are the topics of messages.
    """

    __slots__ = (
        "broken", "corrupt", "cursor", "cut_at", "data", "decompressed", "is_closed", "max_offset", "message_queue",
        "messages", "min_offset", "namespace", "origin", "put_before", "runs", "size_bytes", "unfinished",
    )  # fmt: skip

    def __init__(self, data: bytes, message_queue: MessageQueue, namespace: str = "") -> None:
        self.data = data
        self.namespace = namespace
        self.message_queue = message_queue.without(namespace)
        self.min_offset: int | None = None  # the queue's ends when the broker answered a pull
        self.max_offset: int | None = None
        self.origin: str | None = None  # of a pop retry topic: the topic whose messages it holds
        self.messages: list[Message] = []
        self.corrupt: list[CorruptMessage] = []
        self.broken: str | None = None  # the reason, where a record cannot be decoded: of the first such one
        self.runs = 0  # runs of queue offsets without a gap, over all records that can be decoded
        self.is_closed = False  # some messages are compressed, or batches, and not opened yet
        self.cut_at: int | None = None  # the offset of the first message that was left out, as there was no room
        self.decompressed: dict[int, bytes] | None = None  # bodies by where their records start
        self.size_bytes = len(data)  # memory that the block keeps alive: the reply, and what was decompressed from it
        # the consumer's bookkeeping: messages not finished, an index that all before are finished, and how many
        # messages of the queue came before this block
        self.unfinished = 0
        self.put_before = 0
        self.cursor = 0

    def of(self, left: list[Message]) -> MessageBlock:
        """Messages that were left out when this block was opened, in a block of their own that can be opened."""
        block = MessageBlock(self.data, self.message_queue)
        block.namespace = self.namespace  # the queue is without it already
        block.messages, block.is_closed, block.unfinished = left, True, len(left)
        for message in left:
            message.block = block
        return block


class Message(Record):
    """A RocketMQ message. Read-only; fields carry RocketMQ's names, times are milliseconds since 1970."""

    __slots__ = (
        "_handed_properties",  # copied when a handler first asks for them
        "_properties",  # parsed when first asked for
        "_reconsume_times",  # set once the group itself repeated the message
        "finished",
        "queue_offset",
        "store_timestamp",
    )

    _handed_properties: dict[str, str]
    _properties: dict[str, str]
    _reconsume_times: int
    block: MessageBlock
    finished: bool
    queue_offset: int
    store_timestamp: int

    def placed(
        self, block: MessageBlock, start: int, body_start: int, body_end: int, queue_offset: int, store_timestamp: int
    ) -> Self:
        """Set where a new message lies in the block's bytes, and return it.

        It is no `__init__`, because decoding makes millions of messages and sets these fields itself: a call for each
        message would take as long as setting all of them.
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
        names, ends = (block.namespace, block.origin), (block.min_offset, block.max_offset)
        return _restore, (record, block.message_queue, names, ends, opened, places, self.reconsume_times)

    @property
    def is_cached(self) -> bool:
        """Whether the consumer has yet to finish it; not for handlers."""
        return not self.finished and bool(self.block.messages)

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
    def own_properties(self) -> dict[str, str]:
        """Those that its producer gave, KEYS, TAGS and the sharding key among them: without what RocketMQ sets."""
        return {name: value for name, value in self.stored_properties.items() if name not in SET_BY_ROCKETMQ}

    @property
    def stored_properties(self) -> dict[str, str]:
        """The properties as the broker stores them. Not for handlers: they must not be changed."""
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
        """`topic` as brokers know it: with the namespace of a group that is in one."""
        topic, origin = self.record_topic, self.block.origin
        if not is_retry_topic(topic):
            return topic
        return topic_of_retry(topic, self.stored_properties.get(RETRY_TOPIC), origin)

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
        """The producer's unique id, or where there is none the id of where it is stored."""
        return self.stored_properties.get(UNIQ_KEY) or self.stored_id

    @property
    def stored_id(self) -> str:
        """The offset id; in a batch that is stored as one record, the record's offset id and the queue offset."""
        return f"{self.offset_msg_id}-{self.queue_offset}" if self.is_member else self.offset_msg_id

    @property
    def lasting_id(self) -> str:
        """As `msg_id`, and the same in every copy of the message, also where its producer gave it no id.

        Copies in a group's retry topic have an offset id of their own, and name that of the first one.
        """
        properties = self.stored_properties
        return properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or self.stored_id

    def once(self, connection: object) -> Once:
        """Have what follows happen once: `async with message.once(connection):`, or `with` in a synchronous handler.

        The mark of this message is written in the connection's transaction, with what the block writes there. Raises
        `rmqd.AlreadyHandled` where the group's mark stands already, TypeError for a connection that is none of psycopg
        or SQLAlchemy, and RuntimeError outside of a group's handler.
        """
        try:
            make = once_in_group.get()
        except LookupError:
            raise RuntimeError("message.once is for handlers: no group is handling this message here") from None
        return make(self, connection)

    @property
    def identity(self) -> Identity:
        """Names the message's cluster, namespace, group, topic and lite topic: `str()` of it is a key for stores.

        Outside of a group's handler the cluster and the group are empty.
        """
        return running_group().of_topic(self.topic, self.lite_topic)

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction that it was committed with; None of a message that was sent without one.

        Java: `PullAPIWrapper.processPullResult`, which leaves it out where the message was popped.
        """
        properties = self.stored_properties
        return properties.get(UNIQ_KEY) if properties.get(TRANSACTION_PREPARED, "").lower() == "true" else None

    @property
    def lite_topic(self) -> str | None:
        """The lite topic below `topic` that it was sent to; None of a message of any other topic."""
        return self.stored_properties.get(LITE_TOPIC)

    @property
    def queue_id(self) -> int:
        """The queue that it was pulled from."""
        return self.block.message_queue.queue_id

    @property
    def broker_name(self) -> str:
        """The broker that it was pulled from."""
        return self.block.message_queue.broker_name

    @property
    def min_offset(self) -> int | None:
        """The offset of the oldest message in the queue when this one was pulled; None if it was not pulled."""
        return self.block.min_offset

    @property
    def max_offset(self) -> int | None:
        """The offset that the queue's next message was to get when this one was pulled; None if it was not pulled."""
        return self.block.max_offset

    @property
    def consume_start_timestamp(self) -> int | None:
        """When the handler got the batch that it has now, in milliseconds since 1970; None outside of its call."""
        return consume_start.get()(self)

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before: after a send-back, or again in place by an orderly group."""
        try:
            times: int = self._reconsume_times
        except AttributeError:
            times = _INT.unpack_from(self.block.data, self._body_start - 16)[0]
        return times

    def count_attempt(self) -> None:
        """Count one more delivery inside this process."""
        self._reconsume_times = self.reconsume_times + 1

    def take_attempts_off(self, number: int) -> None:
        """Take back what was counted by `count_attempt`: those deliveries count for nothing."""
        self._reconsume_times = max(0, self.reconsume_times - number)

    def popped_as(self, queue_offset: int, tries: int) -> None:
        """Show where it lies in a lite topic, and how often it was popped there: its record tells of its parent's."""
        self.queue_offset, self._reconsume_times = queue_offset, tries

    def open_as(self, body: bytes) -> None:
        """Show this body in place of the stored bytes."""
        if self.block.decompressed is None:
            self.block.decompressed = {}
        self.block.decompressed[self._start] = body


def _restore(
    record: bytes,
    message_queue: MessageQueue,
    names: tuple[str, str | None],
    ends: tuple[int | None, int | None],
    opened: bytes | None,
    places: tuple[int, int, int, int],
    reconsume_times: int,
) -> Message:
    """Unpickle a message: it is alone in a block of its own."""
    block = MessageBlock(record, message_queue)
    block.namespace, block.origin = names  # the queue was given without the namespace
    block.min_offset, block.max_offset = ends
    if opened is not None:
        block.decompressed = {0: opened}
    message = Message().placed(block, 0, *places)
    message._reconsume_times = reconsume_times  # the record does not count what was repeated in place
    return message
