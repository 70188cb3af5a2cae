"""The circuit breaker's effect on a group's calls and messages. `consumer.circuit` decides when the circuit opens.

The breaker acts at two places. `watch`, a stage of every call, reports successful calls and the start of the probe to
the circuit. `settle`, before the settlement, reports failed calls, and decides whether the attempt counts.

A call *failed* if it raised or expired, and acknowledged no message. A handler's decision is not a failure, because it
says nothing about the handler's health. These are decisions: Retry, DeadLetter, Suspend, an invalid body, and an
exception that `dead_letter.on` names.

While a failure is suspected to be the handler's fault, its messages or their attempts wait for the circuit's decision:

- `BatchHoldingBreaker` is for groups whose retry is a request to a broker, which cannot be undone. The batch is held,
  as if a handler still had it, and settled after the decision.
- `AttemptUncountingBreaker` is for groups that retry in place. The message is retried after its usual suspension. Its
  attempts are counted, and subtracted later if the handler was at fault. An attempt is not treated as the message's
  last attempt while earlier attempts may still be subtracted.

While the circuit is open, the probes rotate: first over messages that have not failed yet, then over the others,
starting with the message whose last failure is the oldest.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.circuit import Circuit, FailureEffect
from rmqd.consumer.handling.batch_worker import HandlerCall, SettleBatch, Worker
from rmqd.consumer.handling.handler_failures import HANDLED_BEFORE_DECISION
from rmqd.consumer.handling.in_place_retries import failures_of
from rmqd.consumer.handling.ready_queues import ReadyQueues
from rmqd.consumer.handling.settlement import Settlement, report_errors
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.services import RetryPolicy
from rmqd.handler_api.batch import AGAIN_DECISION, Batch, Outcome
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import describe, duration
from rmqd.wire.messages.message import Message


class CircuitBreaker(ABC):
    """The circuit breaker of one group: the common part of groups that send back and groups that retry in place."""

    def __init__(self, circuit: Circuit, clock: Clock) -> None:
        self.circuit = circuit
        self._clock = clock
        self._failed: dict[Message, float] = {}  # message -> time of its first failure; the latest failure is last

    async def report_to_circuit(self, call: HandlerCall, worker: Worker, batch: Batch) -> object:
        """Report a call's start and success to the circuit. A stage of `HandlerSlots._call_of`."""
        began = self._clock.monotonic()
        self.circuit.call_began(batch)
        result = await call(batch)
        if not worker.expired and not failures_of(batch, None):
            self._returned(batch, began)
        return result

    def poll(self) -> None:
        """Update the circuit, and settle failures whose cause is known. Called several times a second."""
        self.circuit.poll()
        self._failed = {message: first for message, first in self._failed.items() if message.is_cached}
        self._judge()

    @abstractmethod
    def _judge(self) -> None:
        """Settle the failures whose cause is known by now: the handler or the message."""

    @abstractmethod
    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Settle a batch, now or after the circuit's decision. Returns whether its queue must be suspended."""

    @abstractmethod
    def on_circuit_change(self) -> None:
        """Called when the circuit's state has changed."""

    def explain(self, process_queue: ProcessQueue, group: str) -> Problem | None:
        """Return why messages of this queue are held; None if this breaker holds none of them."""
        return None

    def probe_rank(self) -> Callable[[Message], int]:
        """Return a sort key that puts the best message for the next probe first: a message without failures."""
        places = {message: place for place, message in enumerate(self._failed, 2)}
        return lambda message: places.get(message) or min(message.reconsume_times, 1)

    def _returned(self, batch: Batch, began: float) -> None:
        if _acknowledged(batch, None):
            self.circuit.call_succeeded(batch, began)
            self._judge()
        else:
            self.circuit.call_undecided(batch)

    def _effect_of(self, batch: Batch, error: BaseException | None) -> FailureEffect:
        """Report a call that did not acknowledge every message to the circuit. Return how its failure counts."""
        failures = failures_of(batch, error)
        is_repeated, is_evidence = self._note_failed([batch[index] for index in failures])
        if failures and not _acknowledged(batch, error):
            text = describe(next(iter(failures.values())))
            effect = self.circuit.call_failed(batch, text, is_evidence=is_evidence)
            return FailureEffect.REPEATED if is_repeated and effect is FailureEffect.SUSPECTED else effect
        if failures:  # other messages succeeded, so these messages are at fault
            self.circuit.call_succeeded(batch, float("-inf"))
        elif error is not None:
            self.circuit.call_undecided(batch)
        return FailureEffect.COUNTS

    def _note_failed(self, messages: Iterable[Message]) -> tuple[bool, bool]:
        """Record that a call with these messages has failed.

        Returns two values: whether another message has succeeded here since one of these messages first failed here,
        and whether this failure is evidence against the handler. It is not evidence if one of the messages failed
        before and a call has succeeded here since. A failure elsewhere counts as earlier than any success here.
        """
        refuted_to, failed = self.circuit.excused_before, self._failed
        is_repeated, is_evidence, now = False, True, self._clock.monotonic()
        for message in messages:
            first_anywhere = math.inf if not message.reconsume_times else -math.inf
            first = failed.pop(message, first_anywhere)
            is_evidence = is_evidence and first >= refuted_to
            is_repeated = is_repeated or -math.inf < first < refuted_to
            failed[message] = min(first, now)
        return is_repeated, is_evidence


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    process_queue: ProcessQueue
    batch: Batch
    error: BaseException | None
    at: float  # monotonic
    is_repeated: bool


