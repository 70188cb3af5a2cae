"""A group's handler in one of Spark's Python worker processes. It is started once, and handles one range for each task.

Spark runs tasks in the process's main thread, one at a time. The handler, its slots and the connections run in an
event loop in another thread, so that a handler's background work continues between tasks.

Spark's worker processes run no exit handlers. Spark closes a worker's pipe, and then pyspark.daemon ends the worker
with `os._exit`. At the same time Spark sends SIGHUP, and pyspark.daemon restores the default action of SIGHUP before
each task. So this module replaces `os._exit`, blocks SIGHUP, and waits for SIGHUP in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.config.load import configure_log
from rmqd.consumer.assembly import create_topic_stats
from rmqd.consumer.handling.concurrently import ConsumeMessageConcurrentlyService
from rmqd.consumer.handling.handler_threads import call_start_or_stop
from rmqd.consumer.handling.message_trace import MessageTrace
from rmqd.consumer.handling.orderly import ConsumeMessageOrderlyService
from rmqd.consumer.handling.send_back import SendBack, reconsume_limit
from rmqd.consumer.hooks import GroupHooks
from rmqd.consumer.services import Ownership
from rmqd.errors import RmqdError
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.plugins.handler_catalogue import load_handler
from rmqd.plugins.strategies import hooks_of
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.event_loop import collect_as_memory_grows, new_loop, run_loop_until
from rmqd.spark.handlers.range_outcome import RangeOutcome
from rmqd.spark.handlers.range_run import RangeHandler
from rmqd.spark.session.spark_process import configure_worker_gc, is_spark_worker
from rmqd.wire.messages.message import once_in_group
from rmqd.wire.topics import retry_topic

if TYPE_CHECKING:
    from rmqd.consumer.handling.slots import HandlerSlots
    from rmqd.plugins.telemetry import Telemetry
    from rmqd.spark.session.group_spec import GroupSpec
    from rmqd.spark.session.queue_range import QueueRange


_os_exit: Final = os._exit
_end_lock: Final = threading.Lock()
_end_callbacks: dict[int, Callable[[], object]] = {}
"""One callback for each process id, because a process that the handler forked must not run its parent's callback."""


def at_worker_end(call: Callable[[], object]) -> None:
    """Register `call` to run when this worker process ends, except by SIGKILL. `call` replaces an earlier callback.

    Call this in the worker's main thread, before starting threads that could receive SIGHUP.
    """
    is_first = os.getpid() not in _end_callbacks
    _end_callbacks[os.getpid()] = call
    if is_first:
        os._exit = _end  # type: ignore[assignment]
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        threading.Thread(target=_await_signal, name="rmqd.end", daemon=True).start()


def _await_signal() -> None:
    signal.sigwait({signal.SIGHUP})
    _end(128 + signal.SIGHUP)


def _end(code: int) -> None:
    """Run this process's callback, then exit. Replaces `os._exit`. The callback runs once, even with two callers."""
    call = _end_callbacks.get(os.getpid())
    if call is not None:
        with _end_lock:
            try:
                call()
            finally:
                _os_exit(code)
    _os_exit(code)


T = TypeVar("T")

STOP_TIMEOUT_SECONDS: Final = 5.0  # time limit for a handler's `stop` at the end of its worker process

_processes: dict[tuple[int, str], TaskHandler] = {}


def started_task_handler(spec: GroupSpec, config_key: str) -> TaskHandler:
    """Return this process's handler for a configuration. The first call starts it, and raises like `start`."""
    whole_key = os.getpid(), config_key
    found = _processes.get(whole_key)
    if found is None or found.has_ended:
        if is_spark_worker():
            at_worker_end(stop_task_handlers)  # before any thread starts
        found = TaskHandler(spec)
        _processes[whole_key] = found
        try:
            found.start()
        except BaseException:
            del _processes[whole_key]
            raise
        configure_worker_gc()
    return found


