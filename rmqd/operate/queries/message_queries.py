"""Queries for single messages by id or key, for their progress in groups, and for messages as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rmqd.client.api.admin_requests import query_message, topic_configs, topic_consumers, view_message
from rmqd.client.api.offset_requests import get_max_offset, query_consumer_offset, search_offset
from rmqd.client.api.pull_requests import read_records
from rmqd.client.brokers import BrokerResponses, Brokers
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.consumer.handling.send_back import RMQD_REASON
from rmqd.errors import ProtocolError, RmqdError
from rmqd.operate.queries.topic_queries import MAX_AT_ONCE, matches
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.message_id import parse_offset_message_id
from rmqd.wire.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmqd.wire.trace import TraceEvent, trace_events

_NO_QUEUE: Final = -1
"""A placeholder for the queue id, because each record contains its queue id."""
MAX_COPIES: Final = 32


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message as a broker stores it. Times are Unix milliseconds, hosts are `ip:port`; `body` is decompressed."""

    topic: str
    broker: str
    queue: int
    offset: int
    msg_id: str
    offset_msg_id: str
    keys: str | None
    tags: str | None
    born_at_ms: int
    stored_at_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    properties: Mapping[str, str]
    body: bytes


MessagesAndErrors = tuple[list[FoundMessage], dict[str, RmqdError]]


async def find_by_id(brokers: Brokers, msg_id: str, topic: str | None = None) -> MessagesAndErrors:
    """Return all copies of a message in `topic`, and the errors of failed queries by broker name.

    None searches all topics, including retry and DLQ topics. An offset id contains a broker's address and a commit log
    offset, so only that broker is asked. Brokers find other ids in their index, some moments after a message arrived.
    """
    if (stored := await _find_stored(brokers, msg_id)) is not None:
        return stored
    if topic is not None:
        return await _query(brokers, dict.fromkeys(brokers.masters, (topic,)), msg_id, unique=True)
    tables = await brokers.request_masters(topic_configs)
    where = {
        name: tuple(topic for topic in table if not is_system_topic(topic)) for name, table in tables.found.items()
    }
    found, errors = await _query(brokers, where, msg_id, unique=True)
    return found, {**tables.errors, **errors}


async def find_by_key(brokers: Brokers, topic: str, key: str, *, most: int = MAX_COPIES) -> MessagesAndErrors:
    """Return a topic's messages with a key, the newest `most` of each broker, ordered by store time, and the errors."""
    return await _query(brokers, dict.fromkeys(brokers.masters, (topic,)), key, unique=False, most=most)


async def _find_stored(brokers: Brokers, msg_id: str) -> MessagesAndErrors | None:
    """Return the message with an offset id; None if the id is not an offset id, or its broker is in another cluster."""
    try:
        place = parse_offset_message_id(msg_id.partition("-")[0])  # messages in a stored batch have a suffix
    except ProtocolError:
        return None
    if (name := brokers.names.get(place.address)) is None:
        return None
    try:
        record = await view_message(brokers.client.remoting, place.address, place.commit_log_offset)
        return ([] if record is None else list(decoded(record, "", name))), {}
    except RmqdError as error:
        return [], {name: error}


async def _query(
    brokers: Brokers, where: Mapping[str, Iterable[str]], key: str, *, unique: bool, most: int = MAX_COPIES
) -> MessagesAndErrors:
    async def ask(name: str, topic: str) -> BrokerResponses[str, list[FoundMessage]]:
        async def question(remoting: RemotingClient, address: str) -> list[FoundMessage]:
            records = await query_message(remoting, address, topic, key, max_messages=most, unique=unique)
            return [one for one in decoded(records, topic, name) if _has(one, key, unique=unique)]

        return await brokers.request_masters(question, names=[name])

    parts = await asyncio.gather(*(ask(name, topic) for name, topics in where.items() for topic in topics))
    found = [one for part in parts for messages in part.found.values() for one in messages]
    errors = {name: error for part in parts for name, error in part.errors.items()}
    return sorted(found, key=lambda one: one.stored_at_ms), errors


