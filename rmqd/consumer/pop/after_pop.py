"""Assignment of queues in a group that pulls but popped before, with its unfinished popped messages.

A group that popped until its `consume_mode` was changed has messages in its pop retry topics. More arrive while popped
messages are invisible. Pulls of the group's topics do not return them, so the group also pulls these topics
(`PopRetries`). Brokers pop for a group only if an administrator set that, and remember it, so one query is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from rmqd.broker_errors import RequestCodeNotSupportedError
from rmqd.client.api.request_mode import request_modes
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.retries import PopRetries
from rmqd.consumer.rebalance.division import Division, Share
from rmqd.errors import RmqdError
from rmqd.wire.bodies.pop import MessageRequestMode
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

ASK_SECONDS: Final = 10.0


class DivisionAfterPop(Division):
    """Computes each member's share as usual, with pop retry topics."""

    def __init__(self, context: GroupContext) -> None:
        super().__init__(context)
        self._retries = PopRetries(context)
        self._modes: dict[str, MessageRequestMode] = {}  # the topics that the group may have popped
        self._asked: set[str] = set()  # addresses of brokers that responded

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Start to query the brokers, and to check the pop retry topics of the topics that they report."""
        group = self._context.options.group
        reading = self._retries.run(self._modes, changed)
        return [
            *super().begin(tasks, changed),
            tasks.create_task(self._ask_brokers(), name=f"former pops:{group}"),
            tasks.create_task(reading, name=f"pop retries:{group}"),
        ]

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> Share | None:
        """Return this member's share. It is empty for a finished pop retry topic."""
        if self._retries.is_over(topic, held):
            return Share()
        return await super().share_of(topic, queues, client_ids, held)

    async def _ask_brokers(self) -> None:
        context = self._context
        while True:
            for address in context.brokers().values():
                if address not in self._asked:
                    await self._ask(address)
            await context.clock.sleep(ASK_SECONDS)

    async def _ask(self, address: str) -> None:
        options = self._context.options
        try:
            told = await request_modes(self._context.client.remoting, address)
        except RequestCodeNotSupportedError:  # this broker cannot pop
            told = {}
        except RmqdError as error:
            log.debug("pop.modes_unknown", address=address, error=str(error))
            return
        self._asked.add(address)
        topics = {topic for topic, group in told if group == options.group}
        self._modes |= dict.fromkeys(topics & options.subscriptions.keys(), MessageRequestMode.PULL)
