"""The queues of a group's dead letters, and the letters in them that are left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rmqd.broker_errors import TopicNotExistError
from rmqd.client.api.admin import topic_stats
from rmqd.client.api.offset import query_consumer_offset
from rmqd.client.api.pull import read_part
from rmqd.client.looks.brokers import Brokers
from rmqd.client.remoting.client import RemotingClient
from rmqd.consumer.dead_letters.letter import Letter
from rmqd.consumer.dead_letters.marks import Marks, Place
from rmqd.consumer.dead_letters.spans import Spans
from rmqd.errors import RmqdError
from rmqd.wire.bodies.stats import TopicOffset
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.topics import DLQ_PREFIX, dlq_topic

_MOST_AT_ONCE: Final = 1000  # brokers give fewer


@dataclass(frozen=True, slots=True)
class LetterQueue:
    """One queue of dead letters, as it was when it was looked up.

    `settled` are the letters that are marked here or lie below the group's position at the broker.
    """

    group: str
    queue: MessageQueue
    address: str
    min_offset: int
    max_offset: int
    last_stored_ms: int
    position: int
    settled: Spans

    @property
    def place(self) -> Place:
        """Its key among marks."""
        return self.queue.broker_name, self.queue.queue_id

    @property
    def left(self) -> int:
        """How many of its letters are not settled."""
        return self.max_offset - self.min_offset - self.settled.count(self.min_offset, self.max_offset)


async def letter_queues(
    brokers: Brokers, group: str, marks: Marks | None, names: list[str] | None = None
) -> tuple[list[LetterQueue], dict[str, RmqdError]]:
    """The group's queues of dead letters on the brokers of these names, or on all, and what could not be asked.

    Without `marks` nothing counts as settled.
    """
    remoting, topic = brokers.client.remoting, dlq_topic(group)

    async def ask(address: str) -> list[LetterQueue]:
        try:
            stats = await topic_stats(remoting, address, topic)
        except TopicNotExistError:
            return []
        return await asyncio.gather(
            *(_look_up(remoting, address, queue, ends, marks) for queue, ends in stats.offset_table.items())
        )

    found = await brokers.ask(ask, names)
    queues = [queue for parts in found.by_broker.values() for queue in parts]
    return sorted(queues, key=lambda one: one.place), dict(found.errors)


async def letters_left(
    remoting: RemotingClient, queue: LetterQueue, low: int | None = None
) -> AsyncIterator[list[Letter]]:
    """The letters of a queue that are left, from `low` or the oldest on up to its end, some at a time.

    Copies that brokers gave back to a replay are no letters, and are left out. Raises RmqdError.
    """
    settled, group = queue.settled, queue.group
    offset = settled.reach(max(queue.min_offset, queue.min_offset if low is None else low))
    while offset < queue.max_offset:
        block, following = await read_block(remoting, queue.address, queue.queue, offset, queue.max_offset)
        letters = [
            *(Letter(message, group) for message in block.messages),
            *(Letter(one.message, group, one.reason) for one in block.corrupt),
        ]
        letters = [one for one in letters if offset <= one.offset < queue.max_offset and one.offset not in settled]
        yield [one for one in sorted(letters, key=lambda one: one.offset) if not one.is_bounced_copy]
        if following <= offset:  # the queue ends here by now
            return
        offset = settled.reach(following)


async def read_block(
    remoting: RemotingClient, address: str, queue: MessageQueue, low: int, high: int
) -> tuple[MessageBlock, int]:
    """The messages of a queue from an offset on, as many as the broker gives, and where to go on. Raises RmqdError."""
    part = await read_part(remoting, address, queue, low, min(high - low, _MOST_AT_ONCE))
    return decode_messages(part.records, queue), part.next_offset


async def _look_up(
    remoting: RemotingClient, address: str, queue: MessageQueue, ends: TopicOffset, marks: Marks | None
) -> LetterQueue:
    group = queue.topic.removeprefix(DLQ_PREFIX)
    place = queue.broker_name, queue.queue_id
    position, settled = 0, Spans()
    if marks is not None:
        if place in marks.settled and not await _is_the_same(remoting, address, queue, ends, marks):
            marks.forget(place)
        settled = Spans(marks.settled.get(place, ()))
        position = await query_consumer_offset(remoting, address, group, queue) or 0
        if position <= ends.max_offset:  # a higher one is of an older topic of this name
            settled.add(0, position)
    return LetterQueue(
        group,
        queue,
        address,
        ends.min_offset,
        ends.max_offset,
        ends.last_update_timestamp,
        position,
        settled,
    )


async def _is_the_same(
    remoting: RemotingClient, address: str, queue: MessageQueue, ends: TopicOffset, marks: Marks
) -> bool:
    """Whether marks are about this queue, and not about one that had its name before. Raises RmqdError."""
    witness = marks.witnesses.get((queue.broker_name, queue.queue_id))
    if witness is None or witness.offset < ends.min_offset:
        return True
    if witness.offset >= ends.max_offset:
        return False
    block, _ = await read_block(remoting, address, queue, witness.offset, witness.offset + 1)
    there = [Letter(one, "").replay_id for one in block.messages if one.queue_offset == witness.offset]
    return there == [witness.replay_id] or not there