def _has(message: FoundMessage, key: str, *, unique: bool) -> bool:
    """Return whether a message really has the key or id. Brokers search by hash, which other keys may share."""
    return message.msg_id == key if unique else key in (message.keys or "").split()


def decoded(records: bytes, topic: str, broker: str) -> Iterable[FoundMessage]:
    """Yield the messages in a broker's response, including corrupt messages. Raises ProtocolError."""
    block = decode_messages(records, MessageQueue(topic, broker, _NO_QUEUE))
    messages = [*block.messages, *(corrupt.message for corrupt in block.corrupt)]
    yield from (found_message(message, broker) for message in messages)


def found_message(message: Message, broker: str) -> FoundMessage:
    """Convert a decoded message of a broker to a FoundMessage."""
    return FoundMessage(
        message.record_topic,
        broker,
        message.stored_queue_id,
        message.queue_offset,
        message.msg_id,
        message.offset_msg_id,
        message.keys,
        message.tags,
        message.born_timestamp,
        message.store_timestamp,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.stored_properties,
        message.body,
    )


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """A group's progress with a message, and where the newest copy is: the original, a retry or a dead letter.

    `committed` is the group's offset in that copy's queue, or None. `attempts` counts finished handler calls.
    """

    group: str
    state: str
    """`passed`: the group committed past the copy; `waiting`: it did not; `dead_lettered`; `unknown`: no response."""
    topic: str
    broker: str
    queue: int
    offset: int
    committed: int | None
    attempts: int
    reason: str
    """Why rmqd dead-lettered the message; empty if it is not a dead letter, or another client did."""


@dataclass(frozen=True, slots=True)
class MessageTraceReport:
    """The copies of one message, the progress of each group, and the events of RocketMQ's message trace."""

    msg_id: str
    copies: tuple[FoundMessage, ...]
    groups: tuple[GroupTrace, ...]
    events: tuple[TraceEvent, ...]


async def trace_message(
    brokers: Brokers, msg_id: str, trace_topic: str
) -> tuple[MessageTraceReport, dict[str, RmqdError]]:
    """Return the copies, groups and trace events of a message, and the errors of failed queries."""
    copies, errors = await find_by_id(brokers, msg_id)
    if copies and copies[0].msg_id != msg_id:  # `msg_id` is an offset id, which only this copy has
        copies, errors = await find_by_id(brokers, copies[0].msg_id)
    ids = {msg_id, *(one.msg_id for one in copies)}
    topics = {one.topic for one in copies if not one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))}
    readers = await asyncio.gather(*(brokers.request_masters(topic_consumers, one) for one in topics))
    names = {name for part in readers for found in part.found.values() for name in found}
    names |= {one.topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX) for one in copies} - topics
    errors |= {name: error for part in readers for name, error in part.errors.items()}
    groups = await asyncio.gather(*(_traced(brokers, name, copies, errors) for name in sorted(names)))
    traces = await asyncio.gather(*(find_by_key(brokers, trace_topic, one) for one in ids))
    records = {
        replace(event, client=one.born_host) for found, _ in traces for one in found for event in trace_events(one.body)
    }
    events = _calls_once([event for event in records if event.msg_id in ids])
    return MessageTraceReport(msg_id, tuple(copies), tuple(filter(None, groups)), events), errors


def _calls_once(records: Iterable[TraceEvent]) -> tuple[TraceEvent, ...]:
    """Return the trace events by time. The two events of an ended handler call become one, at the call's start time."""
    begins = {(event.request_id, event.msg_id): event for event in records if event.kind == "begun"}
    events = []
    for event in records:
        if event.kind == "handled" and (begin := begins.pop((event.request_id, event.msg_id), None)) is not None:
            events.append(replace(event, at_ms=begin.at_ms, group=begin.group, attempt=begin.attempt))
        elif event.kind != "begun":
            events.append(event)
    return tuple(sorted((*events, *begins.values()), key=lambda event: event.at_ms))


