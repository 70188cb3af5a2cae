"""The requests in flight on one connection, and the counters and snapshot of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from rmqd.client.remoting.security import Refusals
from rmqd.codes import RequestCode
from rmqd.errors import ProtocolError, RemotingError, RemotingTimeoutError
from rmqd.runtime.clock import Clock, Timer
from rmqd.runtime.figures import counter, figure, gauge, histogram, unique_values
from rmqd.runtime.histogram import Histogram, HistogramSnapshot
from rmqd.runtime.plain_text import duration
from rmqd.wire.command import RemotingCommand


class ResponseFuture(asyncio.Future[RemotingCommand]):
    """A future for a response. The task that awaits it continues without waiting for the next turn of the event loop.

    A normal future schedules its callbacks when its result is set. A ResponseFuture stores the callback of the awaiting
    task, and `resume` calls this callback, so that the task runs its next step inside `resume`. Errors, cancellations
    and other callbacks are scheduled as usual.
    """

    opaque = 0
    """The opaque number of the request."""
    _step: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Add a callback. A callback with a `context` belongs to the awaiting task: other callers pass no context."""
        if context is not None:
            self._step = fn, context
        super().add_done_callback(fn, context=context)

    def set_response(self, response: RemotingCommand) -> None:
        """Set the result. The awaiting task does not continue before `resume` is called."""
        if self._step is not None:
            self.remove_done_callback(self._step[0])
        self.set_result(response)

    def resume(self) -> None:
        """Run the next step of the task that awaits the response. Call this after `set_response`, outside of tasks."""
        if self._step is not None:
            (step, context), self._step = self._step, None
            context.run(step, self)


@dataclass(slots=True)
class _Pending:
    code: int
    version: int
    future: ResponseFuture
    started: float
    timeout: float
    deadline: float


class PendingRequests:
    """The requests in flight on one connection, by their opaque numbers. One timer serves all deadlines."""

    def __init__(self, address: str, traffic: TrafficCounters, refusals: Refusals, clock: Clock) -> None:
        self._address = address
        self._traffic = traffic
        self._refusals = refusals
        self._refused_now = refusals.current
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, _Pending] = {}
        self._arrived: list[ResponseFuture] = []  # futures with a response, whose tasks `resume` will continue
        self._late: dict[int, Callable[[bool], None]] = {}  # callbacks for late responses, by opaque number
        self._are_over = False
        self._timer: Timer | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest request in flight was sent, by the client's clock; None if no request is in flight."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else oldest.started

    def add(self, code: int, opaque: int, timeout_seconds: float) -> ResponseFuture:
        """Add a request that is being sent. The future gets its response, or fails with RemotingTimeoutError."""
        future = ResponseFuture(loop=self._loop)
        future.opaque = opaque
        now = self._clock.monotonic()
        pending = _Pending(code, self._refusals.version, future, now, timeout_seconds, now + timeout_seconds)
        self._pending[opaque] = pending
        if pending.deadline < self._timer_at:
            self._arm(pending.deadline)
        return future

    def drop(self, opaque: int) -> None:
        """Remove a request, because its caller does not wait any more. A later response is ignored."""
        self._pending.pop(opaque, None)

    def resolve(self, command: RemotingCommand) -> None:
        """Pass a response to its request's future. `resume` must follow in the same turn of the event loop."""
        pending = self._pending.pop(command.opaque, None)
        if pending is None:  # the response is late, or its caller has stopped waiting
            if (on_response := self._late.pop(command.opaque, None)) is not None:
                on_response(True)
            return
        self._traffic.count_response(pending.code, self._clock.monotonic() - pending.started)
        if command.code or self._refused_now:
            self._refusals.record_response(self._address, pending.code, pending.version, command)
        if not pending.future.done():
            pending.future.set_response(command)
            self._arrived.append(pending.future)

    def resume(self) -> None:
        """Continue the tasks whose responses have arrived, in the order of arrival. Do not call it inside a task."""
        arrived, self._arrived = self._arrived, []
        for future in arrived:
            try:
                future.resume()
            except BaseException as error:  # noqa: BLE001  such as SystemExit, which must end the event loop
                self._loop.call_soon(_raise, error)

    def hand_over(
        self, waiting: ResponseFuture, on_response: Callable[[RemotingCommand], object]
    ) -> asyncio.Future[RemotingCommand]:
        """Pass the response to `on_response` instead of the future `waiting`, which the caller must then settle.

        Returns the future that gets the response or error. This future may be done already, if the caller was cancelled
        in the same turn of the event loop in which the response arrived.
        """
        pending = self._pending.get(waiting.opaque)
        if pending is not None and pending.future is waiting:
            pending.future = ResponseFuture(loop=self._loop)
            pending.future.add_done_callback(partial(_pass_response, on_response))
            return pending.future
        if waiting.done():
            _pass_response(on_response, waiting)
        return waiting

    async def wait_for_responses(self, timeout_seconds: float) -> None:
        """Wait up to `timeout_seconds` for responses, except to requests with a longer timeout, such as pulls."""
        soon = [pending.future for pending in self._pending.values() if pending.timeout <= timeout_seconds]
        if soon:
            await self._clock.wait(soon, timeout=timeout_seconds)

    def fail(self, make_error: Callable[[], RemotingError]) -> None:
        """Fail all requests in flight. Each gets a new exception, because each exception is raised in another task."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, float("inf")
        self._are_over = True
        late, self._late = self._late, {}
        for on_response in late.values():
            on_response(False)
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            self._fail(pending, make_error(), "closed")

    def _call_when_late(self, opaque: int, on_response: Callable[[bool], None]) -> None:
        """Call `on_response` once: with True if the response arrives late, with False if the connection ends before."""
        if self._are_over:
            on_response(False)
        else:
            self._late[opaque] = on_response

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_at(at, self._expire)

    def _expire(self) -> None:
        now, self._timer_at, self._timer = self._clock.monotonic(), float("inf"), None
        try:
            for opaque, pending in [(o, p) for o, p in self._pending.items() if p.deadline <= now]:
                del self._pending[opaque]
                request = f"{RequestCode(pending.code).name} ({pending.code})"
                reason = f"no answer to {request} in {duration(pending.timeout)}"
                error = RemotingTimeoutError(self._address, reason)
                error.on_late = partial(self._call_when_late, opaque)
                self._fail(pending, error, "timeout")
        finally:  # even after an exception, because the other requests have deadlines too
            if self._pending:
                self._arm(min(pending.deadline for pending in self._pending.values()))

    def _fail(self, pending: _Pending, error: RemotingError, reason: str) -> None:
        self._traffic.failed(pending.code, reason)
        if not pending.future.done():
            pending.future.set_exception(error)
            pending.future.exception()  # marks it as retrieved, because not every caller awaits the response


def _raise(error: BaseException) -> None:
    raise error


def _pass_response(on_response: Callable[[RemotingCommand], object], answer: asyncio.Future[RemotingCommand]) -> None:
    if not answer.cancelled() and answer.exception() is None:
        on_response(answer.result())


log = structlog.get_logger(__name__)

FAILURE_REASONS = ("timeout", "closed")
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)


class TrafficCounters:
    """A client's counters: durations and failures of requests by code, corrupt frames, and contradictory responses."""

    def __init__(self) -> None:
        self.durations: dict[int, Histogram] = {}
        self.failures: dict[tuple[int, str], int] = {}
        self.corrupt_frames = 0
        self.doubted_replies = 0

    def count_response(self, code: int, seconds: float) -> None:
        """Count a request whose response arrived after `seconds`."""
        histogram = self.durations.get(code)
        if histogram is None:
            histogram = self.durations[code] = Histogram(REQUEST_SECONDS)
        histogram.observe(seconds)

    def failed(self, code: int, reason: str) -> None:
        """Count a request without a response. `reason` is one of FAILURE_REASONS."""
        self.failures[code, reason] = self.failures.get((code, reason), 0) + 1

    def count_corrupt_frame(self, address: str, error: ProtocolError) -> None:
        """Count and log a frame that cannot be decoded."""
        self.corrupt_frames += 1
        log.error("frame.corrupt", address=address, error=str(error))


