"""Lite topics: names of topics and queues, counts in pop responses, and subscriptions, as in a 5.5.0 broker."""

from __future__ import annotations

import pytest

from rmqd.errors import InvalidNameError, ProtocolError
from rmqd.wire.bodies.pop_bodies import LiteSubscription, LiteSubscriptionAction, LiteSubscriptionCtlRequestBody
from rmqd.wire.lite_topic import check_lite_topic, lite_topic_queue, parent_topic_of, parse_pop_counts
from rmqd.wire.message_queue import MessageQueue

QUEUE = lite_topic_queue("lt", "la", "broker-a")


def test_the_queue_of_a_lite_topic() -> None:
    """Its name, and the parent topic of that name. Other queues of brokers have no parent topic."""
    assert MessageQueue("%LMQ%$lt$la", "broker-a", 0) == QUEUE
    assert parent_topic_of(QUEUE.topic) == "lt"
    assert [parent_topic_of(name) for name in ("lt", "%LMQ%la", "%LMQ%$lt", "%LMQ%$lt$", "%LMQ%$$la")] == [None] * 5


def test_names_that_brokers_could_not_distinguish_are_refused(subtests: pytest.Subtests) -> None:
    """Names with separators of brokers, and invalid names."""
    for name in ("", "a$b", "a,b", "a b", "a/b", "ä", "x" * 65):
        with subtests.test(name=name), pytest.raises(InvalidNameError):
            check_lite_topic(name)


def test_the_counts_of_pops() -> None:
    """The broker writes only the number for new messages, and words before it for messages that were popped before."""
    assert parse_pop_counts("0;0;0", 3) == [0, 0, 0]
    assert parse_pop_counts("0 qo0%0 1;0 qo0%1 2", 2) == [1, 2]
    assert parse_pop_counts(None, 0) == []
    for text, messages in (("0;0", 3), (None, 1), ("0 qo0%0 x", 1)):
        with pytest.raises(ProtocolError):
            parse_pop_counts(text, messages)


def test_the_body_of_a_subscription() -> None:
    """A round trip with Java's names."""
    wanted = LiteSubscription(LiteSubscriptionAction.COMPLETE_ADD, "cid1", "lg", "lt", ("la", "lb"), 5)
    body = LiteSubscriptionCtlRequestBody((wanted,))
    assert body.to_dict() == {
        "subscriptionSet": [
            {
                "action": "COMPLETE_ADD",
                "clientId": "cid1",
                "group": "lg",
                "liteTopicSet": ["la", "lb"],
                "topic": "lt",
                "version": 5,
            }
        ]
    }
    assert LiteSubscriptionCtlRequestBody.from_json(body.to_json()) == body
    with pytest.raises(ProtocolError, match="PARTIAL_ADD"):
        LiteSubscription.from_dict({**wanted.to_dict(), "action": "HALF_ADD"})
