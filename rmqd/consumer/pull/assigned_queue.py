"""One ownership of a queue, from the hand-over by the previous owner to the hand-over to the next owner."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import structlog

from rmqd.client.api.offset_requests import get_max_offset
from rmqd.consumer.assigned.assignment import Assignment, LazyEvent
from rmqd.consumer.assigned.stall_facts import StallFacts
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext, ReleasedOffset
from rmqd.consumer.offsets.start_offsets import QueueStart
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.pull.pull_request import repeat_until_answered
from rmqd.consumer.pull.queue_release import QueueRelease
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RemotingError, RmqdError
from rmqd.errors.broker_errors import AccessRefusedError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

RESET_VALID_SECONDS = 5.0  # time limit for a reset of a queue that changes its owner
END_QUERY_SECONDS: Final = 5.0
PULL_OVERDUE_SECONDS: Final = 21.0  # a pull is held for 15 s, and then answered within the broker's 5 s check interval
PULL_UNANSWERED_SECONDS: Final = 22.0  # PULL_OVERDUE_SECONDS plus a margin


class AssignedQueue(Assignment):
    """Acquires a queue, pulls it, and releases it on request.

    `run` has these stages: wait until the previous owner has released the queue (`Ownership.acquire`); read the stored
    offset and determine the start offset; pull (`PullLoop`); release (`QueueRelease`).

    Three events interrupt the pull loop, by `_cut`: the queue's lock was lost, an operator reset the queue, or the
    watchdog found that the loop hangs. The loop's `run` is then cancelled. Once the cause is handled, `run` continues
    with the same loop object, and so with the same cache.
    """

    is_popped = False
    loop: PullLoop | None

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        super().__init__(context, message_queue)
        context.idle_queues.pop(message_queue, None)
        self.loop = None
        self._is_acquired = False  # whether `acquire` returned; the start offset may still be unknown
        self._start_failure: RmqdError | None = None  # error of the last attempt to acquire the queue
        self._queue_release = QueueRelease(context, message_queue, self._release_signal)
        self._cut = LazyEvent()  # set to interrupt and restart the pull loop
        self._in_peace = True  # whether the previous owner has released the queue, so that it will not commit any more
        self._is_doubtful = False  # whether the queue's lock was lost, or may have been
        self._sought: tuple[int, Callable[[ProcessQueue], None]] | None = None  # arguments of a pending `seek`
        self._seek_ended = LazyEvent()
        self._moved_to: int | None = None
        self._move_until = 0.0  # monotonic deadline of the reset

    def commit_offset(self) -> int | None:
        return None if self.loop is None else self.loop.process_queue.commit_offset()

    def count_handled_twice(self, messages: int) -> None:
        if messages:
            self._context.stats[self.message_queue.topic].count_possible_duplicates("handed_over", messages)

    def move_to(self, offset: int) -> bool:
        """Continue at `offset` at once after an operator's reset: a pull held at the broker is interrupted.

        If another member still owns the queue, the reset applies only if this member acquires the queue within 5 s.
        After that the reset is void, because the previous owner received the same reset and has applied it.
        """
        self._moved_to = offset
        is_ours = self.loop is not None and self._context.ownership.holds(self.message_queue)
        self._move_until = float("inf") if is_ours else self._context.clock.monotonic() + RESET_VALID_SECONDS
        self._cut.set()
        return True

    async def seek(self, offset: int, begin: Callable[[ProcessQueue], None]) -> None:
        """Drop the cache at once and continue at `offset`: the caller of a `PullConsumer` requested this.

        `begin` prepares the new cache before its first pull, which may carry a commit. Returns when that pull starts,
        or the queue is released.
        """
        self._sought = offset, begin
        self._seek_ended.clear()
        if self.loop is not None:
            self.loop.process_queue.drop("offset_moved")
        self._cut.set()
        await self._seek_ended.wait()

    def switch_replica_if_down(self) -> None:
        if self.loop is not None:
            self.loop.request.try_another_replica()

    def restart_loop(self) -> None:
        self._cut.set()

    async def run(self) -> None:
        await self.consume()
        await self._queue_release.run(self.loop, lambda: self._moved_to)
        self._context.problems.end(("unread", self.message_queue))

    async def consume(self) -> None:
        """Acquire the queue, and pull it until `release` is called."""
        try:
            await self._release_signal.begun.run_until_set(self._own())
        finally:
            self._seek_ended.set()

    async def abandon(self) -> None:
        await self._queue_release.abandon(self.loop, lambda: self._moved_to)

    async def _own(self) -> None:
        context, queue = self._context, self.message_queue
        self._in_peace = await context.ownership.acquire(queue, self._lost, context.max_notice_delay_seconds)
        self._is_acquired = True
        start = await repeat_until_answered(context, queue, self._start)
        log.info("queue.started", queue=str(queue), offset=start.offset, why=start.why)
        self.loop = loop = PullLoop(context, queue, start.offset)
        loop.apply_pauses()
        self._check_released_offset(loop, start.offset)
        await self._pull(loop)

    async def _start(self) -> QueueStart:
        """Determine the start offset, and store it before the first pull. Raises RmqdError."""
        try:
            return await self.find_or_store_start()
        except RmqdError as error:
            self._start_failure = error
            if isinstance(error, AccessRefusedError):  # queries for start offsets require a permission
                self._context.client.remoting.security.refusals.record_needed_request(error)
            raise

    async def find_or_store_start(self) -> QueueStart:
        """Return the stored offset; otherwise store and return the start offset. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.start_offsets.read_stored_offset(queue)
        if stored is None and (released := context.released_offsets.get(queue)) is not None:
            start = await context.start_offsets.policy.lost_queue_start(queue, *released)
        else:
            start = await context.start_offsets.determine_start(queue, stored)
        context.store.begin_ownership(queue, start.offset if start.is_stored else None, self, in_peace=self._in_peace)
        if not start.is_stored:
            await context.store.commit(queue, start.offset)
        return start

    def _check_released_offset(self, loop: PullLoop, offset: int) -> None:
        """Log and count a start offset below this process's earlier commit. The queue is pulled from it anyway.

        If both are equal, no other member has committed since. Then newer messages below the offset come from a
        recreated topic.
        """
        released = self._context.released_offsets.pop(self.message_queue, None)
        if released is not None and offset < released.committed:
            queue = str(self.message_queue)
            log.warning("offset.fell", queue=queue, offset=offset, committed_before=released.committed)
            self._context.stats[self.message_queue.topic].falls["take_over"] += 1
        elif released is not None and offset == released.committed:
            loop.process_queue.note_skipped_by_broker(released.stored_ms)

    async def _pull(self, loop: PullLoop) -> None:
        """Run the pull loop; restart it after each interruption."""
        while True:
            self._cut.clear()
            if self._is_doubtful or not self._context.ownership.holds(self.message_queue):
                await self._win_back(loop)
            if self._moved_to is not None:
                offset, self._moved_to = self._moved_to, None
                if self._context.clock.monotonic() < self._move_until:
                    await loop.move_to(offset)
            if self._sought is not None:
                (offset, begin), self._sought = self._sought, None
                loop.restart_at(offset, "offset_moved")
                begin(loop.process_queue)
                self._seek_ended.set()
            await self._cut.run_until_set(loop.run())

    def _lost(self) -> None:
        """Called when the queue's lock is lost or uncertain. Stop pulls and handler calls until the next grant."""
        self._is_doubtful = True
        self._context.idle_queues.pop(self.message_queue, None)
        if self.loop is not None:
            self.loop.process_queue.awaits_lock = True
            self._context.service.halt(self.loop.process_queue)
        self._cut.set()

    async def _win_back(self, loop: PullLoop) -> None:
        """Wait for the queue's lock, and continue at the same offset unless another member has consumed the queue.

        The stored offset shows whether another member has. If it is one of our commits, or lower on a broker that may
        have lost commits, no other member has committed, and the cache is still valid. Otherwise another member owned
        the queue. Then the cache is dropped, and the queue is pulled from the stored offset, as after an acquisition.
        """
        context, queue = self._context, self.message_queue
        await context.ownership.acquire(queue, self._lost)
        self._is_doubtful = False
        stored = await repeat_until_answered(context, queue, lambda: context.start_offsets.read_stored_offset(queue))
        committed = context.store.committed.get(queue)
        may_be_less = committed is not None and context.store.may_be_lost(queue)
        if (
            stored is None
            or context.store.may_have_committed(queue, stored)
            or (may_be_less and stored < (committed or 0))
        ):
            loop.process_queue.awaits_lock = False
            context.service.submit(loop.process_queue)
            return
        log.warning("queue.consumed_elsewhere", queue=str(queue), committed=committed, stored=stored)
        if committed is not None:
            context.released_offsets[queue] = ReleasedOffset(committed, 0)
        self._check_released_offset(loop, stored)
        loop.restart_at(stored, "lock_lost")
        context.store.begin_ownership(queue, stored, self)

    @property
    def failure(self) -> RmqdError | None:
        """The last error of a pull or of an attempt to acquire the queue; None after a success."""
        return self._start_failure if self.loop is None else self.loop.failure

    @property
    def last_iteration_at(self) -> float | None:
        """When the loop last sent a pull, got a response or checked a wait; None while the rate limit delays it."""
        loop = self.loop
        return (
            None
            if loop is None or loop.waits_for_rate
            else max(loop.last_request_at, loop.last_response_at, loop.checked_at)
        )

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
        loop = self.loop
        if loop is None:
            return not self._is_acquired or self._start_failure is not None
        if loop.has_backlog or self._is_blind(loop):
            return True
        return loop.process_queue.cached_count > len(loop.process_queue.uncommitted)

    def snapshot(self) -> QueueSnapshot | None:
        loop, store, message_queue = self.loop, self._context.store, self.message_queue
        if loop is None:
            is_usual = self.stall is None and self._context.ownership.holds(message_queue)
            return None if is_usual else self._figures()
        snapshot, process_queue = self._figures(), loop.process_queue
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

    def is_idle(self, now: float) -> bool:
        """Return whether the queue is idle: a pull is held at the broker, and all messages are handled."""
        loop, context, message_queue = self.loop, self._context, self.message_queue
        if loop is None or self._state != "waiting" or self.stall is not None or loop.failure is not None:
            return False
        process_queue = loop.process_queue
        return (
            loop.max_offset == process_queue.next_offset
            and not (process_queue.cached_count or process_queue.in_flight)
            and loop.hold_reason is None
            and loop.stuck is None
            and now - loop.last_request_at < PULL_OVERDUE_SECONDS
            and context.ownership.holds(message_queue)
            and not context.pauses.is_paused(message_queue)
        )

    def measure(self) -> Coroutine[Any, Any, None] | None:
        """Return a query of the queue's end; None if pulls report it. They do not while they are held back or fail."""
        loop = self.loop
        return None if loop is None or not (loop.max_offset is None or self._is_stale(loop)) else self._measure(loop)

    async def _measure(self, loop: PullLoop) -> None:
        client, message_queue = self._context.client, self.message_queue
        try:
            async with client.offset_request(message_queue):
                address = client.routes.address_for(message_queue)
                loop.max_offset = await get_max_offset(client.remoting, address, message_queue)
            loop.end_queried_at = self._context.clock.monotonic()
        except RmqdError as error:
            log.debug("lag.unknown", queue=str(message_queue), error=str(error))

    def _is_stale(self, loop: PullLoop) -> bool:
        """Return whether the queue may grow unnoticed. A held pull would be answered as soon as the queue grows."""
        is_held_back = loop.hold_reason is not None or loop.stuck is not None
        # neither an overdue response nor a failing pull shows whether the queue has grown
        patience = END_QUERY_SECONDS if is_held_back or loop.failure else PULL_OVERDUE_SECONDS
        return self._context.clock.monotonic() - loop.last_response_at >= patience

    def _cannot_be_consumed(self) -> str | None:
        return "stuck" if self.loop is not None and self.loop.stuck is not None else super()._cannot_be_consumed()

    def _seen(self) -> StallFacts:
        loop, client = self.loop, self._context.client
        address = client.routes.address(client.routes.endpoint(self.message_queue))
        is_down = address is not None and client.heartbeat.brokers_up.get(address) is False
        seen = replace(super()._seen(), broker_down=is_down)
        if loop is None:
            return seen
        return replace(
            seen,
            stuck=loop.stuck,
            waits_for_rate=loop.waits_for_rate,
            unanswered_seconds=self._unanswered(loop),
        )

    def _is_blind(self, loop: PullLoop) -> bool:
        """Return whether the backlog is unknown: neither a pull nor a later query of the queue's end was answered."""
        silent = isinstance(loop.failure, RemotingError) or self._unanswered(loop) > 0
        refused = loop.failure is not None and not isinstance(loop.failure, RemotingError)
        return refused or loop.stuck is not None or (silent and loop.end_queried_at < loop.last_request_at)

    def _unanswered(self, loop: PullLoop) -> float:
        """Return the seconds since an unanswered pull was sent; 0 until they are PULL_UNANSWERED_SECONDS."""
        waits = loop.last_request_at > loop.last_response_at and loop.hold_reason is None and loop.failure is None
        seconds = self._context.clock.monotonic() - loop.last_request_at if waits else 0.0
        return seconds if seconds >= PULL_UNANSWERED_SECONDS else 0.0
