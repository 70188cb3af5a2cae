"""Messages as handlers see them, and the block that keeps the bytes of all messages of one response.

`rmqd.wire.messages.decode` creates both. A message copies bytes from the response only on access. The records of
`Message.once` are written by a room above, because this room does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from struct import Struct
from typing import Any, Protocol, Self

from rmqd.wire.message_queue import Identity, MessageQueue
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
    """A record that cannot be trusted. `message` has its known fields."""

    message: Message
    reason: str
    hides_rest: bool = False  # the record's end is unknown as well, so it takes the rest of the response


class MessageBlock:
    """The bytes of one response, shared by all its messages, and these messages in queue order.

    In a `namespace`, `message_queue` and the topics of messages are without it.
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
        self.origin: str | None = None  # for a pop retry topic: the topic whose messages it holds
        self.messages: list[Message] = []
        self.corrupt: list[CorruptMessage] = []
        self.broken: str | None = None  # why the first undecodable record cannot be decoded
        self.runs = 0  # runs of queue offsets without a gap, over all decodable records
        self.is_closed = False  # some messages are compressed, or batches, and not opened yet
        self.cut_at: int | None = None  # the offset of the first message without room to be opened
        self.decompressed: dict[int, bytes] | None = None  # bodies by the start of their records
        self.size_bytes = len(data)  # memory that the block keeps alive: the response and the decompressed bodies
        # for the consumer: the number of unfinished messages, an index before which all are finished, and the number of
        # the queue's messages before this block
        self.unfinished = 0
        self.put_before = 0
        self.cursor = 0

    def of(self, left: list[Message]) -> MessageBlock:
        """Return a new block for messages that had no room when this block was opened."""
        block = MessageBlock(self.data, self.message_queue)
        block.namespace = self.namespace  # the queue is already without the namespace
        block.messages, block.is_closed, block.unfinished = left, True, len(left)
        for message in left:
            message.block = block
        return block


