"""Settlement of a batch in a group with `order_by`: a failed message is retried here, in the order of its key.

Consumption by key (`order_by`): messages of one key in order and one at a time, different keys concurrently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import Turn, Worker
from rmqd.consumer.handling.handler_failures import EXPIRED, dead_letter_cause
from rmqd.consumer.handling.orderly import suspension_seconds
from rmqd.consumer.handling.settlement import ConfirmSettled, Failed, Settlement, given_up
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.services import Leases, RetryPolicy
from rmqd.consumer.stats.counters import TopicStats
from rmqd.handler_api.batch import Batch, Decision, LoadedHandler, OrderlyBatch
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


class KeyedSettlement(Settlement):
    """Carries out a handler's decisions about a batch with at most one message of each key.

    A failed message is handed to the handler again after a suspension, with one more attempt counted. Its key waits,
    and the queue continues with other keys. The message is dead-lettered and passed if the handler decided so or its
    attempts are used up. If no broker accepts the dead letter, the message is retried.
    """

    def __init__(
        self,
        retry_policy: RetryPolicy,
        options: ConsumerOptions,
        resubmit: Callable[[ProcessQueue], None],
        clock: Clock,
        confirm_settled: ConfirmSettled | None,
    ) -> None:
        super().__init__(retry_policy, options.delay_level_when_next_consume, resubmit, clock, confirm_settled)
        self._usual_seconds = options.suspend_current_queue_time_seconds

    async def _return_one(
        self, stats: TopicStats, message: Message, decision: Decision, error: BaseException | None
    ) -> str | None:
        level = self._delay_level if decision.delay_level is None else decision.delay_level
        reason = given_up(self._retry_policy, message, decision, level)
        if reason is not None and await self._retry_policy.dead_letter(message, reason, decision.error or error):
            stats.of(message).dead_lettered(dead_letter_cause(decision, level), reason)
            return "dead_lettered"
        message.count_attempt()
        stats.of(message).count("expired" if error is EXPIRED else "retried")
        return None

    def _set_aside(self, process_queue: ProcessQueue, failed: list[Failed]) -> None:
        """Suspend each message for as long as its own error asks for."""
        resting: dict[float, list[Message]] = {}
        for message, error in failed:
            resting.setdefault(suspension_seconds(error, self._usual_seconds), []).append(message)
        for seconds, messages in resting.items():
            self._postpone(process_queue, messages, seconds)


class ConsumeMessageByKeyService(HandlerSlots):
    """Hands out batches to `concurrency` workers. At most one message of each key is in flight.

    The process queue (KeyedProcessQueue) knows which messages can be taken. In an orderly group, which has `leases`,
    they are taken only while this member holds the queue's lock.

    An expired call keeps the keys of its batch until it ends, because their messages must not be handled concurrently.
    The result of a thread counts, since a handled message must not be retried. In a group that is not orderly, an
    asynchronous call is cancelled, so that a call without an end does not hold its keys longer.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        handler: LoadedHandler,
        retry_policy: RetryPolicy,
        leases: Leases | None,
        clock: Clock,
    ) -> None:
        super().__init__(options, handler, clock)
        self.submit = self._submit
        forgiving = self._forgiving_retry(retry_policy)
        self._settlement = KeyedSettlement(forgiving or retry_policy, options, self.submit, clock, self.confirm_settled)
        self._settle_batch = self._forgiving(forgiving, self._settlement.settle)
        self._leases = leases
        self._serving: dict[MessageQueue, ProcessQueue] = {}  # caches with batches in flight
        self._following: dict[MessageQueue, ProcessQueue] = {}  # newer caches that wait for a cache in `_serving`
        self._takes_late_results = leases is not None or not handler.is_async

    def begin_turn(self) -> Turn | None:
        """Take the next queue. It stays in the line for other workers until they find it empty."""
        ready_queues = self.ready_queues
        process_queue = ready_queues.queues[0]
        message_queue = process_queue.message_queue
        if self._serving.get(message_queue, process_queue) is not process_queue:
            # it stays in `queued`, so that it does not return before `_end_turn` submits it
            ready_queues.queues.popleft()
            if (former := self._following.get(message_queue)) is not None:
                ready_queues.queued.discard(former)
            self._following[message_queue] = process_queue
            return None
        make: Callable[..., Batch] = Batch
        if self._leases is not None:
            lease = self._leases.lease(message_queue)
            if lease is None:  # it returns with its next messages, or when its lock is regained
                ready_queues.queued.discard(ready_queues.queues.popleft())
                if process_queue.is_releasing:
                    _keyed(process_queue).discard_waiting()
                return None
            make = partial(OrderlyBatch, lease)
        ready_queues.queues.rotate(-1)
        self._serving[message_queue] = process_queue
        process_queue.begin_turn()
        return process_queue, make, process_queue.pending, self._end_turn

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Acknowledge the batch, unless the handler decided something else about a message."""
        return False if self._settlement.acknowledge(process_queue, batch) else None

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Acknowledge, retry or dead-letter each message. The queue continues with other keys meanwhile."""
        await self._settle_batch(process_queue, batch, error)
        return False

    def is_settling(self) -> bool:
        """Return False: the batch of a hung call stays in its queue, so there is nothing to wait for."""
        return False

    def _waits_behind_calls(self, process_queue: ProcessQueue) -> bool:
        """Whether messages wait behind a key that is in flight."""
        return _keyed(process_queue).has_behind

    def _hold(self, reason: str) -> None:
        super()._hold(reason)
        for process_queue in self.ready_queues.queued:
            if process_queue.is_releasing:
                _keyed(process_queue).discard_waiting()

    def _submit(self, process_queue: ProcessQueue) -> None:
        if process_queue.is_releasing and self.ready_queues.paused:
            _keyed(process_queue).discard_waiting()
        else:
            self.ready_queues.submit(process_queue)

    def _end_turn(self, process_queue: ProcessQueue) -> None:
        """Keep the queue in the line while it has messages that can be taken."""
        process_queue.end_turn()
        self.ready_queues.keep(process_queue)
        message_queue = process_queue.message_queue
        if process_queue.in_flight or self._serving.get(message_queue) is not process_queue:
            return
        del self._serving[message_queue]
        if (following := self._following.pop(message_queue, None)) is not None:
            self.ready_queues.queued.discard(following)
            self.submit(following)

    def _note_abandoned(self, worker: Worker) -> Callable[[], None]:
        process_queue, batch = worker.process_queue, worker.batch
        assert process_queue is not None
        assert batch is not None
        self._tell_circuit(batch)
        return partial(self._call_ended, process_queue, batch)

    def _call_ended(self, process_queue: ProcessQueue, batch: Batch) -> None:
        """Settle the batch of a call that ignored its cancellation and has now ended, so that a retry is safe."""
        self._came_back()
        if not self.ended:
            self._begin_in_background(self._settle_ended(process_queue, batch))

    async def _settle_ended(self, process_queue: ProcessQueue, batch: Batch) -> None:
        await self._settle_batch(process_queue, batch, EXPIRED)
        self._end_turn(process_queue)
        self.submit(process_queue)


def _keyed(process_queue: ProcessQueue) -> KeyedProcessQueue:
    assert isinstance(process_queue, KeyedProcessQueue)
    return process_queue
