"""Messages that a diagnosis names: the first waiting message of a stalled queue, and the last retried ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rmqd.client.api.admin import topic_stats
from rmqd.client.api.pull import read_part
from rmqd.client.looks.messages import FoundMessage, decoded
from rmqd.diagnosis.facts import SeenMessage
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.brokers import Brokers
    from rmqd.diagnosis.facts import Look

MOST_HEADS: Final = 8
MOST_RETRIED: Final = 32


async def first_waiting(
    client: ClientInstance, look: Look, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, SeenMessage]:
    """Return the first waiting message of each of the first eight queues, if it can be read."""
    asked = list(queues)[:MOST_HEADS]
    found = await asyncio.gather(*(_first(client, queue, look.place(queue) or 0) for queue in asked))
    return {queue: one for queue, one in zip(asked, found, strict=True) if one is not None}


async def _first(client: ClientInstance, queue: MessageQueue, offset: int) -> SeenMessage | None:
    address = client.routes.address(client.routes.endpoint(queue))
    if address is None:
        return None
    try:
        part = await read_part(client.remoting, address, queue, offset, 1)
        messages = list(decoded(part.records, queue.topic, queue.broker_name))
    except RmqdError:
        return None
    return _seen(messages[0]) if messages else None


async def newest_retried(brokers: Brokers, look: Look) -> tuple[SeenMessage, ...]:
    """Return the newest messages of the group's retry topic; none unless a member reports recent failures."""
    infos = [member.info for member in look.members.values() if member.info is not None]
    if not any(one.consume_failed_tps for info in infos for one in info.status_table.values()):
        return ()
    remoting, topic = brokers.client.remoting, retry_topic(look.group)

    async def question(address: str) -> list[FoundMessage]:
        found: list[FoundMessage] = []
        for queue, ends in (await topic_stats(remoting, address, topic)).offset_table.items():
            low = max(ends.min_offset, ends.max_offset - MOST_RETRIED)
            part = await read_part(remoting, address, queue, low, MOST_RETRIED)
            found += decoded(part.records, topic, queue.broker_name)
        return found

    answers = await brokers.ask(question)
    return tuple(_seen(one) for messages in answers.by_broker.values() for one in messages)


def _seen(message: FoundMessage) -> SeenMessage:
    return SeenMessage(
        msg_id=message.msg_id,
        queue=MessageQueue(message.topic, message.broker, message.queue),
        offset=message.offset,
        keys=message.keys,
        reconsume_times=message.reconsume_times,
        stored_at=message.stored_at_ms / 1000,
    )
