"""Commits what is finished every few seconds, and measures how far behind the group is.

Each broker has rounds of its own: one that is silent delays no other.

A process that was suspended wakes with queues that may have other owners by now, which it hears in its next rebalance.
The round that is due comes first, and pulls carry commits. So the rounds are waited for in short steps, and after a
step that is late the store looks at what is stored before it commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from rmqd.clock import suspended_seconds
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.wire.message_queue import MessageQueue

LATE_SECONDS: Final = 1.0  # others wait longer than a step, and this, for a former owner
STEP_SECONDS: Final = 1.0


class OffsetPersistence:
    """The rounds of commits of one group."""

    def __init__(self, context: GroupContext, assigned: Mapping[MessageQueue, Assignment]) -> None:
        self._context = context
        self._assigned = assigned
        self._busy: set[str] = set()  # brokers whose last round has not ended

    async def run(self) -> None:
        """Begin a round every `persist_consumer_offset_interval`, until cancelled."""
        async with asyncio.TaskGroup() as rounds:
            while True:
                await self._wait(self._context.options.persist_consumer_offset_interval_seconds)
                routes = self._context.client.routes
                for broker_name, queues in routes.by_endpoint(self._assigned).items():
                    if broker_name not in self._busy and routes.address(broker_name) is not None:
                        self._busy.add(broker_name)
                        assigned = [self._assigned[queue] for queue in queues]
                        rounds.create_task(self._round(broker_name, assigned), name=f"persist:{broker_name}")

    async def _wait(self, seconds: float) -> None:
        context, end = self._context, self._now() + seconds
        while (now := self._now()) < end:
            step_seconds = min(STEP_SECONDS, end - now)
            context.store.carries_until = now + step_seconds + LATE_SECONDS
            await context.clock.sleep(step_seconds)
            if self._now() > context.store.carries_until:
                context.store.doubt()

    def _now(self) -> float:
        """Seconds, with those in which the machine was suspended."""
        return self._context.clock.monotonic() + suspended_seconds()

    async def _round(self, broker_name: str, assigned: list[Assignment]) -> None:
        context = self._context
        try:
            offsets = {
                one.message_queue: offset
                for one in assigned
                if (offset := one.commit_offset()) is not None
                and not one.is_leaving
                and context.ownership.holds(one.message_queue)
            }
            # at the same time: a commit may have to wait for an earlier one at a slow broker
            async with asyncio.TaskGroup() as tasks:
                for measure in filter(None, [one.status.measure() for one in assigned]):
                    tasks.create_task(measure)
                # not as a task: a reset between the reading of the offsets and this call would be overwritten
                await context.store.persist(offsets)
        finally:
            self._busy.discard(broker_name)