class BatchHoldingBreaker(CircuitBreaker):
    """Holds failed batches until the circuit decides: send them back, or call again without counting an attempt.

    A queue that is being released does not wait: its held batches are sent back. Otherwise their messages would stay
    unfinished below finished messages, and the next owner would handle those finished messages again. The exception is
    a message at its last attempt while the circuit is open. A send-back would dead-letter this message although the
    handler is at fault, so the message is left to the next owner.
    """

    def __init__(
        self,
        circuit: Circuit,
        settlement: Settlement,
        begin: Callable[[Coroutine[Any, Any, None]], None],
        ready_queues: ReadyQueues,
        clock: Clock,
    ) -> None:
        """`begin` starts a coroutine as a task of the group."""
        super().__init__(circuit, clock)
        self._settlement = settlement
        self._ready_queues = ready_queues
        self._begin = begin
        self._held: list[_Held] = []

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Settle a batch, or hold it. Returns False: the queue continues."""
        effect = self._effect_of(batch, error)
        is_releasing = process_queue.is_releasing and not self._must_stay(batch, error)
        if effect is FailureEffect.COUNTS or is_releasing or process_queue.dropped:
            return await self._settlement.settle(process_queue, batch, error)
        report_errors(process_queue, batch, error, self._clock.wall(), lambda *_: self._until)
        process_queue.begin_turn()  # counts the held batch as in flight, so that a release of the queue waits for it
        now = self._clock.monotonic()
        self._held.append(_Held(process_queue, batch, error, now, is_repeated=effect is FailureEffect.REPEATED))
        return False

    def explain(self, process_queue: ProcessQueue, group: str) -> Problem | None:
        held = next((one for one in self._held if one.process_queue is process_queue), None)
        if held is None:
            return None
        failed_at = held.batch[next(iter(failures_of(held.batch, held.error)))].msg_id
        return make_problem(
            "failing_handler", f"the handler failed at message {failed_at}, which is {self._until}", group=group
        )

    @property
    def _until(self) -> str:
        return (
            f"sent back when a later call succeeds, or {duration(self.circuit.options.window_seconds)} after it failed"
        )

    def _judge(self) -> None:
        circuit = self.circuit
        oldest = self._clock.monotonic() - circuit.options.window_seconds
        is_over = circuit.state == "closed"
        self._send_back(
            lambda held: is_over and (held.at < circuit.excused_before or (held.at < oldest and not held.is_repeated))
        )
        if is_over:
            self._hand_out([held for held in self._held if held.at < oldest])
        elif circuit.allows_call and not self._ready_queues.has_messages:  # no other message can probe the handler
            self._hand_out(self._held[:1])

    def on_circuit_change(self) -> None:
        self._send_back(lambda _: False)
        if self.circuit.state == "closed":
            self._hand_out(self._held)

    def _hand_out(self, again: list[_Held]) -> None:
        self._held = [held for held in self._held if held not in again]
        for held in again:
            self._begin(self._settle(held, again=True))

    def _send_back(self, counts: Callable[[_Held], bool]) -> None:
        """Send back the held batches that `counts` selects, and all batches of queues that are being released."""
        for held in list(self._held):
            if counts(held) or held.process_queue.is_releasing or held.process_queue.dropped:
                self._held.remove(held)
                self._begin(self._settle(held, again=self._must_stay(held.batch, held.error)))

    def _must_stay(self, batch: Batch, error: BaseException | None) -> bool:
        """Return whether a send-back would dead-letter a message although the handler is at fault."""
        failed = (batch[index] for index in failures_of(batch, error))
        return self.circuit.state != "closed" and any(map(self._settlement.retry_policy.is_last_attempt, failed))

    async def _settle(self, held: _Held, *, again: bool) -> None:
        """Settle a held batch: hand out its failed messages once more if `again`, otherwise send them back."""
        batch, error = held.batch, held.error
        if again:
            for index in failures_of(batch, error):
                batch.replace_decision(index, AGAIN_DECISION)
            error = None
        await self._settlement.settle(held.process_queue, batch, error, is_reported=True)
        held.process_queue.end_turn()


class TentativeRetryPolicy:
    """The retry policy of a group that retries in place. It ignores attempts that may still be subtracted."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self.limit = retry_policy.limit
        self.doubtful: Counter[Message] = Counter()  # attempts that may still be subtracted
        self.excused: set[Message] = set()  # messages whose current attempt does not count
        self._retry_policy = retry_policy
        self.delay_level, self.delay_seconds = retry_policy.delay_level, retry_policy.delay_seconds
        self.retry = retry_policy.retry
        self.dead_letter = retry_policy.dead_letter

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        if message in self.excused:
            return False
        return self._retry_policy.is_last_attempt(message, not_counted + self.doubtful[message])


