"""How long a member keeps the queues of a broker that is missing in the topic's route."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rmqd.consumer.rebalance.membership import MissingBrokerQueues
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC

ON_A, ON_B, ON_C = (MessageQueue(TOPIC, name, 0) for name in "abc")
HELD = [ON_A, ON_B, ON_C]


class Case:
    """A topic with a queue on each of three brokers, all reachable and in the route."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.in_route = {"a", "b", "c"}
        self.elsewhere = {"a", "b", "c"}  # in the routes of other topics
        self.reachable = {"a", "b", "c"}
        self.refreshed = 0
        routes: Any = SimpleNamespace(
            broker_names=lambda topic: sorted(self.in_route),
            endpoint=lambda queue: queue.broker_name,
            brokers=lambda: dict.fromkeys(self.elsewhere),
            refresh_soon=self._refresh,
        )
        replicas = SimpleNamespace(is_reachable=lambda name: name in self.reachable)
        self.absences = MissingBrokerQueues(cast("Any", SimpleNamespace(routes=routes, replicas=replicas)), clock)

    def kept(self, after_seconds: float = 0.0) -> set[str]:
        """The brokers whose queues are kept then."""
        self.clock.turn(after_seconds)
        return {queue.broker_name for queue in self.absences.kept_queues(TOPIC, HELD)}

    def _refresh(self) -> None:
        self.refreshed += 1


def test_queues_in_the_route_are_not_kept_as_missing(clock: ManualClock) -> None:
    case = Case(clock)
    assert not case.absences.needs_recheck
    assert (case.kept(), case.absences.needs_recheck, case.refreshed) == (set(), False, 0)


def test_queues_of_an_unreachable_broker_are_kept_for_ten_minutes(clock: ManualClock) -> None:
    """The time starts again if the broker was in the route meanwhile."""
    case = Case(clock)
    case.in_route, case.elsewhere, case.reachable = {"a"}, {"a"}, {"a", "c"}
    assert "b" in case.kept()
    assert "b" in case.kept(599.5)
    assert "b" not in case.kept(1)
    case.in_route = {"a", "b"}
    assert "b" not in case.kept()
    case.in_route = {"a"}
    assert "b" in case.kept()
    assert "b" in case.kept(599.5)


def test_queues_of_a_reachable_broker_missing_in_the_route_are_kept_briefly(clock: ManualClock) -> None:
    """Routes are refreshed for another check. After three seconds the topic counts as removed from the broker."""
    case = Case(clock)
    case.in_route = {"a", "c"}
    assert (case.kept(), case.absences.needs_recheck, case.refreshed) == ({"b"}, True, 1)
    assert (case.kept(2.9), case.absences.needs_recheck, case.refreshed) == ({"b"}, True, 1)
    assert (case.kept(0.2), case.absences.needs_recheck, case.refreshed) == (set(), False, 1)
    case.in_route = {"a", "b", "c"}
    assert case.kept() == set()
    case.in_route = {"a", "c"}
    assert (case.kept(), case.absences.needs_recheck, case.refreshed) == ({"b"}, True, 2), "the time starts again"


def test_queues_of_a_reachable_broker_in_no_route_are_kept(clock: ManualClock) -> None:
    """A restarted name server may not know it yet. One unsure broker is enough for another check."""
    case = Case(clock)
    case.in_route, case.elsewhere = {"a", "c"}, {"a", "c"}
    assert (case.kept(), case.kept(60)) == ({"b"}, {"b"})
    assert not case.absences.needs_recheck
    case.in_route = {"a"}
    assert (case.kept(), case.absences.needs_recheck) == ({"b", "c"}, True)