_Replica = tuple[str, int]  # a broker's name, and its id


def _up_everywhere(one: dict[_Replica, bool], other: dict[_Replica, bool]) -> dict[_Replica, bool]:
    """Merge the broker states of two processes. A broker counts as up if every process that knows it reaches it."""
    return one | {replica: up and one.get(replica, True) for replica, up in other.items()}


@dataclass(frozen=True, slots=True)
class ClientSnapshot:
    """The counters and problems of a client at one moment, for metrics and the status page."""

    client_id: str
    brokers_up: dict[_Replica, bool] = gauge(
        "rmqd_broker_up",
        "1 if the broker responded to the last heartbeat and to later requests; 0 while its circuit is open. Its "
        "master has the broker_id 0.",
        _up_everywhere,
        by="broker broker_id",
    )
    requests: dict[int, HistogramSnapshot] = histogram(
        "rmqd_broker_request_duration_seconds",
        "Time from a request to its response, by request code.",
        by="code",
        read=lambda client: {RequestCode(code).name: seconds for code, seconds in client.requests.items()},
    )
    request_failures: dict[tuple[int, str], int] = counter(
        "rmqd_broker_request_failures_total",
        "Requests without a response, by reason.",
        by="code reason",
        read=lambda client: {
            (RequestCode(code).name, reason): client.request_failures.get((code, reason), 0)
            for code in sorted({*client.requests, *(code for code, _ in client.request_failures)})
            for reason in FAILURE_REASONS
        },
    )
    corrupt_frames: int = counter(
        "rmqd_corrupt_frames_total", "Frames that could not be decoded; each one closed its connection."
    )
    doubted_replies: int = counter(
        "rmqd_doubted_replies_total",
        "Pull responses that contradict themselves or the request, or have a corrupt message; pulled again from there.",
    )
    refused: tuple[str, ...] = figure(unique_values, default=())
    """The reasons of the present refusals: servers deny access, or this client does not trust a server."""
    problems: tuple[str, ...] = figure(unique_values, default=())
    """Problems with name servers and brokers that concern several groups."""
