"""The status of one owned queue: its state, its current figures, and the cause of a stall."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

import structlog

from rmqd.client.api.offset_requests import get_max_offset
from rmqd.consumer.assigned.queue_status import AssignmentStatus, StallFacts
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RemotingError, RmqdError

log = structlog.get_logger(__name__)

STALE_SECONDS: Final = 5.0
OVERDUE_SECONDS: Final = 21.0  # a pull is held for 15 s, and then answered within the broker's 5 s check interval
UNANSWERED_SECONDS: Final = 22.0  # the time above plus a margin


class QueueStatus(AssignmentStatus):
    """The state of a pulled queue, and since when."""

    loop: PullLoop | None = None
    is_in_line: bool = False  # whether it is acquired, and waits until its start offset may be requested
    start_failure: RmqdError | None = None  # error of the last attempt to acquire the queue

    @property
    def failure(self) -> RmqdError | None:
        """The last failure of a pull or of an attempt to acquire the queue; None after a success."""
        return self.start_failure if self.loop is None else self.loop.failure

    @property
    def turned_at(self) -> float | None:
        """When the loop last sent a pull, received a response or checked a wait; None while it may wait for long."""
        loop = self.loop
        return None if loop is None or loop.waits_for_rate else max(loop.asked_at, loop.answered_at, loop.checked_at)

    def progress(self) -> object:
        """Return a value that changes with every progress: a message finishes, or an empty cache's offset advances.

        While messages are cached, further pulls are not progress: otherwise a hanging handler would be noticed only
        when a threshold stops the pulls.
        """
        if self.loop is None:
            return None
        process_queue = self.loop.process_queue
        pulled_to = None if process_queue.cached_count else process_queue.next_offset
        return process_queue, pulled_to, process_queue.put_count - process_queue.cached_count

    def has_work(self) -> bool:
        """Return whether the queue has work, or its work is unknown."""
        loop = self.loop
        if loop is None:
            return not self.is_in_line or self.start_failure is not None
        if loop.is_behind or self._is_blind(loop):
            return True
        return loop.process_queue.cached_count > len(loop.process_queue.uncommitted)

    def snapshot(self) -> QueueSnapshot | None:
        """Return the queue's snapshot; None until the queue was acquired, unless that takes too long."""
        loop, store, message_queue = self.loop, self._context.store, self._message_queue
        if loop is None and self.stall is None and self._context.ownership.holds(message_queue):
            return None
        if loop is None:
            return super().snapshot()
        if (snapshot := super().snapshot()) is None:
            return None
        process_queue = loop.process_queue
        lag = None if loop.max_offset is None else max(0, loop.max_offset - process_queue.commit_offset())
        return replace(
            snapshot,
            committed=store.committed.get(message_queue),
            max=loop.max_offset,
            lag=lag,
            lag_seconds=self._lag_seconds(lag, process_queue.last_store_timestamp),
            span=process_queue.span(),
            position=process_queue.next_offset,
            last_commit=store.committed_at.get(message_queue),
            pulled_from=loop.request.address,
            at_slave=not loop.request.at_master,
        )

    def is_quiet(self, now: float) -> bool:
        """Return whether the queue is idle: a pull is held at the broker, and all messages are handled."""
        loop, context, message_queue = self.loop, self._context, self._message_queue
        if loop is None or self._state != "waiting" or self.stall is not None or loop.failure is not None:
            return False
        process_queue = loop.process_queue
        return (
            loop.max_offset == process_queue.next_offset
            and not (process_queue.cached_count or process_queue.in_flight)
            and loop.held_by is None
            and loop.stuck is None
            and now - loop.asked_at < OVERDUE_SECONDS
            and context.ownership.holds(message_queue)
            and not context.pauses.hold(message_queue)
        )

    def measure(self) -> Coroutine[Any, Any, None] | None:
        """Query the queue's end if no pull reports it: the queue is held back, or its first pull is unanswered."""
        loop = self.loop
        return None if loop is None or not (loop.max_offset is None or self._is_stale(loop)) else self._measure(loop)

    async def _measure(self, loop: PullLoop) -> None:
        client, message_queue = self._context.client, self._message_queue
        address = client.routes.address(client.routes.endpoint(message_queue))
        if address is None:
            return
        try:
            async with client.offset_request(message_queue):
                loop.max_offset = await get_max_offset(client.remoting, address, message_queue)
            loop.measured_at = self._context.clock.monotonic()
        except RmqdError as error:
            log.debug("lag.unknown", queue=str(message_queue), error=str(error))

    def _is_stale(self, loop: PullLoop) -> bool:
        """Return whether the queue may grow unnoticed. A held pull would be answered as soon as the queue grows."""
        is_held_back = loop.held_by is not None or loop.stuck is not None
        # an overdue response or a failing pull does not show whether the queue has grown, either
        patience = STALE_SECONDS if is_held_back or loop.failure else OVERDUE_SECONDS
        return self._context.clock.monotonic() - loop.answered_at >= patience

    def _cannot_be_consumed(self) -> str | None:
        return "stuck" if self.loop is not None and self.loop.stuck is not None else super()._cannot_be_consumed()

    def _seen(self) -> StallFacts:
        loop, client, seen = self.loop, self._context.client, super()._seen()
        if loop is None:
            return seen
        address = client.routes.address(client.routes.endpoint(self._message_queue))
        return replace(
            seen,
            stuck=loop.stuck,
            waits_for_rate=loop.waits_for_rate,
            unanswered_seconds=self._unanswered(loop),
            broker_down=address is not None and client.heartbeat.brokers_up.get(address) is False,
        )

    def _is_blind(self, loop: PullLoop) -> bool:
        """Return whether the backlog is unknown: neither a pull nor a later query of the queue's end was answered."""
        silent = isinstance(loop.failure, RemotingError) or self._unanswered(loop) > 0
        refused = loop.failure is not None and not isinstance(loop.failure, RemotingError)
        return refused or loop.stuck is not None or (silent and loop.measured_at < loop.asked_at)

    def _unanswered(self, loop: PullLoop) -> float:
        """Return for how many seconds a response is overdue; 0 if none is."""
        waits = loop.asked_at > loop.answered_at and loop.held_by is None and loop.failure is None
        seconds = self._context.clock.monotonic() - loop.asked_at if waits else 0.0
        return seconds if seconds >= UNANSWERED_SECONDS else 0.0