@dataclass(slots=True)
class _Doubt:
    """The attempts of one failed call, which are subtracted from its messages if the handler is at fault."""

    at: float  # monotonic
    counted: Counter[Message]
    is_repeated: bool


class AttemptUncountingBreaker(CircuitBreaker):
    """Settles failed batches at once, and subtracts their attempts later if the handler was at fault."""

    def __init__(self, circuit: Circuit, retry_policy: TentativeRetryPolicy, settle: SettleBatch, clock: Clock) -> None:
        super().__init__(circuit, clock)
        self._retry_policy = retry_policy
        self._settle = settle
        self._doubts: list[_Doubt] = []

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Settle a batch. Its attempts are counted now, and may be subtracted later."""
        effect = self._effect_of(batch, error)
        if effect is FailureEffect.COUNTS:
            return await self._settle(process_queue, batch, error)
        messages = [batch[index] for index in failures_of(batch, error)]
        before = [message.reconsume_times for message in messages]
        if effect is FailureEffect.EXCUSED:
            self._retry_policy.excused.update(messages)
        failed_at = self._clock.monotonic()
        try:
            return await self._settle(process_queue, batch, error)
        finally:
            self._retry_policy.excused.difference_update(messages)
            counted = Counter({one: one.reconsume_times - then for one, then in zip(messages, before, strict=True)})
            doubt = _Doubt(failed_at, +counted, is_repeated=effect is FailureEffect.REPEATED)
            self._record(doubt, is_forgiven=effect is FailureEffect.EXCUSED or self.circuit.state != "closed")

    def _judge(self) -> None:
        circuit = self.circuit
        if circuit.state == "closed" and self._doubts:
            oldest = self._clock.monotonic() - circuit.options.window_seconds
            self._doubts = [
                one
                for one in self._doubts
                if one.at >= circuit.excused_before
                and (one.at >= oldest or (one.is_repeated and circuit.options.can_open))
            ]
            self._retry_policy.doubtful = sum((one.counted for one in self._doubts), Counter())

    def on_circuit_change(self) -> None:
        if self.circuit.state == "open":
            for doubt in self._doubts:
                _subtract(doubt)
            self._doubts.clear()
            self._retry_policy.doubtful = Counter()

    def _record(self, doubt: _Doubt, *, is_forgiven: bool) -> None:
        # a repeated failure may wait long for a decision, so later failures of its messages are subtracted at once
        waits = doubt.is_repeated and any(
            one.is_repeated and one.counted.keys() == doubt.counted.keys() for one in self._doubts
        )
        if is_forgiven or waits:
            _subtract(doubt)
        else:
            self._doubts.append(doubt)
            self._retry_policy.doubtful += doubt.counted


def _subtract(doubt: _Doubt) -> None:
    for message, attempts in doubt.counted.items():
        message.subtract_attempts(attempts)


def _acknowledged(batch: Batch, error: BaseException | None) -> bool:
    """Return whether a call that ended with `error` acknowledged a message that the handler saw."""
    decisions = batch.decisions()
    if error is None and len(decisions) < len(batch):
        return True
    return any(one.outcome is Outcome.ACK and one is not HANDLED_BEFORE_DECISION for one in decisions.values())
