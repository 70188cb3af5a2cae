"""The lite topics of one parent topic at one broker: from the subscription to the last acknowledgement."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rmqd.consumer.lite.loop import LiteLoop
from rmqd.consumer.pop.assignment import PopAssignment
from rmqd.consumer.pop.loop import PopLoop
from rmqd.consumer.pop.status import PopStatus
from rmqd.consumer.pull.backoff import until_answered
from rmqd.wire.lite import parent_of
from rmqd.wire.message_queue import MessageQueue


class LiteStatus(PopStatus):
    """The status of a lite assignment. Its lag includes all lite topics with an offset of the group."""

    @property
    def _asked_topic(self) -> str:
        return ""

    def _is_ours(self, queue: MessageQueue) -> bool:
        return parent_of(queue.topic) == self._message_queue.topic


class LiteAssignment(PopAssignment):
    """Subscribes and pops. At its release it unsubscribes first, so that other members get new messages."""

    loop_type: ClassVar[type[PopLoop]] = LiteLoop
    status_type: ClassVar[type[PopStatus]] = LiteStatus

    async def _pop(self) -> None:
        loop = self.loop
        assert isinstance(loop, LiteLoop)
        await until_answered(self._context, self.message_queue, loop.subscribed.tell)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.subscribed.keep(), name=f"lite subscription:{self.message_queue}")
            tasks.create_task(loop.run(), name=f"lite pops:{self.message_queue}")

    async def _popped_last(self) -> None:
        loop = self.loop
        assert isinstance(loop, LiteLoop)
        await loop.subscribed.end()
