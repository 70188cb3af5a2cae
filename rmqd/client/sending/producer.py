"""The producer. It sends each message to a selected queue, or to any queue with attempts at several brokers."""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from rmqd.client.api.group_requests import send_heartbeat
from rmqd.client.api.send_requests import SendResult, send_message
from rmqd.client.client_options import local_address
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import RouteTable
from rmqd.client.routing.routes import vip_address
from rmqd.client.sending.outgoing_message import MessageQueueSelector, OutgoingMessage
from rmqd.codes import ResponseCode
from rmqd.errors import BrokerTooOldError, RemotingError, RemotingTimeoutError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import BrokerError
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import duration
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.headers.send_headers import SendBatchMessageRequestHeader, SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import BatchMember, encode_batch
from rmqd.wire.messages.message_id import UniqueKeys
from rmqd.wire.messages.properties import UNIQ_KEY, WAIT, format_properties
from rmqd.wire.topics import DEFAULT_TOPIC, INNER_PRODUCER_GROUP

log = structlog.get_logger(__name__)

SEND_TIMEOUT_SECONDS = 3.0  # Java: sendMsgTimeout, for all attempts together
MAX_TRIES = 3  # Java: 1 + retryTimesWhenSendFailed
DEFAULT_TOPIC_QUEUE_NUMS = 4
SAME_BROKER_PAUSE_SECONDS = 0.05
SHORTEST_TRY_SECONDS = 0.1  # no attempt begins with less time: a timeout would only hide the previous attempt's error
TIMERS_SINCE_VERSION = 413  # 5.0.0 in MQVersion; an older broker delivers a timer message at once

# response codes that lead to another attempt; Java: DefaultMQProducer.retryResponseCodes
RETRIED = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode(204),  # Java: NO_BUYER_ID
        ResponseCode(205),  # Java: NOT_IN_CURRENT_UNIT
        ResponseCode.GO_AWAY,
    }
)


