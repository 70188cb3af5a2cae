"""How often a member asks who is in its group, and what it asks then."""

from __future__ import annotations

from rmqd.codes import RequestCode
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP
NOTICE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def test_many_notices_bring_one_pass_a_second(broker: ScriptedBroker, seen: Seen, flowing: ManualClock) -> None:
    """A deployment replaces members one by one, and brokers tell every other one of each change."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        asked = len(broker.peer.got(LIST))
        for _ in range(100):
            await broker.peer.push(NOTICE, {"consumerGroup": GROUP}, oneway=True)
            await flowing.sleep(0.01)
        await broker.peer.received(LIST, asked + 1)
        assert len(broker.peer.got(LIST)) - asked <= 3, "three passes, each with one list for both topics"


async def test_a_notice_after_a_quiet_second_is_obeyed_at_once(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """It need not wait for anything: who joins is waiting."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        await flowing.sleep(5)
        asked = len(broker.peer.got(LIST))
        await broker.peer.push(NOTICE, {"consumerGroup": GROUP}, oneway=True)
        await broker.peer.received(LIST, asked + 1)


async def test_a_topic_that_does_not_exist_brings_no_passes(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """The route table looks for it, and tells when it is there."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing, subscriptions=[TOPIC, "missing"]) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        await flowing.sleep(5)
        asked = len(broker.peer.got(LIST))
        await flowing.sleep(5)  # what must not happen has no end that could be awaited
        assert len(broker.peer.got(LIST)) - asked <= 4
        broker.create_topic("missing")
        m.client.routes.refresh_soon(["missing"])
        await eventually(lambda: ("missing", 0) in m.owned(), "it is consumed once it is there")


async def test_topics_on_the_same_brokers_share_a_list_of_members(two: Two, seen: Seen) -> None:
    """A broker lists a group's members whatever their topics; another broker may list others."""
    two.route(two.a, topics=("alone",))
    async with two.member(seen, subscriptions=[TOPIC, "alone"], clock=(clock := ManualClock())) as m:
        await clock.until(lambda: m.owned() == {(TOPIC, 0), ("alone", 0)}, "it runs")
        await clock.advance(5)
        asked = [len(one.peer.got(LIST)) for one in (two.a, two.b)]
        m.consumer.on_consumer_ids_changed()
        await clock.advance(1)
    now = [len(one.peer.got(LIST)) for one in (two.a, two.b)]
    assert sum(now) - sum(asked) == 2, "one for the two topics on both brokers, and one for the topic on the first"
    assert now[0] > asked[0]
