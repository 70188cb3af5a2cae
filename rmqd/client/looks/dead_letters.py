"""The dead letters of groups: how many there are, and the newest of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.broker_errors import TopicNotExistError
from rmqd.client.api.admin import topic_configs, topic_stats
from rmqd.client.api.pull import read_part
from rmqd.client.looks.messages import Found, FoundMessage, decoded, in_order
from rmqd.errors import RmqdError
from rmqd.wire.topics import DLQ_PREFIX, dlq_topic, is_dlq_topic

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Answers, Brokers
    from rmqd.wire.bodies.stats import TopicStatsTable
    from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """How many dead letters of a group brokers hold, and when the last one came (Unix milliseconds)."""

    group: str
    messages: int
    last_stored_ms: int
    brokers: tuple[str, ...]


async def list_dead_letters(brokers: Brokers, *, namespace: str = "") -> tuple[list[DeadLetters], dict[str, RmqdError]]:
    """The groups that have dead letters, or had some, and what could not be asked."""
    remoting = brokers.client.remoting
    tables = await brokers.ask(lambda address: topic_configs(remoting, address))
    begin = DLQ_PREFIX + (f"{namespace}%" if namespace else "")
    where: dict[str, list[str]] = {}
    for broker, table in tables.by_broker.items():
        for topic in table:
            if is_dlq_topic(topic) and topic.startswith(begin):
                where.setdefault(topic, []).append(broker)

    async def ask(topic: str) -> tuple[DeadLetters, dict[str, RmqdError]]:
        found = await brokers.ask(lambda address: topic_stats(remoting, address, topic), where[topic])
        return _counted(topic, found.by_broker), {f"{topic} on {name}": why for name, why in found.errors.items()}

    parts = await asyncio.gather(*(ask(topic) for topic in sorted(where)))
    errors = {**tables.errors, **{at: why for _, failed in parts for at, why in failed.items()}}
    return [counted for counted, _ in parts], errors


async def newest_dead_letters(brokers: Brokers, group: str, most: int) -> Found:
    """The newest dead letters of a group, the oldest of them first, and what could not be asked.

    Raises RmqdError where no broker that answers has any of it.
    """
    remoting, topic = brokers.client.remoting, dlq_topic(group)
    stats = await brokers.ask(lambda address: topic_stats(remoting, address, topic))
    errors = {name: error for name, error in stats.errors.items() if not isinstance(error, TopicNotExistError)}
    if not stats.by_broker and not errors:
        raise RmqdError(f"{group} has no dead letters")
    asked = [
        (name, queue, max(ends.min_offset, ends.max_offset - most), ends.max_offset)
        for name, table in stats.by_broker.items()
        for queue, ends in table.offset_table.items()
    ]
    found, unread = in_order(await asyncio.gather(*(_read(brokers, *one) for one in asked)))
    return found[-most:], errors | unread


def _counted(topic: str, tables: Mapping[str, TopicStatsTable]) -> DeadLetters:
    ends = [one for table in tables.values() for one in table.offset_table.values()]
    return DeadLetters(
        topic.removeprefix(DLQ_PREFIX),
        sum(one.max_offset - one.min_offset for one in ends),
        max((one.last_update_timestamp for one in ends), default=0),
        tuple(tables),
    )


async def _read(brokers: Brokers, name: str, queue: MessageQueue, low: int, high: int) -> Answers[list[FoundMessage]]:
    async def question(address: str) -> list[FoundMessage]:
        found: list[FoundMessage] = []
        offset = low
        while offset < high:
            part = await read_part(brokers.client.remoting, address, queue, offset, high - offset)
            found += decoded(part.records, queue.topic, name)
            if part.next_offset <= offset:  # the queue ends here by now
                break
            offset = part.next_offset
        return found

    return await brokers.ask(question, [name])
