"""The main program of a handler's worker process: `python -m rmqd.plugins.worker_processes.handler_main DESCRIPTOR`.

The process receives the daemon's requests over an inherited socket. It creates the handler, starts it, calls it with
one batch at a time, and stops it. The process ends when the daemon ends for any reason.
"""

from __future__ import annotations

from rmqd.runtime import structlog_without_rich  # noqa: F401  before structlog, see there

# isort: split

import asyncio
import ctypes
import os
import resource
import signal
import sys
from typing import Final

import structlog

from rmqd.consumer.handling.batch_worker import withdraw_cancellations
from rmqd.consumer.handling.handler_threads import HandlerThread, UnusableHandlerError, call_start_or_stop, check_result
from rmqd.consumer.handling.watched_tasks import HandlerTasks
from rmqd.errors import ExitCode
from rmqd.handler_api.batch import Batch, KnownLease, OrderlyBatch
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.plugins.handler_catalogue import load_handler
from rmqd.plugins.worker_processes.handler_process import BatchCall, CallOutcome, WorkerHandlerSpec
from rmqd.runtime.child_process import ChildChannel, ChildRequest
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.event_loop import collect_as_memory_grows, enable_gc_after_start, exit_process, run_in_loop
from rmqd.runtime.logs import log_setup as logs
from rmqd.runtime.plain_text import describe
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import Message, consume_start, once_in_group

_PR_SET_PDEATHSIG: Final = 1


def main(descriptor: int) -> int:
    """Serve the daemon until it requests a stop. Return the exit code."""
    if sys.platform == "linux":
        # The kernel kills this process when the daemon dies, because a hung call does not notice the closed socket. On
        # other systems the process ends when it notices the closed socket.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # not SIG_IGN, because processes that the handler starts would inherit it
        signal.signal(number, _leave_to_daemon)
    return run_in_loop(_serve(descriptor))


def _leave_to_daemon(_number: int, _frame: object) -> None:
    """Do nothing: the daemon decides when its worker processes end."""


async def _serve(descriptor: int) -> int:
    channel, first = await ChildChannel.to_parent(descriptor)
    if first is None:
        return ExitCode.USAGE
    spec: WorkerHandlerSpec = first.argument
    spec.log.apply()
    structlog.contextvars.bind_contextvars(group=spec.group, handler_pid=os.getpid())
    _limit_memory(spec.memory_bytes)
    try:
        calls = _HandlerCalls(spec)
    except Exception as error:  # noqa: BLE001  any exception of the handler's code
        channel.refuse(first, error)
        await channel.close()
        return ExitCode.CONFIG
    channel.answer(first, calls.keeps_calls_open)
    helpers = [asyncio.create_task(one) for one in (collect_as_memory_grows(), logs.flush_repeats())]
    enable_gc_after_start()
    try:
        return await _answer_requests(channel, calls)
    finally:
        for helper in helpers:
            helper.cancel()


def _limit_memory(limit_bytes: int) -> None:
    if limit_bytes != -1:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


async def _answer_requests(channel: ChildChannel, calls: _HandlerCalls) -> int:
    """Process start, call and stop requests in one task, and other requests at once. Return the exit code."""
    jobs: asyncio.Queue[ChildRequest] = asyncio.Queue()
    working = asyncio.create_task(calls.work(jobs, channel), name="handler")
    listening = asyncio.create_task(_listen(channel, calls, jobs, working), name="requests")
    await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        os._exit(ExitCode.FAILURE)  # the daemon has ended, so nothing waits for the result of the call
    listening.cancel()
    working.result()
    await channel.close()
    return ExitCode.OK


async def _listen(
    channel: ChildChannel, calls: _HandlerCalls, jobs: asyncio.Queue[ChildRequest], working: asyncio.Task[None]
) -> None:
    while (request := await channel.receive()) is not None:
        if request.action == "revoke":
            calls.lease.valid = False
        elif request.action == "log":
            request.argument.apply()
        elif request.action == "end_calls":
            calls.end_calls(working)
        elif request.action == "so_far":
            channel.answer(request, calls.decisions_so_far())
        else:
            if request.action == "call":  # set the lease here, because "revoke" may arrive before the call starts
                calls.lease = KnownLease(valid=not request.argument.is_revoked)
            jobs.put_nowait(request)


