"""Messages as handlers see them, and the block that keeps the bytes of all messages of one response.

`rmqd.wire.messages.decode` creates both. A message copies bytes from the response only when a field is read. The module
does no I/O: for `Message.once`, the code that runs handlers sets `once_in_group`, which writes to the database.
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
from rmqd.wire.topics import RETRY_PREFIX, is_retry_topic, original_topic, unwrap_namespace

_INT = Struct(">i")

consume_start: ContextVar[Callable[[Message], int | None]] = ContextVar("consume_start", default=lambda _: None)
"""A function that returns when the handler call with a message began (milliseconds since 1970), or None. The code that
calls handlers sets this variable. So the time is not written into every message, because few handlers read it."""


@dataclass(frozen=True, slots=True)
class CorruptMessage:
    """A record that is damaged or cannot be decoded. `message` has the fields that could be read."""

    message: Message
    reason: str
    hides_rest: bool = False  # the record's end is unknown, so all later bytes of the response count as part of it


class MessageBlock:
    """The bytes of one response, and the messages in it, in queue order. All the messages share the bytes.

    `namespace` is the group's namespace. `message_queue` and the messages' topics do not contain it.
    """

    __slots__ = (
        "broken_reason",
        "corrupt",
        "cursor",
        "data",
        "decompressed",
        "earlier_message_count",
        "first_unopened_offset",
        "is_closed",
        "max_offset",
        "message_queue",
        "messages",
        "min_offset",
        "namespace",
        "origin",
        "runs",
        "size_bytes",
        "unfinished",
    )  # fmt: skip

    def __init__(self, data: bytes, message_queue: MessageQueue, namespace: str = "") -> None:
        self.data = data
        self.namespace = namespace
        self.message_queue = message_queue.without(namespace)
        self.min_offset: int | None = None  # ends of the queue when the broker responded; None if not pulled
        self.max_offset: int | None = None
        self.origin: str | None = None  # if popped from a pop retry topic: the original topic of its messages
        self.messages: list[Message] = []
        self.corrupt: list[CorruptMessage] = []
        self.broken_reason: str | None = None  # the reason why a record (the first such record) cannot be decoded
        self.runs = 0  # number of runs of consecutive queue offsets among the decodable records
        self.is_closed = False  # some bodies must still be decompressed, or split as batches
        # offset of the first message whose body did not fit into the memory limit
        self.first_unopened_offset: int | None = None
        self.decompressed: dict[int, bytes] | None = None  # decompressed bodies, by start of the record in `data`
        self.size_bytes = len(data)  # memory that the block keeps alive: the response and the decompressed bodies
        # The consumer uses these three: the number of unfinished messages, the number of messages that were added to
        # the queue before this block, and the index before which all messages are finished.
        self.unfinished = 0
        self.earlier_message_count = 0
        self.cursor = 0

    def of(self, left: list[Message]) -> MessageBlock:
        """Return a new block, over the same bytes, for messages that exceeded this block's memory limit."""
        block = MessageBlock(self.data, self.message_queue)
        block.namespace = self.namespace  # the queue is already without the namespace
        block.messages, block.is_closed, block.unfinished = left, True, len(left)
        for message in left:
            message.block = block
        return block


