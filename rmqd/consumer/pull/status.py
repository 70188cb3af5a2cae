"""What one owned queue tells about itself: its state, the figures of the moment, and why it stands still."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

import structlog

from rmqd.client.api.offset import get_max_offset
from rmqd.consumer.assigned.stall import Stall
from rmqd.consumer.assigned.status import AssignmentStatus
from rmqd.consumer.pull.loop import PullLoop
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.errors import RemotingError, RmqdError

log = structlog.get_logger(__name__)

STALE_SECONDS: Final = 5.0
OVERDUE_SECONDS: Final = 21.0  # a pull is held for 15 s, and then answered within the broker's 5 s round
UNANSWERED_SECONDS: Final = 22.0  # the same, and a little patience


class QueueStatus(AssignmentStatus):
    """The state of a queue that is pulled, and since when."""

    loop: PullLoop | None = None
    start_failure: RmqdError | None = None  # of the last attempt to take the queue over
    _quiet: tuple[object, QueueSnapshot] | None = None  # the last snapshot while it was quiet, and what it depends on

    @property
    def failure(self) -> RmqdError | None:
        """The last failure: of a pull, or of an attempt to take the queue over; None after a success."""
        return self.start_failure if self.loop is None else self.loop.failure

    @property
    def turned_at(self) -> float | None:
        """When the loop last asked, was answered, or looked whether to go on; None while it may wait for long."""
        loop = self.loop
        return None if loop is None or loop.waits_for_rate else max(loop.asked_at, loop.answered_at, loop.looked_at)

    def progress(self) -> object:
        """What changes whenever the queue moves: messages of it were finished, or it was pulled on and has none.

        While messages are here, those that arrive behind them are no progress: a handler that hangs would otherwise be
        seen only when a threshold stops the pulls.
        """
        if self.loop is None:
            return None
        process_queue = self.loop.process_queue
        pulled_to = None if process_queue.cached_count else process_queue.next_offset
        return process_queue, pulled_to, process_queue.put_count - process_queue.cached_count

    def has_work(self) -> bool:
        """Whether the queue has something to do, or nobody can tell whether it has."""
        loop = self.loop
        if loop is None or loop.is_behind or self._is_blind(loop):
            return True
        return loop.process_queue.cached_count > len(loop.process_queue.uncommitted)

    def snapshot(self) -> QueueSnapshot | None:
        """What is known of the queue; None until it was taken over, unless that takes too long."""
        loop, store, message_queue = self.loop, self._context.store, self._message_queue
        if loop is None and self.stall is None and self._context.ownership.holds(message_queue):
            return None
        if loop is None:
            return super().snapshot()
        is_quiet, process_queue = self.is_quiet(self._context.clock.monotonic()), loop.process_queue
        committed, last_commit = store.committed.get(message_queue), store.committed_at.get(message_queue)
        address, at_slave = loop.request.address, not loop.request.at_master
        depends_on = (process_queue.next_offset, self.since, committed, last_commit, address, at_slave)
        if is_quiet and self._quiet is not None and self._quiet[0] == depends_on:
            return self._quiet[1]
        if (snapshot := super().snapshot()) is None:
            return None
        lag = None if loop.max_offset is None else max(0, loop.max_offset - process_queue.commit_offset())
        snapshot = replace(
            snapshot,
            committed=committed,
            max=loop.max_offset,
            lag=lag,
            lag_seconds=self._lag_seconds(lag, process_queue.last_store_timestamp),
            span=process_queue.span(),
            position=process_queue.next_offset,
            last_commit=last_commit,
            pulled_from=address,
            at_slave=at_slave,
        )
        self._quiet = (depends_on, snapshot) if is_quiet else None
        return snapshot

    def is_quiet(self, now: float) -> bool:
        """Whether it plainly waits for messages: a pull of it is held, and all that ever came is handled."""
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
        """Ask for the queue's end where no pull tells it: it is held back, or its first pull has no answer yet."""
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
        """Whether the queue grows unseen. A held pull is answered as soon as it grows, so what that knows is fresh."""
        is_held_back = loop.held_by is not None or loop.stuck is not None
        # an answer that is overdue, and a pull that fails, say nothing either
        patience = STALE_SECONDS if is_held_back or loop.failure else OVERDUE_SECONDS
        return self._context.clock.monotonic() - loop.answered_at >= patience

    def _cannot_be_consumed(self) -> str | None:
        return "stuck" if self.loop is not None and self.loop.stuck is not None else super()._cannot_be_consumed()

    def _seen(self) -> Stall:
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
        """Whether nothing tells if messages wait: no pull is answered, nor the question for the queue's end since."""
        silent = isinstance(loop.failure, RemotingError) or self._unanswered(loop) > 0
        refused = loop.failure is not None and not isinstance(loop.failure, RemotingError)
        return refused or loop.stuck is not None or (silent and loop.measured_at < loop.asked_at)

    def _unanswered(self, loop: PullLoop) -> float:
        """For how long a pull waits for an answer that should have come; 0 where none does."""
        waits = loop.asked_at > loop.answered_at and loop.held_by is None and loop.failure is None
        seconds = self._context.clock.monotonic() - loop.asked_at if waits else 0.0
        return seconds if seconds >= UNANSWERED_SECONDS else 0.0
