"""The handler `rocketmq`: forwards copies of messages to another topic or cluster, in order for each key."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Final, Self

import structlog
from pydantic import Field, model_validator

from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, may_retry_send, select_by_hash
from rmqd.config.model.forms import setting
from rmqd.config.model.root_model import ClusterConfig
from rmqd.errors import InvalidMessageError, InvalidNameError, RmqdError
from rmqd.errors.broker_errors import MessageIllegalError
from rmqd.handler_api.batch import Batch
from rmqd.handler_api.decisions import WAIT_ATTRIBUTE
from rmqd.runtime.clock import backoff_seconds, with_jitter
from rmqd.runtime.value_kinds import Duration
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import SHARDING_KEY, UNIQ_KEY
from rmqd.wire.topics import check_topic, wrap_namespace

HOPS_PROPERTY: Final = "RMQD_HOPS"
"""The message property that counts how often a message was forwarded."""

MAX_HOPS: Final = 9999
"""Used for numbers with more digits, because `int` cannot parse arbitrarily many. It is above any `max_hops`."""


def hops(message: Message) -> int:
    """Return how often the message was forwarded before; 0 if HOPS_PROPERTY is missing or not a number."""
    said = message.properties.get(HOPS_PROPERTY, "")
    if not (said.isascii() and said.isdigit()):
        return 0
    return int(said) if len(said) <= len(str(MAX_HOPS)) else MAX_HOPS


def copy_of(message: Message, topic: str) -> OutgoingMessage:
    """Return a copy of the message for `topic`, with the same id, born time and user properties, and one more hop."""
    return OutgoingMessage(
        topic,
        bytes(message.body),
        properties={**message.own_properties, HOPS_PROPERTY: str(hops(message) + 1), UNIQ_KEY: message.msg_id},
        flag=message.flag,
        born_timestamp_ms=message.born_timestamp,
    )


def order_key(message: Message, queue: MessageQueue, order_by: str) -> str | None:
    """Return the key of a message: messages with the same key stay in order. None if the message needs no order."""
    if order_by == "queue":
        return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
    if order_by == "keys":
        return message.keys or None
    name = SHARDING_KEY if order_by == "sharding_key" else order_by.removeprefix("property:")
    return message.properties.get(name) or None


log = structlog.get_logger(__name__)

FIRST_SECONDS: Final = 0.1
MAX_SECONDS: Final = 2.0


class RocketMqOptions(ClusterConfig):
    """The target cluster, with the same keys as clusters in the configuration, and the options of forwarding."""

    topic: str = setting("", "the topic to send to; by default the message's own")
    order_by: Annotated[str, Field(pattern=r"^(sharding_key|keys|queue|property:\S(.*\S)?)$")] = setting(
        "sharding_key",
        "messages with the same sharding_key, keys, queue or property:NAME are sent in order, to one queue; all others "
        "go to all queues in turn",
    )
    max_hops: Annotated[int, Field(ge=1, le=1000)] = setting(
        1, "how often a message may be forwarded; a message at this limit is acknowledged, and not sent"
    )
    in_flight: Annotated[int, Field(ge=1, le=1000)] = setting(
        32, "how many messages of a batch are sent at the same time; those with one key are sent one after the other"
    )
    retry_for: Annotated[float, Duration("0s")] = setting(
        "30s",
        "how long a batch is retried in place while brokers are unavailable, before it is sent back for a retry; "
        "keep it below consume_timeout",
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.has_name_servers:
            raise ValueError("nameserver is missing; expected the target cluster, even if it is the group's own")
        if self.topic:
            try:
                check_topic(self.topic)
            except InvalidNameError as error:
                raise ValueError(f"topic: {error}") from None
        return self


class RocketMq:
    """Forwards messages to another topic or cluster. Messages with the same key keep their order."""

    Options = RocketMqOptions

    def __init__(self, options: RocketMqOptions) -> None:
        self._options = options
        self._client: ClientInstance
        self._running: asyncio.Task[None]
        self._served: set[str] = set()

    async def start(self) -> None:
        """Create the client of the target cluster, and refresh its routes. An unreachable cluster is not an error."""
        self._client = ClientInstance(self._options.client_options())
        self._running = asyncio.create_task(self._client.run(), name="rocketmq handler: client")

    async def stop(self) -> None:
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    async def handle(self, batch: Batch) -> None:
        slots = asyncio.Semaphore(self._options.in_flight)
        until = asyncio.get_running_loop().time() + self._options.retry_for
        failures = await asyncio.gather(
            *(self._send_in_order(batch, key, messages, slots, until) for key, messages in self._lanes(batch)),
            return_exceptions=True,  # a failed send does not cancel sends that have started
        )
        for failure in failures:
            if isinstance(failure, RmqdError):
                # pause before the retry, because the brokers' failure is not caused by the message
                setattr(failure, WAIT_ATTRIBUTE, MAX_SECONDS)
            if failure is not None:
                raise failure

    def _lanes(self, batch: Batch) -> list[tuple[str | None, list[Message]]]:
        """Acknowledge the messages at the hop limit. Return the other messages in order, in one list for each key."""
        lanes: dict[object, tuple[str | None, list[Message]]] = {}
        for message in batch:
            if hops(message) >= self._options.max_hops:
                log.debug("forward.left_out", msg_id=message.msg_id, hops=hops(message))
                batch.ack(message)
                continue
            key = order_key(message, batch.message_queue, self._options.order_by)
            lanes.setdefault(object() if key is None else key, (key, []))[1].append(message)
        return list(lanes.values())

    async def _send_in_order(
        self, batch: Batch, key: str | None, messages: list[Message], slots: asyncio.Semaphore, until: float
    ) -> None:
        async with slots:
            for message in messages:
                try:
                    await self._send(message, key, until)
                except (InvalidMessageError, MessageIllegalError) as error:
                    batch.dead_letter(message, error)
                else:
                    batch.ack(message)  # here, so that a failure of a later message does not send this one again

    async def _send(self, message: Message, key: str | None, until: float) -> None:
        """Send a copy of the message. Retry until the event loop's time `until`, then raise the last RmqdError."""
        copy = copy_of(message, wrap_namespace(self._options.topic or message.topic, self._options.client.namespace))
        selector = None if key is None else select_by_hash(key)
        loop = asyncio.get_running_loop()
        tries = 0
        while True:
            try:
                await self._client.producer.send(copy, selector=selector)
                self._served.add(copy.topic)
                return
            except RmqdError as error:
                tries += 1
                pause_seconds = with_jitter(backoff_seconds(FIRST_SECONDS, tries, MAX_SECONDS))
                if not may_retry_send(error, self._served) or loop.time() + pause_seconds > until:
                    raise
                log.warning("forward.retried", topic=copy.topic, error=str(error))
            await asyncio.sleep(pause_seconds)
            with contextlib.suppress(RmqdError):
                await self._client.routes.refresh(copy.topic)