class _HandlerCalls:
    """The handler in this process, and its calls. Raises ConfigError if the handler cannot be created."""

    def __init__(self, order: WorkerHandlerSpec) -> None:
        self.lease = KnownLease()  # whether the daemon owns the orderly batch's queue, according to its last request
        self._order = order
        self._identity = Identity("", "", order.name)  # a placeholder until the first call
        self._handler = load_handler(order.name, order.settings)
        self._call = self._handler.handle if self._handler.is_async else HandlerThread(self._handler, 0).call
        self._clock = SystemClock()
        self._called_with: Batch | None = None
        self._called_at = 0.0  # Unix time of the last call's start, in seconds
        self._unusable = ""

    @property
    def keeps_calls_open(self) -> bool:
        """Whether the handler has `end_calls`."""
        return self._handler.end_calls is not None

    def decisions_so_far(self) -> CallOutcome | None:
        """Return the decisions that the running call has made so far; None if no call runs."""
        return None if self._called_with is None else CallOutcome.of(self._called_with, None, is_limited=False)

    def end_calls(self, working: asyncio.Task[None]) -> None:
        """Call the handler's `end_calls`, so that the handler ends the open call in the task `working`. If `end_calls`
        raises, the group ends.
        """
        if self._called_with is None or self._handler.end_calls is None:
            return  # the open call has ended meanwhile
        try:
            self._handler.end_calls()
        except Exception as error:  # noqa: BLE001  any exception of the handler's code
            self._unusable = f"the handler's end_calls raised {describe(error)}"
            working.cancel()

    async def work(self, jobs: asyncio.Queue[ChildRequest], channel: ChildChannel) -> None:
        """Process the start, call and stop requests in one task, so that the handler's context variables are kept."""
        once_in_group.set(once_for_group(self._order.group, lambda: self._identity))
        consume_start.set(self._call_started)
        if self._handler.is_async and (working := asyncio.current_task()) is not None:
            HandlerTasks(self._handler).watch(working, lambda: self._called_with)
        while True:
            request = await jobs.get()
            try:
                channel.answer(request, await self._result(request))
            except Exception as error:  # noqa: BLE001  any exception of the handler's start or stop
                channel.refuse(request, error)
            if request.action == "stop":
                return
            del request  # the request would keep the batch alive until the next request

    async def _result(self, request: ChildRequest) -> CallOutcome | None:
        if request.action == "call":
            return await self._called(request.argument)
        step = self._handler.start if request.action == "start" else self._handler.stop
        await call_start_or_stop(step, self._clock)
        return None

    async def _called(self, call: BatchCall) -> CallOutcome:
        """Call the handler with a batch, and return the response. Raises UnusableHandlerError."""
        self._called_with, self._called_at = (batch := self._batch(call)), self._clock.wall()
        self._identity = call.identity
        error: BaseException | None = None
        try:
            check_result(await self._call(batch), self._handler.name)
        except UnusableHandlerError:
            raise
        except BaseException as raised:  # noqa: BLE001  any exception of a handler is its result
            error = raised
        finally:
            self._called_with = None
        await withdraw_cancellations()
        if self._unusable:
            raise UnusableHandlerError(self._unusable)
        try:
            batch.end()
            return CallOutcome.of(batch, error, is_limited=self._order.memory_bytes != -1)
        finally:
            del error  # the error's traceback refers to this frame, and would keep the batch alive

    def _call_started(self, message: Message) -> int | None:
        return int(self._called_at * 1000) if message in (self._called_with or ()) else None

    def _batch(self, call: BatchCall) -> Batch:
        messages = list(call.messages)
        if issubclass(call.kind, OrderlyBatch):
            return call.kind(self.lease, messages, call.message_queue)
        return Batch(messages, call.message_queue)


if __name__ == "__main__":
    exit_process(main(int(sys.argv[1])))
