"""Commits the progress of a group every few seconds, and measures the group's lag.

Each broker has separate rounds of commits: a silent broker does not delay the others.

When a suspended process resumes, its queues may have other owners. It learns this only in its next rebalance. The next
round of commits is due before that, and pulls carry commits. So the wait for a round is divided into short steps. If a
step is late, the store checks the stored offsets before it commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from rmqd.clock import suspended_seconds
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.wire.message_queue import MessageQueue

LATE_SECONDS: Final = 1.0  # a new owner waits longer than a step plus this for the previous owner
STEP_SECONDS: Final = 1.0


class OffsetPersistence:
    """The rounds of commits of one group."""

    def __init__(self, context: GroupContext, assigned: Mapping[MessageQueue, Assignment]) -> None:
        self._context = context
        self._assigned = assigned
        self._busy: set[str] = set()  # brokers whose last round has not ended

    async def run(self) -> None:
        """Start a round every `persist_consumer_offset_interval`, until cancelled."""
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
        """Return a time in seconds that also counts while the machine is suspended."""
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
            # concurrently: a commit may have to wait for an earlier commit at a slow broker
            async with asyncio.TaskGroup() as tasks:
                for measure in filter(None, [one.status.measure() for one in assigned]):
                    tasks.create_task(measure)
                # not as a task: a reset between the reading of the offsets and this call would be overwritten
                await context.store.persist(offsets)
        finally:
            self._busy.discard(broker_name)
