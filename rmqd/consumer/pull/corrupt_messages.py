"""Handles a queue's messages that are stored corrupt, as `on_corrupt_message` specifies.

A message that must be dead-lettered stays in the cache until a broker has accepted it: it is not handed out, and no
commit passes it. The other messages of its response are handled meanwhile, but the queue is not pulled. Each attempt
uses the policy at that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.options import OnCorruptMessage
from rmqd.consumer.pull.arrivals import dead_letter_corrupt, tell_corrupt
from rmqd.consumer.pull.pulled_queue import PulledQueue
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.pull_walk import BadRecord

log = structlog.get_logger(__name__)


class CorruptMessages:
    """Holds the corrupt messages of one queue. The queue's pull loop owns it."""

    def __init__(self, loop: PulledQueue, context: GroupContext, message_queue: MessageQueue) -> None:
        self._loop = loop
        self._context = context
        self._message_queue = message_queue
        self.held: deque[BadRecord] = deque()
        """Messages that no broker has accepted yet."""
        self._told = frozenset[int]()  # offsets of the last reported records

    @property
    def policy(self) -> OnCorruptMessage:
        """The present policy for corrupt messages."""
        return self._context.options.on_corrupt_message

    def forget(self) -> None:
        """Forget the held messages, because their cache was dropped."""
        self.held.clear()

    def hold(self, records: Sequence[BadRecord]) -> list[Message]:
        """Hold the corrupt records of a response. Return the messages that the cache must hold in their place."""
        self._tell(records)
        if self.policy == "skip" or not records:
            return []
        for record in records:
            # an impossible offset would be committed
            record.message.queue_offset = record.offset
            record.message.finished = False
        held = [record.message for record in records]
        self.held.extend(records)
        return held

    async def settle(self) -> None:
        """Apply the policy to the held messages until none is left or the queue was reset."""
        process_queue = self._loop.process_queue
        while self.held and self._loop.process_queue is process_queue and self._loop.request.reset_to is None:
            record = self.held[0]
            if self.policy == "stop":
                await self.stop_at(record)
                await self._loop.probe(record.offset)
            elif self.policy == "skip" or await self._dead_letter(record):
                self._loop.stuck = None
                if self.held and self.held[0] is record:
                    self.held.popleft()
                    process_queue.finish([record.message])
            else:
                await self._loop.wait_at(record.offset)

    async def stop_at(self, record: BadRecord) -> None:
        """Stop the queue at a record until an operator acts, and check periodically."""
        self._tell([record])
        evidence = f"message at offset {record.offset} is corrupt: {record.reason}"
        topic = record.message.topic
        self._loop.stuck = self._context.found("corrupt_message", evidence, topic=topic)
        await self._loop.wait_for_operator()

    async def _dead_letter(self, record: BadRecord) -> bool:
        process_queue = self._loop.process_queue
        if await dead_letter_corrupt(self._context.send_back, process_queue, record.message, record.reason):
            return True
        evidence = f"the corrupt message at offset {record.offset} cannot be dead-lettered"
        self._loop.stuck = self._context.found("retry_refused", evidence)
        return False

    def _tell(self, records: Sequence[BadRecord]) -> None:
        """Count and log each record once, even if it is pulled again or the policy changes."""
        places = frozenset(record.at for record in records)
        for record in records:
            if record.at not in self._told:
                tell_corrupt(self._loop.process_queue, record.message, record.offset, record.reason, self.policy)
        if not places <= self._told:
            self._told = places
