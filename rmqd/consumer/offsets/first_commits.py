"""A group's first commit of a topic on a broker, which must run alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.wire.message_queue import MessageQueue


class FirstCommits:
    """Delays further commits of a topic on a broker until its first commit is answered.

    At the first commit the broker creates the table of a group's offsets of a topic, without a lock
    (`ConsumerOffsetManager`). If two first commits arrive at once, each creates a table and one table replaces the
    other: both commits are answered with success, and one is lost.
    """

    def __init__(self, connection: Callable[[MessageQueue], RemotingConnection | None]) -> None:
        self._connection = connection
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}  # (topic, broker) -> lock
        self._begun: dict[tuple[str, str], RemotingConnection | None] = {}

    @contextlib.asynccontextmanager
    async def alone(self, queue: MessageQueue, *, again: bool) -> AsyncIterator[None]:
        """Hold this during one commit; it waits while another commit is the first of its table.

        A commit of an unchanged offset (`again`) may also be the first one, if the group was deleted meanwhile.
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
        """Return whether the broker has the table, so that commits of the queue may run concurrently."""
        return self._is_begun((queue.topic, queue.broker_name), queue)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """Record that the broker has an offset of the queue, and so the table. 0 proves nothing."""
        if offset > 0:
            self._begun[queue.topic, queue.broker_name] = self._connection(queue)

    def _is_begun(self, table: tuple[str, str], queue: MessageQueue) -> bool:
        return table in self._begun and self._begun[table] is self._connection(queue)
