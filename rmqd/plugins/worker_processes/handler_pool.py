"""The worker processes of one handler: a running process for each slot, and a spare that replaces a lost process.

The *spare* process has imported and created the handler, which takes longest. The handler's `start` is called when the
spare is needed. So `start` opens resources once in each running process, and a lost process is replaced in
milliseconds. Each slot of the group has a separate process, on a *seat* of the pool. While a slot's process is being
replaced, the slot takes no batch; the other slots continue.

`SuspectMessages` are the messages that were being handled when a process was lost. One loss may be an accident; two
losses with the same message are not. A process may hang because of a resource that the handler waits for, regardless of
the message. So a hang is a failed attempt, but does not count as a loss. Each member remembers only its own losses.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from rmqd.consumer.handling.handler_failures import HandlerProcessLostError
from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.handler_api.batch import ProcessCounts
from rmqd.plugins.worker_processes.handler_process import HandlerProcess, WorkerHandlerSpec
from rmqd.runtime.child_process import ChildNotUsableError
from rmqd.runtime.clock import Clock, backoff_seconds
from rmqd.wire.messages.message import Message

MAX_LOSSES: Final = 2  # a message is dead-lettered after this number of lost processes; hangs do not count
MAX_SUSPECTS: Final = 10_000  # maximum number of suspect messages; the oldest are dropped first


@dataclass(frozen=True, slots=True)
class ProcessLoss:
    """The loss of a worker process: `how` it ended, such as "was killed", and the thread `stacks` that it wrote."""

    how: str
    stacks: str = ""
    is_hang: bool = False

    def error(self) -> HandlerProcessLostError:
        """Return the exception for a message whose attempt ended with this loss."""
        return _error(f"the handler's process {self.how}", self.stacks)


class SuspectMessages:
    """The messages that were being handled when a worker process of this member was lost or hung."""

    def __init__(self) -> None:
        self._losses: OrderedDict[tuple[str, str], list[ProcessLoss]] = OrderedDict()

    def add(self, messages: Iterable[Message], loss: ProcessLoss) -> None:
        """Record that a process was lost while it handled these messages."""
        for message in messages:
            losses = self._losses.setdefault(_key(message), [])
            if not loss.is_hang:
                losses.append(loss)
            self._losses.move_to_end(_key(message))
        while len(self._losses) > MAX_SUSPECTS:
            self._losses.popitem(last=False)

    def any_of(self, messages: Sequence[Message]) -> bool:
        return bool(self._losses) and any(_key(message) in self._losses for message in messages)

    def dead_letter_error(self, message: Message) -> HandlerProcessLostError | None:
        """Return an error with the reason to dead-letter a message; None if the message may be handled again."""
        losses = self._losses.get(_key(message), [])
        if len(losses) < MAX_LOSSES:
            return None
        last = losses[-1]
        told = " and ".join(dict.fromkeys(loss.how for loss in losses))
        return _error(f"the handler's process was lost {len(losses)} times at this message: it {told}", last.stacks)

    def clear(self, message: Message) -> None:
        """Forget a suspect message that was acknowledged or dead-lettered."""
        self._losses.pop(_key(message), None)


def _key(message: Message) -> tuple[str, str]:
    return message.topic, message.first_copy_id


def _error(text: str, stacks: str) -> HandlerProcessLostError:
    error = HandlerProcessLostError(text)
    error.told_traceback = f"{stacks}\n{HandlerProcessLostError.__name__}: {text}\n" if stacks else ""
    return error


log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_SUSPENSION_SECONDS: Final = 60.0


class _Seat:
    """The place of one process in the pool. The seat is empty while its process is being replaced."""

    def __init__(self) -> None:
        self.process: HandlerProcess | None = None
        self.is_busy = False
        self.usable = asyncio.Event()

    def seat(self, process: HandlerProcess | None) -> None:
        """Put an idle process on the seat; None empties the seat."""
        self.process, self.is_busy = process, False
        if process is None:
            self.usable.clear()
        else:
            self.usable.set()

    def take(self) -> HandlerProcess:
        """Return the process, and mark it as busy. The seat must not be empty."""
        assert self.process is not None
        self.is_busy = True
        self.usable.clear()
        return self.process


class HandlerPool:
    """The worker processes of a group's handler. `start` and `stop` are the handler's start and stop in the daemon."""

    def __init__(self, order: WorkerHandlerSpec, size: int, clock: Clock, counts: ProcessCounts) -> None:
        self._order = order
        self._clock = clock
        self._counts = counts
        self._seats = [_Seat() for _ in range(size)]
        self._owners: dict[asyncio.Task[Any], _Seat] = {}  # the seat of each slot's task
        self._spare: asyncio.Task[HandlerProcess] | None = None
        self._replacements: set[asyncio.Task[Any]] = set()
        self._ends: set[asyncio.Task[Any]] = set()  # tasks that wait for the end of lost processes
        self._is_ending = False
        self._failure: ChildNotUsableError | None = None

    async def start(self) -> None:
        """Start all processes, and the handler in each process. Raises ChildNotUsableError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for seat in self._seats:
                    tasks.create_task(self._fill(seat), name="start of a handler's process")
        except BaseExceptionGroup as group:
            await self.stop()
            raise next(one for one in group.exceptions if isinstance(one, Exception)) from None
        except BaseException:
            await self.stop()
            raise
        self._warm_up()

    async def stop(self) -> None:
        """Stop the handler in idle processes, and end all processes. Raises ChildNotUsableError if a `stop` failed."""
        self._is_ending = True
        idle = [seat.process for seat in self._seats if seat.process is not None and not seat.is_busy]
        busy = [seat.process for seat in self._seats if seat.process is not None and seat.is_busy]
        for seat in self._seats:
            seat.seat(None)
        tasks = {*self._replacements, *([self._spare] if self._spare is not None else [])}
        for task in tasks:
            task.cancel()
        tasks |= self._ends  # killed processes end at once
        try:
            ended = await asyncio.gather(*(one.end() for one in idle))
        finally:
            self._counts.running = 0
            await asyncio.gather(*(one.dispose() for one in busy))
            if tasks:
                await asyncio.wait(tasks)
            if self._spare is not None and not self._spare.cancelled() and self._spare.exception() is None:
                await self._spare.result().dispose()
        for problem in filter(None, ended):
            raise ChildNotUsableError(f"the handler's stop {problem}")

    @property
    def keeps_calls_open(self) -> bool:
        """Whether the handler has `end_calls`, as the running processes report."""
        return any(seat.process is not None and seat.process.keeps_calls_open for seat in self._seats)

    def end_calls(self) -> None:
        """Call the handler's `end_calls` in each process with a running call."""
        for seat in self._seats:
            if seat.process is not None and seat.is_busy:
                seat.process.post("end_calls")

    async def ready(self) -> None:
        """Wait until the process of the calling slot is idle. Raises UnusableHandlerError if no process runs."""
        await self._usable(self._own_seat())

    async def take(self) -> HandlerProcess:
        """Wait for an idle process, and return it. The caller must pass it to `put` or `replace_lost`.

        A task without a slot, such as an operator's call, gets any process. Raises UnusableHandlerError.
        """
        task = asyncio.current_task()
        assert task is not None
        free = (seat for seat in self._seats if seat.usable.is_set())
        seat = self._owners.get(task) or next(free, self._seats[0])
        await self._usable(seat)
        return seat.take()

    def put(self, process: HandlerProcess) -> None:
        if (seat := self._seat_of(process)) is not None:
            seat.seat(process)

    def replace_lost(self, process: HandlerProcess, cause: str) -> None:
        """Kill and replace a process. `cause` is one of PROCESS_LOSS_CAUSES for the counters; empty counts no loss."""
        seat = self._seat_of(process)
        if seat is None:
            return
        process.kill()
        seat.seat(None)
        self._counts.running -= 1
        if cause:
            self._counts.lost[cause] += 1
        if not self._is_ending:
            _own(process.dispose(), "end of a handler's process", self._ends)
            _own(self._refill(seat), "replacement of a handler's process", self._replacements)

    async def _usable(self, seat: _Seat) -> None:
        while not seat.usable.is_set() or self._failure is not None:
            if self._failure is not None:  # set when no process runs, so that every slot raises the error
                raise UnusableHandlerError(f"no process of the handler runs: {self._failure}")
            await seat.usable.wait()
            if seat.process is not None and seat.process.is_gone:
                self._replace_if_idle(seat.process)

    def _own_seat(self) -> _Seat:
        task = asyncio.current_task()
        assert task is not None
        if task not in self._owners:
            for ended in [one for one in self._owners if one.done()]:
                del self._owners[ended]
            free = [seat for seat in self._seats if seat not in self._owners.values()]
            if not free:  # until the task of a replaced worker ends
                return self._seats[0]
            self._owners[task] = free[0]
        return self._owners[task]

    def _seat_of(self, process: HandlerProcess) -> _Seat | None:
        return next((seat for seat in self._seats if seat.process is process), None)

    def _warm_up(self) -> None:
        self._spare = asyncio.create_task(HandlerProcess.build(self._order), name="spare of the handler's processes")
        # retrieve an exception, so that asyncio does not log it; `_next_process` awaits the task and handles it
        self._spare.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _refill(self, seat: _Seat) -> None:
        """Start a process on a seat. Retry after failures with increasing pauses; fail the group if no process runs."""
        for failures in itertools.count(1):
            try:
                await self._fill(seat)
            except ChildNotUsableError as error:
                failure = error
            else:
                return
            rest = backoff_seconds(FIRST_PAUSE_SECONDS, failures, LONGEST_SUSPENSION_SECONDS)
            running = self._counts.running
            log.error("handler_process.not_started", error=str(failure), running=running, retry_in_seconds=rest)
            if not running:
                self._failure = failure
                for one in self._seats:
                    one.usable.set()
                return
            await self._clock.sleep(rest)

    async def _fill(self, seat: _Seat) -> None:
        process = await self._next_process()
        await process.start()
        process.reading.add_done_callback(lambda _: self._replace_if_idle(process))
        self._counts.running += 1
        log.info("handler_process.started", pid=process.pid)
        seat.seat(process)

    async def _next_process(self) -> HandlerProcess:
        """Return the spare process, and start another spare. Without a spare, start and return a new process."""
        spare, self._spare = self._spare, None
        if spare is None:
            return await HandlerProcess.build(self._order)
        try:
            process = await spare
        finally:
            if not self._is_ending:
                self._warm_up()
        if not process.is_gone:
            return process
        await process.dispose()
        return await HandlerProcess.build(self._order)

    def _replace_if_idle(self, process: HandlerProcess) -> None:
        """Replace a process that ended while it was idle."""
        seat = self._seat_of(process)
        if seat is not None and not seat.is_busy and not self._is_ending:
            log.error("handler_process.lost", pid=process.pid, how=process.describe_current_end(), messages=0)
            self.replace_lost(process, "died")


def _own(work: Coroutine[Any, Any, None], name: str, tasks: set[asyncio.Task[Any]]) -> None:
    """Run a coroutine in a task, which is kept in `tasks` until it ends."""
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
