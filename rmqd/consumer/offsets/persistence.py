"""Commits what is finished every few seconds, to each broker by itself: one that is silent delays no other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from rmqd.consumer.context import GroupContext
from rmqd.consumer.offsets.lag import refresh_max_offsets
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.wire.message_queue import MessageQueue


class OffsetPersistence:
    """The rounds of commits of one group."""

    def __init__(self, context: GroupContext, assigned: Mapping[MessageQueue, AssignedQueue]) -> None:
        self._context = context
        self._assigned = assigned
        self._busy: set[str] = set()  # brokers whose last round has not ended

    async def run(self) -> None:
        """Begin a round every `persist_consumer_offset_interval`, until cancelled."""
        async with asyncio.TaskGroup() as rounds:
            while True:
                await asyncio.sleep(self._context.options.persist_consumer_offset_interval_seconds)
                for broker_name, queues in self._by_broker().items():
                    if broker_name not in self._busy:
                        self._busy.add(broker_name)
                        rounds.create_task(self._round(broker_name, queues), name=f"persist:{broker_name}")

    async def _round(self, broker_name: str, queues: list[AssignedQueue]) -> None:
        context = self._context
        try:
            offsets = {
                assigned.message_queue: assigned.process_queue.commit_offset()
                for assigned in queues
                if assigned.process_queue is not None
                and not assigned.is_leaving
                and context.ownership.holds(assigned.message_queue)
            }
            # side by side: a commit may have to wait for one whose broker is slow
            refreshing = refresh_max_offsets(context.client, queues, context.clock)
            await asyncio.gather(context.store.persist(offsets), refreshing)
        finally:
            self._busy.discard(broker_name)

    def _by_broker(self) -> dict[str, list[AssignedQueue]]:
        brokers: dict[str, list[AssignedQueue]] = defaultdict(list)
        routes = self._context.client.routes
        for queue, assigned in self._assigned.items():
            brokers[routes.endpoint(queue)].append(assigned)
        return {name: queues for name, queues in brokers.items() if routes.address(name) is not None}
