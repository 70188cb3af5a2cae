"""The start offset of a queue: the meaning of `consume_from_where`, and the rule for queues added later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Concatenate, Literal, ParamSpec, TypeVar

import structlog

from rmqd.broker_errors import AccessRefusedError
from rmqd.client.api.offset import earliest_store_time, get_max_offset, get_min_offset, search_offset
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.client import RemotingClient
from rmqd.consumer.options import ConsumeFromWhere
from rmqd.errors import BrokerAwayError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Why = Literal["committed", "last_offset", "first_offset", "timestamp", "later_queue"]


@dataclass(frozen=True, slots=True)
class Start:
    """The first offset to pull, the reason for it, and whether it is already the group's stored offset."""

    offset: int
    why: Why
    is_stored: bool = False

    def tell(self, queue: MessageQueue) -> None:
        """Log the queue's start offset and its reason."""
        log.info("queue.started", queue=str(queue), offset=self.offset, why=self.why)


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """The start offsets of a new group, by the group's options and the time when this member started."""

    client: ClientInstance
    where: ConsumeFromWhere
    timestamp_ms: int
    started_ms: int

    async def of_new_group(self, queue: MessageQueue) -> Start:
        """Return a new group's start offset (`RebalancePushImpl.computePullFromWhere`). Raises RmqdError.

        | consume_from_where | topic                          | the group's retry topic |
        |--------------------|--------------------------------|-------------------------|
        | last_offset        | the queue's end                | its first kept message  |
        | first_offset       | its first kept message         | its first kept message  |
        | timestamp          | first message stored then      | the queue's end         |

        Java uses 0 for "first" and lets the broker correct it, but with `on_offset_illegal: stop` there is no
        correction. If a queue's first message was stored after this member had started, the queue was empty then, and
        starts at that message.
        """
        where, is_retry = self.where, is_retry_topic(queue.topic)
        if where == "first_offset" or (where == "last_offset" and is_retry):
            return Start(await self._first(queue), where)
        if where == "last_offset" and await self._came_after_start(queue):
            return Start(await self._first(queue), "later_queue")
        if where == "last_offset" or is_retry:
            return Start(await self._end(get_max_offset, queue), where)
        return Start(await self.search(queue, self.timestamp_ms), where)

    async def of_later_queue(self, queue: MessageQueue) -> Start:
        """Return an existing group's start offset in a queue added later: its first message, to skip none."""
        return Start(await self._first(queue), "first_offset" if self.where == "first_offset" else "later_queue")

    async def of_lost_queue(self, queue: MessageQueue, committed: int, stored_ms: int) -> Start:
        """Return the start offset if the broker has lost this process's commit, and perhaps the queue with it.

        If the topic was recreated and the queue is another one, it either ends below the commit, or has messages below
        it that are newer than every pulled message.
        """
        end = await self._end(get_max_offset, queue)
        if not end and is_retry_topic(queue.topic):  # the queue is unreadable, or empty, which a pull will show
            return Start(committed, "committed")
        unseen = await self.search(queue, stored_ms + 1) if stored_ms else committed
        if min(end, unseen) >= committed:
            return Start(committed, "committed")
        return Start(max(await self._first(queue), unseen if stored_ms else 0), "later_queue")

    async def search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time. Raises RmqdError."""
        return await self._ask(search_offset, queue, timestamp_ms)

    async def _first(self, queue: MessageQueue) -> int:
        return max(0, await self._end(get_min_offset, queue))

    async def _end(
        self, question: Callable[[RemotingClient, str, MessageQueue], Awaitable[int]], queue: MessageQueue
    ) -> int:
        """Return one end of a queue; 0 for a retry topic that this user may not query: Java starts there at 0 too.

        The request needs the action Get on the group, but a member with Sub alone must receive its retries.
        """
        try:
            return await self._ask(question, queue)
        except AccessRefusedError as error:
            if error.refusal.is_about_who or not is_retry_topic(queue.topic):
                raise
            return 0

    async def _came_after_start(self, queue: MessageQueue) -> bool:
        stored_ms = await self._ask(earliest_store_time, queue)
        return stored_ms is not None and stored_ms >= self.started_ms

    async def _ask(
        self,
        question: Callable[Concatenate[RemotingClient, str, MessageQueue, P], Awaitable[T]],
        queue: MessageQueue,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        async with self.client.offset_request(queue):
            address = self.client.routes.address(self.client.routes.endpoint(queue))
            if address is None:
                raise BrokerAwayError(queue.topic, queue.broker_name)
            return await question(self.client.remoting, address, queue, *args, **kwargs)
