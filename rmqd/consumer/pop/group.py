"""What only a group in POP mode has: the broker says which queues of a topic a member reads, and how (400)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.client.api.pop import query_assignment
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.allocate import BROKERS_NAMES
from rmqd.consumer.health.pop_watch import PopWatch
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.pop.assignment import PopAssignment
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.pop.retries import PopRetries
from rmqd.errors import PopNotSupportedError, RequestCodeNotSupportedError, RmqdError
from rmqd.wire.bodies.pop import MessageQueueAssignment, MessageRequestMode, QueryAssignmentRequestBody
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

if TYPE_CHECKING:
    from rmqd.consumer.context import GroupContext

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS: Final = 3.0  # Java: QUERY_ASSIGNMENT_TIMEOUT


class PopGroup:
    """The popped assignments of one group, and how its topics are read now.

    All members ask the first of a topic's brokers that answers, so that what they are told belongs together.
    """

    def __init__(self, client: ClientInstance, options: ConsumerOptions, clock: Clock) -> None:
        self.receipts = PopReceipts(client, options.group, clock)
        self.assigned: dict[MessageQueue, PopAssignment] = {}
        self.modes: dict[str, MessageRequestMode] = {}  # by topic, as brokers said the last time
        self.retries = PopRetries(client, options.group, clock)
        self._client = client
        self._group = options.group
        self._strategy = BROKERS_NAMES.get(options.allocate_strategy.name, options.allocate_strategy.name)
        self._wanted: dict[str, frozenset[MessageQueue]] = {}  # by topic: what is to be popped

    def start(
        self, tasks: asyncio.TaskGroup, context: GroupContext, changed: Callable[[], None]
    ) -> list[asyncio.Task[None]]:
        """What runs beside the assignments, until it is cancelled."""
        return [
            tasks.create_task(self.receipts.run(), name=f"acks:{self._group}"),
            tasks.create_task(PopWatch(self.assigned).run(context), name=f"pop watch:{self._group}"),
            tasks.create_task(self.retries.run(context, self.modes, changed), name=f"pop retries:{self._group}"),
        ]

    async def share_of(self, topic: str) -> Collection[MessageQueue] | None:
        """The queues of a topic that this member is to pull; those to be popped are kept for `apply`.

        None while no broker tells. Raises PopNotSupportedError where all that answer are too old.
        """
        if topic in self.retries.ending:
            return ()
        told = await self._ask_brokers(topic)
        if told is None:
            return None
        popped = frozenset(one.queue for one in told if one.mode is MessageRequestMode.POP)
        pulled = frozenset(one.queue for one in told) - popped
        mode = MessageRequestMode.POP if popped else MessageRequestMode.PULL
        if told and self.modes.get(topic) != mode:
            self.modes[topic] = mode
            if not is_retry_topic(topic):  # they are always pulled
                log.info("pop.mode", topic=topic, mode=mode.value)
        self._wanted[topic] = popped
        return pulled

    def apply(
        self,
        tasks: asyncio.TaskGroup,
        context: GroupContext,
        topic: str,
        pulled: Collection[MessageQueue],
        held: Collection[MessageQueue],
        ended: Callable[[], None],
    ) -> Collection[MessageQueue]:
        """Take and give up popped assignments of a topic; returns the queues that may be pulled now.

        A queue is never pulled and popped at once: each way ends, with its commits or acknowledgements, before the
        other begins. `held` are the queues that are pulled, or being given up; `ended` is called when one is not popped
        any more.
        """
        wanted = self._wanted.get(topic, frozenset())
        own = {place: one for place, one in self.assigned.items() if place.topic == topic}
        given_up = [place for place, one in own.items() if place not in wanted and not one.is_leaving]
        for place in given_up:
            own[place].leave(context.options.queue_handover_timeout_seconds)
        taken = [] if held else sorted(wanted - own.keys())
        for place in taken:
            self.assigned[place] = assignment = PopAssignment(context, self.receipts, place)
            tasks.create_task(self._hold(assignment, ended), name=f"pop:{place}")
        if taken or given_up:
            log.info(
                "rebalance.changed",
                topic=topic,
                mode="pop",
                taken=[str(place) for place in taken],
                given_up=[str(place) for place in given_up],
            )
        return [queue for queue in pulled if queue in held] if own else pulled

    def leave_all(self, drain_seconds: float) -> None:
        """Give up every assignment."""
        for assignment in self.assigned.values():
            assignment.leave(drain_seconds, last=True)

    async def _hold(self, assignment: PopAssignment, ended: Callable[[], None]) -> None:
        try:
            await assignment.run()
        finally:
            del self.assigned[assignment.message_queue]
            ended()

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
                # as long as a broker does not know this member, it gives none, or cannot tell
                await client.heartbeat.beat_address(address)
                return await self._ask(address, topic)
            except RequestCodeNotSupportedError as error:
                too_old = error
            except RmqdError as error:
                if not error.is_told:
                    log.warning("pop.no_assignment", topic=topic, address=address, error=str(error))
        if too_old is not None:
            raise PopNotSupportedError(self._group, too_old.address)
        return None

    async def _ask(self, address: str, topic: str) -> tuple[MessageQueueAssignment, ...] | None:
        body = QueryAssignmentRequestBody(topic, self._group, self._client.client_id, self._strategy)
        return await query_assignment(self._client.remoting, address, body, timeout_seconds=TIMEOUT_SECONDS)