class Message(Record):
    """A RocketMQ message. Read-only; the fields have RocketMQ's names, and times are milliseconds since 1970."""

    __slots__ = (
        "_handed_properties",  # copied when a handler first asks for them
        "_properties",  # parsed when first asked for
        "_reconsume_times",  # set after the group itself has retried the message
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
        """Set the message's position in the block's bytes, and return the message.

        This is not `__init__`, because decoding creates millions of messages and sets these fields itself. A call for
        each message would take as long as setting all of them.
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
        """Whether the consumer has yet to finish the message. Not for handlers."""
        return not self.finished and bool(self.block.messages)

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that the message was pulled from; for a retried message a queue of the retry topic."""
        return self.block.message_queue

    @property
    def body(self) -> bytes:
        bodies = self.block.decompressed
        if bodies is not None and self._start in bodies:
            return bodies[self._start]
        return self.block.data[self._body_start : self._body_end]

    @property
    def properties(self) -> dict[str, str]:
        """System and user properties, in a copy for handlers. Changes to the copy are invisible to others."""
        try:
            properties: dict[str, str] = self._handed_properties
        except AttributeError:
            properties = self._handed_properties = self.stored_properties.copy()
        return properties

    @property
    def own_properties(self) -> dict[str, str]:
        """The properties that the producer set, with KEYS, TAGS and the sharding key, without RocketMQ's own."""
        return {name: value for name, value in self.stored_properties.items() if name not in SET_BY_ROCKETMQ}

    @property
    def stored_properties(self) -> dict[str, str]:
        """The properties as the broker stores them. Not for handlers: do not change them."""
        try:
            properties: dict[str, str] = self._properties
        except AttributeError:  # the first access fills the slot: most handlers need only the body
            start, end = self._properties_span()
            properties = self._properties = parse_properties(self.block.data[start:end].decode("utf-8", "replace"))
        return properties

    @property
    def topic(self) -> str:
        """The topic; for a retried message the topic that it was first sent to."""
        namespace, topic = self.block.namespace, self.record_topic
        is_plain = not namespace and not topic.startswith(RETRY_PREFIX)
        return topic if is_plain else unwrap_namespace(self.origin_topic, namespace)

    @property
    def origin_topic(self) -> str:
        """`topic` as brokers know it, with the group's namespace if it has one."""
        topic, origin = self.record_topic, self.block.origin
        if not is_retry_topic(topic):
            return topic
        return topic_of_retry(topic, self.stored_properties.get(RETRY_TOPIC), origin)

    @property
    def keys(self) -> str | None:
        """All keys in one string, separated by spaces."""
        return self.stored_properties.get(KEYS)

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.stored_properties.get(TAGS)

    @property
    def msg_id(self) -> str:
        """The producer's unique id; if the message has none, its offset id."""
        return self.stored_properties.get(UNIQ_KEY) or self.stored_id

    @property
    def stored_id(self) -> str:
        """The offset id. For a member of a batch stored as one record, the record's offset id and the queue offset."""
        return f"{self.offset_msg_id}-{self.queue_offset}" if self.is_member else self.offset_msg_id

    @property
    def id_of_all_copies(self) -> str:
        """The id that is the same in every copy of the message: `msg_id`, or the first copy's offset id without one.

        Copies in a group's retry topic have their own offset id, and also name that of the first copy.
        """
        properties = self.stored_properties
        return properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or self.stored_id

    def once(self, connection: object) -> Once:
        """Apply a block's effects only once: `async with message.once(connection):`; `with` in synchronous handlers.

        The record of this message is written in the connection's transaction, together with the block's effects. Raises
        `rmqd.AlreadyHandled` if the group's record exists already, TypeError if the connection is not one of psycopg or
        SQLAlchemy, and RuntimeError outside a group's handler.
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
        return identity_of_running_group().of_topic(self.topic, self.lite_topic)

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction that committed the message; None if it was sent without a transaction.

        Java: `PullAPIWrapper.processPullResult`, which omits it for popped messages.
        """
        properties = self.stored_properties
        return properties.get(UNIQ_KEY) if properties.get(TRANSACTION_PREPARED, "").lower() == "true" else None

    @property
    def lite_topic(self) -> str | None:
        """The lite topic below `topic` that the message was sent to; None for messages of other topics."""
        return self.stored_properties.get(LITE_TOPIC)

    @property
    def queue_id(self) -> int:
        """The id of the queue that the message was pulled from."""
        return self.block.message_queue.queue_id

    @property
    def broker_name(self) -> str:
        """The name of the broker that the message was pulled from."""
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
        """How often the message was delivered before: after a send-back, or retried in place by an orderly group."""
        try:
            times: int = self._reconsume_times
        except AttributeError:
            times = _INT.unpack_from(self.block.data, self._body_start - 16)[0]
        return times

    def count_attempt(self) -> None:
        """Count one more delivery within this process."""
        self._reconsume_times = self.reconsume_times + 1

    def subtract_attempts(self, number: int) -> None:
        """Subtract deliveries that `count_attempt` counted and that do not count after all."""
        self._reconsume_times = max(0, self.reconsume_times - number)

    def set_popped_offset(self, queue_offset: int, tries: int) -> None:
        """Set offset and number of pops in a lite topic, because the record has the numbers of the parent topic."""
        self.queue_offset, self._reconsume_times = queue_offset, tries

    def set_opened_body(self, body: bytes) -> None:
        """Show this body instead of the stored bytes."""
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
    """Unpickle a message into a new block."""
    block = MessageBlock(record, message_queue)
    block.namespace, block.origin = names  # the queue was pickled without the namespace
    block.min_offset, block.max_offset = ends
    if opened is not None:
        block.decompressed = {0: opened}
    message = Message().placed(block, 0, *places)
    message._reconsume_times = reconsume_times  # the record does not count retries in place
    return message


class Once(Protocol):
    """A block that takes effect once, for synchronous and asynchronous handlers."""

    def __enter__(self) -> None: ...
    def __exit__(self, *raised: Any) -> None: ...
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *raised: Any) -> None: ...


class OnceInGroup(Protocol):
    """The group that a handler runs in. A call creates the block for a message and a connection."""

    @property
    def identity(self) -> Identity: ...
    def __call__(self, message: Any, connection: object, /) -> Once: ...


once_in_group: ContextVar[OnceInGroup] = ContextVar("once_in_group")
"""Set while a group's handler runs."""


def identity_of_running_group() -> Identity:
    """Return the group whose handler runs here; with empty names if none does, as in a test of a handler."""
    running = once_in_group.get(None)
    return Identity("", "", "") if running is None else running.identity
