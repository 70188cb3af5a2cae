"""Groups with dead letters, their counts, and the newest letters of a group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rmqd.client.api.admin import topic_configs
from rmqd.client.looks.brokers import Brokers
from rmqd.consumer.dead_letters.choice import Choice
from rmqd.consumer.dead_letters.letter import Letter
from rmqd.consumer.dead_letters.marks import Marks
from rmqd.consumer.dead_letters.reading import LetterQueue, letter_queues, letters_left
from rmqd.errors import RmqdError
from rmqd.wire.topics import DLQ_PREFIX, is_dlq_topic


@dataclass(frozen=True, slots=True)
class NewestLetters:
    """The newest letters, in the order of their storage. `has_more` means that older letters match too."""

    letters: list[Letter]
    has_more: bool


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The counts of a group's dead letters at the brokers, and when the last one was stored (Unix ms).

    Letters that are not left were replayed or purged.
    """

    group: str
    messages: int
    left: int
    last_stored_ms: int
    brokers: tuple[str, ...]


async def list_dead_letters(
    brokers: Brokers, marks_of: Callable[[str], Marks], *, namespace: str = ""
) -> tuple[list[DeadLetters], dict[str, RmqdError]]:
    """Return the groups that have or had dead letters, and the errors of failed queries. Raises RmqdError."""
    remoting = brokers.client.remoting
    tables = await brokers.ask(lambda address: topic_configs(remoting, address))
    begin = DLQ_PREFIX + (f"{namespace}%" if namespace else "")
    where: dict[str, list[str]] = {}
    for broker, table in tables.by_broker.items():
        for topic in table:
            if is_dlq_topic(topic) and topic.startswith(begin):
                where.setdefault(topic.removeprefix(DLQ_PREFIX), []).append(broker)
    groups = sorted(where)
    parts = await asyncio.gather(*(letter_queues(brokers, group, marks_of(group), where[group]) for group in groups))
    errors = dict(tables.errors)
    for group, (_, failed) in zip(groups, parts, strict=True):
        errors |= {f"{DLQ_PREFIX}{group} on {name}": why for name, why in failed.items()}
    return [_counted(group, queues) for group, (queues, _) in zip(groups, parts, strict=True)], errors


async def newest_letters(
    brokers: Brokers, group: str, marks: Marks | None, choice: Choice, most: int
) -> tuple[NewestLetters, dict[str, RmqdError]]:
    """Return the newest letters that are left and chosen, and the errors of failed queries.

    Without `marks`, settled letters are included.
    Raises RmqdError if no responding broker has dead letters of the group.
    """
    queues, errors = await letter_queues(brokers, group, marks)
    if not queues and not errors:
        raise RmqdError(f"{group} has no dead letters; run `rmqd dlq list` to see the groups that have some")
    one_more = most + 1
    read = await asyncio.gather(
        *(_newest(brokers, queue, choice, one_more) for queue in queues), return_exceptions=True
    )
    found: list[Letter] = []
    for queue, answer in zip(queues, read, strict=True):
        if isinstance(answer, RmqdError):
            errors[queue.queue.broker_name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += answer
    found.sort(key=lambda one: one.message.store_timestamp)
    return NewestLetters(found[-most:], len(found) > most), errors


async def _newest(brokers: Brokers, queue: LetterQueue, choice: Choice, most: int) -> list[Letter]:
    low = queue.min_offset
    if choice == Choice():  # if all letters are chosen, the newest are at the end, so skip the rest
        low = max(low, queue.max_offset - most)
        while low > queue.min_offset and queue.max_offset - low - queue.settled.count(low, queue.max_offset) < most:
            low = max(queue.min_offset, low - most)
    found: deque[Letter] = deque(maxlen=most)
    async for letters in letters_left(brokers.client.remoting, queue, low):
        found.extend(filter(choice.takes, letters))
    return list(found)


def _counted(group: str, queues: list[LetterQueue]) -> DeadLetters:
    return DeadLetters(
        group,
        sum(one.max_offset - one.min_offset for one in queues),
        sum(one.left for one in queues),
        max((one.last_stored_ms for one in queues), default=0),
        tuple(dict.fromkeys(one.queue.broker_name for one in queues)),
    )
