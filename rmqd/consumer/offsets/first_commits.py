"""A topic's first commit on a broker, which no other may meet there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.wire.message_queue import MessageQueue


class FirstCommits:
    """Lets the topic's first commit on a broker be answered before the next one is sent.

    The broker makes a table for a group's topic with its first commit, and no lock (`ConsumerOffsetManager`): of two
    that come at once, one is answered with success, and lost.
    """

    def __init__(self, connection: Callable[[MessageQueue], RemotingConnection | None]) -> None:
        self._connection = connection
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}  # by topic and broker
        self._begun: dict[tuple[str, str], RemotingConnection | None] = {}

    @contextlib.asynccontextmanager
    async def alone(self, queue: MessageQueue, *, again: bool) -> AsyncIterator[None]:
        """For one commit. What is stored `again` may be the first as well: the group may have been deleted."""
        table = (queue.topic, queue.broker_name)
        if again or not self._is_begun(table, queue):
            async with self._turns.setdefault(table, asyncio.Lock()):
                if again or not self._is_begun(table, queue):
                    yield
                    self._begun[table] = self._connection(queue)
                    return
        yield

    def _is_begun(self, table: tuple[str, str], queue: MessageQueue) -> bool:
        return table in self._begun and self._begun[table] is self._connection(queue)
