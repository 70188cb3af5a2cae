"""Sends a failed message to a broker: as a retry, or as a dead letter."""

from __future__ import annotations

from typing import Final

import structlog

from rmqd.client.api.admin_requests import create_topic
from rmqd.client.api.send_requests import SEND_BACK_TIMEOUT_SECONDS, send_message, send_message_back
from rmqd.client.instance import ClientInstance
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_failures import log_fields_of
from rmqd.errors import InvalidMessageError, RmqdError
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.runtime.plain_text import escape_surrogates, traceback_of
from rmqd.wire.bodies.route_data import is_logical_broker
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import COMPRESSED, COMPRESSION_MASK
from rmqd.wire.topics import DEFAULT_TOPIC, INNER_PRODUCER_GROUP, dlq_topic, is_dlq_topic, retry_topic

RMQD_GROUP: Final = "RMQD_GROUP"
RMQD_REASON: Final = "RMQD_REASON"
RMQD_EXCEPTION: Final = "RMQD_EXCEPTION"
RMQD_LITE_TOPIC: Final = "RMQD_LITE_TOPIC"

# properties of an earlier delay or retry; with them, the broker would delay a dead letter again
_DELIVERY_PROPERTIES: Final = frozenset(
    (names.DELAY, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.WAIT, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES)
)
# properties of a batch that cannot be unpacked; brokers refuse them in topics that are not for batches
_BATCH_PROPERTIES: Final = frozenset((names.INNER_NUM, names.INNER_BASE))
# these properties name light message queues, such as lite topics; a broker would add the dead letter to these queues,
# and so deliver it to the group again
_LIGHT_QUEUE_PROPERTIES: Final = frozenset(
    (names.INNER_MULTI_DISPATCH, names.INNER_MULTI_QUEUE_OFFSET, names.LITE_TOPIC)
)
# with this property, a broker would treat the copy as the half message of a new transaction, which is never committed;
# Java's DefaultMQPushConsumerImpl.sendMessageBack clears the property too
_TRANSACTION_PROPERTIES: Final = frozenset((names.TRANSACTION_PREPARED,))
# the reason of an earlier dead letter, which is not valid for a new one
_REASON_PROPERTIES: Final = frozenset((RMQD_GROUP, RMQD_REASON, RMQD_EXCEPTION))
_LEFT_OUT: Final = (
    _DELIVERY_PROPERTIES | _BATCH_PROPERTIES | _LIGHT_QUEUE_PROPERTIES | _TRANSACTION_PROPERTIES | _REASON_PROPERTIES
)
_TIMER_PREFIX: Final = "TIMER_"
_QUEUES: Final = 1  # queues of a retry or dead-letter topic; brokers create one queue, too
_ANY_QUEUE: Final = -1


def copied_properties(message: Message, origin_topic: str) -> dict[str, str]:
    """Return the properties of a message's copy in another topic, including the original topic and message id."""
    stored = message.stored_properties
    kept = {
        name: escape_property_value(value)  # a value that was stored with a separator cannot be sent with it
        for name, value in stored.items()
        if name not in _LEFT_OUT and not name.startswith(_TIMER_PREFIX)
    }
    origin = stored.get(names.ORIGIN_MESSAGE_ID) or message.stored_id
    return kept | {names.RETRY_TOPIC: origin_topic, names.ORIGIN_MESSAGE_ID: origin}


