"""What a copy of a message keeps that is sent to another topic: to the group's retry topic, or to its dead letters."""

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

# what made the broker hold the message back the last time; a dead letter that kept it would be held back again
_DELIVERY_PROPERTIES: Final = frozenset(
    (names.DELAY, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.WAIT, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES)
)
# of a batch that cannot be unwrapped; brokers refuse them in topics that hold no batches
_BATCH_PROPERTIES: Final = frozenset((names.INNER_NUM, names.INNER_BASE))
# brokers would enter the dead letter into the light message queues that it names, a lite topic's too, for the group to
# get it again
_LIGHT_QUEUE_PROPERTIES: Final = frozenset(
    (names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET, names.LITE_TOPIC)
)
# a broker takes a copy with it for the half message of a new transaction, and no producer ever commits it. Java's
# DefaultMQPushConsumerImpl.sendMessageBack clears it too
_TRANSACTION_PROPERTIES: Final = frozenset((names.TRANSACTION_PREPARED,))
# why it was dead-lettered before: true of that dead letter alone
_REASON_PROPERTIES: Final = frozenset((RMQD_GROUP, RMQD_REASON, RMQD_EXCEPTION))
_LEFT_OUT: Final = (
    _DELIVERY_PROPERTIES | _BATCH_PROPERTIES | _LIGHT_QUEUE_PROPERTIES | _TRANSACTION_PROPERTIES | _REASON_PROPERTIES
)
_TIMER_PREFIX: Final = "TIMER_"
_QUEUES: Final = 1  # as the broker makes such topics itself
_ANY_QUEUE: Final = -1


def kept_properties(message: Message, origin_topic: str) -> dict[str, str]:
    """The properties that a copy keeps, and those that say where the message was first sent and stored."""
    stored = message.stored_properties
    kept = {
        name: plain(value)  # one that was stored with a separator in it cannot be sent so
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
    """The request that stores a message once more, in another topic; its body goes as it is stored, compressed or not.

    A broker dead-letters what it is sent for a retry topic with more `reconsume_times` than `max_reconsume_times`.
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
    """Text as a property's value: without the two characters that separate properties, and such as UTF-8 can carry."""
    return encodable(text.replace(names.KEY_END, " ").replace(names.ENTRY_END, " "))
