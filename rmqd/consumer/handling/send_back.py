"""Gives a message back: to be delivered again later, or to the group's dead letters."""

from __future__ import annotations

from typing import Final

import structlog

from rmqd.broker_errors import TopicNotExistError
from rmqd.client.api.admin import create_topic
from rmqd.client.api.send import send_message, send_message_back
from rmqd.client.instance import ClientInstance
from rmqd.consumer.handling.copies import (
    RMQD_EXCEPTION,
    RMQD_GROUP,
    RMQD_LITE_TOPIC,
    RMQD_REASON,
    copy_header,
    kept_properties,
    plain,
)
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import InvalidMessageError, RmqdError
from rmqd.plain_text import traceback_of
from rmqd.wire.bodies.static_topic import is_logical
from rmqd.wire.headers.send import SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import dlq_topic, is_dlq_topic, retry_topic

log = structlog.get_logger(__name__)

SEND_BACK_TIMEOUT_SECONDS: Final = 5.0  # Java: consumerSendMessageBack
CONCURRENT_MAX_RECONSUME_TIMES: Final = 16  # Java: what -1 means in a concurrent group
ORDERLY_MAX_RECONSUME_TIMES: Final = 2**31 - 1  # Java: Integer.MAX_VALUE
FIRST_DELAY_LEVEL: Final = 3  # the broker's choice is 3 + reconsume times
LAST_DELAY_LEVEL: Final = 18
MOST_REFUSED: Final = 1000  # messages whose refusal is remembered, to be reported

_BROKERS_PROPERTIES_BYTES: Final = 512  # room for our two names, and for what the broker adds: region, cluster, trace


def reconsume_limit(options: ConsumerOptions) -> int:
    """How often a failed message is tried again before it is given up."""
    if options.max_reconsume_times != -1:
        return options.max_reconsume_times
    return ORDERLY_MAX_RECONSUME_TIMES if options.repeats_in_place else CONCURRENT_MAX_RECONSUME_TIMES


class SendBack:
    """The ways in which one group gives a message back. Each returns whether a broker took it, also where one refuses.

    A retry may go two ways. By send-back (CONSUMER_SEND_MSG_BACK) the broker copies the message out of its own log into
    the group's retry topic. Where the broker cannot or does not do that, the message is sent to the retry topic as a
    new one. A dead letter goes as a new message first, so that it can carry the reason, and by send-back where that is
    refused. A broker that creates no topic for a message (autoCreateTopicEnable=false) is asked to create the topic of
    the dead letters first, as it does itself for a send-back.
    """

    limit = "max_reconsume_times reached"

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int) -> None:
        self._client = client
        self._group = group
        self._max = max_reconsume_times
        self.refused: dict[Message, tuple[int, str]] = {}  # messages that no broker took, how often, and why last
        self._refusal = ""

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Whether the group gives the message up if this attempt fails; N reconsume times make N + 1 attempts."""
        return message.reconsume_times - not_counted >= self._max

    def delay_level(self, message: Message, asked: int) -> int:
        """The level that a retry is delayed by; without one that was asked for it is the broker's choice."""
        return min(asked or FIRST_DELAY_LEVEL + message.reconsume_times, LAST_DELAY_LEVEL)

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Have the message delivered again: by send-back, else as a message to the group's retry topic.

        What the broker could copy for a member of a batch is the whole batch, others' messages too; and of a static
        topic the broker that serves the queue now may not be the one that has the message.
        """
        return self._noted(
            message,
            (_can_be_copied(message) and await self.by_broker(message, delay_level))
            or await self._to_retry_topic(message, delay_level),
        )

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Put the message into the group's dead letters, with the reason; by send-back where that is refused."""
        sent = await self._to_dead_letters(message, reason, error) or (
            _can_be_copied(message) and await self.by_broker(message, -1)
        )
        if sent:
            log.warning(
                "message.dead_lettered",
                queue=str(message.message_queue),
                offset=message.queue_offset,
                msg_id=message.msg_id,
                reason=reason,
            )
        return self._noted(message, sent)

    def _noted(self, message: Message, is_taken: bool) -> bool:
        times, _ = self.refused.pop(message, (0, ""))
        if not is_taken and len(self.refused) < MOST_REFUSED:
            self.refused[message] = times + 1, self._refusal
        return is_taken

    async def by_broker(self, message: Message, delay_level: int) -> bool:
        """CONSUMER_SEND_MSG_BACK: the broker copies the message out of its own log."""
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
                timeout_seconds=SEND_BACK_TIMEOUT_SECONDS,
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
        properties[RMQD_REASON] = _head(plain(reason), room // 2)
        if error is not None:
            room -= len(properties[RMQD_REASON].encode())
            properties[RMQD_EXCEPTION] = _tail(plain(traceback_of(error)), room)  # its end names the error
        return await self._send(message, dlq_topic(self._group), properties, message.reconsume_times)

    def _address(self, message: Message) -> str | None:
        master = self._client.routes.master(self._endpoint(message))
        self._refusal = f"broker {message.broker_name} has no master now"
        return None if master is None else self._client.send_address(master)

    def _endpoint(self, message: Message) -> str:
        """The name of the broker that serves the message's queue."""
        queue = MessageQueue(message.record_topic, message.broker_name, message.queue_id)
        return self._client.routes.endpoint(queue)

    def _origin(self, message: Message) -> dict[str, str]:
        kept = kept_properties(message, message.origin_topic)
        return kept if message.lite_topic is None else kept | {RMQD_LITE_TOPIC: plain(message.lite_topic)}

    async def _send(self, message: Message, topic: str, properties: dict[str, str], reconsume_times: int) -> bool:
        if (address := self._address(message)) is None:
            return False
        try:
            header = copy_header(
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


def _can_be_copied(message: Message) -> bool:
    """Whether a send-back names this message, and this one only."""
    return not message.is_member and not is_logical(message.broker_name)


def _head(text: str, most_bytes: int) -> str:
    """The beginning of a text, of at most so many bytes."""
    most_bytes = max(most_bytes, 0)
    return text[:most_bytes].encode()[:most_bytes].decode("utf-8", "ignore")


def _tail(text: str, most_bytes: int) -> str:
    """The end of a text, of at most so many bytes."""
    if most_bytes <= 0:
        return ""
    return text[-most_bytes:].encode()[-most_bytes:].decode("utf-8", "ignore")