def header_of_copy(
    message: Message,
    topic: str,
    properties: dict[str, str],
    *,
    broker_name: str,
    reconsume_times: int,
    max_reconsume_times: int,
    unit_mode: bool,
) -> SendMessageRequestHeaderV2:
    """Return the header of the request that stores a copy of a message in another topic, with its body as stored.

    If `topic` is a retry topic, a broker dead-letters the copy once `reconsume_times` exceeds `max_reconsume_times`.
    Raises InvalidMessageError if the properties cannot be sent.
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


def escape_property_value(text: str) -> str:
    """Return the text as a valid property value: without the two separators, and with lone surrogates escaped."""
    return escape_surrogates(text.replace(names.KEY_END, " ").replace(names.ENTRY_END, " "))


log = structlog.get_logger(__name__)

CONCURRENT_MAX_RECONSUME_TIMES: Final = 16  # Java's meaning of -1 in a concurrent group
ORDERLY_MAX_RECONSUME_TIMES: Final = 2**31 - 1  # Java: Integer.MAX_VALUE
FIRST_DELAY_LEVEL: Final = 3  # the broker adds the number of attempts to this level
DELAY_LEVEL_SECONDS: Final[tuple[float, ...]] = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
LAST_DELAY_LEVEL: Final = len(DELAY_LEVEL_SECONDS)
MAX_REFUSED_MESSAGES: Final = 1000  # refused messages that are remembered for reports
NO_RECONSUME_LIMIT: Final = -1

_BROKERS_PROPERTIES_BYTES: Final = 512  # room for two property names of ours, and for properties that the broker adds


def reconsume_limit(options: ConsumerOptions) -> int:
    """Return how often a failed message is retried before it is dead-lettered."""
    if options.max_reconsume_times != -1:
        return options.max_reconsume_times
    return ORDERLY_MAX_RECONSUME_TIMES if options.retries_in_place else CONCURRENT_MAX_RECONSUME_TIMES


class SendBack:
    """Sends one group's retries and dead letters. Each method returns whether a broker accepted the message.

    A retry is a send-back (CONSUMER_SEND_MSG_BACK): the broker copies the message from its own log to the group's retry
    topic. If the broker cannot do that or refuses, the message is sent to the retry topic as a new message.

    A dead letter is sent as a new message, so that it can carry the reason. If the DLQ topic does not exist and the
    broker does not create it (autoCreateTopicEnable=false), rmqd creates it and sends again. If the broker
    refuses the message anyway, rmqd uses send-back; the broker then creates the topic itself.
    """

    limit = "max_reconsume_times reached"

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._client = client
        self._group = group
        self._max = max_reconsume_times
        self.refused: dict[Message, tuple[int, str]] = {}  # refused messages: number of refusals, last reason
        self._refusal = ""

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Return whether the message is dead-lettered if this attempt fails. N reconsume times are N + 1 attempts."""
        return message.reconsume_times - not_counted >= self._max

    def delay_level(self, message: Message, asked: int) -> int:
        """Return a retry's delay level: the requested level (`asked`); for 0, the level that the broker will choose."""
        return min(asked or FIRST_DELAY_LEVEL + message.reconsume_times, LAST_DELAY_LEVEL)

    def delay_seconds(self, message: Message, level: int) -> float:
        """Return the delay that RocketMQ's default messageDelayLevel has for a level."""
        return DELAY_LEVEL_SECONDS[max(level, 1) - 1]  # a producer may send negative reconsume times

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Retry the message by send-back; if that fails, as a new message to the group's retry topic.

        Two kinds of message cannot be sent back. If the message is stored in a batch, the broker would copy the whole
        batch. In a static topic, the broker that serves the queue may not be the broker that stores the message.
        """
        return self._noted(
            message,
            (_can_be_copied(message) and await self.send_back(message, delay_level))
            or await self._to_retry_topic(message, delay_level),
        )

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Send the message to the group's DLQ with the reason. If the broker refuses, use send-back, without reason.

        A broker would also add its copy to the light queues that the message names. So it would deliver the copy to a
        group of lite topics, again and again.
        """
        is_light = not _LIGHT_QUEUE_PROPERTIES.isdisjoint(message.stored_properties)
        sent = await self._to_dead_letters(message, reason, error) or (
            not is_light and _can_be_copied(message) and await self.send_back(message, -1)
        )
        if sent:
            log.warning("message.dead_lettered", **log_fields_of(message), reason=reason)
        return self._noted(message, sent)

    def _noted(self, message: Message, is_taken: bool) -> bool:
        times, _ = self.refused.pop(message, (0, ""))
        if not is_taken and len(self.refused) < MAX_REFUSED_MESSAGES:
            self.refused[message] = times + 1, self._refusal
        return is_taken

    async def send_back(self, message: Message, delay_level: int) -> bool:
        """Send CONSUMER_SEND_MSG_BACK: the broker copies the message from its own log."""
        if (address := self._address(message)) is None:
            return False
        try:
            await send_message_back(
                self._client.remoting,
                address,
                self._group,
                message.commit_log_offset,
                delay_level,
                broker_name=self._endpoint(message),
                origin_msg_id=message.msg_id,
                origin_topic=message.origin_topic,
                max_reconsume_times=self._max,
                unit_mode=self._client.options.unit_mode,
            )
        except RmqdError as error:
            self._refusal = str(error)
            if not error.is_reported:
                log.warning("send_back.failed", queue=str(message.message_queue), error=str(error))
            return False
        return True

    async def _to_retry_topic(self, message: Message, delay_level: int) -> bool:
        times = message.reconsume_times
        level = self.delay_level(message, delay_level)
        properties = self._origin(message) | {
            names.RECONSUME_TIME: str(times + 1),
            names.MAX_RECONSUME_TIMES: str(self._max),
            names.DELAY: str(level),
        }
        return await self._send(message, retry_topic(self._group), properties, times + 1)

    async def _to_dead_letters(self, message: Message, reason: str, error: BaseException | None) -> bool:
        properties = self._origin(message) | {RMQD_GROUP: self._group}
        room = (
            names.MAX_PROPERTIES_BYTES - _BROKERS_PROPERTIES_BYTES - len(names.format_properties(properties).encode())
        )
        properties[RMQD_REASON] = _head(escape_property_value(reason) or "the handler gave no reason", room // 2)
        if error is not None:
            room -= len(properties[RMQD_REASON].encode())
            # the end names the error
            properties[RMQD_EXCEPTION] = _tail(escape_property_value(traceback_of(error)), room)
        return await self._send(message, dlq_topic(self._group), properties, message.reconsume_times)

    def _address(self, message: Message) -> str | None:
        master = self._client.routes.master(self._endpoint(message))
        self._refusal = f"broker {message.broker_name} has no master now"
        return None if master is None else self._client.send_address(master)

    def _endpoint(self, message: Message) -> str:
        """Return the name of the broker that serves the message's queue."""
        queue = MessageQueue(message.record_topic, message.broker_name, message.queue_id)
        return self._client.routes.endpoint(queue)

    def _origin(self, message: Message) -> dict[str, str]:
        kept = copied_properties(message, message.origin_topic)
        return (
            kept if message.lite_topic is None else kept | {RMQD_LITE_TOPIC: escape_property_value(message.lite_topic)}
        )

    async def _send(self, message: Message, topic: str, properties: dict[str, str], reconsume_times: int) -> bool:
        if (address := self._address(message)) is None:
            return False
        try:
            header = header_of_copy(
                message,
                topic,
                properties,
                broker_name=self._endpoint(message),
                reconsume_times=reconsume_times,
                max_reconsume_times=self._max,
                unit_mode=self._client.options.unit_mode,
            )
            try:
                await self._send_to(address, header, message)
            except TopicNotExistError:
                if not is_dlq_topic(topic):
                    raise
                await create_topic(self._client.remoting, address, topic, 1)
                await self._send_to(address, header, message)
        except (RmqdError, InvalidMessageError) as error:
            self._refusal = str(error)
            log.warning("send_back.failed", queue=str(message.message_queue), topic=topic, error=str(error))
            return False
        return True

    async def _send_to(self, address: str, header: SendMessageRequestHeaderV2, message: Message) -> None:
        await send_message(
            self._client.remoting, address, header, message.stored_body, timeout_seconds=SEND_BACK_TIMEOUT_SECONDS
        )


class NoRetry:
    """Drops a message after its last attempt and logs it: a broadcasting group has no retry topic and no dead letters.

    In a concurrent group the first failure is the last attempt, as in Java. An orderly group retries in place first.
    """

    limit = "broadcasting groups have no retries"

    def __init__(self, options: ConsumerOptions) -> None:
        self._max = options.max_reconsume_times if options.consume_mode == "orderly" else 0
        if self._max > 0:
            self.limit = "max_reconsume_times reached"

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        return self._max != NO_RECONSUME_LIMIT and message.reconsume_times - not_counted >= self._max

    def delay_level(self, message: Message, asked: int) -> int:
        return asked  # not used, because nothing is sent back

    def delay_seconds(self, message: Message, level: int) -> float:
        return 0.0

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Drop the message, because redelivery is impossible. Callers check `is_last_attempt` first."""
        return await self.dead_letter(message, self.limit, None)

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        log.warning("message.dropped", **log_fields_of(message), reason=reason)
        return True


def _can_be_copied(message: Message) -> bool:
    """Return whether a send-back can copy this message: not from a batch, and not from a static topic."""
    return not message.is_batch_member and not is_logical_broker(message.broker_name)


def _head(text: str, most_bytes: int) -> str:
    """Return the beginning of a text, at most `most_bytes` long in UTF-8."""
    most_bytes = max(most_bytes, 0)
    return text[:most_bytes].encode()[:most_bytes].decode("utf-8", "ignore")


def _tail(text: str, most_bytes: int) -> str:
    """Return the end of a text, at most `most_bytes` long in UTF-8."""
    if most_bytes <= 0:
        return ""
    return text[-most_bytes:].encode()[-most_bytes:].decode("utf-8", "ignore")
