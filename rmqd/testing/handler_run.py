"""Runs a group against an embedded broker until nothing is left to do. Delays take no real time.

The result has every attempt, and the outcome of each message.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_failures import CALL_EXPIRED, default_decision
from rmqd.consumer.handling.handler_threads import UnusableHandlerError, with_result_checks
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.consumer.pop.pop_assignment import PopAssignment
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch, Decision, LoadedHandler
from rmqd.handler_api.batch import Outcome as Decided
from rmqd.runtime.plain_text import duration
from rmqd.testing.message_factory import messages_of
from rmqd.testing.test_group import JumpingClock
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import dlq_topic

Outcome = Literal["acked", "retried", "dead_lettered", "dropped"]
"""The outcome of an attempt. A broadcasting group has no retries, so its failed messages are `dropped`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One message in one call of the handler. `at` is the start of the call, in seconds since 1970 (broker's clock)."""

    message: Message
    number: int
    """The number of the attempt, from 1: one more than the message's `reconsume_times`."""
    outcome: Outcome
    error: BaseException | None
    """The handler's exception, which may be a Retry or a DeadLetter."""
    at: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one call of `run_handler`."""

    attempts: tuple[Attempt, ...]
    """All attempts in the order of the handler's calls."""
    dead_letters: tuple[Message, ...]
    """The dead letters that this run added. The reason is in their property RMQD_REASON."""
    elapsed_seconds: float
    """The duration of the run by the broker's clock, including skipped delays."""

    @property
    def acked(self) -> list[Message]:
        """The messages that the handler acknowledged."""
        return [attempt.message for attempt in self.attempts if attempt.outcome == "acked"]

    @property
    def retried(self) -> list[Message]:
        """The messages that were retried, once for each retry."""
        return [attempt.message for attempt in self.attempts if attempt.outcome == "retried"]

    @property
    def errors(self) -> list[BaseException]:
        """The handler's exceptions, once for each attempt of a message."""
        return [attempt.error for attempt in self.attempts if attempt.error is not None]

    def attempts_of(self, message: str) -> list[Attempt]:
        """Return the attempts of one message, by its `keys` or its `msg_id`."""
        return [one for one in self.attempts if message in (one.message.keys, one.message.msg_id)]

    def __repr__(self) -> str:
        counts = Counter(attempt.outcome for attempt in self.attempts)
        usual: tuple[Outcome, ...] = ("acked", "retried", "dead_lettered")
        shown = ", ".join(f"{counts[kind]} {kind}" for kind in get_args(Outcome) if kind in usual or counts[kind])
        return f"<RunResult {shown} in {len(self.attempts)} attempts, {duration(self.elapsed_seconds)}>"


@dataclass(slots=True)
class _Call:
    message: Message
    number: int
    at: float
    error: BaseException | None = None
    is_acked: bool = False
    """Whether the handler acknowledged the message. A decision after the call's deadline does not count."""
    is_attempt: bool = True
    """False if the handler stopped at an earlier message of the batch: then no attempt was made for this message."""


@dataclass(slots=True)
class CallRecorder:
    """Records each call of a group's handler with a hook, which may be called in several threads at once."""

    wall: Callable[[], float]
    comes_again: bool
    """Whether failed messages of the group are redelivered."""
    calls: list[_Call] = field(default_factory=list)
    handling: dict[int, tuple[Batch, float, Sequence[_Call]]] = field(default_factory=dict)
    """The batches in flight by `id(batch)`: the batch, the start of its call in seconds since 1970, and its calls."""

    def hook(self) -> Hook:
        return Hook("rmqd.testing", self._before, self._after)

    def result(self, dead_letters: Iterable[Message], elapsed_seconds: float) -> RunResult:
        """Return the result. A message's last attempt has its final outcome, and its earlier attempts were retried."""
        for batch, _, calls in list(self.handling.values()):  # expired calls that have not returned
            _note(batch, calls, None, default_decision(CALL_EXPIRED, batch))
        dead = tuple(dead_letters)
        dead_ids, last = {message.msg_id for message in dead}, {}
        calls = [call for call in self.calls if call.is_attempt]
        for index, call in enumerate(calls):
            last[call.message.msg_id] = index
        failed: Outcome = "retried" if self.comes_again else "dropped"
        attempts = []
        for index, call in enumerate(calls):
            msg_id = call.message.msg_id
            ended: Outcome = "dead_lettered" if msg_id in dead_ids else "acked" if call.is_acked else failed
            outcome = ended if last[msg_id] == index else "retried"
            attempts.append(Attempt(call.message, call.number, outcome, call.error, call.at))
        return RunResult(tuple(attempts), dead, elapsed_seconds)

    def _before(self, batch: Batch, context: HookContext) -> None:
        now = self.wall()
        calls = [_Call(message, message.reconsume_times + 1, now) for message in batch]
        context.values["calls"] = calls
        self.calls.extend(calls)
        self.handling[id(batch)] = (batch, now, calls)

    def _after(self, batch: Batch, context: HookContext) -> None:
        self.handling.pop(id(batch), None)
        _note(batch, context.values["calls"], context.exception, default_decision(context.exception, batch))


def _note(batch: Batch, calls: Sequence[_Call], error: BaseException | None, rest: Decision) -> None:
    decisions = batch.decisions()
    for index, call in enumerate(calls):
        decision = decisions.get(index, rest)
        call.error = decision.error or error
        call.is_acked = decision.outcome is Decided.ACK
        is_again = index in decisions and decision.outcome is Decided.AGAIN
        call.is_attempt = not is_again or decision.error is not None


POLL_SECONDS: Final = 0.001  # a poll is needed, because no event signals that a group has nothing left to do
MAX_SHOWN: Final = 5


class StillBusyError(RmqdError, TimeoutError):
    """A run did not end before its timeout. The text describes the remaining work."""


class HandlerRun:
    """One run of a group: start it, wait until nothing is left to do, and stop it gracefully."""

    def __init__(
        self,
        rocketmq: EmbeddedRocketMQ,
        clock: JumpingClock,
        options: ConsumerOptions,
        handler: LoadedHandler,
        beside: set[HandlerRun],
    ) -> None:
        self._rocketmq = rocketmq
        self._clock = clock
        self._all = beside  # all current runs on this broker, including this one
        self._group = options.group
        self._recorder = CallRecorder(clock.wall, comes_again=options.message_model != "broadcasting")
        self._client = ClientInstance(ClientOptions(nameservers=(rocketmq.nameserver,)), clock=clock)
        self._consumer = PushConsumer(options, with_result_checks(handler), self._client, [self._recorder.hook()])

    async def run(self, timeout_seconds: float, until: Callable[[], object] | None = None) -> RunResult:
        """Run until nothing is left to do, or until `until` returns a true value.

        Raises StillBusyError after `timeout_seconds`. If the group failed, raises its error, for example an exception
        of the handler's `start`, or UnusableHandlerError if the handler did not await its work.
        """
        broker = self._rocketmq.broker
        stored_before = broker.store.end
        began, wall_began = time.monotonic(), self._clock.wall()
        serving = asyncio.create_task(self._client.run(), name="client")
        consuming = asyncio.create_task(self._consumer.run(), name=f"group {self._group}")
        self._all.add(self)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._until_quiet(consuming, until)
                self._consumer.stop()
                await asyncio.wait((consuming,))
        except TimeoutError:
            raise StillBusyError(self._what_is_left(time.monotonic() - began)) from None
        finally:
            self._all.remove(self)
            self._consumer.stop(shutdown_timeout_seconds=0)
            await asyncio.wait((consuming,))
            self._client.stop()
            await asyncio.wait((serving,))
            failures = [error for task in (consuming, serving) if (error := task.exception()) is not None]
        if failures:
            raise _only_one(failures[0])  # the original exception, with its own cause
        dead = [one for one in messages_of(broker, dlq_topic(self._group)) if one.commit_log_offset >= stored_before]
        result = self._recorder.result(dead, self._clock.wall() - wall_began)
        for error in result.errors:
            if isinstance(error, UnusableHandlerError):  # the run may end before the group raises the error
                raise error
        return result

    async def _until_quiet(self, consuming: asyncio.Task[None], until: Callable[[], object] | None) -> None:
        """Wait until nothing is left to do, or the group failed. If all work waits for delays, skip the next delay."""
        schedule = self._rocketmq.broker.schedule
        while not consuming.done():
            if until is not None and until():
                return
            if all(run.is_quiet() for run in self._all):
                due = min(filter(None, (schedule.next_due(), self._clock.next_due())), default=None)
                if due is None and until is not None:
                    raise RmqdError(f"group {self._group} has nothing left to do, but `until` is still false")
                if due is None:
                    return
                self._clock.jump_to(due)
                schedule.wake()
            await asyncio.sleep(POLL_SECONDS)

    def is_quiet(self) -> bool:
        """Return whether the group has nothing to do: no request is open, and all its queues and pops are idle."""
        if self._rocketmq.open_requests:
            return False
        assignments = self._consumer.assignments()
        if not assignments:
            return False
        broker, context = self._rocketmq.broker, self._consumer.context
        held, held_pops = broker.held_pulls.queues_of(self._group), broker.held_pops.queues_of(self._group)
        are_pausing = sum(run.busy_workers() for run in self._all) == len(self._clock.pauses)
        has_free_worker = self.busy_workers() < context.service.concurrency
        is_orderly = context.options.consume_mode == "orderly"

        def is_idle(queue: ProcessQueue) -> bool:
            has_slot = has_free_worker and not (is_orderly and queue.in_flight)
            return is_cache_idle(queue, held, are_pausing=are_pausing, has_slot=has_slot)

        return all(
            is_pop_idle(assigned, held_pops)
            if isinstance(assigned, PopAssignment)
            else all(map(is_idle, assigned.process_queues))
            for assigned in assignments
        )

    def busy_workers(self) -> int:
        """Return how many workers have messages: in the handler, in a pause between two calls, or being settled."""
        return sum(queue.in_flight for one in self._consumer.assignments() or () for queue in one.process_queues)

    def _what_is_left(self, seconds: float) -> str:
        lines = list(self._pending())
        calls = self._recorder.calls
        if calls:
            most = max(calls, key=lambda call: call.number)
            lines.append(f"{len(calls)} messages were handed out; {most.message!r} had attempt {most.number}")
        return "\n  ".join([f"group {self._group} has something left to do after {duration(seconds)}:", *lines])

    def _pending(self) -> Iterator[str]:
        handling = list(self._recorder.handling.values())
        for batch, since, _ in handling[:MAX_SHOWN]:
            held = self._clock.wall() - since
            yield f"the handler has had {batch[0]!r} (keys {batch[0].keys}) for {duration(held)} and has not returned"
        if len(handling) > MAX_SHOWN:
            yield f"and {len(handling) - MAX_SHOWN} more calls of the handler"
        snapshot = self._consumer.snapshot()
        if snapshot.not_ready_reason is not None:
            yield snapshot.not_ready_reason
        for queue in snapshot.queues:
            if queue.cached or queue.state not in ("waiting", "handling"):
                name = f"{queue.topic}{' (retry)' if queue.is_retry else ''} queue {queue.queue}"
                yield f"{name} is {queue.state}: {queue.cached} messages are not finished, {queue.handling} handed out"
        if self._rocketmq.open_requests:
            yield f"the broker has {self._rocketmq.open_requests} requests to answer"
        due = self._rocketmq.broker.schedule.next_due()
        if due is not None:
            yield f"a message will be delivered in {duration(due - self._clock.wall())} by the broker's clock"


def is_cache_idle(
    process_queue: ProcessQueue, held: set[tuple[str, int]], *, are_pausing: bool = False, has_slot: bool = True
) -> bool:
    """Return whether a queue has nothing to do until a held pull (`held`) is answered, or a retry's delay is over.

    `are_pausing`: whether all busy workers wait for their next call in place. `has_slot`: whether a worker could take
    pending messages of the queue.
    """
    queue = process_queue.message_queue
    is_waiting = not process_queue.pending or process_queue.is_batching or not has_slot
    if process_queue.in_flight or (process_queue.pending and not has_slot):
        return are_pausing and is_waiting
    return process_queue.retrying > 0 or (is_waiting and (queue.topic, queue.queue_id) in held)


def is_pop_idle(assignment: PopAssignment, held: set[tuple[str, int]]) -> bool:
    """Return whether a pop assignment is idle: its pop is held, and its messages are acked or wait for time to pass."""
    queue = assignment.message_queue
    queues = assignment.loop.process_queues
    waits = any(one.is_batching or one.retrying for one in queues) and all(
        one.is_batching or one.cached_count == one.retrying for one in queues
    )
    is_still = assignment.is_acknowledged or (waits and not any(one.in_flight for one in queues))
    return is_still and assignment.loop.pops_in_flight == 1 and (queue.topic, queue.queue_id) in held


def _only_one(error: BaseException) -> BaseException:
    """Unwrap exception groups that contain one exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
