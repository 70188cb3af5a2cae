"""Runs one history from the recorded starting state, with a new handler, and reads the resulting state.

A call of the handler runs to its end, or is cancelled at one of its awaits, as by a deadline or the end of a group.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import make_background_batch
from rmqd.consumer.handling.handler_failures import failed_decisions
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, call_handler, call_start_or_stop
from rmqd.consumer.handling.in_place_retries import dead_letter_by_name
from rmqd.handler_api.batch import Batch, LoadedHandler, Outcome
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.plain_text import describe, duration
from rmqd.testing.chaos.chaos_history import ChaosDelivery, History, QueueBatch
from rmqd.testing.chaos.chaos_memory import ReachableObjects, plain_state
from rmqd.testing.chaos.killed import NoProcessError, ProcessResults, ProcessRunner, RunsInLoop
from rmqd.wire.messages.message import Message, once_in_group


class DidNotReturnError(Exception):
    """A call of the handler took much longer than expected, so the trial stopped waiting for it."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call of the handler ended. `error` is None if it returned."""

    error: BaseException | None
    awaits: int
    """The number of awaits that suspended the call; 0 for a synchronous handler."""
    cut_in: str = ""
    """The author's line at which the call was cancelled, as `file:line`; empty if it was not cancelled."""


async def call(
    handler: LoadedHandler, batch: Batch, cut_at: int, patience_seconds: float, is_authors: Callable[[str], bool]
) -> CallEnd:
    """Call a handler. An asynchronous call is cancelled at its await number `cut_at`; 0: it is not cancelled.

    `is_authors` returns whether a module is from the handler's author. Raises HandlerNotAwaitedError.
    """
    counted = _Counted(handler, batch, cut_at, is_authors)
    work: Awaitable[object] = counted if handler.is_async else call_handler(handler, batch, lambda: None)
    # a separate task, so that cancelling it does not cancel the caller
    task = asyncio.create_task(_caught(work), context=contextvars.copy_context())
    done, _ = await asyncio.wait((task,), timeout=patience_seconds)
    if not done:
        task.cancel()
        await asyncio.wait((task,), timeout=patience_seconds / 4)
        return CallEnd(
            DidNotReturnError(f"it did not return within {duration(patience_seconds)}"), counted.awaits, counted.cut_in
        )
    error = task.result()
    if isinstance(error, HandlerNotAwaitedError):
        raise error
    return CallEnd(error, counted.awaits, counted.cut_in)