class Producer:
    """The producer of a client. It may send any number of messages at once, and it has no background tasks."""

    def __init__(
        self,
        remoting: RemotingClient,
        routes: RouteTable,
        *,
        clock: Clock,
        vip_channel_enabled: bool = False,
        unit_mode: bool = False,
    ) -> None:
        self._remoting = remoting
        self._routes = routes
        self._clock = clock
        self._vip_channel_enabled = vip_channel_enabled
        self._unit_mode = unit_mode
        self._watched: set[str] = set()
        self._versions: dict[str, int] = {}  # versions of brokers that received timer messages, by address
        self._turn = itertools.count(random.randrange(1 << 16))
        machine = ipaddress.ip_address(local_address().partition("%")[0]).packed
        self._unique_keys = UniqueKeys(machine, os.getpid(), secrets.randbits(32))

    async def send(
        self,
        message: OutgoingMessage,
        *,
        selector: MessageQueueSelector | None = None,
        timeout_seconds: float = SEND_TIMEOUT_SECONDS,
        producer_group: str = INNER_PRODUCER_GROUP,
    ) -> SendResult:
        """Send a message, with at most three attempts. All attempts together take at most `timeout_seconds`.

        Without `selector`, queues are used in turn, and each attempt uses another broker if possible. The broker may
        create a missing topic. If the response to an attempt is lost, the next attempt may store the message a second
        time.

        Raises InvalidMessageError, RouteNotFoundError, BrokerTooOldError, or the RmqdError of the last attempt.
        """
        msg_id = self._unique_key(message)
        sending = _Sending(message, producer_group, format_properties(message.properties_as_sent(msg_id)))
        return replace(await self._try(sending, selector, timeout_seconds), msg_id=msg_id)

    async def send_batch(
        self, messages: Sequence[OutgoingMessage], *, selector: MessageQueueSelector | None = None
    ) -> SendResult:
        """Send messages of one topic to one queue, in order, in one request. Attempts are made as in `send`.

        The broker stores all messages or none. The messages must not have a delay, a delivery time or a retry topic,
        and all together must not exceed the maximum size of one message. The result has comma-separated offset ids and
        the first offset. Raises the errors of `send`, which do not identify the message that caused the error.
        """
        members = [
            BatchMember(message.body, message.properties_as_sent(self._unique_key(message)), message.flag)
            for message in messages
        ]
        batch, properties = OutgoingMessage(messages[0].topic, encode_batch(members)), format_properties({WAIT: "true"})
        sending = _Sending(batch, INNER_PRODUCER_GROUP, properties, is_batch=True)
        return await self._try(sending, selector, SEND_TIMEOUT_SECONDS)

    def _unique_key(self, message: OutgoingMessage) -> str:
        return message.properties.get(UNIQ_KEY) or self._unique_keys.next(self._clock.wall())

    async def _candidates(
        self, topic: str, selector: MessageQueueSelector | None, timeout_seconds: float
    ) -> Sequence[MessageQueue]:
        """Return the queues to try. Raises RemotingTimeoutError if no name server responds in time."""
        try:
            async with self._clock.timeout(timeout_seconds):
                queues = await self._queues(topic)
                return queues if selector is None else [selector(queues)]
        except TimeoutError:
            raise RemotingTimeoutError(
                "name servers", f"no route to {topic} within {duration(timeout_seconds)}"
            ) from None

    async def _try(
        self, sending: _Sending, selector: MessageQueueSelector | None, timeout_seconds: float
    ) -> SendResult:
        deadline = self._clock.monotonic() + timeout_seconds
        choices = self._in_turn(await self._candidates(sending.message.topic, selector, timeout_seconds))
        last_broker, tries = "", 0
        outcome: SendResult | RmqdError | None = None
        while True:
            tries += 1
            queue = next(choices)
            if queue.broker_name == last_broker:
                await self._clock.sleep(SAME_BROKER_PAUSE_SECONDS)
            last_broker, remaining = queue.broker_name, max(deadline - self._clock.monotonic(), 0)
            if isinstance(outcome, RmqdError) and remaining < SHORTEST_TRY_SECONDS:
                raise outcome  # the previous attempt's error; if it is a timeout, its text has that attempt's limit
            # a hanging broker must not use up all the time, so that an attempt at another broker can follow
            outcome = await self._send_once(queue, sending, remaining / 2 if tries < MAX_TRIES else remaining)
            if isinstance(outcome, SendResult):
                return outcome
            self._routes.refresh_soon([sending.message.topic])
            if tries == MAX_TRIES:
                raise outcome
            log.debug("send.retried", topic=queue.topic, broker=queue.broker_name, error=str(outcome))

    async def _send_once(
        self, queue: MessageQueue, sending: _Sending, timeout_seconds: float
    ) -> SendResult | RmqdError:
        """Make one attempt. Returns the result, or the error if another attempt may succeed. Raises other errors."""
        try:
            async with self._clock.timeout(timeout_seconds):
                return await self._send_to(queue, sending, timeout_seconds)
        except TimeoutError:
            return RemotingTimeoutError(
                queue.broker_name, f"the broker did not confirm the message within {duration(timeout_seconds)}"
            )
        except (RemotingError, RouteNotFoundError) as error:
            return error
        except BrokerError as error:
            if error.code in RETRIED:
                return error
            raise

    async def _send_to(self, queue: MessageQueue, sending: _Sending, timeout_seconds: float) -> SendResult:
        address = self._routes.master(self._routes.endpoint(queue))
        if address is None:
            raise RouteNotFoundError(
                queue.topic, f"no name server has a route to the master of broker {queue.broker_name}"
            )
        message = sending.message
        if message.needs_timer:
            await self._require_timers(queue, address)
        now_ms = int(self._clock.wall() * 1000)
        make_header = SendBatchMessageRequestHeader if sending.is_batch else SendMessageRequestHeaderV2
        header = make_header(
            producer_group=sending.producer_group,
            topic=message.topic,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_NUMS,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_timestamp=now_ms if message.born_timestamp_ms is None else message.born_timestamp_ms,
            flag=message.flag,
            properties=sending.properties,
            reconsume_times=0,
            unit_mode=self._unit_mode,
            batch=sending.is_batch,
            broker_name=queue.broker_name,
        )
        if self._vip_channel_enabled:
            address = vip_address(address)
        return await send_message(self._remoting, address, header, message.body, timeout_seconds=timeout_seconds)

    async def _require_timers(self, queue: MessageQueue, address: str) -> None:
        """Raise BrokerTooOldError if a broker has no timer, because it would silently deliver the message at once."""
        if address not in self._versions:
            # the response to a heartbeat has the broker's version, and without groups the heartbeat has no effect
            self._versions[address] = await send_heartbeat(self._remoting, address, HeartbeatData(client_id="rmqd"))
        version = self._versions[address]
        if version < TIMERS_SINCE_VERSION:
            raise BrokerTooOldError(
                f"{queue.broker_name} ({address}) is older than RocketMQ 5.0 (version number {version}) and has no "
                "timers, so it would deliver the message at once; use a delay level"
            )

    async def _queues(self, topic: str) -> Sequence[MessageQueue]:
        try:
            await self._routes.lookup(topic)
        except RouteNotFoundError:
            queues = await self._queues_to_be(topic)
        else:
            queues = self._routes.writable_queues(topic)
            self._keep(topic)
        if not queues:
            raise RouteNotFoundError(topic, f"topic {topic} has no writable queue")
        return queues

    async def _queues_to_be(self, topic: str) -> list[MessageQueue]:
        """Return the queues that a missing topic will have when a broker creates it automatically at the first send."""
        try:
            await self._routes.refresh(DEFAULT_TOPIC)
        except RouteNotFoundError:
            raise RouteNotFoundError(
                topic, f"topic {topic} does not exist, and the brokers do not create topics automatically"
            ) from None
        return [
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in self._routes.writable_queues(DEFAULT_TOPIC)
            if queue.queue_id < DEFAULT_TOPIC_QUEUE_NUMS
        ]

    def _keep(self, topic: str) -> None:
        if topic not in self._watched:
            self._watched.add(topic)
            self._routes.watch(topic)

    def _in_turn(self, queues: Sequence[MessageQueue]) -> Iterator[MessageQueue]:
        """Yield queues endlessly: the next queue in turn, then queues of brokers that were not tried yet."""
        start = next(self._turn) % len(queues)
        rotated = [*queues[start:], *queues[:start]]
        tried: set[str] = set()
        while True:
            queue = next((queue for queue in rotated if queue.broker_name not in tried), None)
            if queue is None:
                tried.clear()
                continue
            tried.add(queue.broker_name)
            yield queue


@dataclass(frozen=True, slots=True)
class _Sending:
    """The values that all attempts to send one message share."""

    message: OutgoingMessage
    producer_group: str
    properties: str
    is_batch: bool = False
