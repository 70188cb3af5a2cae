"""Sees which popped assignments make no progress while messages wait, and says why, as the watchdog does of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from rmqd.consumer.health.stall import Stall
from rmqd.consumer.health.watchdog import STALL_SECONDS, TICK_SECONDS, tell_stalled
from rmqd.consumer.pop.assignment import PopAssignment
from rmqd.consumer.stats.problem import Problem
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.consumer.context import GroupContext

log = structlog.get_logger(__name__)


class PopWatch:
    """Watches what one group pops."""

    def __init__(self, assigned: Mapping[MessageQueue, PopAssignment]) -> None:
        self._assigned = assigned
        self._told: dict[MessageQueue, Problem] = {}

    async def run(self, context: GroupContext) -> None:
        """Look every other second, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.look(context)

    def look(self, context: GroupContext) -> None:
        """One look at every assignment."""
        for place in self._told.keys() - self._assigned.keys():
            del self._told[place]
        for place, assignment in self._assigned.items():
            problem = assignment.status.stall = self._stall(context, assignment)
            assignment.status.tick()
            told = self._told.get(place)
            if problem is None:
                if self._told.pop(place, None) is not None:
                    log.info("queue.goes_on", queue=str(place), cause=told.cause if told else "")
            elif told is None or told.cause != problem.cause:
                self._told[place] = problem
                tell_stalled(problem, {"topic": place.topic, "broker": place.broker_name, "queues": [place.queue_id]})

    def _stall(self, context: GroupContext, assignment: PopAssignment) -> Problem | None:
        now, loop = context.clock.monotonic(), assignment.loop
        fails = now - loop.failed_at if loop.failure is not None and not loop.failure.is_told else 0.0
        seconds = max(fails, now - loop.moved_at if loop.unacknowledged else 0.0)
        if assignment.is_leaving or seconds < STALL_SECONDS + context.options.pull_interval_seconds:
            return None
        queues = assignment.process_queues
        calls = context.service.calls()
        own = [now - call.started for call in calls if call.queue in queues]
        waiting = [message for queue in queues if (message := queue.oldest()) is not None]
        oldest = min(waiting, key=lambda message: message.store_timestamp, default=None)
        return Stall(
            seconds=seconds,
            paused=loop.is_paused or context.paused,
            failure=loop.failure,
            retrying=sum(queue.retrying for queue in queues),
            in_flight=sum(queue.in_flight for queue in queues),
            pending=sum(len(queue.pending) for queue in queues),
            oldest=""
            if oldest is None
            else f"message {oldest.msg_id} at offset {oldest.queue_offset} (retried {oldest.reconsume_times} times)",
            call_seconds=max(own, default=None),
            slots=context.options.concurrency,
            busy_slots=len(calls),
            longest_call_seconds=max((now - call.started for call in calls), default=0.0),
            broker=assignment.message_queue.broker_name,
        ).explain()
