"""Copies of a message for another topic: the group's retry topic or its DLQ."""

from __future__ import annotations

from typing import Final

from rmqd.plain_text import encodable
from rmqd.wire.headers.send import SendMessageRequestHeaderV2
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.sys_flag import COMPRESSED, COMPRESSION_MASK
from rmqd.wire.topics import DEFAULT_TOPIC, INNER_PRODUCER_GROUP

RMQD_GROUP: Final = "RMQD_GROUP"
RMQD_REASON: Final = "RMQD_REASON"
RMQD_EXCEPTION: Final = "RMQD_EXCEPTION"
RMQD_LITE_TOPIC: Final = "RMQD_LITE_TOPIC"

# properties of an earlier delay; with them, the broker would delay a dead letter again
_DELIVERY_PROPERTIES: Final = frozenset(
    (names.DELAY, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.WAIT, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES)
)
# properties of a batch that cannot be unpacked; brokers refuse them in topics that are not for batches
_BATCH_PROPERTIES: Final = frozenset((names.INNER_NUM, names.INNER_BASE))
# brokers would add the dead letter to the light message queues that these properties name, lite topics included, and so
# deliver it to the group again
_LIGHT_QUEUE_PROPERTIES: Final = frozenset(
    (names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET, names.LITE_TOPIC)
)
# with it, a broker would treat the copy as the half message of a new transaction, which is never committed; Java's
# DefaultMQPushConsumerImpl.sendMessageBack clears it too
_TRANSACTION_PROPERTIES: Final = frozenset((names.TRANSACTION_PREPARED,))
# the reason of an earlier dead letter, which is not valid for a new one
_REASON_PROPERTIES: Final = frozenset((RMQD_GROUP, RMQD_REASON, RMQD_EXCEPTION))
_LEFT_OUT: Final = (
    _DELIVERY_PROPERTIES | _BATCH_PROPERTIES | _LIGHT_QUEUE_PROPERTIES | _TRANSACTION_PROPERTIES | _REASON_PROPERTIES
)
_TIMER_PREFIX: Final = "TIMER_"
_QUEUES: Final = 1  # the broker also creates such topics with one queue
_ANY_QUEUE: Final = -1


def kept_properties(message: Message, origin_topic: str) -> dict[str, str]:
    """Return the properties that a copy keeps, together with the original topic and message id."""
    stored = message.stored_properties
    kept = {
        name: plain(value)  # a value that was stored with a separator cannot be sent with it
        for name, value in stored.items()
        if name not in _LEFT_OUT and not name.startswith(_TIMER_PREFIX)
    }
    origin = stored.get(names.ORIGIN_MESSAGE_ID) or message.stored_id
    return kept | {names.RETRY_TOPIC: origin_topic, names.ORIGIN_MESSAGE_ID: origin}


def copy_header(
    message: Message,
    topic: str,
    properties: dict[str, str],
    *,
    broker_name: str,
    reconsume_times: int,
    max_reconsume_times: int,
    unit_mode: bool,
) -> SendMessageRequestHeaderV2:
    """Return the request that stores a copy of a message in another topic, with the body as stored, compressed or not.

    A broker dead-letters a message for a retry topic if `reconsume_times` exceeds `max_reconsume_times`.
    Raises InvalidMessageError.
    """
    return SendMessageRequestHeaderV2(
        producer_group=INNER_PRODUCER_GROUP,
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=_QUEUES,
        queue_id=_ANY_QUEUE,
        sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=names.format_properties(properties),
        reconsume_times=reconsume_times,
        unit_mode=unit_mode,
        max_reconsume_times=max_reconsume_times,
        batch=False,
        broker_name=broker_name,
    )


def plain(text: str) -> str:
    """Return text that is valid as a property's value: without the two separators, and encodable as UTF-8."""
    return encodable(text.replace(names.KEY_END, " ").replace(names.ENTRY_END, " "))
