"""The slots of a group: its workers, the deadlines and threads of their calls, and the end of the group.

A group has one worker for each of its `concurrency` slots. With `concurrency: auto` it has a worker for each slot of
the maximum, and the workers above the current limit are parked. A lower `concurrency` parks workers too.

While a worker is busy, `_tick` checks four times a second for calls past their deadline (`consume_timeout`). It cancels
the task of an asynchronous handler. If the call ignores the cancellation, the slot gets a new worker, and nothing waits
for the old worker. The thread of a synchronous handler cannot be cancelled, so the worker continues with a new thread.
Such calls are *abandoned* and counted. When as many calls are abandoned as may run at once, the group fails with
HandlerHungError. An orderly group does not end calls: the deadline is reported, and the call's result counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.canary import Canary
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.auto_concurrency import AutoConcurrency
from rmqd.consumer.handling.batch_worker import HandlerCall, Worker, WorkerService
from rmqd.consumer.handling.circuit_breaker import CircuitBreaker
from rmqd.consumer.handling.handler_failures import CALL_EXPIRED, DEADLINE_CANCEL_MESSAGE, HandlerHungError
from rmqd.consumer.handling.handler_threads import HandlerThread, call_handler, with_result_checks
from rmqd.consumer.handling.in_place_retries import FailurePolicy
from rmqd.consumer.handling.ready_queues import create_ready_queues
from rmqd.consumer.handling.settlement import ConfirmSettled, explain_unavailable, report_error
from rmqd.consumer.handling.watched_tasks import HandlerTasks
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.services import RunningCall
from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.runtime.clock import Clock, wait_for_tick

if TYPE_CHECKING:
    from rmqd.consumer.handling.deduplication import Deduplication
    from rmqd.consumer.offsets.own_store import OffsetTransactions

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.25
CANCEL_GRACE_SECONDS = 5.0  # how long a cancelled handler may take to end


class HandlerSlots(WorkerService):
    """The workers of a group, and the ready queues that they serve."""

    def __init__(self, options: ConsumerOptions, handler: LoadedHandler, clock: Clock) -> None:
        self.clock = clock
        self.handler_name = handler.name
        self._group = options.group_without_namespace
        self.batch_size = options.consume_message_batch_max_size
        self.ready_queues, self._batching_queues = create_ready_queues(options, clock)
        self.submit = self.ready_queues.submit
        self.wall_offset = clock.wall() - clock.monotonic()
        self.abandoned = 0  # calls past their deadline that have not ended
        self.ended = False  # whether the end of the group has begun
        self.calls_left = True  # whether calls may still run; False once the group has ended and all calls too
        self._takes_late_results = False  # whether calls past their deadline are reported but not ended
        self._hung = False  # all slots are abandoned, so the group is about to fail
        self._handler, self._handler_tasks = handler, HandlerTasks(handler, clock)
        self._failures = None if options.failures is None else FailurePolicy(options, clock)
        self.circuit = None if options.circuit is None else Circuit(options.circuit, clock)
        self.transactions: OffsetTransactions | None = None  # only with a custom offset store
        self._breaker: CircuitBreaker | None = None
        self._held_by: set[str] = set()  # why no messages are handed out now: operator, circuit, hung
        self._deduplication: Deduplication | None = None
        self.confirm_settled: ConfirmSettled | None = None
        if options.deduplication is not None:
            from rmqd.consumer.handling.deduplication import Deduplication  # most groups do not need it

            self._deduplication = Deduplication(options, clock, lambda: "operator" in self._held_by)
            self.confirm_settled = self._confirm_settled
        self._canary: Canary | None = handler.canary
        self.batch_separator = self._canary if self._canary and self._canary.is_live and self.batch_size > 1 else None
        self._concurrency = self._slots = options.concurrency
        self._auto = AutoConcurrency(options.concurrency, clock) if options.auto_concurrency else None
        if self._auto is not None:
            self.ready_queues.admit_workers(self._auto.limit - options.concurrency)
        self._timeout = options.consume_timeout_seconds
        self._workers: dict[Worker, asyncio.Task[None]] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()  # hung workers, and settlements without a worker
        self._threads: dict[Worker, HandlerThread] = {}

    def pause(self) -> None:
        self._hold("operator")

    def resume(self) -> None:
        self._end_hold("operator")

    def halt(self, process_queue: ProcessQueue) -> None:
        for worker in self._workers:
            if worker.process_queue is process_queue:
                worker.is_last_batch = True

    async def run(self) -> None:
        """Work until cancelled. Raises HandlerHungError when every slot hangs."""
        try:
            if self._deduplication is not None:
                self._background_tasks.add(asyncio.create_task(self._deduplication.run(), name="claims"))
            self.ready_queues.add_workers(range(self._slots), self._start_worker)
            while True:
                await wait_for_tick(self.clock, TICK_SECONDS)
                self._tick()
                if self._is_idle():
                    await self.ready_queues.wait_until_woken()
                    self._tick()
        finally:
            await self._end()
            if self._deduplication is not None:
                await self._deduplication.close()

    @property
    def concurrency(self) -> int:
        return self._concurrency if self._auto is None else self._auto.limit

    def change(self, options: ConsumerOptions) -> None:
        """Apply the concurrency of these options, and the canary's share. Running calls continue."""
        if self._canary is not None:
            self._canary.apply_options(options)
        most, auto = options.concurrency, self._auto
        if (most, options.auto_concurrency) == (self._concurrency, auto is not None):
            return
        before, new = self.concurrency - self._slots, range(self._slots, most)
        if not options.auto_concurrency:
            self._auto = None
        elif auto is None or most < self._concurrency:
            self._auto = AutoConcurrency(most, self.clock)
        else:
            auto.most = most
        self._concurrency, self._slots = most, max(self._slots, most)
        for worker in self._workers:
            worker.call = self._call_of(worker)
            worker.is_last_batch = True  # before the next batch, the worker checks whether the new limit admits it
        if self.ready_queues.idle_workers or self._workers:  # before, `run` adds all workers
            self.ready_queues.add_workers(new, self._start_worker)
        self.ready_queues.admit_workers(self.concurrency - self._slots - before)

    def calls(self) -> list[RunningCall]:
        return [
            RunningCall(worker.process_queue, worker.batch, worker.started)
            for worker in self._workers
            if worker.process_queue is not None and worker.batch is not None
        ]

    @property
    def problem(self) -> Problem | None:
        return None if self._deduplication is None else self._deduplication.problem

    @property
    def keeps_calls_open(self) -> bool:
        return self._handler.end_calls is not None and not self._are_calls_waited_for()

    def explain(self, process_queue: ProcessQueue) -> Problem | None:
        if self._deduplication is not None and (problem := self._deduplication.explain(process_queue)) is not None:
            return problem
        away = explain_unavailable(process_queue, self.clock.wall(), self._group)
        return away or (None if self._breaker is None else self._breaker.explain(process_queue, self._group))

    async def call_in_background(self, batch: Batch, ended: Callable[[], None]) -> None:
        await call_handler(self._handler, batch, ended)

    def is_settling(self) -> bool:
        """Return whether batches of hung calls are being settled, which must end before the group fails."""
        return False

    def _start_worker(self, number: int) -> None:
        worker = Worker(self, number, self._handler.ready)
        is_async = self._handler.is_async
        if not is_async:
            self._threads[worker] = HandlerThread(self._handler, number)
        worker.call = self._call_of(worker)
        run = self._handler_tasks.timed(worker.run()) if is_async else worker.run()
        self._workers[worker] = task = asyncio.create_task(run, name=f"worker:{number}")
        if is_async:
            self._handler_tasks.watch(task, lambda: worker.batch)

    def _call_of(self, worker: Worker) -> HandlerCall:
        """Return the handler's call for one worker, inside the stages that the group uses, the outermost first.

        `concurrency: auto` counts a slot as busy during everything else, so `measure_slot` is outermost. The circuit
        breaker identifies a call by its whole batch, as its settlement does; `deduplicate` may pass on a part of the
        batch. So `watch` is outside of `claim`. A claim lasts until the batch is settled, so retries in place happen
        inside it. Each attempt is a transaction with its own duration, so `measure` and `call_in_transaction` are
        innermost. The duration includes the commit, because a store that is slow limits the useful concurrency too.

        The deadline is not a stage: `_tick` ends a call by cancelling the worker's task, or by abandoning its thread.
        The innermost stage calls `LoadedHandler.handle`, which includes the hooks, then the middleware, then the
        decoding of bodies for a typed handler. For a synchronous handler, `handle` runs in the worker's thread.
        """
        auto, breaker, claims, transactions = self._auto, self._breaker, self._deduplication, self.transactions
        retries, canary = self._failures, self._canary
        every = (
            None if auto is None else auto.measure_slot,
            None if breaker is None else breaker.report_to_circuit,
            None if claims is None else claims.claim,
            None if retries is None else retries.retry,
            None if auto is None else auto.measure,
            None if transactions is None else transactions.call_in_transaction,
            None if canary is None or canary.is_live else canary.call_with_shadow,
        )
        stages = [stage for stage in every if stage is not None]
        call: HandlerCall = self._handler.handle
        if not self._handler.is_async:
            call = self._threads[worker].call
        elif stages:  # the stages above need the result of each call
            call = with_result_checks(self._handler).handle
        for stage in reversed(stages):
            call = partial(stage, call, worker)
        return call

    def use_breaker(self, breaker: CircuitBreaker) -> None:
        """Let this circuit breaker decide about calls and settle their batches. Call before `run`."""
        self._breaker, self.settle = breaker, breaker.settle
        breaker.circuit.on_change = self._circuit_changed

    def _circuit_changed(self) -> None:
        assert self._breaker is not None
        if self._breaker.circuit.allows_call:
            if self._breaker.circuit.state == "half_open":
                self.ready_queues.sort_paused(self._breaker.probe_rank())
            self._end_hold("circuit")
        else:
            self._hold("circuit")
        self._breaker.on_circuit_change()

    def _hold(self, reason: str) -> None:
        """Stop handing out messages until `_end_hold` has been called for every reason of a hold."""
        self._held_by.add(reason)
        self.ready_queues.pause()
        for worker in self._workers:
            worker.is_last_batch = True

    def _end_hold(self, reason: str) -> None:
        self._held_by.discard(reason)
        if not self._held_by:
            self.ready_queues.resume()

    def _report_to_circuit(self, batch: Batch) -> None:
        """Report an expired call to the circuit. The call's batch will be settled when the call ends."""
        if self.circuit is not None:
            self.circuit.call_abandoned(batch)

    async def _confirm_settled(self, batch: Batch, done: Sequence[int], *, more_follows: bool = False) -> None:
        """Confirm finished messages, whose indexes are `done`. For `concurrency: auto`, the slot is busy meanwhile."""
        assert self._deduplication is not None
        if (auto := self._auto) is not None:
            auto.begin()
        try:
            await self._deduplication.confirm_settled(batch, done, more_follows=more_follows)
        finally:
            if auto is not None:
                auto.end()

    def _begin_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that settles a batch without a worker: the batch of a held, abandoned or replaced call."""
        self._background_tasks.add(asyncio.create_task(work, name="settle-in-background"))

    def _tick(self) -> None:
        now = self.clock.monotonic()
        self.wall_offset = self.clock.wall() - now
        self._raise_failures()
        for worker, task in list(self._workers.items()):
            if worker.batch is None or now - worker.started < self._timeout:
                continue
            if self._takes_late_results:
                self._report_late(worker)
            elif not worker.expired:
                self._expire(worker, task)
            elif now - worker.started > self._timeout + CANCEL_GRACE_SECONDS and worker not in self._threads:
                self._replace(worker, task)
        if self._handler.end_calls is not None and self._are_calls_waited_for():
            self._handler.end_calls()
        if self._auto is not None and (more := self._auto.poll()):
            self.ready_queues.admit_workers(more)
        if self._breaker is not None:
            self._breaker.poll()
        if self.abandoned >= self.concurrency and not self._hung:
            self._hung = True
            self._hold("hung")
        elif self._hung and not self.is_settling():  # the hung messages are sent back, so the next start does not hang
            raise HandlerHungError(
                f"handler_hung: all {self.concurrency} calls of handler {self.handler_name} hang past consume_timeout; "
                "set a timeout for every request that the handler makes"
            )

    def _is_idle(self) -> bool:
        """Return whether no tick is needed until a worker takes a batch."""
        needs_ticks = self._auto or self._breaker or self._handler.end_calls or self._background_tasks or self.abandoned
        return not needs_ticks and self.ready_queues.idle_workers == self._slots

    def _are_calls_waited_for(self) -> bool:
        """Return whether messages or a release wait for a running call. The handler must then not keep calls open."""
        queues = [call.process_queue for call in self.calls()]
        return len(queues) >= self.concurrency or any(
            queue.is_releasing or queue.dropped or queue.waits_for_room or self._waits_behind_calls(queue)
            for queue in queues
        )

    def _waits_behind_calls(self, process_queue: ProcessQueue) -> bool:
        """Return whether messages of this queue must wait for its running calls, because of their order."""
        return False

    def _report_late(self, worker: Worker) -> None:
        """Count and log once that a call is past its deadline. The call continues, and its result counts."""
        if worker.reported != worker.started and worker.process_queue is not None and worker.batch is not None:
            worker.reported = worker.started
            report_error(worker.process_queue, worker.batch, CALL_EXPIRED, self.clock.wall())
            self._report_to_circuit(worker.batch)

    def _expire(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """End a call at its deadline: cancel an asynchronous handler, abandon the thread of a synchronous handler."""
        thread = self._threads.get(worker)
        if thread is None:
            worker.expired = True
            task.cancel(DEADLINE_CANCEL_MESSAGE)
        elif thread.is_calling:
            worker.expired = True
            self.abandoned += 1
            thread.abandon(self._abandon(worker))

    def _replace(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """Start a new worker in place of a worker whose call ignores its cancellation."""
        log.error("handler.cancellation_ignored", handler=self.handler_name)
        worker.replaced = True
        del self._workers[worker]
        self.abandoned += 1
        on_end = self._abandon(worker)
        task.add_done_callback(lambda _: on_end())
        self._background_tasks.add(task)
        self._start_worker(worker.number)

    def _abandon(self, worker: Worker) -> Callable[[], None]:
        """Stop waiting for this worker's call. Returns a function to call if the call ever ends."""
        on_end = self._note_abandoned(worker)
        if self._deduplication is None:
            return on_end
        assert worker.batch is not None
        ended = self._deduplication.abandon(worker.batch)

        def call_ended() -> None:
            ended()  # must come first: `on_end` settles the messages, and they may be handled again
            on_end()

        return call_ended

    def _note_abandoned(self, worker: Worker) -> Callable[[], None]:
        """Record an abandoned call. Returns a function to call if the call ever ends."""
        return self._abandoned_call_ended

    def _raise_failures(self) -> None:
        """Raise the exception of a worker or background task that failed, which ends the group."""
        ended = [task for task in (*self._workers.values(), *self._background_tasks) if task.done()]
        self._background_tasks.difference_update(ended)
        for task in ended:
            if not task.cancelled():
                task.result()

    async def _end(self) -> None:
        """Cancel the running calls. A call that ignores its cancellation is not awaited: it may never end."""
        self.ended = True
        calling = [worker for worker, thread in self._threads.items() if thread.is_calling]
        for thread in self._threads.values():
            thread.stop()
        if self._deduplication is not None:
            for worker in calling:
                if worker.batch is not None:
                    self._deduplication.abandon(worker.batch)
        for worker in self._workers:
            worker.expired = worker.replaced = True
        tasks = self._background_tasks.union(self._workers.values())
        for task in tasks:
            task.cancel()
        self.ready_queues.remove_workers()
        ended, left = await self.clock.wait(tasks, timeout=CANCEL_GRACE_SECONDS) if tasks else (tasks, tasks)
        for task in ended:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it; one failure ends the group
        self.calls_left = bool(self.abandoned or calling or left)
        if left:
            log.error("handler.left_behind", handler=self.handler_name, calls=len(left))

    def _abandoned_call_ended(self) -> None:
        self.abandoned -= 1