async def _caught(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except BaseException as error:  # noqa: BLE001 any exception of a handler is its result
        return error
    return None


@dataclass(slots=True)
class _Counted:
    """A call of an asynchronous handler that counts the awaits at which the call is suspended."""

    _handler: LoadedHandler
    _batch: Batch
    _cut_at: int
    _is_authors: Callable[[str], bool]
    awaits: int = 0
    cut_in: str = ""

    def __await__(self) -> Generator[Any, Any, Any]:
        called = self._handler.handle(self._batch)
        inner = called.__await__()
        raised: BaseException | None = None
        while True:
            try:
                waited_for = next(inner) if raised is None else inner.throw(raised)
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits == self._cut_at:
                task = asyncio.current_task()
                assert task is not None
                self.cut_in = _line(called, self._is_authors)
                task.cancel()  # asyncio applies it at this yield
            raised = None
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 passed on to the handler
                raised = error


def _line(called: Any, is_authors: Callable[[str], bool]) -> str:
    """Return the author's innermost line at which a coroutine waits."""
    found = ""
    while (frame := getattr(called, "cr_frame", None)) is not None:
        if is_authors(frame.f_globals.get("__name__", "")):
            found = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        called = called.cr_await
    return found


T = TypeVar("T")

MAX_ATTEMPTS: Final = 17  # the first attempt and 16 retries, as in Java if max_reconsume_times is -1; also the maximum
PATIENCE_SECONDS: Final = 10.0
MIN_PATIENCE_SECONDS: Final = 1.0
HANG_FACTOR: Final = 50  # a call hangs if it takes this many times the average duration in the first history
HUNG: Final = "never done: the call does not return"
NOT_BEGUN: Final = "not begun"


@dataclass(frozen=True, slots=True)
class ChaosStep:
    """A delivery that was made, and its outcome as text."""

    delivery: ChaosDelivery
    outcome: str
    state: Any
    """The state after this delivery; None unless requested with `look_each`."""


@dataclass(frozen=True, slots=True)
class HistoryResult:
    state: Any
    fates: Mapping[int, str]
    """The outcome of each message in its last delivery, by index."""
    steps: tuple[ChaosStep, ...]
    awaits: int
    """The largest number of awaits in one call."""

    @property
    def hung(self) -> bool:
        return HUNG in self.fates.values()


@dataclass(slots=True)
class ChaosBench:
    """The environment of histories: the handler, its messages, and the state to compare."""

    make: Callable[[], LoadedHandler]
    options: ConsumerOptions
    run_in_loop: RunsInLoop
    state: Callable[[], object] | None
    reset: Callable[[], object] | None
    package: str
    others: ProcessRunner | None = None
    """None if the handler is only called in this process."""
    messages: Sequence[Message] = ()
    patience_seconds: float = PATIENCE_SECONDS
    memory: ReachableObjects = field(init=False)
    before: Any = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        handler = self.make()
        self.is_async = handler.is_async
        roots = [one for one in (handler.handle, self.state, self.reset) if one is not None]
        self.memory = ReachableObjects(roots, self.package)
        self.before = self.read_state()

    def restore_state(self) -> bool:
        """Restore the state before the first message. Returns False if `state` then returns another state."""
        self.memory.restore()
        if self.reset is not None:
            self.reset()
        return self.state is None or bool(self.read_state() == self.before)

    def read_state(self, memory: ReachableObjects | None = None) -> Any:
        """Return the current state: from `state`, or from the handler's memory in this process."""
        if self.state is None:
            kept = memory or self.memory
            return plain_state(kept.values(), kept.is_authors_object)
        value = self.state()
        if asyncio.iscoroutine(value):
            value.close()
            raise TypeError("state is an async function; expected a synchronous function that returns the state")
        return plain_state(value, self.memory.is_authors_object, reads_iterators=True)

    def run(self, history: History, *, look_each: bool = False) -> HistoryResult:
        """Run a history with a new handler. Raises the errors of its constructor, `start` and `stop`.

        Deliveries up to a kill run in a separate process. Raises NoProcessError if no process can be used.
        """
        steps, fates = list[ChaosStep](), dict[int, str]()
        while kills := [number for number, one in enumerate(history, start=1) if one.how == "killed"]:
            before, history = history[: kills[0]], history[kills[0] :]
            ended = self.run_in_other_process(before, look_each=look_each)
            steps += map(ChaosStep, before, ended.outcomes, ended.states)
            fates |= ended.fates
        ending = ChaosTrial(self).run(history, look_each=look_each)
        return replace(ending, fates={**fates, **ending.fates}, steps=(*steps, *ending.steps))

    def run_in_other_process(self, history: History, *, look_each: bool = False) -> ProcessResults:
        """Run a history in another process, which dies if its last delivery is a kill. Raises NoProcessError."""
        if self.others is None:
            raise NoProcessError("kills were not requested")
        look = self.read_state if look_each else lambda: None
        return self.others.run(self.messages, history, look, self.patience_seconds)


class ChaosTrial:
    """One run of a new handler: start, deliveries, stop."""

    def __init__(self, bench: ChaosBench) -> None:
        self._bench = bench
        self._handler = bench.make()
        self._memory = ReachableObjects([self._handler.handle], bench.package) if bench.state is None else None
        self._context = contextvars.copy_context()
        self._context.run(once_in_group.set, once_for_group(bench.options.group))
        self._expired: dict[QueueBatch, int] = {}
        self.fates: dict[int, str] = {}
        """The outcome of each message in its last delivery, by index."""
        self._awaits = 0

    def start(self) -> None:
        self._in_loop(lambda: call_start_or_stop(self._handler.start, SystemClock()))

    def deliver(self, delivery: ChaosDelivery) -> str:
        return self._in_loop(lambda: self._deliver(delivery))

    def stop(self) -> None:
        self._in_loop(lambda: call_start_or_stop(self._handler.stop, SystemClock()))

    def run(self, history: History, *, look_each: bool) -> HistoryResult:
        """Start the handler, make these deliveries, and stop it."""
        bench, steps = self._bench, []
        self.start()
        state: Any = None
        try:
            for delivery in history:
                outcome = self.deliver(delivery)
                steps.append(ChaosStep(delivery, outcome, bench.read_state(self._memory) if look_each else None))
                if HUNG in self.fates.values():
                    break  # the next delivery would hang as well
            if bench.state is None:
                state = bench.read_state(self._memory)  # `stop` may release the memory
        finally:
            self.stop()
        if bench.state is not None:
            state = bench.read_state()
        return HistoryResult(state, dict(self.fates), tuple(steps), self._awaits)

    def _in_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def in_context() -> T:
            return await asyncio.get_running_loop().create_task(work(), context=self._context)

        return self._bench.run_in_loop(in_context, MAX_ATTEMPTS * PATIENCE_SECONDS)

    async def _deliver(self, delivery: ChaosDelivery) -> str:
        part = delivery.part
        again = self._expired.get(part, 0)
        messages = [copy.copy(self._bench.messages[index]) for index in part.messages]
        for message in messages:
            for _ in range(again):
                message.count_attempt()
        if delivery.how == "whole":
            return await self._until_done(part, messages)
        called = await self._call(make_background_batch(self._bench.options, messages), delivery.cut_at)
        if delivery.how == "expired":
            self._expired[part] = again + 1
        return _how_it_was_cut(delivery, called)

    async def _until_done(self, part: QueueBatch, messages: list[Message]) -> str:
        """Call the handler as often as its group would, until every message is acknowledged or dead-lettered."""
        numbers, waiting, failures = dict(zip(map(id, messages), part.messages, strict=True)), [messages], list[str]()
        while waiting:
            now = waiting.pop(0)
            called, refused = await self._attempt(now)
            again = []
            for index, message in enumerate(now):
                fate = refused.get(index, "handled")
                fate = HUNG if isinstance(called.error, DidNotReturnError) else fate
                if fate == NOT_BEGUN:  # a call that did not begin is not an attempt
                    again.append(message)
                elif fate == "again" and message.reconsume_times + 1 < self._most_attempts:
                    message.count_attempt()
                    again.append(message)
                else:
                    self.fates[numbers[id(message)]] = "dead-lettered after the last retry" if fate == "again" else fate
            if again:
                if "again" in refused.values():
                    failures.append(describe(called.error) if called.error is not None else "asked for a retry")
                waiting = (
                    [again, *waiting] if self._bench.options.retries_in_place else [*([m] for m in again), *waiting]
                )
        fates = dict.fromkeys(self.fates[index] for index in part.messages)
        outcomes = ", ".join(fates)
        return outcomes if not failures else f"{outcomes}, after {len(failures)} failed attempts: {failures[-1]}"

    async def _attempt(self, messages: list[Message]) -> tuple[CallEnd, dict[int, str]]:
        """Call the handler once. Returns the call's end, and the outcomes of unacknowledged messages by index."""
        options = self._bench.options
        batch = make_background_batch(options, messages)
        called = await self._call(batch, 0)
        if options.failures is not None:
            dead_letter_by_name(batch, called.error, options.failures.dead_letter_on)
        refused: dict[int, str] = {}
        for index, decision in failed_decisions(batch, called.error).items():
            level = options.delay_level_when_next_consume if decision.delay_level is None else decision.delay_level
            is_dead = decision.outcome is Outcome.DEAD_LETTER or level == -1
            refused[index] = "dead-lettered" if is_dead else "again"
            if decision.outcome is Outcome.AGAIN:
                refused[index] = NOT_BEGUN
            elif options.message_model == "broadcasting":
                refused[index] = "dropped"
        return called, refused

    async def _call(self, batch: Batch, cut_at: int) -> CallEnd:
        called = await call(
            self._handler, batch, cut_at, self._bench.patience_seconds, self._bench.memory.is_authors_module
        )
        self._awaits = max(self._awaits, called.awaits)
        return called

    @property
    def _most_attempts(self) -> int:
        most = self._bench.options.max_reconsume_times
        return MAX_ATTEMPTS if most < 0 else min(most + 1, MAX_ATTEMPTS)


def _how_it_was_cut(delivery: ChaosDelivery, called: CallEnd) -> str:
    if not delivery.cut_at or called.awaits < delivery.cut_at:
        return "ran past consume_timeout, to its end" if delivery.how == "expired" else "cut after its end"
    why = "at consume_timeout" if delivery.how == "expired" else "because its queue moved to another member"
    place = f" ({called.cut_in})" if called.cut_in else ""
    return f"cancelled at its await number {delivery.cut_at}{place}, {why}"
