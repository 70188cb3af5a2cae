"""How often a member queries its group's members, and how many requests that needs."""

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


async def test_many_notifications_cause_one_rebalance_pass_a_second(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """A deployment replaces members one by one, and brokers notify all other members of each change."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        asked = len(broker.peer.got(LIST))
        for _ in range(100):
            await broker.peer.push(NOTICE, {"consumerGroup": GROUP}, oneway=True)
            await flowing.sleep(0.01)
        await broker.peer.received(LIST, asked + 1)
        assert len(broker.peer.got(LIST)) - asked <= 3, "three passes, each with one list for both topics"


async def test_a_notification_after_a_quiet_second_is_applied_at_once(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """The joining member is waiting."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        await flowing.sleep(5)
        asked = len(broker.peer.got(LIST))
        await broker.peer.push(NOTICE, {"consumerGroup": GROUP}, oneway=True)
        await broker.peer.received(LIST, asked + 1)


async def test_a_missing_topic_causes_no_rebalance_passes(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """The route table queries the topic, and reports when it exists."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing, subscriptions=[TOPIC, "missing"]) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        await flowing.sleep(5)
        asked = len(broker.peer.got(LIST))
        await flowing.sleep(5)  # the absence of requests cannot be awaited
        assert len(broker.peer.got(LIST)) - asked <= 4
        broker.create_topic("missing")
        m.client.routes.refresh_soon(["missing"])
        await eventually(lambda: ("missing", 0) in m.owned(), "it is consumed once it exists")


async def test_topics_on_the_same_brokers_share_a_list_of_members(two: Two, seen: Seen) -> None:
    """A broker's list does not depend on the topic; another broker may list other members."""
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
