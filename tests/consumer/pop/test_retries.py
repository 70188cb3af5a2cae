"""Pop retry topics of a group that returned to pull mode: the start and the end of reading them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.pop_retries import PopRetries, PopRetriesDivision
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import BrokerUnknownError
from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import pop_retry_topic, pop_retry_topic_v2, retry_topic
from tests.client.peer import Reply
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

RETRY = pop_retry_topic_v2(GROUP, TOPIC)
INVISIBLE_SECONDS = 30.0


class Case:
    """A group that pulls the topic. Its pop retry topic has `end` messages, and `done` of them are consumed."""

    def __init__(self, broker: ScriptedBroker, clock: ManualClock) -> None:
        self.clock = clock
        self.end = 0
        self.queue_id = 0
        self.done: int | None = None
        self.changes = 0
        self.beats = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.start_soon = 0
        self.modes = {TOPIC: MessageRequestMode.PULL}
        self.broker = broker
        for topic in (TOPIC, RETRY, pop_retry_topic(GROUP, TOPIC)):
            broker.create_topic(topic)
        broker.peer.on(
            RequestCode.GET_MAX_OFFSET, lambda command: Reply(ext_fields={"offset": str(self._end(command))})
        )
        broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, self._offset)
        self.client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
        self.watched: set[str] = set()
        routes = SimpleNamespace(
            watch=self.watched.add, unwatch=self.watched.discard, refresh=self.client.routes.refresh,
            queues=self.client.routes.queues, address_for=self.client.routes.address_for,
        )  # fmt: skip
        heartbeat = SimpleNamespace(send_heartbeats=self._beat, send_heartbeats_soon=self._beat_soon)
        options = SimpleNamespace(group=GROUP, subscriptions={TOPIC: "*"}, pop_invisible_time_seconds=INVISIBLE_SECONDS)
        stats = {retry_topic(GROUP): TopicStats(retry_topic(GROUP), is_retry=True)}
        self.context: Any = SimpleNamespace(
            client=SimpleNamespace(routes=routes, heartbeat=heartbeat, remoting=self.client.remoting),
            options=options, clock=clock, stats=stats, subscriptions={TOPIC: "*"}, announced_subscriptions={},
        )  # fmt: skip
        self.context.announce_subscriptions = partial(GroupContext.announce_subscriptions, cast("Any", self.context))
        self.retries = PopRetries(cast("Any", self.context))

    def is_read(self) -> bool:
        return RETRY in self.context.subscriptions

    async def round(self) -> None:
        """Let the group poll once more."""
        await self.clock.advance(10.0)
        await asyncio.sleep(0.03)

    def changed(self) -> None:
        self.changes += 1

    def _end(self, command: RemotingCommand) -> int:
        is_meant = (command.ext_fields["topic"], int(command.ext_fields["queueId"])) == (RETRY, self.queue_id)
        return self.end if is_meant else 0

    def _offset(self, command: RemotingCommand) -> Reply:
        if self.done is None or command.ext_fields["topic"] != RETRY:
            return Reply(ResponseCode.QUERY_NOT_FOUND, "not yet")
        return Reply(ext_fields={"offset": str(self.done)})

    async def _beat(self) -> None:
        self.beats += RETRY in self.context.subscriptions | self.context.announced_subscriptions
        await self.answers.wait()

    def _beat_soon(self) -> None:
        self.start_soon += 1


@pytest.fixture
async def case(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[Case]:
    """A group that polls its pop retry topics."""
    one = Case(broker, clock)
    async with running(one.retries.run(one.modes, one.changed)):
        await asyncio.sleep(0.03)
        yield one
    assert not one.watched, "no route is watched any more"
    await one.client.remoting.close()


async def test_an_empty_pop_retry_topic_is_not_read(case: Case) -> None:
    """Its first message starts the reading, after a heartbeat with the subscription."""
    for _ in range(5):
        await case.round()
    assert (case.is_read(), case.changes, case.retries.ending_topics) == (False, 0, set())
    case.end = 1
    await case.clock.advance(9.5)
    assert not case.is_read()
    await case.clock.advance(0.6)
    await eventually(case.is_read, "it is read")
    await eventually(lambda: case.changes == 1, "the queues are allocated again")
    assert (case.beats, case.watched) == (1, {RETRY})
    assert case.clock.wall() - 10 < case.context.subscriptions[RETRY].sub_version / 1000 <= case.clock.wall()
    await case.round()
    assert case.changes == 1


async def test_a_pop_retry_topic_is_not_read_until_brokers_know_the_subscription(case: Case) -> None:
    """Brokers refuse a pull without it, and a rebalance may happen before they answer."""
    case.answers.clear()
    case.end = 1
    await case.round()
    await eventually(lambda: case.beats == 1, "a heartbeat is sent")
    assert (case.is_read(), case.changes) == (False, 0)
    case.answers.set()
    await eventually(lambda: case.is_read() and case.changes == 1, "it is read, and the queues are allocated again")


async def test_a_queue_that_a_later_route_adds_is_polled(case: Case) -> None:
    """Its broker may have been unavailable, and nothing else queries the route of a topic that is not read."""
    await case.round()
    case.broker.create_topic(RETRY, 2)
    case.end, case.queue_id = 1, 1
    await case.round()
    await eventually(case.is_read, "it is read")


async def test_a_pop_retry_topic_is_read_until_it_was_empty_for_the_invisible_time(case: Case) -> None:
    """A new message restarts the time. The topic may be read again later."""
    case.end = 3
    await case.round()
    await eventually(case.is_read, "it is read")
    case.done = 3
    for _ in range(2):
        await case.round()
    case.end = 4
    await case.round()
    assert not case.retries.ending_topics
    case.done = 4
    await case.round()  # empty from here on
    await case.round()
    await case.round()
    assert (case.retries.ending_topics, case.changes) == (set(), 1)
    await case.round()
    await eventually(lambda: case.retries.ending_topics == {RETRY}, "its reading will end")
    assert case.changes == 2
    case.end = 5
    await case.round()
    assert (case.retries.ending_topics, case.is_read()) == (set(), True), (
        "a message before the end keeps the subscription"
    )
    case.done = 5
    for _ in range(5):
        await case.round()
    assert case.retries.ending_topics == {RETRY}
    assert case.retries.finish_reading(RETRY, ())
    assert (case.retries.ending_topics, case.is_read(), case.watched, case.start_soon) == (set(), False, set(), 1)
    changes = case.changes
    for _ in range(4):
        await case.round()
    assert case.changes == changes
    case.end = 6
    await case.round()
    await eventually(case.is_read, "it is read again")


async def test_a_group_that_pops_again_stops_reading_the_pop_retry_topic(case: Case) -> None:
    """The topic may still have messages."""
    case.end = 3
    await case.round()
    await eventually(case.is_read, "it is read")
    case.modes[TOPIC] = MessageRequestMode.POP
    await case.round()
    assert (case.retries.ending_topics, case.changes) == ({RETRY}, 2)


def away(queue: MessageQueue) -> str:
    raise BrokerUnknownError(queue.topic, queue.broker_name)


async def test_an_unknown_end_offset_changes_nothing(case: Case, broker: ScriptedBroker) -> None:
    """A broker that fails, or whose address is unknown, may still have messages."""
    case.end = 3
    await case.round()
    await eventually(case.is_read, "it is read")
    broker.peer.on(RequestCode.GET_MAX_OFFSET, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    for _ in range(5):
        await case.round()
    case.context.client.routes.address_for = away
    for _ in range(5):
        await case.round()
    assert (case.retries.ending_topics, case.is_read(), case.changes) == (set(), True, 1)


async def test_each_broker_is_queried_until_it_returns_the_groups_modes(case: Case) -> None:
    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    modes = {topic: {GROUP: {"topic": topic, "consumerGroup": GROUP}} for topic in (TOPIC, "another")}
    answers = [Reply(body=json.dumps({"messageRequestModeMap": modes}).encode()), Reply(ResponseCode.SYSTEM_ERROR)]
    case.broker.peer.on(code, lambda _: answers.pop())
    case.context.brokers = lambda: {"a": case.broker.peer.address}
    division = PopRetriesDivision(case.context)
    async with running(division._ask_brokers()):
        await case.broker.peer.received(code)
        await case.clock.advance(10.0)
        await eventually(lambda: division._modes, "the second answer is here")
        await case.round()
    assert (set(division._modes), len(case.broker.peer.got(code))) == ({TOPIC}, 2)
