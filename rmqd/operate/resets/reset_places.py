"""The destination of a reset, and its offset in one queue.

How a broker applies a reset.

RocketMQ 5 stores a reset for the group's next pull of the queue (`useServerSideResetOffset`): to any offset of any
queue. Brokers of 4.x, and brokers with that setting off, push it to the members: only to a time, in all queues of the
topic on that broker, and only if all of these queues have a stored offset. If the group has no members to receive the
reset, an offset is simply stored.

A group's offsets in a topic: the stored offsets, and its members' reports on their queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

from rmqd.client.api.admin_requests import RESET_TO_END, broker_config, reset_offset
from rmqd.client.api.offset_requests import query_consumer_offset, update_consumer_offset
from rmqd.errors import OffsetResetError
from rmqd.operate.queries.group_queries import connections, message_model, running_infos
from rmqd.wire.bodies.group_bodies import PROP_CONSUME_ORDERLY
from rmqd.wire.receipt_handle import ANY_QUEUE

if TYPE_CHECKING:
    from rmqd.client.remoting.remoting_client import RemotingClient
    from rmqd.errors import RmqdError
    from rmqd.operate.queries.message_queries import Brokers
    from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, ProcessQueueInfo
    from rmqd.wire.bodies.stats_bodies import ConsumerConnection, TopicOffset
    from rmqd.wire.message_queue import MessageQueue


Search = Callable[["MessageQueue", int], Awaitable[int]]
"""Asks a broker for the first message stored at or after a time (Unix milliseconds)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The destination of a reset.

    `number` is an offset for `offset`, Unix milliseconds for `time`, and a number of messages for `skip`. `offsets` are
    for `exact`, by broker and queue id; other queues stay.
    """

    kind: Literal["first", "last", "offset", "time", "skip", "exact"]
    number: int = 0
    offsets: Mapping[tuple[str, int], int] | None = None
    forward_only: bool = False
    """A queue at this offset or beyond it stays."""

    @property
    def timestamp_ms(self) -> int | None:
        """The time for brokers that reset only by time, -1 for the end; None if the goal is not a time."""
        return {"first": 0, "last": -1, "time": self.number}.get(self.kind)

    async def offset_in(
        self, queue: MessageQueue, ends: TopicOffset, committed: int | None, search: Search
    ) -> int | None:
        """Return the offset in a queue, not limited to its ends; None if the queue stays. Raises RmqdError."""
        match self.kind:
            case "first":
                return ends.min_offset
            case "last":
                return ends.max_offset
            case "offset":
                return self.number
            case "time":
                return await search(queue, self.number)
            case "skip":
                return (ends.min_offset if committed is None else committed) + self.number
            case "exact":
                return (self.offsets or {}).get((queue.broker_name, queue.queue_id))


_SETTING: Final = "useServerSideResetOffset"


class WayOf(Enum):
    """How one broker notifies members of a reset."""

    PULLED = "with their next pull"
    PUSHED = "by a push"


async def way_of(remoting: RemotingClient, address: str) -> WayOf:
    """Ask a broker for its settings. Raises RmqdError."""
    config = await broker_config(remoting, address)
    return WayOf.PULLED if config.get(_SETTING) == "true" else WayOf.PUSHED


async def reset_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int | None
) -> dict[MessageQueue, int]:
    """Ask a broker to store a reset of one queue; None: to the queue's current end, so that no member moves back.

    Returns the new offset. Raises RmqdError.
    """
    to_end = RESET_TO_END if target is None else 0
    return await reset_offset(remoting, address, group, queue.topic, to_end, queue_id=queue.queue_id, offset=target)


async def store_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int
) -> dict[MessageQueue, int]:
    """Store an offset without notifying members. Returns it. Raises RmqdError."""
    if not await update_consumer_offset(remoting, address, group, queue, target):
        raise OffsetResetError("another reset waits for the group's next pull")
    return {queue: target}


async def push_all(
    remoting: RemotingClient, address: str, group: str, topic: str, goal: Goal, *, is_whole: bool
) -> dict[MessageQueue, int]:
    """Ask a broker to push a reset of all its queues of the topic to the members. `is_whole`: all of them are selected.

    Returns the new offsets. Raises RmqdError.
    """
    timestamp_ms = goal.timestamp_ms
    if timestamp_ms is None:
        raise OffsetResetError(
            f"this broker pushes resets to members (RocketMQ 4, or {_SETTING}=false), which works only by time: "
            "use --to first, last or a time, or stop the members"
        )
    if not is_whole:
        raise OffsetResetError(
            f"this broker pushes resets to members (RocketMQ 4, or {_SETTING}=false), always for all queues: "
            "omit --broker and --queue, or stop the members"
        )
    return await reset_offset(remoting, address, group, topic, timestamp_ms)


SILENT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A group's offset in one queue at one moment.

    `owner` is the member that reports owning the queue, or "". `held` is its report on the queue; None if it pops the
    queue.
    """

    committed: int | None
    owner: str = ""
    held: ProcessQueueInfo | None = None
    is_popped: bool = False
    is_orderly: bool = False


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """A group's offsets in a topic's queues. `members` are readers; `silent` ones do not report their queues."""

    places: Mapping[MessageQueue, QueuePlace]
    errors: Mapping[MessageQueue, RmqdError]
    members: frozenset[str]
    silent: frozenset[str]
    message_model: str | None