async def _traced(
    brokers: Brokers, group: str, copies: Sequence[FoundMessage], errors: dict[str, RmqdError]
) -> GroupTrace | None:
    """Return a group's progress with a message; None if no copy is for this group. Adds errors to `errors`."""
    retry, dead = RETRY_PREFIX + group, DLQ_PREFIX + group
    own = [one for one in copies if one.topic in (retry, dead) or not one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    if not own:
        return None
    newest = max(own, key=lambda one: (one.topic == dead, one.topic == retry, one.stored_at_ms))
    queue, committed, reason = MessageQueue(newest.topic, newest.broker, newest.queue), None, ""
    if newest.topic == dead:
        state, reason = "dead_lettered", newest.properties.get(RMQD_REASON, "")
    else:
        answers = await brokers.request_for_queues(
            [queue], lambda address, queue: query_consumer_offset(brokers.client.remoting, address, group, queue)
        )
        errors |= {one.broker_name: error for one, error in answers.errors.items()}
        committed = answers.found.get(queue)
        state = "unknown" if answers.errors else "waiting"
        if committed is not None and committed > newest.offset:
            state = "passed"
    attempts = newest.reconsume_times + (state in ("passed", "dead_lettered"))
    return GroupTrace(
        group, state, newest.topic, newest.broker, newest.queue, newest.offset, committed, attempts, reason
    )


HOLD_SECONDS: Final = 10.0  # how long a broker holds a pull without messages
AGAIN_SECONDS: Final = 1.0

OnReadError = Callable[[str, RmqdError], None]


async def follow(
    client: ClientInstance,
    subscription: SubscriptionData,
    on_message: Callable[[FoundMessage], None],
    complain: OnReadError,
    *,
    since_ms: int | None = None,
    most: int | None = None,
) -> None:
    """Call `on_message` for each arriving message that matches, until `most` messages or until cancelled.

    It starts at the queues' ends, or with messages stored at `since_ms` (Unix milliseconds). If a queue cannot be read,
    `complain` is called once, and the read is retried every second. Queues that are added later are not read. Raises
    RmqdError if the topic's route, or a queue's start offset, cannot be read.
    """
    await client.routes.lookup(subscription.topic)
    queues = client.routes.queues(subscription.topic)
    starts = await asyncio.gather(*(_start(client, queue, since_ms) for queue in queues))
    came: asyncio.Queue[FoundMessage] = asyncio.Queue(MAX_AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        followed = [
            tasks.create_task(_follow_queue(client, queue, start, subscription, came, complain))
            for queue, start in zip(queues, starts, strict=True)
        ]
        told = 0
        while most is None or told < most:
            on_message(await came.get())
            told += 1
        for task in followed:
            task.cancel()


async def _start(client: ClientInstance, queue: MessageQueue, since_ms: int | None) -> int:
    address = client.routes.address_for(queue)
    if since_ms is None:
        return await get_max_offset(client.remoting, address, queue)
    return await search_offset(client.remoting, address, queue, since_ms)


async def _follow_queue(
    client: ClientInstance,
    queue: MessageQueue,
    offset: int,
    subscription: SubscriptionData,
    came: asyncio.Queue[FoundMessage],
    complain: OnReadError,
) -> None:
    is_reported = False
    while True:
        try:
            part = await read_records(
                client.remoting, client.routes.address_for(queue), queue, offset, MAX_AT_ONCE,
                subscription=subscription, hold_seconds=HOLD_SECONDS,
            )  # fmt: skip
            found = list(decoded(part.records, queue.topic, queue.broker_name))
            is_reported = False
        except RmqdError as error:
            if not is_reported:
                complain(str(queue), error)
                is_reported = True
            await client.clock.sleep(AGAIN_SECONDS)
            continue
        for message in found:
            if message.offset >= offset and matches(message.tags, subscription):
                await came.put(message)
        offset = part.next_offset