class TaskHandler:
    """A group's handler and its event loop in a worker process. Call its methods in the main thread; they block."""

    def __init__(self, spec: GroupSpec) -> None:
        # always JSON, because the driver or a log collector reads the executors' logs and formats them again
        configure_log(spec.config, as_json=True)
        sys.path += [folder for folder in spec.import_path if folder not in sys.path]
        self.has_ended = False
        self._spec = spec
        self._options = spec.options
        self._clock = SystemClock()
        self._telemetry: Telemetry | None = None
        self._loop = new_loop()
        self._is_over = False
        # a daemon thread, because Spark ends its Python processes without notice
        threading.Thread(target=self._serve, name="rmqd.handler", daemon=True).start()

    def start(self) -> None:
        """Load the handler and start it. Raises ConfigError, and any exception of the handler's `start`."""
        try:
            self._run(self._start())
        except BaseException:
            self.has_ended = True
            self._end_loop()
            raise

    def handle(self, queue_range: QueueRange) -> RangeOutcome:
        """Handle all messages of a range. Raises errors that end the group, such as HandlerHungError."""
        try:
            return self._run(self._handle(queue_range))
        except BaseException:
            # stop here, because Spark kills the worker process of a failed task
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the handler, wait at most STOP_TIMEOUT_SECONDS, and ignore errors. A second call does nothing."""
        if self.has_ended:
            return
        self.has_ended = True
        future = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        with contextlib.suppress(Exception):
            future.result(STOP_TIMEOUT_SECONDS)
        self._end_loop()

    def _end_loop(self) -> None:
        self._is_over = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        run_loop_until(self._loop, lambda: self._is_over)
        self._loop.close()

    async def _start(self) -> None:
        self._client = ClientInstance(self._spec.client_options)
        try:
            await self._client.cluster_id.learn()
            await self._start_handler()
        except BaseException:
            await self._client.close()
            raise

    async def _start_handler(self) -> None:
        spec, options = self._spec, self._options
        once_in_group.set(once_for_group(options.group, partial(self._client.identity, options.group)))
        handler = load_handler(spec.name, spec.settings)
        hooks = hooks_of(options)
        self._trace: MessageTrace | None = None
        if options.trace is not None:
            self._trace = MessageTrace(options.trace, options, self._client, self._clock)
            hooks = (*hooks, self._trace.hook)
        if spec.config.tracing.opentelemetry:
            from rmqd.plugins.telemetry import start_telemetry

            self._telemetry = start_telemetry()
            hooks = (self._telemetry.hook(options), *hooks)
        self._hooks = GroupHooks(hooks, spec.name, self._client.client_id, self._clock) if hooks else None
        self._stop_handler = handler.stop
        await call_start_or_stop(handler.start, self._clock)
        if self._hooks is not None:
            handler = self._hooks.wrap_handler(handler)
        self._retry_policy = SendBack(self._client, options.group, reconsume_limit(options))
        self._service: HandlerSlots = (  # Ownership() needs no broker locks: only one Spark task handles a queue range
            ConsumeMessageOrderlyService(options, handler, self._retry_policy, Ownership(), self._clock)
            if options.consume_mode == "orderly"
            else ConsumeMessageConcurrentlyService(options, handler, self._retry_policy, self._clock)
        )
        for topic in (*options.subscriptions, retry_topic(options.group)):
            self._client.routes.watch(topic)
        self._tasks = [
            asyncio.create_task(self._service.run(), name=f"handlers:{spec.name}"),
            asyncio.create_task(self._client.run(), name="client"),
            asyncio.create_task(collect_as_memory_grows(), name="garbage"),
        ]
        if self._trace is not None:
            self._tasks.append(asyncio.create_task(self._trace.dispatcher.run(), name=f"trace:{spec.name}"))

    async def _handle(self, queue_range: QueueRange) -> RangeOutcome:
        stats = create_topic_stats(self._options)[queue_range.queue.topic]
        before = self._counts()
        run = RangeHandler(
            queue_range, self._options, self._client, self._service, self._retry_policy, stats, self._hooks, self._clock
        )
        running = asyncio.create_task(run.run(), name=f"range:{queue_range.queue}")
        await asyncio.wait((running, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            run.queue.drop("task_failed")
            await asyncio.wait((running,))
            self._raise_end()
        running.result()
        failures, left_out, traced = (
            {name: count - former.get(name, 0) for name, count in now.items()}
            for now, former in zip(self._counts(), before, strict=True)
        )
        return RangeOutcome(
            queue=queue_range.queue,
            start=queue_range.start,
            end=queue_range.end,
            topic_counters=stats.snapshots(),
            reset_to=run.reset_to,
            stop_reason=run.failure,
            lost_messages=run.plan.lost_messages,
            hook_failures=failures,
            skipped_by_hooks=left_out,
            trace_records=traced,
        )

    def _raise_end(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        raise RmqdError("the tasks that call the handler ended unexpectedly, without an error")

    def _counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Return totals since the handler's start: failures and skips for each hook, trace records for each result."""
        hooks, trace = self._hooks, self._trace
        failures, left_out = ({}, {}) if hooks is None else (dict(hooks.failures), dict(hooks.rejected_counts))
        return failures, left_out, {} if trace is None else dict(trace.dispatcher.counts)

    async def _stop(self) -> None:
        service, client, *helpers = self._tasks
        for task in (service, *helpers):
            task.cancel()
        await asyncio.wait((service, *helpers))
        await call_start_or_stop(self._stop_handler, self._clock)
        if self._trace is not None:
            await self._trace.dispatcher.close()
        client.cancel()
        await asyncio.wait((client,))
        if self._telemetry is not None:
            await self._telemetry.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with structlog.contextvars.bound_contextvars(group=self._spec.name):
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()


def stop_task_handlers() -> None:
    """Stop all handlers of this process. A later `started_task_handler` starts new handlers."""
    for key in [key for key in _processes if key[0] == os.getpid()]:
        _processes.pop(key).stop()
