"""When a member refreshes the routes."""

from __future__ import annotations

from rmqd.client.routing.route_table import REFRESH_INTERVAL_SECONDS
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually


async def test_routes_are_refreshed_when_a_member_joins(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """The new member has just read them, and waits for queues that it owns only under the current route."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        broker.create_topic(TOPIC, 4)
        begin = flowing.monotonic()
        await broker.gain(GROUP, "~@other")
        await eventually(lambda: m.owned() == {(TOPIC, 0), (TOPIC, 1)}, "it divides all four")
        assert flowing.monotonic() - begin < REFRESH_INTERVAL_SECONDS / 2
