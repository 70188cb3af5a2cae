"""Ordered consumption: no message overtakes a failed message of the same key.

In an orderly group each queue is one key: one batch of a queue is handed out at a time, in queue order. With `order_by`
a queue has many keys, and each batch has at most one message of a key. The process queue (KeyedProcessQueue) knows
which messages can be taken. In an orderly group, messages are handed out only while this member holds the queue's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence, Sized
from functools import partial
from typing import Final

from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import Worker, WorkerTurn
from rmqd.consumer.handling.circuit_breaker import AttemptUncountingBreaker, TentativeRetryPolicy
from rmqd.consumer.handling.handler_failures import (
    CALL_EXPIRED,
    acknowledged_indexes,
    dead_letter_cause,
    decisions_of,
    dlq_reason,
    requested_suspension_seconds,
)
from rmqd.consumer.handling.ready_queues import MakeBatch
from rmqd.consumer.handling.settlement import ConfirmSettled, count_acknowledged, report_errors, send_one, still_owns
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.services import Ownership, RetryPolicy
from rmqd.handler_api.batch import (
    AGAIN_DECISION,
    Batch,
    Decision,
    LoadedHandler,
    ManualCommitBatch,
    OrderlyBatch,
    Outcome,
    TransactionEnd,
)
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import duration
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

SHORTEST_SUSPENSION_SECONDS: Final = 0.01  # Java limits suspendCurrentQueueTimeMillis to 10 … 30000 ms
LONGEST_SUSPENSION_SECONDS: Final = 30.0


def suspension_seconds(error: BaseException | None, usual: float) -> float:
    """Return how many seconds a queue or key is suspended before a retry: as the exception asks, otherwise `usual`."""
    asked = requested_suspension_seconds(error)
    return usual if asked is None else min(max(asked, SHORTEST_SUSPENSION_SECONDS), LONGEST_SUSPENSION_SECONDS)


def is_rolled_back(batch: Batch) -> bool:
    """Return whether the handler requested a rollback: it gets all messages since its last commit again."""
    return isinstance(batch, ManualCommitBatch) and batch.closing is TransactionEnd.ROLLBACK


class OrderlyRules:
    """Decides which messages of a batch are finished, dead-lettered or retried, by the handler's decisions.

    In an orderly queue, a message without a separate decision waits behind a failed message. With `order_by`, the
    messages of a batch have different keys, so each message is settled alone.
    """

    def __init__(self, retry_policy: RetryPolicy, options: ConsumerOptions) -> None:
        self._retry_policy = retry_policy
        self._usual_seconds = options.suspend_current_queue_time_seconds
        self._is_by_key = bool(options.order_by)
        # as in Java, the group's delay level does not apply to orderly queues
        self._delay_level = options.delay_level_when_next_consume if self._is_by_key else None

    def dead_letter_reasons(self, batch: Batch, decisions: list[Decision]) -> dict[int, str]:
        """Return why messages must be dead-lettered, by index: the handler's reason, or that attempts are used up."""
        if is_rolled_back(batch):
            return {}
        pairs = enumerate(zip(batch, decisions, strict=True))
        reasons = ((index, dlq_reason(self._retry_policy, *pair, self._delay_level)) for index, pair in pairs)
        return {index: reason for index, reason in reasons if reason is not None}

    def acknowledged_indexes(self, batch: Batch, decisions: list[Decision], dead: Collection[int]) -> list[int]:
        """Return the indexes of acknowledged messages. `dead` are accepted dead letters, which are already finished."""
        return (
            [] if is_rolled_back(batch) else acknowledged_indexes(batch, decisions, dead, in_order=not self._is_by_key)
        )

    def indexes_by_suspension(
        self, left: list[int], decisions: list[Decision], error: BaseException | None
    ) -> dict[float, list[int]]:
        """Return the indexes in `left`, grouped by how many seconds their messages wait for the next attempt."""
        indexes_by_suspension: dict[float, list[int]] = {}
        for together in ([index] for index in left) if self._is_by_key else filter(None, [left]):
            failed = [decisions[index] for index in together if decisions[index].outcome is not Outcome.AGAIN]
            why = next((one.error for one in failed if one.error is not None), error)
            longest = max(decisions[index].seconds for index in together)
            seconds = suspension_seconds(why, self._usual_seconds) if failed else longest
            indexes_by_suspension.setdefault(seconds, []).extend(together)
        return indexes_by_suspension


