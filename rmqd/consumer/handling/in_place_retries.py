"""Reactions to a handler's exceptions: retries in place, and dead letters by the exception's class."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions, FailureOptions
from rmqd.consumer.handling.batch_worker import HandlerCall, Worker
from rmqd.consumer.handling.handler_failures import HandlerProcessLostError
from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.handler_api.batch import (
    ACK,
    DECISION_CLASSES,
    Batch,
    Decision,
    InvalidPayloadError,
    ManualCommitBatch,
    Outcome,
    is_made_of,
    leaf_exceptions,
)
from rmqd.runtime.clock import Clock, backoff_seconds
from rmqd.runtime.plain_text import describe, text_of
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

_DECISIONS: Final = (*DECISION_CLASSES, InvalidPayloadError)


class FailurePolicy:
    """Decides how one group reacts to a handler's exceptions. Has no state."""

    def __init__(self, options: ConsumerOptions, clock: Clock) -> None:
        assert options.failures is not None
        self.options: FailureOptions = options.failures
        self.timeout = options.consume_timeout_seconds
        self.clock = clock

    async def retry(self, call: HandlerCall, worker: Worker, batch: Batch) -> object:
        """Call the handler, and call it again in place as configured. A stage of `HandlerSlots._call_of`."""
        return await _GuardedCall(self, call, batch, worker.process_queue).run()

    def is_retried_in_place(self, error: BaseException) -> bool:
        """Return whether the handler is called again in place after this error.

        A lost handler process is retried in place only if `retry_on` names it. Otherwise one attempt could lose several
        processes to the same message.
        """
        names, leaves = self.options.retry_on, leaf_exceptions(error)
        if not names:
            return not any(isinstance(one, (HandlerProcessLostError, *_DECISIONS)) for one in leaves)
        return all(has_class_name(one, names) for one in leaves)


class _GuardedCall:
    """One attempt to handle a batch: the first call, and further calls in place."""

    def __init__(
        self, policy: FailurePolicy, call: HandlerCall, batch: Batch, process_queue: ProcessQueue | None
    ) -> None:
        self._policy = policy
        self._call = call
        self._batch = batch
        self._queue = process_queue
        self._began = policy.clock.monotonic()

    async def run(self) -> object:
        """Call the handler, and retry as configured. Raises the last exception if some messages have no decision."""
        policy, batch, indexes = self._policy, self._batch, list(range(len(self._batch)))
        for number in itertools.count(1):
            part = batch if len(indexes) == len(batch) else batch.part(indexes)
            result, error = await self._called(part)
            dead_letter_by_name(batch, error, policy.options.dead_letter_on)
            again = self._to_repeat(error)
            pause = backoff_seconds(policy.options.backoff_seconds, number, policy.options.max_backoff_seconds)
            if not again or number > policy.options.in_place or not self._can_repeat(pause):
                break
            self._note(failures_of(batch, error)[again[0]], batch[again[0]], number, pause)
            for index in set(range(len(batch))).difference(again):
                batch.decide(index, ACK)
            await policy.clock.sleep(pause)
            if not self._can_repeat(0):  # the queue may be released meanwhile
                break
            indexes = self._hand_out_again(again)
        try:
            if error is not None and len(batch.decisions()) < len(batch):
                raise error
            return result
        finally:
            del error  # its traceback refers to this frame, and would keep the batch alive

    async def _called(self, part: Batch) -> tuple[object, Exception | None]:
        try:
            return await self._call(part), None
        except UnusableHandlerError:
            raise  # no message is at fault
        except Exception as error:  # noqa: BLE001  every exception of a handler is its result
            return None, error

    def _to_repeat(self, error: Exception | None) -> list[int]:
        """Return the indexes of messages that failed and can be retried in place.

        Empty if the call raised an error that is not retried. That error ends the attempt of every message without a
        decision, so the other messages must not be retried either.
        """
        failures, decided = failures_of(self._batch, error), self._batch.decisions()
        again = [index for index, one in failures.items() if self._policy.is_retried_in_place(one)]
        if error is not None and not {*again, *decided}.issuperset(range(len(self._batch))):
            return []
        return again

    def _hand_out_again(self, again: list[int]) -> list[int]:
        """Clear the decisions about retried messages and the messages behind them. Return the indexes of both."""
        decided = dict(self._batch.decisions())
        behind = [index for index, decision in decided.items() if decision.outcome is Outcome.AGAIN]
        indexes = sorted({*again, *behind})
        for index in indexes:
            self._batch.replace_decision(index, None)
        return indexes

    def _can_repeat(self, pause: float) -> bool:
        """Return whether another call is possible: before the deadline, and while the queue is not being released.

        A handler that has requested a commit or a rollback has ended its attempt itself.
        """
        if isinstance(self._batch, ManualCommitBatch) and self._batch.closing is not None:
            return False
        passed = self._policy.clock.monotonic() - self._began
        is_ours = self._queue is None or not (self._queue.is_releasing or self._queue.dropped)
        return is_ours and not self._batch.revoked and passed + pause < self._policy.timeout

    def _note(self, error: BaseException, message: Message, number: int, pause: float) -> None:
        text = text_of(error, repr)
        if self._queue is not None:
            self._queue.stats.of(message).count_exception(error, text, message, self._policy.clock.wall())
        log.warning(
            "handler.retried_in_place",
            queue=str(message.message_queue),
            msg_id=message.msg_id,
            error=text,
            retry=number,
            seconds=pause,
        )


def failures_of(batch: Batch, error: BaseException | None) -> Mapping[int, BaseException]:
    """Return each failed message's exception, by index. `error` is the call's exception. Decisions are not failures."""
    found: dict[int, BaseException] = {}
    decisions = batch.decisions()
    for index in range(len(batch)):
        decision = decisions.get(index)
        # an error that asks to wait is a failure too; without `seconds`, another message may be at fault
        is_failed = decision is not None and (decision.outcome is Outcome.RETRY or decision.seconds > 0)
        one = error if decision is None else decision.error if is_failed else None
        if one is not None and not is_made_of(one, _DECISIONS):
            found[index] = one
    return found


def dead_letter_by_name(batch: Batch, error: BaseException | None, names: Collection[str]) -> None:
    """Decide to dead-letter the messages whose exception has a class with one of these names."""
    for index, one in failures_of(batch, error).items():
        if named := [leaf for leaf in leaf_exceptions(one) if has_class_name(leaf, names)]:
            batch.replace_decision(index, Decision(Outcome.DEAD_LETTER, reason=describe(named[0]), error=one))


def has_class_name(error: BaseException, names: Collection[str]) -> bool:
    """Return whether the exception's class, or one of its base classes, has one of these names.

    A name may be qualified by the class's module or by a package above it: `asyncpg.PostgresError`.
    """
    return any(_has_name(one, name) for one in type(error).__mro__ for name in names)


def _has_name(kind: type, name: str) -> bool:
    package, _, own = name.rpartition(".")
    return own == kind.__name__ and (not package or f"{kind.__module__}.".startswith(f"{package}."))
