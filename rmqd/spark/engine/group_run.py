"""One group on Spark, from its first heartbeat to its last commit.

    join the group, alone     start Spark     query     query ...     commit     leave     end Spark

A query runs until the group is stopped, or until an operator moves the group to other offsets. After a move, another
query starts with a new generation of the checkpoint. A query ends between two micro-batches, so that no messages are
redelivered. To end a query, the driver creates the pause file. While this file exists, the source starts no
micro-batch, and the current micro-batch may finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from rmqd.config.model.spark_model import AVAILABLE_NOW
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.errors import RmqdError
from rmqd.runtime.clock import Clock
from rmqd.runtime.own_threads import SingleThread, call_in_loop
from rmqd.runtime.plain_text import describe
from rmqd.spark.engine.running_query import BatchGate, QueryFailedError, RunningQuery, query_error
from rmqd.spark.engine.spark_figures import BatchProgress, DriverMetrics
from rmqd.spark.handlers.range_outcome import RangeOutcome
from rmqd.spark.session.group_spec import GroupSpec
from rmqd.spark.source.source_offsets import ByQueue

if TYPE_CHECKING:
    from rmqd.spark.engine.checkpoint_generations import CheckpointGeneration, CheckpointGenerations
    from rmqd.spark.engine.driver_membership import DriverMembership
    from rmqd.spark.engine.spark_parts import GroupRunParts

T = TypeVar("T")

log = structlog.get_logger(__name__)

RESET_POLL_SECONDS: Final = 2.0
STATUS_INTERVAL_SECONDS: Final = 1.0
IDLE_POLL_SECONDS: Final = 0.05  # how often a drain asks Spark whether the query is idle; progress reports may be late
MAX_LATE_WORKER_RETRIES: Final = 5  # how many queries in a row may fail because a Python worker started late
CONFLICT_DRAIN_SECONDS: Final = 10.0  # limit for the drain if another engine or driver also runs the group
END_STEP_TIMEOUT_SECONDS: Final = 10.0  # limit for each step of a stop: end the query, commit, end Spark
FORCED_STOP_TIMEOUT_SECONDS: Final = 2.0


class _StoppedError(Exception):
    """`stop` was called while no query ran, so there is nothing to drain."""


class GroupRun:
    """One run of a group on Spark, from its first heartbeat to its last commit. Call `run` once."""

    def __init__(self, spec: GroupSpec, parts: GroupRunParts, clock: Clock) -> None:
        self._spec = spec
        self._parts = parts
        self._clock = clock
        self._figures = DriverMetrics(spec.options, clock)
        self._loop = asyncio.get_running_loop()
        self._log = log.bind(group=spec.name)
        self._stop = asyncio.Event()
        self._gate = BatchGate(self._stop)
        self._force_stop = asyncio.Event()
        self._moved = asyncio.Event()
        self._pushed: asyncio.Queue[ByQueue] = asyncio.Queue()
        self._drain_seconds = spec.settings.shutdown_timeout_seconds
        self._state = "starting"
        self._failure: str | None = None
        self._is_handling = self._is_member = False
        self._late_workers = 0  # queries that failed because of late Python workers since the last micro-batch
        self._stuck_by: list[str] = []  # reasons why the group cannot continue, such as a corrupt message
        self._membership: DriverMembership | None = None
        self._generation: int | None = None  # generation of the last query
        self._watching: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until the group is stopped and drained, or a bounded query ends. Raises the error of a failed group."""
        work = asyncio.create_task(self._work(), name=f"group {self._spec.name}")
        force_stop = asyncio.create_task(self._force_stop.wait(), name=f"force stop of {self._spec.name}")
        try:
            await asyncio.wait({work, force_stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            force_stop.cancel()
            work.cancel()  # does nothing if the task is done
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    def stop(self, seconds: float | None = None) -> None:
        """Stop after the current micro-batch, or at the latest after `seconds` (default: shutdown_timeout)."""
        if seconds is not None:
            self._drain_seconds = seconds
        self._stop.set()

    def force_stop(self) -> None:
        """Stop without waiting for the current micro-batch."""
        self._stop.set()
        self._force_stop.set()

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Pause the group or a part of it. Only a pause of the whole group prevents new micro-batches."""
        self._gate.pause(scope)
        self._log.info("group.paused", scope=str(scope))

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """End the pauses within a scope. Micro-batches start again if the whole group was paused."""
        self._gate.resume(scope)
        self._log.info("group.resumed", scope=str(scope))

    def snapshot(self) -> GroupSnapshot:
        client_id, pauses = self._membership.client_id if self._membership is not None else "", self._gate.pauses
        return self._figures.snapshot(self._state, self._failure, client_id, pauses, handling=self._is_handling)

    async def _work(self) -> None:
        try:
            with self._gate.temporary_folder(), suppress(_StoppedError):
                await self._take_part()
            self._state = "stopped"
        except asyncio.CancelledError:
            self._state = "stopped"
            raise
        except Exception as error:
            self._state, self._failure = "failed", failure_text(error)
            if isinstance(error, QueryFailedError):
                self._figures.handler_hung = HandlerHungError.__name__ in error.spark_report
                self._log.error("spark.query_failed", error=str(error), said=error.spark_report)
            raise

    async def _take_part(self) -> None:
        membership = self._membership = self._parts.membership(
            self._pushed.put_nowait, self._figures.process_queue_infos
        )
        thread = SingleThread("rmqd.spark")
        session: Any = None
        helpers: list[asyncio.Task[None]] = []
        try:
            await self._unless_stopped(membership.join())
            self._is_member = True
            self._watching = asyncio.create_task(membership.watch_members(), name="presence")
            places = self._parts.queue_poller(self._figures)
            helpers += [self._watching, asyncio.create_task(places.run(), name="places of queues")]
            if (claim_store := self._parts.deduplication_store_poller(self._figures)) is not None:
                helpers.append(asyncio.create_task(claim_store.run(), name="claim store"))
            await self._unless_stopped(membership.store_start_offsets())
            began = self._clock.monotonic()
            session = await self._unless_stopped(thread.call(lambda: self._parts.start_session(self._on_progress)))
            self._log.info("spark.session_started", seconds=round(self._clock.monotonic() - began, 1))
            await self._run_queries(session, thread)
        finally:
            self._watching = None
            await _ended(*helpers)
            await membership.leave()
            if self._is_member:
                self._log.info("group.left")
            if session is not None and not self._force_stop.is_set():  # otherwise the session ends with this process
                await self._within_time_limit(thread.call(session.stop), "Spark")
            thread.end()

    async def _run_queries(self, session: Any, thread: SingleThread) -> None:
        asking = SingleThread("rmqd.spark.checkpoints")  # its calls wait for brokers, and must not delay calls to Spark
        try:
            checkpoints = await self._unless_stopped(asking.call(lambda: self._parts.checkpoint_generations(session)))
            is_over = False
            while not is_over:
                if self._spec.spark.trigger == AVAILABLE_NOW:  # a paused bounded query would end without a batch
                    await self._unless_stopped(self._gate.resumed.wait())
                generation = await self._unless_stopped(asking.call(checkpoints.prepare_generation))
                self._moved.clear()
                self._gate.open()
                query = await self._start(session, thread, generation, checkpoints)
                try:
                    is_over = await self._run_query(query, checkpoints, asking)
                finally:
                    self._is_handling = False
                    await self._within_time_limit(query.stop(), "the query")
                    await self._within_time_limit(asking.call(checkpoints.commit_end_offsets), "the last commit")
        finally:
            asking.end()

    async def _start(
        self, session: Any, thread: SingleThread, generation: CheckpointGeneration, checkpoints: CheckpointGenerations
    ) -> RunningQuery:
        pause_file = self._gate.pause_file

        def on_batch(outcomes: list[RangeOutcome]) -> None:
            if checkpoints.store_resets_of(outcomes):
                pause_file.touch()  # in this thread, because the next micro-batch may start before the loop runs
                failures = [outcome.stop_reason for outcome in outcomes if outcome.stop_reason]
                call_in_loop(self._loop, lambda: self._move(failures))
            call_in_loop(self._loop, lambda: self._figures.count_outcomes(outcomes))

        try:
            query = await thread.call(lambda: self._parts.start_query(session, generation, str(pause_file), on_batch))
        except RmqdError:
            raise
        except Exception as error:
            raise query_error(error) from error
        if (
            self._generation is not None
            and generation.number > self._generation
            and generation.start_offsets is not None
        ):
            self._figures.set_start_offsets(generation.start_offsets)
        self._generation = generation.number
        self._state = "running"
        self._log.info("spark.query_started", generation=generation.number, checkpoint=generation.path)
        return RunningQuery(query, thread)

    async def _run_query(self, query: RunningQuery, checkpoints: CheckpointGenerations, asking: SingleThread) -> bool:
        """Wait until the query ends, or drain it if it must end. Return False if another query must be started."""
        ended = asyncio.create_task(query.wait(), name="query")
        others = [
            asyncio.create_task(self._stop.wait(), name="stop"),
            asyncio.create_task(self._moved.wait(), name="move"),
            asyncio.create_task(self._watch_moves(checkpoints, asking), name="moves"),
            asyncio.create_task(self._watch_status(query), name="status"),
        ]
        rival = [] if self._watching is None else [self._watching]
        try:
            await asyncio.wait({ended, *others, *rival}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                if self._is_late_worker(ended):
                    return False
                ended.result()
                self._raise_if_stuck()
                # a bounded query that was paused may have ended before all messages were handled: start another query
                return not self._gate.was_closed
            self._gate.close()
            is_rivalled = self._watching is not None and self._watching.done()
            if self._stop.is_set():
                self._state = "draining"
            await self._drain(query, ended, CONFLICT_DRAIN_SECONDS if is_rivalled else self._drain_seconds)
            for task in (*others, *rival):
                if task.done():
                    task.result()
            self._raise_if_stuck()
            return self._stop.is_set()
        finally:
            await _ended(*others)
            ended.cancel()

    def _is_late_worker(self, ended: asyncio.Task[None]) -> bool:
        """Return whether the query failed because a Python worker started late, and another query may be started."""
        error = ended.exception()
        is_late = isinstance(error, QueryFailedError) and error.is_late_worker
        if not is_late or self._late_workers >= MAX_LATE_WORKER_RETRIES:
            return False
        self._late_workers += 1
        self._log.warning("spark.worker_late", times=self._late_workers, most=MAX_LATE_WORKER_RETRIES, error=str(error))
        return True

    def _raise_if_stuck(self) -> None:
        """Raise RmqdError if the group cannot continue. Called when the last batch's messages are settled."""
        if self._stuck_by and not self._stop.is_set():
            raise RmqdError("; ".join(self._stuck_by))

    async def _drain(self, query: RunningQuery, ended: asyncio.Task[None], seconds: float) -> None:
        """Wait until the current micro-batch ends, at most `seconds`. Raises QueryFailedError if the query fails."""
        deadline = self._clock.monotonic() + seconds
        while not ended.done() and not await query.is_idle():
            if self._clock.monotonic() >= deadline:
                self._log.warning("spark.drain_cut", after_seconds=seconds, consequence="its messages are redelivered")
                return
            await asyncio.sleep(IDLE_POLL_SECONDS)
        if ended.done():
            ended.result()

    async def _watch_moves(self, checkpoints: CheckpointGenerations, asking: SingleThread) -> None:
        """Poll the brokers for operators' resets until cancelled, and store resets that a broker pushed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RESET_POLL_SECONDS):
                    resets = await self._pushed.get()
                await asking.call(lambda resets=resets: checkpoints.store_resets(resets))  # type: ignore[misc]
            try:
                if await asking.call(checkpoints.store_moved_offsets):
                    self._move()
            except RmqdError as error:  # an unreachable broker; the query tolerates it for a while, then fails
                self._log.debug("spark.moves_unknown", error=str(error))

    async def _watch_status(self, query: RunningQuery) -> None:
        while True:
            self._is_handling = not await query.is_idle()
            await asyncio.sleep(STATUS_INTERVAL_SECONDS)

    def _move(self, failures: Sequence[str] = ()) -> None:
        """End the query, because the group must continue at other offsets. With `failures`, the group then fails."""
        self._stuck_by += failures
        self._gate.close()
        self._moved.set()

    def _on_progress(self, progress: BatchProgress) -> None:
        call_in_loop(self._loop, lambda: self._batch_done(progress))

    def _batch_done(self, progress: BatchProgress) -> None:
        self._late_workers = 0
        self._figures.record_batch(progress)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises _StoppedError if `stop` is called first, or the membership's error."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stop.wait())
        rival = set() if self._watching is None else {self._watching}
        try:
            await asyncio.wait({task, stop, *rival}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            for watching in rival:
                if watching.done():
                    watching.result()
            raise _StoppedError
        finally:
            await _ended(task, stop)

    async def _within_time_limit(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run one step of the stop for a limited time. If the step fails or hangs, log that and return."""
        seconds = FORCED_STOP_TIMEOUT_SECONDS if self._force_stop.is_set() else END_STEP_TIMEOUT_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            self._log.error("spark.end_timed_out", what=what, seconds=seconds)
        except Exception as error:  # noqa: BLE001 the next step must run after any error
            self._log.error("spark.end_failed", what=what, error=failure_text(error))


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # retrieves the exception, which asyncio would report otherwise


def failure_text(error: BaseException) -> str:
    return str(error) if isinstance(error, RmqdError) else describe(error)