class Message(Record):
    """A RocketMQ message. Read-only; the fields have RocketMQ's names, and times are milliseconds since 1970."""

    __slots__ = (
        "_handed_properties",  # the copy for handlers, made at the first access
        "_properties",  # parsed at the first access
        "_reconsume_times",  # set when the value differs from the record's, as after a retry in place
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

    def set_position(
        self, block: MessageBlock, start: int, body_start: int, body_end: int, queue_offset: int, store_timestamp: int
    ) -> Self:
        """Set the message's position in the block's bytes, and return the message.

        `__init__` does not do this, because the decoder creates millions of messages and sets the fields inline. A call
        of `__init__` for each message would take as long as setting all fields.
        """
        self.block = block
        self._start = start
        self._body_start = body_start
        self._body_end = body_end
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp
        self.finished = False  # set by the consumer; not part of the handlers' API
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
        """Whether the message is in the consumer's cache and not finished. Not for handlers."""
        return not self.finished and bool(self.block.messages)

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that the message was pulled from. For a retried message, this is a queue of the retry topic."""
        return self.block.message_queue

    @property
    def body(self) -> bytes:
        bodies = self.block.decompressed
        if bodies is not None and self._start in bodies:
            return bodies[self._start]
        return self.block.data[self._body_start : self._body_end]

    @property
    def properties(self) -> dict[str, str]:
        """A copy of the system and user properties. A handler's changes to it do not affect rmqd."""
        try:
            properties: dict[str, str] = self._handed_properties
        except AttributeError:
            properties = self._handed_properties = self.stored_properties.copy()
        return properties

    @property
    def own_properties(self) -> dict[str, str]:
        """The properties that the producer set, including KEYS, TAGS and the sharding key (see `SET_BY_ROCKETMQ`)."""
        return {name: value for name, value in self.stored_properties.items() if name not in SET_BY_ROCKETMQ}

    @property
    def stored_properties(self) -> dict[str, str]:
        """The properties as the broker stores them, not copied. Callers must not change them; handlers get a copy."""
        try:
            properties: dict[str, str] = self._properties
        except AttributeError:  # parsed only at the first access, because most handlers need only the body
            start, end = self._properties_span()
            properties = self._properties = parse_properties(self.block.data[start:end].decode("utf-8", "replace"))
        return properties

    @property
    def topic(self) -> str:
        """The topic without the namespace. For a retried message, this is the topic that it was first sent to."""
        namespace, topic = self.block.namespace, self.record_topic
        is_plain = not namespace and not topic.startswith(RETRY_PREFIX)
        return topic if is_plain else unwrap_namespace(self.origin_topic, namespace)

    @property
    def origin_topic(self) -> str:
        """The same topic as `topic`, but as brokers know it: with the group's namespace, if there is one."""
        topic, origin = self.record_topic, self.block.origin
        if not is_retry_topic(topic):
            return topic
        return original_topic(topic, self.stored_properties.get(RETRY_TOPIC), origin)

    @property
    def keys(self) -> str | None:
        """All keys in one string, separated by spaces; None if the message has no keys."""
        return self.stored_properties.get(KEYS)

    @property
    def tags(self) -> str | None:
        """The message's tag; None if it has no tag."""
        return self.stored_properties.get(TAGS)

    @property
    def msg_id(self) -> str:
        """The unique id that the producer gave the message, or the offset id if there is none."""
        return self.stored_properties.get(UNIQ_KEY) or self.stored_id

    @property
    def stored_id(self) -> str:
        """The offset id. All messages of a batch in one record share it, so their queue offset is appended."""
        return f"{self.offset_msg_id}-{self.queue_offset}" if self.is_batch_member else self.offset_msg_id

    @property
    def first_copy_id(self) -> str:
        """The id that is equal in all copies of the message: the producer's id, or else the first copy's offset id.

        A copy in a retry topic has a different offset id, and the first copy's id in the property ORIGIN_MESSAGE_ID.
        """
        properties = self.stored_properties
        return properties.get(UNIQ_KEY) or properties.get(ORIGIN_MESSAGE_ID) or self.stored_id

    def once(self, connection: object) -> Once:
        """Apply the effects of a `with` block once per message: `async with message.once(connection):`.

        Synchronous handlers use `with`. The transaction of `connection` writes a record of the message together with
        the block's effects. Raises `rmqd.AlreadyHandled` if the group has a record of the message already, TypeError if
        `connection` is not from psycopg or SQLAlchemy, and RuntimeError outside a group's handler.
        """
        try:
            make = once_in_group.get()
        except LookupError:
            raise RuntimeError("message.once works only in a handler: no group is handling this message") from None
        return make(self, connection)

    @property
    def identity(self) -> Identity:
        """The message's cluster, namespace, group, topic and lite topic. `str()` of it is a key for stores.

        Cluster, namespace and group are empty if no group's handler is running.
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
        """The lite topic below `topic` that the message was sent to; None if it was not sent to a lite topic."""
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
        """The offset of the queue's oldest message at the time of the pull; None if the message was not pulled."""
        return self.block.min_offset

    @property
    def max_offset(self) -> int | None:
        """The offset after the queue's last message at the time of the pull; None if the message was not pulled."""
        return self.block.max_offset

    @property
    def consume_start_timestamp(self) -> int | None:
        """When the current handler call with this message began, in milliseconds since 1970; None outside a call."""
        return consume_start.get()(self)

    @property
    def reconsume_times(self) -> int:
        """How often the message was delivered before this delivery; a send-back and a retry in place each count."""
        try:
            times: int = self._reconsume_times
        except AttributeError:
            times = _INT.unpack_from(self.block.data, self._body_start - 16)[0]
        return times

    def count_attempt(self) -> None:
        """Count a retry in place, which the broker does not count."""
        self._reconsume_times = self.reconsume_times + 1

    def subtract_attempts(self, number: int) -> None:
        """Undo `number` calls of `count_attempt`, for attempts that should not count."""
        self._reconsume_times = max(0, self.reconsume_times - number)

    def set_popped_offset(self, queue_offset: int, tries: int) -> None:
        """Set the offset in a lite topic and the number of earlier pops. The record has the parent topic's values."""
        self.queue_offset, self._reconsume_times = queue_offset, tries

    def set_opened_body(self, body: bytes) -> None:
        """Set the decompressed body, which `body` returns instead of the stored bytes."""
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
    message = Message().set_position(block, 0, *places)
    message._reconsume_times = reconsume_times  # the record does not count retries in place
    return message


class Once(Protocol):
    """The context manager of `Message.once`, for `with` and `async with`."""

    def __enter__(self) -> None: ...
    def __exit__(self, *raised: Any) -> None: ...
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *raised: Any) -> None: ...


class OnceInGroup(Protocol):
    """The group whose handler is running. A call returns the context manager of `Message.once`."""

    @property
    def identity(self) -> Identity: ...
    def __call__(self, message: Any, connection: object, /) -> Once: ...


once_in_group: ContextVar[OnceInGroup] = ContextVar("once_in_group")
"""The group whose handler is running. Unset outside a group's handler."""


def identity_of_running_group() -> Identity:
    """Return the identity of the group whose handler is running. Without such a group, the names in it are empty."""
    running = once_in_group.get(None)
    return Identity("", "", "") if running is None else running.identity
