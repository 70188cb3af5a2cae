"""A group's first commit of a topic on a broker, beside which no other commit may be under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.wire.message_queue import MessageQueue


class FirstCommits:
    """Lets the topic's first commit on a broker be answered before the next one is sent.

    With the first commit the broker makes the table of a group's offsets of a topic, without a lock
    (`ConsumerOffsetManager`). If two first commits arrive at once, each makes a table and one table replaces the other:
    both commits are answered with success, and one is lost.
    """

    def __init__(self, connection: Callable[[MessageQueue], RemotingConnection | None]) -> None:
        self._connection = connection
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}  # by topic and broker
        self._begun: dict[tuple[str, str], RemotingConnection | None] = {}

    @contextlib.asynccontextmanager
    async def alone(self, queue: MessageQueue, *, again: bool) -> AsyncIterator[None]:
        """Hold this around one commit; it waits where another one is the first of its table.

        An unchanged offset that is stored `again` may be the first one too, if the group was deleted meanwhile.
        """
        table = (queue.topic, queue.broker_name)
        if again or not self._is_begun(table, queue):
            async with self._turns.setdefault(table, asyncio.Lock()):
                if again or not self._is_begun(table, queue):
                    yield
                    self._begun[table] = self._connection(queue)
                    return
        yield

    def is_begun(self, queue: MessageQueue) -> bool:
        """Whether the broker has the table, so that a commit of the queue may be sent beside others."""
        return self._is_begun((queue.topic, queue.broker_name), queue)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """Note that the broker has an offset of the queue, and so the table; 0 may also say that it has none."""
        if offset > 0:
            self._begun[queue.topic, queue.broker_name] = self._connection(queue)

    def _is_begun(self, table: tuple[str, str], queue: MessageQueue) -> bool:
        return table in self._begun and self._begun[table] is self._connection(queue)
