"""The parts of a pull consumer: the cache of a queue, the service that answers polls, and the division of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.ready_queues import ReadyQueues
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.offsets.start_offsets import QueueStart
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.consumer.rebalance.rebalance import MemberShare, QueueDivision
from rmqd.consumer.services import Ownership, RunningCall
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.runtime.clock import Clock, wait_within
from rmqd.runtime.plain_text import duration
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import retry_topic


class PolledQueue(ProcessQueue):
    """A queue's cache whose messages are removed when a poll returns them. Its limits count unpolled messages.

    The program that polls decides when it has handled the returned messages. Until it confirms them, the commit offset
    stays below them and the queue counts as busy, so a release waits for the program as it would wait for a handler.
    """

    __slots__ = ("confirmed",)

    def __init__(self, message_queue: MessageQueue, next_offset: int, *more: Any) -> None:
        super().__init__(message_queue, next_offset, *more)
        self.confirmed = next_offset  # the program has handled all messages below this offset

    @property
    def position(self) -> int:
        """The offset of the next message that a poll will return; every message below was returned or skipped."""
        return super().commit_offset()

    def commit_offset(self) -> int:
        """Return the offset after the messages that the polling program has confirmed; never above `position`."""
        return min(self.confirmed, self.position)

    def confirm(self, offset: int | None = None) -> None:
        """Record that the polling program has handled all messages below `offset`; None: all returned messages."""
        if not self.dropped:
            self.confirmed = self.position if offset is None else offset
        if self.confirmed >= self.position:
            self.release()

    def drop(self, because: str) -> None:
        """End the ownership of the queue immediately. Messages that are not confirmed yet will be redelivered."""
        super().drop(because)
        self.release()

    def release(self) -> None:
        """Stop counting the queue as busy, so that its release does not wait until messages are confirmed."""
        if self.in_flight:
            self.end_turn()


class PollService:
    """Replaces the workers of a push consumer: returns cached messages to polls, from all queues in turn."""

    circuit: Circuit | None = None
    problem: Problem | None = None
    concurrency = 1
    keeps_calls_open = calls_left = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready_queues = queues = ReadyQueues()
        self.submit, self.pause, self.resume = queues.submit, queues.pause, queues.resume
        self._polled_at = clock.monotonic()

    async def run(self) -> None:
        """Wait until cancelled. A service with workers would call the handler here; polls call `take` instead."""
        await asyncio.Event().wait()

    def change(self, _: object) -> None:
        """Do nothing, because there are no workers to change or halt. Also used as `halt`."""

    halt = change

    def calls(self) -> list[RunningCall]:
        return []

    def explain(self, process_queue: ProcessQueue) -> Problem:
        """Return the reason why a queue is stalled: its messages wait until the program polls again."""
        seconds = self._clock.monotonic() - self._polled_at
        step = "call poll more often, or close the consumer: its queues then go to other members"
        return make_problem(
            "slow_handler", f"messages wait, but poll was last called {duration(seconds)} ago", step=step
        )

    async def call_in_background(self, batch: Batch, ended: Callable[[], None]) -> None:
        """Raise RmqdError. Called if an operator sends a message to the handler; a pull consumer has no handler."""
        ended()
        raise RmqdError("this member is a pull consumer: it has no handler to call")

    async def wait_for_messages(self, seconds: float) -> bool:
        """Wait until a queue has messages, for at most `seconds`. Returns whether a queue has messages."""
        return await wait_within(self._clock, seconds, self._ready_queues.wait_for_work())

    def take(self, most: int) -> list[Message]:
        """Return up to `most` messages that are cached now."""
        self._polled_at, messages = self._clock.monotonic(), list[Message]()
        queues, queued = self._ready_queues.queues, self._ready_queues.not_to_add
        while queues and len(messages) < most:
            process_queue = queues[0]
            if process_queue.dropped or not process_queue.pending:
                queued.discard(queues.popleft())
                continue
            assert isinstance(process_queue, PolledQueue)
            taken = process_queue.take(most - len(messages))
            if not process_queue.in_flight:
                process_queue.begin_turn()
            process_queue.finish(taken)
            process_queue.stats.acknowledged(taken, 0.0, self._clock.wall() - taken[0].store_timestamp / 1000)
            messages += taken
            queues.rotate(-1)
        return messages


class ChosenDivision(QueueDivision):
    """Gives this consumer the queues in `chosen`, which the program passed to `assign`, regardless of other members."""

    joins_group = False

    def __init__(self, context: GroupContext, chosen: Collection[MessageQueue]) -> None:
        super().__init__(context)
        self._chosen = frozenset(chosen)
        context.ownership = Ownership()
        context.subscriptions.pop(retry_topic(context.options.group), None)
        for topic in context.subscriptions:
            context.client.routes.watch(topic)

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> MemberShare:
        return MemberShare(pulled=self._chosen & {*queues})

    def create_assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> AssignedQueue:
        return ManualQueue(self._context, message_queue)


class ManualQueue(AssignedQueue):
    """A queue that the program passed to `assign`. Without `auto_commit`, only calls of `commit` commit its offset."""

    async def run(self) -> None:
        await (super().run() if self._context.options.auto_commit else self.consume())

    def commit_offset(self) -> int | None:
        """Return the offset that the periodic commit should store; None without `auto_commit`."""
        return super().commit_offset() if self._context.options.auto_commit else None

    async def find_or_store_start(self) -> QueueStart:
        """Return the group's stored offset or, without one, the start offset for a new group. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.store.read(queue)
        context.store.begin_ownership(queue, stored)
        if stored is None:
            return await context.start_offsets.policy.new_group_start(queue)
        return QueueStart(stored, "committed", True)


_NO_HANDLER: Final = LoadedHandler("poll", lambda _batch: None, is_async=False, start=None, stop=None)


def polled_consumer(
    options: ConsumerOptions, client: ClientInstance, polls: PollService, chosen: Collection[MessageQueue]
) -> PushConsumer:
    """Return a consumer for `polls`. It reads the `chosen` queues; without them, it joins the group as a member."""
    division = partial(ChosenDivision, chosen=chosen) if chosen else None
    return PushConsumer(options, _NO_HANDLER, client, service=polls, cache=PolledQueue, division=division)