class PlaceReader:
    """Asks brokers, and through them the members. A member without an answer is asked again after SILENT_SECONDS.

    It may have just started or reconnected. Or it hangs, and the broker waits 10 s for its answer.
    """

    def __init__(self, brokers: Brokers, group: str, topic: str) -> None:
        self._brokers = brokers
        self._group = group
        self._topic = topic
        self._silent_at: dict[str, float] = {}

    async def look(self, queues: Iterable[MessageQueue]) -> GroupPlaces:
        """Return the offsets. Brokers are asked first: members that obeyed report no less than the stored offset."""
        remoting, group = self._brokers.client.remoting, self._group
        committed, known = await asyncio.gather(
            self._brokers.ask_about(
                queues, lambda address, queue: query_consumer_offset(remoting, address, group, queue)
            ),
            connections(self._brokers, group),
        )
        near = {
            one.client_id: name for name, connection in known.by_broker.items() for one in connection.connection_set
        }
        infos = await self._ask(near)
        silent = frozenset(one for one in near.keys() - infos.keys() if self._is_read(known.by_broker[near[one]]))
        readers = frozenset(one for one, info in infos.items() if self._reads(info))
        any_known = next(iter(known.by_broker.values()), None)
        return GroupPlaces(
            {queue: _place(queue, offset, infos) for queue, offset in committed.by_queue.items()},
            committed.errors,
            readers | silent,
            silent,
            None if any_known is None else message_model(any_known),
        )

    async def _ask(self, near: Mapping[str, str]) -> dict[str, ConsumerRunningInfo]:
        clock = self._brokers.client.clock
        begun = clock.monotonic()
        due = {
            one: name
            for one, name in near.items()
            if one not in self._silent_at or begun - self._silent_at[one] >= SILENT_SECONDS
        }
        infos = await running_infos(self._brokers, self._group, due)
        for one in due:
            if one in infos:
                self._silent_at.pop(one, None)
            else:
                self._silent_at[one] = clock.monotonic()
        return infos

    def _reads(self, info: ConsumerRunningInfo) -> bool:
        topics = {subscription.topic for subscription in info.subscription_set}
        return self._topic in topics.union(queue.topic for queue in (*info.mq_table, *info.mq_pop_table))

    def _is_read(self, connection: ConsumerConnection) -> bool:
        """Return whether a silent member may read the topic, from the group's last heartbeat at brokers."""
        return not connection.subscription_table or self._topic in connection.subscription_table


def _place(queue: MessageQueue, committed: int | None, infos: Mapping[str, ConsumerRunningInfo]) -> QueuePlace:
    popped = ""
    for client_id, info in sorted(infos.items()):
        held = info.mq_table.get(queue)
        if held is not None and not held.dropped:
            is_orderly = info.properties.get(PROP_CONSUME_ORDERLY) == "true"
            return QueuePlace(committed, client_id, held, is_orderly=is_orderly)
        at = queue.topic, queue.broker_name
        if any((one.topic, one.broker_name) == at and one.queue_id in (queue.queue_id, ANY_QUEUE)
               for one in info.mq_pop_table):  # fmt: skip
            popped = popped or client_id
    return QueuePlace(committed, popped, is_popped=bool(popped))
