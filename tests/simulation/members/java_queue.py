"""One queue of a Java consumer: its cache, its pulls, its handlers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rmqd.codes import ResponseCode
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.properties import PullSysFlag
from tests.simulation.members.handling import HandlerFailed

if TYPE_CHECKING:
    from rmqd.wire.command import RemotingCommand
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import Message
    from tests.simulation.members.java_consumer import JavaConsumer

FIRST_PULL_SECONDS: Final = 0.5
FLOW_CONTROL_SECONDS: Final = 0.05
AGAIN_SECONDS: Final = 1.0
"""The delay after a failed pull, or while the group is suspended."""
LOCK_LIVES_SECONDS: Final = 30.0
FORCED_UNLOCK_SECONDS: Final = 20.0
UNLOCK_SECONDS: Final = 0.5
RELOCKED_SECONDS: Final = 0.01
RELOCK_SECONDS: Final = 3.0
SEND_BACK_AGAIN_SECONDS: Final = 5.0
HELD_MS: Final = 15_000
DEAD_LETTER: Final = -1


class JavaQueue:
    """Java's ProcessQueue, PullRequest and ConsumeRequests in one.

    A dropped queue delivers nothing, and discards its handlers' results.
    """

    def __init__(self, group: JavaConsumer, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.is_dropped = False
        self.pulled_at = asyncio.get_running_loop().time()
        self.locked_at: float | None = self.pulled_at
        """When a broker last confirmed the lock of the queue; None if it denied the lock."""
        self.cached: dict[int, Message] = {}
        self._group = group
        self._next_offset = offset
        self._end = offset
        self._has_asked_again = not group.is_orderly
        self._arrived = asyncio.Event()
        self._handling = asyncio.Lock()

    def drop(self) -> None:
        """Drop the queue at once."""
        self.is_dropped = True
        self._arrived.set()

    async def may_unlock(self) -> bool:
        """Whether an orderly queue may be unlocked: no handler has its messages, or one has had them too long."""
        if self.locked_at is None:
            return True
        if self._now() > self.locked_at + FORCED_UNLOCK_SECONDS:
            if self._handling.locked():
                self._group.on_forced(self.queue)
            return True
        try:
            async with asyncio.timeout(UNLOCK_SECONDS), self._handling:
                return True
        except TimeoutError:
            return False

    async def pull(self) -> None:
        """Pull until the queue is dropped."""
        await asyncio.sleep(FIRST_PULL_SECONDS)
        while not self.is_dropped:
            self.pulled_at = self._now()
            if self._group.is_suspended:
                await asyncio.sleep(AGAIN_SECONDS)
            elif len(self.cached) > self._group.options.pull_threshold_for_queue:
                await asyncio.sleep(FLOW_CONTROL_SECONDS)
            else:
                try:
                    is_well = await self._pull_once()
                except RmqdError:
                    is_well = False
                if not is_well:
                    await asyncio.sleep(AGAIN_SECONDS)

    async def _pull_once(self) -> bool:
        if not self._has_asked_again:  # start at the stored offset once the queue is locked
            if self.locked_at is None:
                return False
            self._next_offset, self._has_asked_again = await self._group.stored(self.queue), True
        offset = self._group.offsets.get(self.queue, 0)
        header = PullMessageRequestHeader(
            consumer_group=self._group.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self._next_offset,
            max_msg_nums=self._group.options.pull_batch_size,
            sys_flag=PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if offset > 0 else 0),
            commit_offset=offset,
            suspend_timeout_millis=HELD_MS,
            sub_version=self._group.versions[self.queue.topic],
            bname=self.queue.broker_name,
        )
        reply = await self._group.brokers.pull(self.queue, header)
        if reply.code == ResponseCode.SUCCESS:
            self._take(reply)
        elif reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            if not self.cached:
                self._finished(_next_offset(reply))
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            self._group.drop(self)
            await self._group.begin_anew(self.queue, _next_offset(reply))
            return True
        else:
            return False
        self._next_offset = _next_offset(reply)
        return True

    def _take(self, reply: RemotingCommand) -> None:
        messages = decode_messages(reply.payload, self.queue, reply.body_start).messages
        for message in messages:
            self.cached[message.queue_offset] = message
            self._end = message.queue_offset + 1
        self._arrived.set()
        if not self._group.is_orderly:
            size = self._group.options.consume_message_batch_max_size
            for at in range(0, len(messages), size):
                self._group.begin(self._handle(messages[at : at + size]))

    async def _handle(self, messages: list[Message]) -> None:
        async with self._group.slots:
            is_done = not self.is_dropped and await self._is_done(messages)
            if self.is_dropped:
                return
            level = self._group.options.delay_level_when_next_consume
            left = [] if is_done else [one for one in messages if not await self._is_taken_back(one, level)]
            if self.cached:
                for message in messages:
                    if message not in left:
                        self.cached.pop(message.queue_offset, None)
                self._finished(min(self.cached, default=self._end))
        if left:
            await asyncio.sleep(SEND_BACK_AGAIN_SECONDS)
            for message in left:
                message.count_attempt()
            await self._handle(left)

    async def handle_in_order(self) -> None:
        """Deliver one batch after the other, and repeat each until it succeeds, while the lock holds."""
        batch: list[Message] = []
        while not self.is_dropped:
            if not batch:
                offsets = sorted(self.cached)[: self._group.options.consume_message_batch_max_size]
                batch = [self.cached[offset] for offset in offsets]
            if not batch:
                self._arrived.clear()
                await self._arrived.wait()
            elif self.locked_at is None or self._now() > self.locked_at + LOCK_LIVES_SECONDS:
                await asyncio.sleep(RELOCKED_SECONDS if await self._group.lock([self.queue]) else RELOCK_SECONDS)
            elif await self._is_past(batch):
                for message in batch:
                    self.cached.pop(message.queue_offset, None)
                self._finished(batch[-1].queue_offset + 1)
                batch = []
            else:
                await asyncio.sleep(self._group.options.suspend_current_queue_time_seconds)

    async def _is_past(self, batch: list[Message]) -> bool:
        """Deliver a batch of an orderly queue. Return whether the queue continues after it."""
        async with self._group.slots:
            async with self._handling:
                if self.is_dropped or await self._is_done(batch):
                    return True
            if batch[0].reconsume_times >= self._group.most_attempts:
                return all([await self._is_taken_back(message, DEAD_LETTER) for message in batch])
            for message in batch:
                message.count_attempt()
            return False

    async def _is_done(self, messages: list[Message]) -> bool:
        try:
            await self._group.handling(Batch(messages, self.queue))
        except HandlerFailed:
            return False
        return True

    async def _is_taken_back(self, message: Message, level: int) -> bool:
        return await self._group.brokers.take_back(message, level, self._group.most_attempts)

    def _finished(self, offset: int) -> None:
        if not self.is_dropped:
            self._group.offsets[self.queue] = max(offset, self._group.offsets.get(self.queue, 0))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _next_offset(reply: RemotingCommand) -> int:
    return PullMessageResponseHeader.from_ext_fields(reply.ext_fields).next_begin_offset
