"""Queries for groups with dead letters, the queues of their DLQ topics, and the letters that are not settled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from rmqd.client.api.admin_requests import topic_configs, topic_stats
from rmqd.client.api.offset_requests import query_consumer_offset, update_consumer_offset
from rmqd.client.api.pull_requests import read_records
from rmqd.client.brokers import Brokers
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.operate.dead_letters.dead_letter import DeadLetterFilter, DlqMarks, DlqMessage, DlqQueueKey, OffsetSet
from rmqd.wire.bodies.stats_bodies import TopicOffset
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.topics import DLQ_PREFIX, dlq_topic, is_dlq_topic

_MAX_AT_ONCE: Final = 1000  # messages asked for in one request; a broker's own limit is lower


@dataclass(frozen=True, slots=True)
class DlqQueue:
    """A snapshot of one queue of a group's DLQ topic. `position` is the group's committed offset in it, or 0.

    `settled` holds the offsets of letters that the marks file lists, or that are below `position`.
    """

    group: str
    queue: MessageQueue
    address: str
    min_offset: int
    max_offset: int
    last_stored_ms: int
    position: int
    settled: OffsetSet

    @property
    def place(self) -> DlqQueueKey:
        """The queue's key in `DlqMarks`: broker name and queue id."""
        return self.queue.broker_name, self.queue.queue_id

    @property
    def left(self) -> int:
        """How many dead letters are not settled."""
        return self.max_offset - self.min_offset - self.settled.count(self.min_offset, self.max_offset)


async def dlq_queues(
    brokers: Brokers, group: str, marks: DlqMarks | None, names: list[str] | None = None
) -> tuple[list[DlqQueue], dict[str, RmqdError]]:
    """Return the queues of the group's DLQ topic, and the errors of failed queries by broker name.

    Only the brokers in `names` are asked; None asks all brokers. Without `marks`, no letter counts as settled.
    """

    async def ask(remoting: RemotingClient, address: str) -> list[DlqQueue]:
        try:
            stats = await topic_stats(remoting, address, dlq_topic(group))
        except TopicNotExistError:
            return []
        return await asyncio.gather(
            *(_look_up(remoting, address, queue, ends, marks) for queue, ends in stats.offset_table.items())
        )

    found = await brokers.request_masters(ask, names=names)
    queues = [queue for parts in found.found.values() for queue in parts]
    return sorted(queues, key=lambda one: one.place), dict(found.errors)


async def unsettled_messages(
    remoting: RemotingClient, queue: DlqQueue, low: int | None = None
) -> AsyncIterator[list[DlqMessage]]:
    """Yield the unsettled dead letters of a queue in parts, from offset `low`; None starts at the oldest message.

    Skips a replay's copies that the broker dead-lettered at once: they are not separate letters. Raises RmqdError.
    """
    settled, group = queue.settled, queue.group
    offset = settled.first_missing(max(queue.min_offset, queue.min_offset if low is None else low))
    while offset < queue.max_offset:
        block, following = await read_block(remoting, queue.address, queue.queue, offset, queue.max_offset)
        letters = [
            *(DlqMessage(message, group) for message in block.messages),
            *(DlqMessage(one.message, group, one.reason) for one in block.corrupt),
        ]
        letters = [one for one in letters if offset <= one.offset < queue.max_offset and one.offset not in settled]
        yield [one for one in sorted(letters, key=lambda one: one.offset) if not one.is_copy_of_replay]
        if following <= offset:  # the broker has no messages after this offset
            return
        offset = settled.first_missing(following)


async def read_block(
    remoting: RemotingClient, address: str, queue: MessageQueue, low: int, high: int
) -> tuple[MessageBlock, int]:
    """Return messages from offset `low` to before `high`, and the offset to continue at. Raises RmqdError."""
    part = await read_records(remoting, address, queue, low, min(high - low, _MAX_AT_ONCE))
    return decode_messages(part.records, queue), part.next_offset


async def _look_up(
    remoting: RemotingClient, address: str, queue: MessageQueue, ends: TopicOffset, marks: DlqMarks | None
) -> DlqQueue:
    group = queue.topic.removeprefix(DLQ_PREFIX)
    place = queue.broker_name, queue.queue_id
    position, settled = 0, OffsetSet()
    if marks is not None:
        position = await query_consumer_offset(remoting, address, group, queue) or 0
        if place in marks.settled and not await _is_the_same(remoting, address, queue, ends, marks):
            marks.forget(place)
            if position:  # brokers of 4.x keep the group's offset when the topic is deleted
                position = ends.min_offset
                await update_consumer_offset(remoting, address, group, queue, position)
        settled = OffsetSet(marks.settled.get(place, ()))
        if position <= ends.max_offset:  # a higher offset belongs to a deleted topic of the same name
            settled.add(0, position)
    low, high, last_stored_ms = ends.min_offset, ends.max_offset, ends.last_update_timestamp
    return DlqQueue(group, queue, address, low, high, last_stored_ms, position, settled)


