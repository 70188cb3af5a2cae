"""Settlement of a batch in an orderly group: a failed message is retried in place, before the rest of its queue.

Orderly consumption: one batch of a queue at a time, in queue order, while this member holds the queue's lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import Turn
from rmqd.consumer.handling.handler_failures import dead_letter_cause, default_decision, requested_suspension
from rmqd.consumer.handling.ready_queues import Make
from rmqd.consumer.handling.settlement import ConfirmSettled, alone, count_acknowledged, given_up, report, still_ours
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.services import Leases, RetryPolicy
from rmqd.handler_api.batch import (
    ACK,
    AGAIN,
    Batch,
    Closing,
    Decision,
    LoadedHandler,
    ManualBatch,
    OrderlyBatch,
    Outcome,
)
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

SHORTEST_SUSPENSION_SECONDS: Final = 0.01  # Java limits suspendCurrentQueueTimeMillis to 10 … 30000
LONGEST_SUSPENSION_SECONDS: Final = 30.0


class OrderlySettlement:
    """Carries out a handler's decisions in queue order.

    A queue keeps its order only if no message passes a failed one, so nothing is sent back. Messages that were
    acknowledged before the first failed message are finished. The failed message and the messages behind it are handed
    to the handler again after a suspension. A message behind it keeps the handler's own decision, if there is one. A
    message is dead-lettered and passed if the handler decided so or its attempts are used up. If no broker accepts the
    dead letter, the message is retried.

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
        self._clock = clock
        self._confirm_settled = confirm_settled
        self._retry_policy = retry_policy
        self._suspension_seconds = options.suspend_current_queue_time_seconds
        self._suspend = suspend

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Finish the acknowledged messages, and retry the rest later. Returns whether the queue is suspended."""
        report(process_queue, batch, error, self._clock.wall())
        reasons = self._reasons(batch, default_decision(error, batch))
        lost: dict[int, str | None] = dict.fromkeys(reasons)
        if reasons and self._confirm_settled is not None:
            # first: if the queue is lost while this waits for the store, the next owner would send dead letters again
            await self._confirm_settled(batch, _acknowledged(batch, error, lost), more_follows=True)
        unfinished: Sequence[Message] = batch
        if reasons and not process_queue.dropped:
            lost = await self._dead_letter(batch, reasons, error)
            if not process_queue.dropped:
                self._finish_dead_letters(process_queue, batch, error, lost)
                unfinished = [message for index, message in enumerate(batch) if lost.get(index) is None]
        if self._confirm_settled is not None:  # for a dropped queue too: its next owner then skips finished messages
            await self._confirm_settled(batch, _acknowledged(batch, error, lost))
        if not still_ours(process_queue, unfinished):
            return False
        return self._carry_out(process_queue, batch, error, lost)

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Settle a batch whose handler returned, without waiting.

        Returns None and does nothing if `settle` must be called: to send a dead letter, report an error or confirm
        messages in a store.
        """
        if self._confirm_settled is not None:
            return None
        is_reported = any(one.error is not None for one in batch.decisions().values())
        if process_queue.dropped or is_reported or self._reasons(batch, ACK):
            return None
        batch.end()
        return self._carry_out(process_queue, batch, None, {})

    def _carry_out(
        self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None, lost: dict[int, str | None]
    ) -> bool:
        """Finish, hold or retry each message of the batch. Returns whether the queue is suspended.

        `lost` maps the index of each message to be dead-lettered to its reason, or to None if no broker accepted it.
        Dead-lettered messages are finished already.
        """
        manual = batch if isinstance(batch, ManualBatch) else None
        if manual is not None and manual.closing is Closing.ROLLBACK:
            return self._roll_back(process_queue, batch, error)
        decisions, default = batch.decisions(), default_decision(error, batch)
        done = _acknowledged(batch, error, lost)
        for index in done:
            count_acknowledged(process_queue.stats, batch[index], decisions.get(index), error)
        again: list[Message] = []
        failed, wait_seconds = False, 0.0
        for index in sorted(set(range(len(batch))).difference(done)):
            message, decision = batch[index], decisions.get(index, default)
            if lost.get(index) is not None:
                continue
            if decision.outcome is Outcome.AGAIN:
                wait_seconds = max(wait_seconds, decision.seconds)
                again.append(message)
            else:
                failed = True
                process_queue.stats.of(message).count("retried")
                if decision.outcome is not Outcome.ACK:
                    message.count_attempt()
                    error = error or (decision.error if index in decisions else None)  # it may ask for a suspension
                again.append(message)
        self._finish(process_queue, [batch[index] for index in done], manual)
        is_committed = manual is not None and manual.closing is Closing.COMMIT
        if again and (wait_seconds or is_committed) and not failed:
            self._suspend(process_queue, again, wait_seconds)
            return True
        return self._repeat(process_queue, again, error)

    def _finish(self, process_queue: ProcessQueue, done: list[Message], manual: ManualBatch | None) -> None:
        if manual is None:
            process_queue.finish(done)
            return
        process_queue.hold_uncommitted(done)
        if manual.closing is Closing.COMMIT:
            process_queue.commit()

    def _reasons(self, batch: Batch, default: Decision) -> dict[int, str]:
        """Return why messages must be dead-lettered, by index: the handler's reason, or that attempts are used up.

        Empty after a rollback.
        """
        if isinstance(batch, ManualBatch) and batch.closing is Closing.ROLLBACK:
            return {}
        decisions = batch.decisions()
        reasons: dict[int, str] = {}
        for index, message in enumerate(batch):
            decision = decisions.get(index, default)
            reason = given_up(self._retry_policy, message, decision, decision.delay_level)
            if reason is not None:
                reasons[index] = reason
        return reasons

    async def _dead_letter(
        self, batch: Batch, reasons: dict[int, str], error: BaseException | None
    ) -> dict[int, str | None]:
        """Send dead letters. Returns the reasons by index; None for a message that no broker accepted."""
        decisions = batch.decisions()
        raised = {index: decisions[index].error if index in decisions else None for index in reasons}
        sent = await asyncio.gather(
            *(
                alone(batch[index], self._retry_policy.dead_letter(batch[index], reason, raised[index] or error))
                for index, reason in reasons.items()
            )
        )
        pairs = zip(reasons.items(), sent, strict=True)
        return {index: reason if is_taken else None for (index, reason), is_taken in pairs}

    def _finish_dead_letters(
        self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None, lost: Mapping[int, str | None]
    ) -> None:
        """Finish accepted dead letters at once, so that they are not sent again, whatever happens to the batch."""
        decisions, default = batch.decisions(), default_decision(error, batch)
        taken = {index: reason for index, reason in lost.items() if reason is not None}
        for index, reason in taken.items():
            stats, decision = process_queue.stats.of(batch[index]), decisions.get(index, default)
            stats.count("dead_lettered")
            stats.dead_lettered(dead_letter_cause(decision, decision.delay_level), reason)
        process_queue.finish([batch[index] for index in taken])

    def _roll_back(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Retry all messages since the handler's last commit. As in Java, no attempt is counted."""
        decisions = batch.decisions()
        for index, message in enumerate(batch):
            if decisions.get(index) != AGAIN:  # the handler has had the message
                process_queue.stats.of(message).count("retried")
        return self._repeat(process_queue, [*process_queue.roll_back(), *batch], error)

    def _repeat(self, process_queue: ProcessQueue, messages: list[Message], error: BaseException | None) -> bool:
        if not messages:
            return False
        self._suspend(process_queue, messages, suspension_seconds(error, self._suspension_seconds))
        return True


def _acknowledged(batch: Batch, error: BaseException | None, lost: Mapping[int, str | None]) -> list[int]:
    """Return the indexes of acknowledged messages. A message without a decision does not pass a retried one.

    `lost` as in `_carry_out`: dead-lettered messages do not count as retried.
    """
    decisions, default = batch.decisions(), default_decision(error, batch)
    done: list[int] = []
    is_behind = False
    for index in range(len(batch)):
        if lost.get(index) is not None:
            continue
        is_acknowledged = decisions.get(index, default).outcome is Outcome.ACK
        if is_acknowledged and (index in decisions or not is_behind):
            done.append(index)
        else:
            is_behind = True
    return done


def suspension_seconds(error: BaseException | None, usual: float) -> float:
    """How long a queue is suspended before a retry: as the exception asks, otherwise `usual`."""
    asked = requested_suspension(error)
    return usual if asked is None else min(max(asked, SHORTEST_SUSPENSION_SECONDS), LONGEST_SUSPENSION_SECONDS)


NOTHING = ()


class ConsumeMessageOrderlyService(HandlerSlots):
    """Hands out one batch of each queue at a time, from up to `concurrency` queues at once.

    A queue yields to the others after a time slice of milliseconds, far below Java's 60 s
    (`rocketmq.client.maxTimeConsumeContinuously`). Here `ready_queues.queued` also contains a queue while a worker has
    its turn at it, and while it is suspended.
    """

    def __init__(
        self, options: ConsumerOptions, handler: LoadedHandler, retry_policy: RetryPolicy, leases: Leases, clock: Clock
    ) -> None:
        super().__init__(options, handler, clock)
        self._batch_type = OrderlyBatch if options.auto_commit else ManualBatch
        forgiving = self._forgiving_retry(retry_policy)
        self._settlement = OrderlySettlement(
            forgiving or retry_policy, options, self._suspend, clock, self.confirm_settled
        )
        self._settle_batch = self._forgiving(forgiving, self._settlement.settle)
        self._leases = leases
        # the ProcessQueue that a worker serves; if it was replaced while a handler has its batch, the one that is next
        self._turns: dict[MessageQueue, ProcessQueue] = {}
        self._resting: set[ProcessQueue] = set()
        self._takes_late_results = True

    def begin_turn(self) -> Turn | None:
        """Take the next queue out of the line, under its lock."""
        ready_queues = self.ready_queues
        process_queue = ready_queues.queues.popleft()
        message_queue = process_queue.message_queue
        if self._turns.setdefault(message_queue, process_queue) is not process_queue:
            self._turns[message_queue] = process_queue
            return None
        lease = self._leases.lease(message_queue)
        if lease is None:
            del self._turns[message_queue]
            ready_queues.queued.discard(
                process_queue
            )  # it returns with its next messages, or when its lock is regained
            return None
        process_queue.begin_turn()
        if ready_queues.queues and ready_queues.can_wake:
            ready_queues.wake()
        make: Make = partial(self._batch_type, lease)
        if self._batching_queues is not None:
            make = self._batching_queues.making(process_queue, make, self.halt)
        return process_queue, make, NOTHING, self._end_turn

    def _end_turn(self, process_queue: ProcessQueue) -> None:
        """Put the queue back into the line, unless it is suspended."""
        process_queue.end_turn()
        following = self._turns.pop(process_queue.message_queue)
        if following is not process_queue:
            self.ready_queues.queued.discard(following)
            self.submit(following)
        if process_queue not in self._resting:
            self.ready_queues.queued.discard(process_queue)
            self.submit(process_queue)

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Finish or retry each message now. Returns None if a message must be dead-lettered, which takes a request."""
        return self._settlement.settle_at_once(process_queue, batch)

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Finish, retry or dead-letter each message."""
        return await self._settle_batch(process_queue, batch, error)

    def is_settling(self) -> bool:
        """Return False: no call is abandoned, so the group never fails because of hung calls."""
        return False

    def _waits_behind_calls(self, process_queue: ProcessQueue) -> bool:
        """Whether messages are pending behind the handler's batch."""
        return bool(process_queue.pending)

    def _suspend(self, process_queue: ProcessQueue, messages: list[Message], seconds: float) -> None:
        self._resting.add(process_queue)
        process_queue.postpone(messages)
        self.clock.call_later(seconds, self._rested, process_queue, messages)

    def _rested(self, process_queue: ProcessQueue, messages: list[Message]) -> None:
        """Put the queue back into the line. If its turn has not ended, the end of the turn does it.

        That happens if the event loop was busy for longer than the suspension. Two workers would serve the queue if it
        were in the line before the end of its turn.
        """
        self._resting.discard(process_queue)
        is_pending = process_queue.return_postponed(messages)
        if self._turns.get(process_queue.message_queue) is process_queue:
            return
        self.ready_queues.queued.discard(process_queue)
        if is_pending:
            self.submit(process_queue)