class OrderlySettlement(OrderlyRules):
    """Carries out a handler's decisions without changing the order of any key.

    No message is sent back. In an orderly queue, acknowledged messages before the first failed message are finished.
    The failed message and the messages behind it are handed to the handler again after a suspension of the queue. With
    `order_by`, only the keys of failed messages are suspended.

    A message is dead-lettered if the handler decided so or its attempts are used up; then the queue continues behind
    it. If no broker accepts the dead letter, the message is retried.

    If the handler commits explicitly (`auto_commit: false`), acknowledged messages are held as uncommitted until it
    commits. After a rollback all of them are handled again.
    """

    def __init__(
        self,
        retry_policy: RetryPolicy,
        options: ConsumerOptions,
        suspend: Callable[[ProcessQueue, list[Message], float], None],
        clock: Clock,
        confirm_settled: ConfirmSettled | None = None,
    ) -> None:
        super().__init__(retry_policy, options)
        self._clock = clock
        self._confirm_settled = confirm_settled
        self._suspend = suspend

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Finish or dead-letter messages, and retry the rest later. Returns whether the queue is suspended."""
        report_errors(process_queue, batch, error, self._clock.wall(), self._next_attempt)
        decisions = decisions_of(batch, error)
        reasons, dead = self.dead_letter_reasons(batch, decisions), set[int]()
        if reasons and self._confirm_settled is not None and not self._is_by_key:
            # confirm before dead letters are sent: if the queue is lost meanwhile, only its next owner sends them
            await self._confirm_settled(batch, self.acknowledged_indexes(batch, decisions, dead), more_follows=True)
        unfinished: Sequence[Message] = batch
        if reasons and not process_queue.dropped:
            dead = await self._dead_letter(process_queue, batch, decisions, reasons, error)
            if not process_queue.dropped:
                unfinished = [message for index, message in enumerate(batch) if index not in dead]
        if self._confirm_settled is not None:  # for a dropped queue too: its next owner then skips finished messages
            await self._confirm_settled(batch, self.acknowledged_indexes(batch, decisions, dead))
        return still_owns(process_queue, unfinished) and self._carry_out(process_queue, batch, decisions, dead, error)

    def _next_attempt(self, message: Message, decision: Decision) -> str:
        if (reason := dlq_reason(self._retry_policy, message, decision, self._delay_level)) is not None:
            return f"none: {reason}"
        return f"in {duration(suspension_seconds(decision.error, self._usual_seconds))}, here"

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Settle a batch whose handler returned, without waiting.

        Returns None and does nothing if `settle` must be called: to send a dead letter, report an error or confirm
        messages in a store.
        """
        decisions = decisions_of(batch, None)
        is_reported = any(one.error is not None for one in decisions)
        if (
            self._confirm_settled is not None
            or process_queue.dropped
            or is_reported
            or self.dead_letter_reasons(batch, decisions)
        ):
            return None
        batch.end()
        return self._carry_out(process_queue, batch, decisions, set(), None)

    def _carry_out(
        self,
        process_queue: ProcessQueue,
        batch: Batch,
        decisions: list[Decision],
        dead: set[int],
        error: BaseException | None,
    ) -> bool:
        """Finish, hold or suspend each message that is not a dead letter. Returns whether the queue is suspended."""
        if is_rolled_back(batch):
            return self._roll_back(process_queue, batch, error)
        done = self.acknowledged_indexes(batch, decisions, dead)
        for index in done:
            count_acknowledged(process_queue.stats, batch[index], batch.decisions().get(index), error)
        left = sorted(set(range(len(batch))).difference(done, dead))
        for index in left:
            if decisions[index].outcome is not Outcome.AGAIN:
                process_queue.stats.of(batch[index]).count("expired" if error is CALL_EXPIRED else "retried")
                if decisions[index].outcome is not Outcome.ACK:  # an acknowledged message waits behind a failed one
                    batch[index].count_attempt()
        if isinstance(batch, ManualCommitBatch):
            process_queue.hold_uncommitted([batch[index] for index in done])
            if batch.closing is TransactionEnd.COMMIT:
                process_queue.commit()
        else:
            process_queue.finish([batch[index] for index in done])
        for seconds, indexes in self.indexes_by_suspension(left, decisions, error).items():
            self._suspend(process_queue, [batch[index] for index in indexes], seconds)
        return bool(left) and not self._is_by_key

    async def _dead_letter(
        self,
        process_queue: ProcessQueue,
        batch: Batch,
        decisions: list[Decision],
        reasons: dict[int, str],
        error: BaseException | None,
    ) -> set[int]:
        """Send dead letters. Returns the indexes of the dead letters that a broker accepted.

        The messages of accepted dead letters are finished at once, so that no dead letter is sent again even if the
        rest of the batch fails.
        """
        send = self._retry_policy.dead_letter
        requests = (
            send_one(batch[at], send(batch[at], reason, decisions[at].error or error)) for at, reason in reasons.items()
        )
        sent = await asyncio.gather(*requests)
        dead = [index for index, is_taken in zip(reasons, sent, strict=True) if is_taken]
        if not process_queue.dropped:
            for index in dead:
                stats = process_queue.stats.of(batch[index])
                stats.count("dead_lettered")
                stats.count_dead_letter(dead_letter_cause(decisions[index], self._delay_level), reasons[index])
            process_queue.finish([batch[index] for index in dead])
        return set(dead)

    def _roll_back(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Retry all messages since the handler's last commit. As in Java, no attempt is counted."""
        for index, message in enumerate(batch):
            if batch.decisions().get(index) != AGAIN_DECISION:  # the handler has seen the message
                process_queue.stats.of(message).count("retried")
        messages = [*process_queue.roll_back(), *batch]
        self._suspend(process_queue, messages, suspension_seconds(error, self._usual_seconds))
        return True


class ConsumeMessageOrderlyService(HandlerSlots):
    """Hands out one batch of each queue at a time, or with `order_by` several batches with different keys.

    A worker turns to another queue after a time slice of milliseconds, far below Java's 60 s
    (`rocketmq.client.maxTimeConsumeContinuously`). Without `order_by`, `ready_queues.queued` also contains a queue
    while a worker has its turn at the queue, and while the queue is suspended.

    If the group has locks or the handler is synchronous, a call past its deadline continues, and its result counts.
    Otherwise the call is cancelled, so that an endless call does not hold its keys forever. If the call ignores the
    cancellation, it keeps the keys of its batch until it ends.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        handler: LoadedHandler,
        retry_policy: RetryPolicy,
        leases: Ownership | None,
        clock: Clock,
    ) -> None:
        """`leases` grants the leases (queue locks) of an orderly group; None for any other group."""
        super().__init__(options, handler, clock)
        self._is_by_key = bool(options.order_by)
        if self._is_by_key:
            self.submit = self._submit
        self._batch_type = OrderlyBatch if options.auto_commit else ManualCommitBatch
        self._leases = leases
        self._takes_late_results = leases is not None or not handler.is_async
        forgiving = None if self.circuit is None else TentativeRetryPolicy(retry_policy)
        settlement = OrderlySettlement(forgiving or retry_policy, options, self._suspend, clock, self.confirm_settled)
        self.settle_at_once, self.settle = settlement.settle_at_once, settlement.settle
        if self.circuit is not None and forgiving is not None:
            self.use_breaker(AttemptUncountingBreaker(self.circuit, forgiving, settlement.settle, clock))
        self._serving: dict[MessageQueue, ProcessQueue] = {}  # queue -> its cache with batches in flight
        self._following: dict[MessageQueue, ProcessQueue] = {}  # queue -> its newer cache, which waits

    def begin_turn(self) -> WorkerTurn | None:
        """Take the next ready queue. An orderly group needs its lock. With `order_by`, the queue stays ready."""
        ready_queues = self.ready_queues
        process_queue = ready_queues.queues.popleft()
        message_queue = process_queue.message_queue
        if self._serving.setdefault(message_queue, process_queue) is not process_queue:
            # a former cache still has a batch; the newer cache stays in `queued`, so that `submit` ignores it until
            # `_end_serving` submits it
            if (former := self._following.get(message_queue)) is not None:
                ready_queues.not_to_add.discard(former)
            self._following[message_queue] = process_queue
            return None
        make: MakeBatch = Batch
        if self._leases is not None:
            lease = self._leases.lease(message_queue)
            if lease is None or process_queue.awaits_lock:  # new messages or the regained lock submit it again
                ready_queues.not_to_add.discard(process_queue)
                self._discard_released(process_queue)
                self._end_serving(process_queue)
                return None
            make = partial(self._batch_type, lease)
        process_queue.begin_turn()
        for_others: Sized = ()
        if self._is_by_key:
            ready_queues.queues.append(process_queue)
            for_others = process_queue.pending
        else:
            if ready_queues.queues and ready_queues.can_wake:
                ready_queues.wake()
            if self._batching_queues is not None:
                make = self._batching_queues.halting_make(process_queue, make, self.halt)
        if self.batch_separator is not None:
            make = self.batch_separator.separate_handlers(
                make, process_queue.return_taken, in_order=not self._is_by_key
            )
        return process_queue, make, for_others, self._end_turn

    def _end_turn(self, process_queue: ProcessQueue) -> None:
        """Make the queue ready again, unless it is suspended."""
        process_queue.end_turn()
        if self._is_by_key:
            self.ready_queues.add_without_waking(process_queue)
        elif not process_queue.retrying:
            self.ready_queues.not_to_add.discard(process_queue)
            self.submit(process_queue)
        self._end_serving(process_queue)

    def _end_serving(self, process_queue: ProcessQueue) -> None:
        """Submit the newer cache of the same queue, if there is one, once this cache has no batch in flight."""
        message_queue = process_queue.message_queue
        if process_queue.in_flight or self._serving.get(message_queue) is not process_queue:
            return
        del self._serving[message_queue]
        if (following := self._following.pop(message_queue, None)) is not None:
            self.ready_queues.not_to_add.discard(following)
            self.submit(following)

    def _suspend(self, process_queue: ProcessQueue, messages: list[Message], seconds: float) -> None:
        process_queue.postpone(messages)
        self.clock.call_later(seconds, self._rested, process_queue, messages)

    def _rested(self, process_queue: ProcessQueue, messages: list[Message]) -> None:
        """Make the queue ready again after a suspension. If a worker's turn has not ended yet, `_end_turn` does that.

        A turn outlasts the suspension only if the event loop was busy for longer than the suspension. If this method
        made the queue ready during the turn, two workers would serve the queue.
        """
        is_pending = process_queue.return_postponed(messages)
        if not self._is_by_key:
            if self._serving.get(process_queue.message_queue) is process_queue:
                return
            self.ready_queues.not_to_add.discard(process_queue)
        if is_pending:
            self.submit(process_queue)

    def _submit(self, process_queue: ProcessQueue) -> None:
        if self.ready_queues.paused:
            self._discard_released(process_queue)
        self.ready_queues.submit(process_queue)

    def _hold(self, reason: str) -> None:
        super()._hold(reason)
        for process_queue in self.ready_queues.not_to_add:
            self._discard_released(process_queue)

    def _discard_released(self, process_queue: ProcessQueue) -> None:
        """Discard the messages that a KeyedProcessQueue would still hand out during its release."""
        if process_queue.is_releasing and isinstance(process_queue, KeyedProcessQueue):
            process_queue.discard_waiting()

    def _waits_behind_calls(self, process_queue: ProcessQueue) -> bool:
        if isinstance(process_queue, KeyedProcessQueue):
            return process_queue.has_messages_waiting_for_key
        return bool(process_queue.pending)

    def _note_abandoned(self, worker: Worker) -> Callable[[], None]:
        process_queue, batch = worker.process_queue, worker.batch
        assert process_queue is not None
        assert batch is not None
        self._report_to_circuit(batch)
        return partial(self._call_ended, process_queue, batch)

    def _call_ended(self, process_queue: ProcessQueue, batch: Batch) -> None:
        """Settle the batch of a call that ignored its cancellation and has now ended, so that a retry is safe."""
        self._abandoned_call_ended()
        if not self.ended:
            self._begin_in_background(self._settle_ended(process_queue, batch))

    async def _settle_ended(self, process_queue: ProcessQueue, batch: Batch) -> None:
        await self.settle(process_queue, batch, CALL_EXPIRED)
        self._end_turn(process_queue)
        self.submit(process_queue)