async def _is_the_same(
    remoting: RemotingClient, address: str, queue: MessageQueue, ends: TopicOffset, marks: DlqMarks
) -> bool:
    """Return whether the marks are about this queue, not about a deleted queue of the same name. Raises RmqdError."""
    witness = marks.witnesses.get((queue.broker_name, queue.queue_id))
    if witness is None or witness.offset < ends.min_offset:
        return True
    if witness.offset >= ends.max_offset:
        return False
    block, _ = await read_block(remoting, address, queue, witness.offset, witness.offset + 1)
    there = [DlqMessage(one, "").replay_id for one in block.messages if one.queue_offset == witness.offset]
    return there == [witness.replay_id] or not there


@dataclass(frozen=True, slots=True)
class DeadLetterCounts:
    """The dead letters of a group: `messages` counts the stored ones, `left` the ones not yet replayed or purged.

    `last_stored_ms` is the store time of the newest letter in Unix milliseconds.
    """

    group: str
    messages: int
    left: int
    last_stored_ms: int
    brokers: tuple[str, ...]


async def list_dead_letters(
    brokers: Brokers, marks_of: Callable[[str], DlqMarks], *, namespace: str = ""
) -> tuple[list[DeadLetterCounts], dict[str, RmqdError]]:
    """Return the groups that have or had dead letters, and the errors of failed queries. Raises RmqdError."""
    tables = await brokers.request_masters(topic_configs)
    begin = DLQ_PREFIX + (f"{namespace}%" if namespace else "")
    where: dict[str, list[str]] = {}
    for broker, table in tables.found.items():
        for topic in table:
            if is_dlq_topic(topic) and topic.startswith(begin):
                where.setdefault(topic.removeprefix(DLQ_PREFIX), []).append(broker)
    groups = sorted(where)
    parts = await asyncio.gather(*(dlq_queues(brokers, group, marks_of(group), where[group]) for group in groups))
    errors = dict(tables.errors)
    for group, (_, failed) in zip(groups, parts, strict=True):
        errors |= {f"{DLQ_PREFIX}{group} on {name}": why for name, why in failed.items()}
    return [_counted(group, queues) for group, (queues, _) in zip(groups, parts, strict=True)], errors


async def newest_dlq_messages(
    brokers: Brokers, group: str, marks: DlqMarks | None, choice: DeadLetterFilter, most: int
) -> tuple[list[DlqMessage], dict[str, RmqdError]]:
    """Return the newest `most` unsettled letters that match `choice`, oldest first, and the errors of failed queries.

    Without `marks`, settled letters are included. Raises RmqdError if all brokers respond, and none has dead letters of
    the group.
    """
    queues, errors = await dlq_queues(brokers, group, marks)
    if not queues and not errors:
        raise RmqdError(f"{group} has no dead letters; run `rmqd dlq list` to see the groups that have some")
    read = await asyncio.gather(*(_newest(brokers, queue, choice, most) for queue in queues), return_exceptions=True)
    found: list[DlqMessage] = []
    for queue, answer in zip(queues, read, strict=True):
        if isinstance(answer, RmqdError):
            errors[queue.queue.broker_name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += answer
    found.sort(key=lambda one: one.message.store_timestamp)
    return found[-most:], errors


async def _newest(brokers: Brokers, queue: DlqQueue, choice: DeadLetterFilter, most: int) -> list[DlqMessage]:
    low = queue.min_offset
    if choice == DeadLetterFilter():  # without conditions, the wanted letters are at the queue's end: skip older ones
        low = max(low, queue.max_offset - most)
        while low > queue.min_offset and queue.max_offset - low - queue.settled.count(low, queue.max_offset) < most:
            low = max(queue.min_offset, low - most)
    found: deque[DlqMessage] = deque(maxlen=most)
    async for letters in unsettled_messages(brokers.client.remoting, queue, low):
        found.extend(filter(choice.matches, letters))
    return list(found)


def _counted(group: str, queues: list[DlqQueue]) -> DeadLetterCounts:
    return DeadLetterCounts(
        group,
        sum(one.max_offset - one.min_offset for one in queues),
        sum(one.left for one in queues),
        max((one.last_stored_ms for one in queues), default=0),
        tuple(dict.fromkeys(one.queue.broker_name for one in queues)),
    )
