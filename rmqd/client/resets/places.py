"""A group's offsets in a topic: the stored offsets, and its members' reports on their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmqd.client.api.offset import query_consumer_offset
from rmqd.client.looks.group import running_infos
from rmqd.client.looks.groups import connections, message_model
from rmqd.wire.bodies.running_info import PROP_CONSUME_ORDERLY
from rmqd.wire.pop import ANY_QUEUE

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.errors import RmqdError
    from rmqd.wire.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
    from rmqd.wire.bodies.stats import ConsumerConnection
    from rmqd.wire.message_queue import MessageQueue

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
