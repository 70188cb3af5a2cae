"""Notifications of lite topics, also for members that do not pop or do not renew their subscription."""

from __future__ import annotations

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.consumer_registry import SubscriptionGroupManager
from rmqd.broker.pop.lite_topics import EXPIRE_SECONDS, INACTIVE_SECONDS, LiteSubscriptions
from rmqd.broker.store.journal import NoJournal
from rmqd.wire.lite_topic import lite_topic_queue
from tests.clock import ManualClock

QUEUES = [lite_topic_queue("chats", f"n{number}", "b").topic for number in range(30)]


class Case:
    """Two members of a group with the same lite topics."""

    def __init__(self) -> None:
        self.now = 100.0
        self.woken: list[tuple[str, str]] = []
        groups = SubscriptionGroupManager(BrokerSettings(), ManualClock(), NoJournal())
        self.lite = LiteSubscriptions(groups, lambda: self.now, lambda _: (), lambda *who: self.woken.append(who))
        for client in "cd":
            self.lite.replace(client, "g", "chats", QUEUES)

    def tell_all(self) -> None:
        for queue in QUEUES:
            self.lite.notify(queue)


@pytest.fixture
def case() -> Case:
    return Case()


def test_one_member_is_notified_of_each_lite_topic(case: Case) -> None:
    case.tell_all()
    of_c, of_d = list(case.lite.take_notified_queues("c")), list(case.lite.take_notified_queues("d"))
    assert sorted(of_c + of_d) == sorted(QUEUES)
    assert of_c
    assert of_d
    assert sorted(case.woken) == [("c", "g")] * len(of_c) + [("d", "g")] * len(of_d)
    assert list(case.lite.take_notified_queues("c")) == []


def test_notifications_of_an_inactive_member_pass_to_another_member(case: Case) -> None:
    case.tell_all()
    case.now += INACTIVE_SECONDS + 1
    of_d = list(case.lite.take_notified_queues("d"))
    case.lite.expire()
    assert sorted(of_d + list(case.lite.take_notified_queues("d"))) == sorted(QUEUES)
    case.tell_all()
    assert list(case.lite.take_notified_queues("c")) == []


def test_a_subscription_expires_if_it_is_not_renewed(case: Case) -> None:
    case.now += EXPIRE_SECONDS - 1
    case.lite.replace("d", "g", "chats", QUEUES)
    case.now += 2
    case.lite.expire()
    case.tell_all()
    assert list(case.lite.take_notified_queues("c")) == []
    assert sorted(case.lite.take_notified_queues("d")) == sorted(QUEUES)
