"""How often a member asks who is in its group, and what it asks then."""

from __future__ import annotations

from rmqd.client.routing.route_table import REFRESH_INTERVAL_SECONDS
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually


async def test_when_members_come_the_routes_are_read_again(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """Who comes has read them just now: it waits for queues that are its own only as the topic is now."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        broker.create_topic(TOPIC, 4)
        begin = flowing.monotonic()
        await broker.gain(GROUP, "~@other")
        await eventually(lambda: m.owned() == {(TOPIC, 0), (TOPIC, 1)}, "it divides all four")
        assert flowing.monotonic() - begin < REFRESH_INTERVAL_SECONDS / 2
