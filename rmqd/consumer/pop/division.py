"""Assignment of queues in POP mode: the broker decides which queues a member pops or pulls (request 400)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from rmqd.broker_errors import RequestCodeNotSupportedError
from rmqd.client.api.pop import query_assignment
from rmqd.consumer.allocate import BROKERS_NAMES
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.assignment import PopAssignment
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.pop.retries import PopRetries
from rmqd.consumer.rebalance.division import Division, Share
from rmqd.errors import PopNotSupportedError, RmqdError, StaticTopicNotPoppedError
from rmqd.wire.bodies.pop import MessageQueueAssignment, MessageRequestMode, QueryAssignmentRequestBody
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS: Final = 3.0  # Java: QUERY_ASSIGNMENT_TIMEOUT


class DivisionByBroker(Division):
    """Queries the first available broker of a topic. All members query the same one, so that shares fit together."""

    def __init__(self, context: GroupContext, receipts: PopReceipts) -> None:
        super().__init__(context)
        self._client = context.client
        self._receipts = receipts
        self._retries = PopRetries(context)
        self._group = context.options.group
        strategy = context.options.allocate_strategy.name
        self._strategy = BROKERS_NAMES.get(strategy, strategy)
        self._modes: dict[str, MessageRequestMode] = {}  # topic -> mode in the last response

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Start to send acknowledgements, and to check the pop retry topics of pulled topics."""
        return [
            tasks.create_task(self._receipts.run(), name=f"acks:{self._group}"),
            tasks.create_task(self._retries.run(self._modes, changed), name=f"pop retries:{self._group}"),
        ]

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> Share | None:
        """Return the share that a broker assigns to this member; None while no broker responds.

        Raises PopNotSupportedError if all responding brokers are too old to assign queues, and
        StaticTopicNotPoppedError if the topic is static.
        """
        if self._retries.is_over(topic, held):
            return Share()
        told = await self._ask_brokers(topic)
        if told is None:
            return None
        popped = frozenset(one.queue for one in told if one.mode is MessageRequestMode.POP)
        if popped and (route := self._client.routes.route(topic)) is not None and route.mappings:
            raise StaticTopicNotPoppedError(topic)
        # In POP mode every member has an assignment, so an empty one means PULL. A pulling member without queues also
        # subscribes to pop retry topics: the last heartbeat of any member determines the group's subscriptions.
        mode = MessageRequestMode.POP if popped else MessageRequestMode.PULL
        if self._modes.get(topic) != mode:
            self._modes[topic] = mode
            if not is_retry_topic(topic):  # retry topics are always pulled
                log.info("pop.mode_changed", topic=topic, mode=mode.value)
        return Share(pulled=frozenset(one.queue for one in told) - popped, popped=popped)

    def assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> Assignment:
        """Return the assignment for a queue of a share, popped or pulled."""
        if not is_popped:
            return super().assignment(message_queue, is_popped=False)
        return PopAssignment(self._context, self._receipts, message_queue)

    async def _ask_brokers(self, topic: str) -> tuple[MessageQueueAssignment, ...] | None:
        client = self._client
        route = client.routes.route(topic)
        names = sorted(broker.broker_name for broker in route.broker_datas) if route is not None else []
        too_old: RequestCodeNotSupportedError | None = None
        for name in names:
            address = client.routes.address(name)
            if address is None:
                continue
            try:
                if told := await self._ask(address, topic):
                    return told
                # a broker that does not know this member returns no queues, or an error
                await client.heartbeat.beat_address(address)
                return await self._ask(address, topic)
            except RequestCodeNotSupportedError as error:
                too_old = error
            except RmqdError as error:
                if not error.is_reported:
                    log.warning("pop.assignment_failed", topic=topic, address=address, error=str(error))
        if too_old is not None:
            raise PopNotSupportedError(self._group, too_old.address)
        return None

    async def _ask(self, address: str, topic: str) -> tuple[MessageQueueAssignment, ...] | None:
        body = QueryAssignmentRequestBody(topic, self._group, self._client.client_id, self._strategy)
        return await query_assignment(self._client.remoting, address, body, timeout_seconds=TIMEOUT_SECONDS)
